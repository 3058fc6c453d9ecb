"""A progress bar on stderr; nothing where stderr is not a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from .remarks import quiet

Tell = Callable[[str, float, float], None]


def has_colour(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal with colours, and the user did not disable them (no-color.org)."""
    return stream is not None and stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def columns() -> int:
    """The width of the terminal of standard output; 0 where that is not a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout is not None else 0
    except (OSError, ValueError):
        return 0


@contextmanager
def progress(title: str) -> Iterator[Tell]:
    """Yield a function to report progress with: a description, the amount done, the total.

    The bar is drawn at the first report and removed when the block ends.
    """
    if quiet() or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    # Imported late: rich takes a tenth of a second to import, and most runs draw no bar.
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
