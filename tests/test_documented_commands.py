"""Each `edgespec ...` line in README and docs names a command and options that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgespec.cli import app

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
#: A line of a block, up to the words that explain it; what goes before the command may be a path or a pipe.
LINE = re.compile(r"(?:^|[\s|/])edgespec ((?:-|[a-z]).*?)(?: {3,}.*)?$")


def commands(text: str) -> Iterator[str]:
    """The commands in the blocks of a page, without those of Python and the like."""
    blocks = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    fenced = [block for language, block in blocks if language in {"", "sh", "bash", "console"}]
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    # After a paragraph of a list, indented text is the list's next one.
    indented = re.findall(r"^(?![-*\d ]).*\n\n((?: {4}.*\n)+)", rest, re.MULTILINE)
    for line in "\n".join((*fenced, *indented)).replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|;", line):
            if found := LINE.search(part):
                yield found[1]


def parse(words: list[str]) -> None:
    """Parse as click does, without converting values or running anything."""
    command: click.Command = app
    context = click.Context(app, info_name="edgespec")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]}"
        command, context, words = found, click.Context(found, context), words[1:]
    _, extra, _ = command.make_parser(context).parse_args(words)
    assert not extra, f"too many arguments: {extra}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_exist(page: Path) -> None:
    for line in commands(page.read_text("utf-8")):
        try:
            parse(shlex.split(re.sub(r"[\[\]<>]", "", line), comments=True))
        except (click.UsageError, AssertionError, ValueError) as error:
            pytest.fail(f"edgespec {line}: {error}")


def test_commands_are_found() -> None:
    assert sum(len([*commands(page.read_text("utf-8"))]) for page in PAGES) > 40


@pytest.mark.parametrize("line", ["chta model", "chat --dratf x", "models shwo x", "forget now"])
def test_wrong_ones_are_refused(line: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        parse(line.split())
