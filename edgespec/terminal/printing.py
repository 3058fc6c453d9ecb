"""Lines of a report on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

import click


def print_lines(lines: Iterable[str]) -> None:
    """Print each line as it comes, without control characters."""
    from .show import printable  # noqa: PLC0415 - loads an engine's modules, which `--help` must not

    for line in lines:
        click.echo(printable(line))
