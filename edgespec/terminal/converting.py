"""A conversion while a person watches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from edgespec.converters import Note, Progress

from .progress import progress


def run(steps: Iterator[Progress | Note], title: str) -> None:
    """Convert with a progress bar; notes stay."""
    with progress(title) as tell:
        for step in steps:
            match step:
                case Note(text):
                    click.echo(f"Note: {text}", err=True)
                case Progress(what, done, total):
                    tell(what, done, total)


def size(model: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    files = [path for path in model.rglob("*") if path.is_file()] or [model]
    return sum(path.stat().st_size for path in files)
