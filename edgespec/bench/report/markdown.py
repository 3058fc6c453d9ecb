"""The report in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ...terminal.show import printable
from ..records import Run
from .tables import ReportTable, tables
from .wording import headline, interruption, remarks

_MARKS = re.compile(r"([\\`*_\[\]<>|#~&])")


def page(run: Run) -> str:
    """The report without charts."""
    return "\n\n".join(part for part in _parts(run) if part) + "\n"


def _parts(run: Run) -> Iterator[str]:
    yield f"# edgespec bench: {_escaped(run.suite)}"
    stopped = interruption(run)
    yield f"**{_escaped(stopped)}**" if stopped else ""
    yield f"**{_escaped(headline(run))}**"
    yield _list(remarks(run))
    for table in tables(run):
        yield f"## {_escaped(table.title)}"
        yield _grid(table)
        yield _escaped(table.note)
    if run.problems:
        yield "## Problems"
        yield _list(f"{problem.where}: {problem.what}" for problem in run.problems)
    yield "## Machine, versions, and how to repeat it"
    for name, value in run.about.items():
        yield f"{_escaped(name)}:"
        yield _block(value)


def _grid(table: ReportTable) -> str:
    rules = ["---" if i in table.words else "---:" for i in range(len(table.head))]
    lines = [_line(map(_escaped, table.head)), _line(rules)]
    return "\n".join([*lines, *(_line(map(_escaped, row)) for row in table.rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(item)}" for item in items)


def _block(text: str) -> str:
    """An indented code block, in which nothing is markup."""
    return "\n".join(f"    {line}" for line in printable(text).splitlines())


def _escaped(text: str) -> str:
    """`text` on one line, with markup escaped."""
    return _MARKS.sub(r"\\\1", " ".join(printable(text).split()))
