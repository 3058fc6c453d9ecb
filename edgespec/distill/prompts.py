"""What the target is asked, and which prompts are held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..backends import fingerprint
from ..errors import OptionError, TemplateError
from ..runtime.earlier_texts import EarlierTexts
from ..runtime.runtime import Runtime
from ..storage.files import regular
from ..terminal.check_report import parsed, prompt_tokens

_TENTH = 10
_SUITES = ("demo.jsonl", "replay.jsonl")


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt, and whether its answers measure acceptance and are not trained on."""

    tokens: tuple[int, ...]
    held_out: bool


@dataclass(frozen=True, slots=True)
class Source:
    """A text or a dialogue that prompts are made of: {"prompt": ...} or {"messages": [...]}.

    A dialogue makes a prompt of each turn of its user, after the true turns before it. All of them are held out, or
    none: they share text.
    """

    asked: Mapping[str, Any]

    @property
    def held_out(self) -> bool:
        """By a hash, so that it does not depend on the order or the number of prompts."""
        return is_held_out(json.dumps(self.asked, sort_keys=True, ensure_ascii=False))

    def prompts(self, runtime: Runtime) -> Iterator[Prompt]:
        """Raises TemplateError if the chat template refuses a message."""
        for asked in self._parts():
            yield Prompt(tuple(prompt_tokens(asked, runtime)), self.held_out)

    def _parts(self) -> Iterator[dict[str, Any]]:
        messages = self.asked.get("messages")
        if messages is None:
            yield dict(self.asked)
            return
        turns = [i for i, message in enumerate(messages) if message.get("role") == "user"] or [len(messages) - 1]
        for i in turns:
            yield {"messages": messages[: i + 1]}


def is_held_out(text: str) -> bool:
    """Whether a prompt made of `text` is held out: every tenth is."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little") % _TENTH == 0


def of_files(files: Sequence[Path]) -> list[Source]:
    """The sources in `files`: JSON lines, as `edgespec check` reads them, if the name ends in .jsonl; else one question
    to the model on each line. Without files the bundled ones.

    Raises:
        OptionError: a file cannot be read, or has no prompts.
    """
    return [source for file in files for source in _of_file(file)] if files else _bundled()


def _of_file(file: Path) -> Iterator[Source]:
    if file.suffix.lower() == ".jsonl":
        yield from (Source(asked) for _, asked in parsed(file))
        return
    try:
        lines = regular(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the prompts in {file}: {error}; give a UTF-8 file, a prompt a line") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise OptionError(f"{file} holds no prompt; expected one on each line, or JSON in a file *.jsonl")
    yield from (Source({"messages": [{"role": "user", "content": line}]}) for line in found)


def _bundled() -> list[Source]:
    """The prompts of `edgespec check`, and the first questions of the benchmark's suites."""
    sources = [Source(asked) for _, asked in parsed(None)]
    for name in _SUITES:
        text = (resources.files("edgespec.bench") / "questions" / name).read_text("utf-8")
        first = [json.loads(line)["turns"][0] for line in text.splitlines() if line.strip()]
        sources += [Source({"messages": [{"role": "user", "content": question}]}) for question in first]
    return sources


def of_earlier_texts(runtime: Runtime) -> Iterator[Prompt]:
    """The beginnings of the answers in chats that `--remember` kept: the text before each, as it was.

    An answer begins where the text has the tokens that the chat template puts between a question and its answer.
    """
    words = runtime.vocabulary
    marker = _before_answers(runtime)
    for text in EarlierTexts(fingerprint(words), words.size).texts() if marker else ():
        held_out = is_held_out(" ".join(map(str, text)))
        for end in range(len(marker), len(text)):
            if text[end - len(marker) : end] == marker:
                yield Prompt(tuple(text[:end]), held_out)


def _before_answers(runtime: Runtime) -> list[int]:
    """The tokens between a question and its answer: the common end of two prompts; empty without a chat template."""
    try:
        one, other = (runtime.prompt([{"role": "user", "content": each}]) for each in ("1", "2"))
    except TemplateError:
        return []
    same = 0
    while same < min(len(one), len(other)) and one[-1 - same] == other[-1 - same]:
        same += 1
    return one[len(one) - same :]


def chosen(prompts: Iterable[Prompt], longest: int) -> list[Prompt]:
    """Those of at most `longest` tokens, each once.

    Raises:
        OptionError: there are none to train on, or none held out.
    """
    kept = list(dict.fromkeys(prompt for prompt in prompts if 0 < len(prompt.tokens) <= longest))
    held_out = sum(prompt.held_out for prompt in kept)
    if not held_out or held_out == len(kept):
        raise OptionError(
            f"{len(kept)} prompts fit, of which {held_out} are held out; at least one must be, and one not, and a hash "
            "chooses every tenth: give more prompts (--prompts), or a larger --ctx"
        )
    return kept
