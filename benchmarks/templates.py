"""Chat templates: is each prompt what transformers' `apply_chat_template` renders of the same messages?

    python -m benchmarks.templates PYTHON --templates FOLDER [--out docs/templates.md]

PYTHON is one with transformers (torch is not needed). FOLDER holds chat templates as `.jinja` files; llama.cpp's source
has many in `models/templates`. Exit status 1 where a prompt differs, or where one refuses what the other renders.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from edgespec.backends.toy import Bytes
from edgespec.errors import TemplateError
from edgespec.text.template import ChatTemplate, Message

BOS, EOS = "<s>", "</s>"
_CALL = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "n": 3}},
}
_TEXT_CALL = {**_CALL, "function": {"name": "weather", "arguments": '{"city": "Zürich", "n": 3}'}}
_SYSTEM = {"role": "system", "content": "Be brief."}
_USER = {"role": "user", "content": "How is the weather in Zürich?"}
_TURNS = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there."},
    {"role": "user", "content": "  Who are you?\n"},
    {"role": "assistant", "content": " A model. "},
    {"role": "user", "content": "Tell me more."},
]
_RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": '{"sky": "<clear>", "t": 21.5}'}
_AFTER = [{"role": "assistant", "content": "It is clear."}, {"role": "user", "content": "And tomorrow?"}]
#: Message lists by name; the columns of the table.
CONVERSATIONS: Mapping[str, Sequence[Message]] = {
    "one turn": _TURNS[:1],
    "turns": _TURNS,
    "system": [_SYSTEM, *_TURNS],
    "tool result": [_SYSTEM, _USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, _RESULT],
    "tool turns": [_USER, {"role": "assistant", "tool_calls": [_CALL]}, _RESULT, *_AFTER],
    "call as text": [_USER, {"role": "assistant", "content": None, "tool_calls": [_TEXT_CALL]}, _RESULT, *_AFTER],
    "reasoning": [
        _SYSTEM,
        _TURNS[0],
        {"role": "assistant", "content": "Hi.", "reasoning_content": "They greet me.\nI greet back."},
        _TURNS[2],
        {"role": "assistant", "content": "<think>\nWho am I?\n</think>\n\nA model."},
        _TURNS[4],
    ],
    "marks": [
        {"role": "system", "content": "{{ messages }} {% raw %} <b>&amp;'\"</b>"},
        {"role": "user", "content": f"{EOS}{BOS} [INST] é 😀\t\\n \u2028 <think> {'x' * 200}\n\n"},
    ],
    "odd order": [{"role": "assistant", "content": "I begin."}, _TURNS[0], _TURNS[0], _SYSTEM, _TURNS[4]],
    "odd role": [{"role": "developer", "content": "Be brief."}, {"role": "critic", "content": "No."}, _TURNS[0]],
}

_TRANSFORMERS = """
import json, sys, time
import tokenizers, transformers
given = json.load(sys.stdin)
inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({given["bos"]: 0, given["eos"]: 1, "?": 2}, unk_token="?"))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=given["bos"], eos_token=given["eos"])
told = []
for template in given["templates"]:
    told.append([])
    for messages in given["conversations"]:
        began = time.perf_counter()
        try:
            text = tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:
            text = None
        told[-1].append([text, time.perf_counter() - began])
print(json.dumps([transformers.__version__, told]))
"""


class Told(Bytes):
    """A vocabulary with one family's template."""

    bos: int | None = 256
    eos: int | None = 257

    def __init__(self, template: str) -> None:
        self.template = template

    def label(self, token: int) -> str:
        return {256: BOS, 257: EOS}.get(token) or super().label(token)

    def specials(self) -> Sequence[str]:
        return [BOS, EOS]


@click.command()
@click.argument("python")
@click.option("--templates", required=True, type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path))
def main(python: str, templates: Path, out: Path | None) -> None:
    """Print the table, or write the page."""
    files = sorted(templates.glob("*.jinja"))
    sources = [file.read_text("utf-8") for file in files]
    version, theirs = _transformers(python, sources)
    lines, differences = [], []
    for file, source, told in zip(files, sources, theirs, strict=True):
        cells = []
        for name, messages, (text, _) in zip(CONVERSATIONS, CONVERSATIONS.values(), told, strict=True):
            ours = rendered(source, messages)
            cells.append(("both refuse" if text is None else "equal") if ours == text else _unequal(ours, text))
            if ours != text:
                differences += _difference(f"{file.stem}, {name}", ours, text)
        lines.append(f"| {file.stem} | {' | '.join(cells)} |")
    page = _page(version, lines, differences)
    if out:
        out.write_text(page, encoding="utf-8")
    else:
        print(page)
    print(_speed(sources, theirs), file=sys.stderr)
    sys.exit(int(bool(differences)))


def rendered(source: str, messages: Sequence[Message]) -> str | None:
    """The prompt without the marks in special tokens; None where the template refuses."""
    try:
        return ChatTemplate(Told(source)).render(messages).replace("\ufdd0", "")
    except TemplateError:
        return None


def _transformers(python: str, sources: Sequence[str]) -> tuple[str, list[list[tuple[str | None, float]]]]:
    given = {"bos": BOS, "eos": EOS, "templates": sources, "conversations": list(CONVERSATIONS.values())}
    command = [python, "-c", _TRANSFORMERS]
    done = subprocess.run(command, input=json.dumps(given), check=True, capture_output=True, text=True)
    version, told = json.loads(done.stdout.splitlines()[-1])
    return version, told


def _unequal(ours: str | None, theirs: str | None) -> str:
    if ours is None:
        return "NOT equal: only transformers renders it"
    return "NOT equal: only edgespec renders it" if theirs is None else "NOT equal"


def _difference(title: str, ours: str | None, theirs: str | None) -> list[str]:
    texts = [("(refused)" if text is None else repr(text)) for text in (theirs, ours)]
    return [f"{title}:", *difflib.ndiff(texts[:1], texts[1:])]


def _page(version: str, lines: Sequence[str], differences: Sequence[str]) -> str:
    head = f"""# Chat templates

The prompt that edgespec renders of each conversation, beside that of transformers {version}
(`apply_chat_template(..., add_generation_prompt=True)`, without `tools`). "Both refuse": the template raises an error
for these messages in either, for roles that do not alternate, say. The templates are those of llama.cpp's
`models/templates` and `tests/test-chat-template.cpp`, and Zephyr's (TinyLlama's is the same); none is part of this
repository.

    python -m benchmarks.templates PYTHON --templates FOLDER --out docs/templates.md

| template | {" | ".join(CONVERSATIONS)} |
|---|{"---|" * len(CONVERSATIONS)}
"""
    details = "\n```\n" + "\n".join(differences) + "\n```\n" if differences else ""
    return head + "\n".join(lines) + "\n" + details


def _speed(sources: Sequence[str], theirs: Sequence[Sequence[tuple[str | None, float]]]) -> str:
    """How long rendering took, in either."""
    ours = 0.0
    for source in sources:
        template = ChatTemplate(Told(source))
        for messages in CONVERSATIONS.values():
            began = time.perf_counter()
            _render(template, messages)
            ours += time.perf_counter() - began
    return f"rendering all of them once: {ours:.2f} s, transformers (compiling too) {_sum(theirs):.2f} s"


def _render(template: ChatTemplate, messages: Sequence[Message]) -> Any:
    try:
        return template.render(messages)
    except TemplateError:
        return None


def _sum(theirs: Sequence[Sequence[tuple[str | None, float]]]) -> float:
    return sum(seconds for told in theirs for _, seconds in told)


if __name__ == "__main__":
    main()
