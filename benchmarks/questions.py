"""The suites that `edgespec bench` comes with, made from texts whose licences allow it.

    python -m benchmarks.questions demo KIT
    python -m benchmarks.questions replay

`demo` asks what the demo pair was trained for: dialogues, small talk, and six tasks on texts that neither model has
seen, from the kit of `benchmarks.demo_pair`. `replay` comes with its answers, for what a small model would not write
itself: edits of source files, from this repository's own history; summaries that quote, and answers from a passage,
from its documents.
"""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from .demo_pair.kit import kit_texts, records
from .demo_pair.tasks import Maker

OUT = Path(__file__).parent.parent / "edgespec" / "bench" / "questions"
_EACH = 16  # questions of a category
_WORDS = 30, 65  # of a passage to work on, which the training had, too
_TASKS = ("talk", "repeat", "rewrite", "quote", "summarise", "list", "json")
_LONGEST = 1000  # characters of a passage or a function: prompt and answer must fit a context of 2048 tokens
_DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/simulator.md", "models/demo/CARD.md", "CHANGELOG.md")

Line = dict[str, Any]


@click.group()
def main() -> None:
    """Write a bundled suite."""


@main.command()
@click.argument("kit", type=click.Path(path_type=Path, exists=True, file_okay=False))
def demo(kit: Path) -> None:
    """From the held-out texts of KIT."""
    rng = random.Random("suite")  # noqa: S311 - no secret
    maker = Maker(kit_texts(kit, "held"), rng, *_WORDS)
    dialogues = rng.sample(records(kit, "dialogues", "held"), _EACH)
    lines = [("dialogue", _users(each["messages"])[:4]) for each in dialogues]
    lines += [(task, [maker.case(task).prompt]) for task in _TASKS for _ in range(_EACH)]
    _write("demo", [{"category": category, "turns": turns} for category, turns in lines])


def _users(messages: Sequence[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "user"]


@main.command()
def replay() -> None:
    """From this repository."""
    rng = random.Random(0)  # noqa: S311 - no secret
    texts = [*(Path(name).read_text("utf-8") for name in _DOCUMENTS), *_docstrings()]
    passages = [passage for text in texts for passage in _passages(text)]
    rng.shuffle(passages)
    edits = list(_edits())
    rng.shuffle(edits)
    lines = [
        *edits[:_EACH],
        *[_summary(passage) for passage in passages[:_EACH]],
        *[_answer(passage, rng) for passage in passages[_EACH : 2 * _EACH]],
    ]
    _write("replay", lines)


def _edits() -> Iterator[Line]:
    """A function of each commit that changed one: how it was, the lines that came and went, and how it is."""
    for commit in _git("log", "--no-merges", "--format=%h", "--diff-filter=M", "--", "*.py").split():
        changed = _git("diff-tree", "--no-commit-id", "--name-only", "--diff-filter=M", "-r", commit, "--", "*.py")
        for path in changed.split():
            before, after = (_functions(_git("show", f"{commit}{which}:{path}")) for which in ("~", ""))
            found = [name for name in after if name in before and _edited(before[name], after[name])]
            if found:
                yield _edit(before[found[0]], after[found[0]])
                break


def _edit(before: str, after: str) -> Line:
    old, new = before.splitlines(), after.splitlines()
    gone = [line for line in old if line not in new]
    come = [line for line in new if line not in old]
    change = "\n".join([*(f"- {line}" for line in gone), *(f"+ {line}" for line in come)])
    asked = f"Apply this change to the function and write all of it.\n{change}\n\n{before}"
    return {"category": "edit", "turns": [asked], "replay": [after]}


def _edited(before: str, after: str) -> bool:
    """Whether this is an edit: a part of a function of some length, neither all of it nor nothing."""
    old, new = before.splitlines(), after.splitlines()
    kept = sum(line in old for line in new)
    return before != after and 300 < len(after) < _LONGEST and len(before) < _LONGEST and kept >= 0.6 * len(new)


def _functions(source: str) -> dict[str, str]:
    """A file's functions and methods by name."""
    return {
        node.name: text
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and (text := ast.get_source_segment(source, node))
    }


def _docstrings() -> Iterator[str]:
    """What modules say of themselves."""
    for name in _git("ls-files", "*.py").split():
        yield ast.get_docstring(ast.parse(Path(name).read_text("utf-8"))) or ""


def _passages(document: str) -> Iterator[str]:
    """Neighbouring paragraphs of prose, so many that they have some length."""
    held = ""
    for paragraph in document.split("\n\n"):
        text = " ".join(paragraph.split())
        if re.match(r"[A-Z*\[`]", text) and text.endswith((".", ":")) and len(_sentences(text)) > 1:
            held = f"{held}\n\n{text}" if held else text
        if len(held) > 300:
            if len(held) < _LONGEST:
                yield held
            held = ""


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.:;]) (?=[A-Z`*\[])", text)


def _summary(passage: str) -> Line:
    """The first sentence of each paragraph, quoted; of one paragraph, every other sentence."""
    paragraphs = passage.split("\n\n")
    said = [_sentences(each)[0] for each in paragraphs] if len(paragraphs) > 1 else _sentences(passage)[::2]
    asked = f"Sum up the text in quotations from it.\n\n{passage}"
    return {"category": "summary", "turns": [asked], "replay": ["\n".join(f'- "{each}"' for each in said)]}


def _answer(passage: str, rng: random.Random) -> Line:
    """A sentence of the passage, by its rarest word."""
    sentences = [each for each in _sentences(" ".join(passage.split())) if len(each) > 60]
    sentence = rng.choice(sentences)
    word = min(re.findall(r"[a-z]{5,}", sentence), key=lambda each: (passage.count(each), -len(each)))
    asked = f"{passage}\n\nWhat does the text say where it speaks of {word!r}?"
    return {"category": "passage", "turns": [asked], "replay": [f'It says: "{sentence}"']}


def _write(name: str, lines: Sequence[Line]) -> None:
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.jsonl"
    text = "".join(json.dumps({"question_id": i, **line}, ensure_ascii=False) + "\n" for i, line in enumerate(lines, 1))
    path.write_text(text, encoding="utf-8")
    click.echo(f"{path.name}: {len(lines)} questions")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout  # noqa: S607


if __name__ == "__main__":
    main()
