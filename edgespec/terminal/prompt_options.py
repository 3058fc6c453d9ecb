"""The prompt of `chat`: from its options, from files, and from standard input."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..text.think import THINK
from .grammar_file import chosen_grammar
from .options import PATH, grouped_options
from .text_files import LARGEST, decoded, text_of
from .thoughts import THOUGHTS

if TYPE_CHECKING:
    from ..grammar import Grammar
    from ..text.template import Message

_NOTICE_AFTER = 3.0  # seconds of waiting for standard input after which a notice is printed


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """The prompt, the files and the system message before it, the texts that end the answer, and its reasoning."""

    prompt: str | None
    files: tuple[Path, ...]
    system: str
    system_file: Path | None
    resume: Path | None
    stop: tuple[str, ...]
    think: str
    thoughts: str | None
    json_schema: Path | None
    grammar_file: Path | None
    json_object: bool

    def grammar(self) -> Grammar | None:
        """What the answer may be; None for any text. Raises as `chosen_grammar`."""
        return chosen_grammar(self.json_schema, self.grammar_file, json_object=self.json_object)

    def question(self) -> str | None:
        """The files, then standard input, then the prompt, each without line breaks at its ends; None for a chat.

        Raises:
            OptionError: a file cannot be read or is not text.
            click.UsageError: the prompt is empty.
        """
        piped = sys.stdin is None or not sys.stdin.isatty()
        if self.prompt is None and not self.files and not piped:
            return None
        before = [text_of(path) for path in self.files]
        if piped:
            before.append(_standard_input())
        parts = [part for part in (*before, _utf8("-p", self.prompt or "")) if part.strip()]
        if not parts:
            raise click.UsageError("the prompt is empty: give a question with -p, in a file with -f, or through a pipe")
        return "\n\n".join(part.strip("\n") for part in parts)

    def preamble(self) -> str:
        """The system message. Raises as `question`."""
        if self.system and self.system_file is not None:
            raise click.UsageError("--system and --system-file exclude each other; give one of them")
        return text_of(self.system_file) if self.system_file is not None else _utf8("--system", self.system)

    def messages(self, question: str) -> list[Message]:
        """The messages of a chat: the system message, if there is one, and the question."""
        system = self.preamble()
        first = [{"role": "system", "content": system}] if system else []
        return [*first, {"role": "user", "content": question}]


prompt_options = grouped_options(
    PromptOptions,
    "prompt_options",
    click.option(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="Answer this prompt and exit; piped input does the same. With both, the piped text comes first",
    ),
    click.option(
        "-f",
        "--file",
        "files",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help="Text before the piped text and the prompt; may be repeated",
    ),
    click.option("--system", default="", metavar="TEXT", help="The system message"),
    click.option("--system-file", type=PATH, metavar="FILE", help="A file with the system message"),
    click.option(
        "--resume",
        type=PATH,
        metavar="FILE",
        help="Go on with the conversation saved in this file, or begin one, and save it there after each answer",
    ),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be repeated"),
    click.option(
        "--think",
        type=click.Choice(THINK),
        default="auto",
        show_default=True,
        help="How a thinking model thinks; auto is the default of its chat template",
    ),
    click.option(
        "--thoughts",
        type=click.Choice(THOUGHTS),
        help="Thoughts before the answer: show them dimmed, fold them into a line, or hide them "
        "[default: show on a terminal, else hide]",
    ),
    click.option("--json-schema", type=PATH, metavar="FILE", help="Answer with JSON by the JSON Schema in this file"),
    click.option(
        "--grammar",
        "grammar_file",
        type=PATH,
        metavar="FILE",
        help="Answer by the grammar in this file, in the syntax of llguidance (.lark) or of llama.cpp (.gbnf)",
    ),
    click.option("--json-object", is_flag=True, help="Answer with a JSON object"),
)


def _standard_input() -> str:
    """The text of standard input; empty where it is closed."""
    from ..errors import OptionError  # noqa: PLC0415

    if sys.stdin is None:
        return ""
    try:
        with _notice_of_waiting():
            data = sys.stdin.buffer.read(LARGEST + 1)
    except OSError as error:
        raise OptionError(f"standard input cannot be read: {error.strerror}; </dev/null gives none") from error
    return decoded(data, "standard input")


@contextmanager
def _notice_of_waiting() -> Iterator[None]:
    """Print a notice on a terminal if the block takes long: a pipe may stay open forever."""
    notice = "(waiting for the end of standard input; Ctrl-C aborts, and </dev/null gives an empty input)"
    timer = threading.Timer(_NOTICE_AFTER, click.echo, [notice], {"err": True})
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _utf8(name: str, text: str) -> str:
    """`text` of the command line; OptionError if it has surrogates, which stand for bytes that are not UTF-8."""
    from ..errors import OptionError  # noqa: PLC0415

    if any("\ud800" <= character <= "\udfff" for character in text):
        raise OptionError(f"{name} is not text in UTF-8; convert it, or check the locale")
    return text
