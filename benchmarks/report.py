"""Tables of figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their cells: the first to the left, the others to the right."""
    lines = [head, *rows]
    name, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join("  ".join([line[0].ljust(name), *map(str.rjust, line[1:], widths)]).rstrip() for line in lines)
