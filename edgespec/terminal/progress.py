"""A progress bar on stderr while something takes its time; silent where stderr is no terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Tell = Callable[[str, float, float], None]


def has_colour(stream: TextIO | None) -> bool:
    """Whether `stream` shows colour: a terminal whose user did not say no (no-color.org)."""
    return stream is not None and stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def columns() -> int:
    """The width of the terminal that standard output goes to; 0 where it goes elsewhere."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout is not None else 0
    except (OSError, ValueError):
        return 0


@contextmanager
def progress(title: str) -> Iterator[Tell]:
    """Yields what to tell: what is being done, how much is done, of how much. Drawn at the first word, gone after."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    # Imported late: drawing takes a tenth of a second to load, and most runs have nothing to draw.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=None, start=True)

    def tell(what: str, done: float, total: float) -> None:
        if not bar.live.is_started:
            bar.start()
        bar.update(task, description=what, completed=done, total=total)

    try:
        yield tell
    finally:
        if bar.live.is_started:
            bar.stop()
