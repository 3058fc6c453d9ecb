"""What `chat` is asked: from its options, from files, and from standard input."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import PATH, gathered

if TYPE_CHECKING:
    from ..text.template import Message

_LARGEST = 4 << 20  # bytes of a file: a million tokens, about
_PATIENCE = 3.0  # seconds after which a user is told what is waited for


@dataclass(frozen=True, slots=True)
class Asking:
    """A prompt, what comes before it, and where the answer stops."""

    prompt: str | None
    files: tuple[Path, ...]
    system: str
    system_file: Path | None
    stop: tuple[str, ...]

    def question(self) -> str | None:
        """What to answer: the files, then standard input, then the prompt; None to converse.

        Raises:
            OptionError: a file that cannot be read or is no text.
            click.UsageError: nothing was asked.
        """
        piped = sys.stdin is None or not sys.stdin.isatty()
        if self.prompt is None and not self.files and not piped:
            return None
        before = [_file(path) for path in self.files]
        if piped:
            before.append(_standard_input())
        parts = [part for part in (*before, _utf8("-p", self.prompt or "")) if part.strip()]
        if not parts:
            raise click.UsageError("nothing was asked: give a question with -p, in a file with -f, or through a pipe")
        return parts[0] if len(parts) == 1 else "\n\n".join(part.strip("\n") for part in parts)

    def preamble(self) -> str:
        """The system message. Raises as `question`."""
        if self.system and self.system_file is not None:
            raise click.UsageError("--system and --system-file are two system messages; give one of them")
        return _file(self.system_file) if self.system_file is not None else _utf8("--system", self.system)

    def messages(self, question: str) -> list[Message]:
        """The system message, if there is one, and the question."""
        system = self.preamble()
        first = [{"role": "system", "content": system}] if system else []
        return [*first, {"role": "user", "content": question}]


asking = gathered(
    Asking,
    "asking",
    click.option(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="Answer this and leave; a pipe does the same. With both, the pipe's text comes before it",
    ),
    click.option(
        "-f",
        "--file",
        "files",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help="Text that comes before the prompt and the pipe's text; may be given again",
    ),
    click.option("--system", default="", metavar="TEXT", help="What the model is told first"),
    click.option("--system-file", type=PATH, metavar="FILE", help="The same from a file"),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be given again"),
)


def _file(path: Path) -> str:
    from ..errors import OptionError  # noqa: PLC0415
    from ..storage.files import regular  # noqa: PLC0415

    try:
        with regular(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise OptionError(
            f"{path} cannot be read: {error.strerror}; give a file of text, or pipe the text into standard input"
        ) from error
    return _text(data, str(path))


def _standard_input() -> str:
    """All of it; nothing where it is closed."""
    from ..errors import OptionError  # noqa: PLC0415

    if sys.stdin is None:
        return ""
    try:
        with _patience():
            data = sys.stdin.buffer.read(_LARGEST + 1)
    except OSError as error:
        raise OptionError(f"standard input cannot be read: {error.strerror}; </dev/null gives none") from error
    return _text(data, "standard input")


@contextmanager
def _patience() -> Iterator[None]:
    """Say on a terminal what is waited for, if that takes long: a pipe may be open for ever."""
    said = "(waiting for the end of standard input; Ctrl-C gives up, and </dev/null gives none)"
    timer = threading.Timer(_PATIENCE, click.echo, [said], {"err": True})
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _text(data: bytes, name: str) -> str:
    from ..errors import OptionError  # noqa: PLC0415

    if len(data) > _LARGEST:
        raise OptionError(f"{name} has more than {_LARGEST >> 20} MB, which no context holds; give a part of it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OptionError(f"{name} is not text in UTF-8 (byte {error.start}); convert it, or give a text") from error
    if "\0" in text:
        raise OptionError(f"{name} is binary, not text: it has a NUL character; give a file of text")
    return text


def _utf8(name: str, text: str) -> str:
    """`text` of the command line, where bytes that are not UTF-8 stand as surrogates."""
    from ..errors import OptionError  # noqa: PLC0415

    if any("\ud800" <= character <= "\udfff" for character in text):
        raise OptionError(f"{name} is not text in UTF-8; convert it, or check the locale")
    return text
