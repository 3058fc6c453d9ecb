"""Progress, notices and the question before a download, on a terminal, while models are prepared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click

from ..library import Job, Notice, Progress, Wanted
from .progress import Tell, progress
from .remarks import remark

_TITLES = {"fetch": "fetching", "convert": "converting", "measure": "measuring this machine (once for each model)"}


@contextmanager
def terminal_job(*, yes: bool = True) -> Iterator[Job]:
    """A job that draws its progress and prints its notices. On a terminal it asks before a download, unless `yes`."""
    display = _JobDisplay(yes=yes)
    with display.bar:
        yield Job(display.allows, display.shows)


class _JobDisplay:
    """Draws a bar for each stage, and removes it while other text is written."""

    def __init__(self, *, yes: bool) -> None:
        self.bar = ExitStack()
        self._yes = yes
        self._stage = ""
        self._tell: Tell | None = None

    def shows(self, seen: Progress | Notice) -> None:
        """Show progress or a notice."""
        if isinstance(seen, Notice):
            self._echo(seen.text)
            return
        if self._tell is None or seen.stage != self._stage:
            self.bar.close()
            self._stage, self._tell = seen.stage, self.bar.enter_context(progress(_TITLES[seen.stage]))
        what = f"measuring passes of the {seen.what}" if seen.stage == "measure" else seen.what
        self._tell(what, seen.done, seen.total)

    def allows(self, wanted: Wanted) -> bool:
        """Print what is to be downloaded, and ask on a terminal. Without one the answer is yes."""
        from edgespec.models.sizes import amount  # noqa: PLC0415

        about = f", {amount(wanted.size)}" if wanted.size else ""
        self._echo(f"Not here yet, so it is fetched into {wanted.folder}{about}: {wanted.what}")
        if wanted.weights > wanted.room:
            self._echo(
                f"It has {amount(wanted.weights)}, more than the {amount(wanted.room)} of free memory, so it may be "
                "very slow. Ctrl-C ends the download."
            )
        if self._yes or not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
            return True
        return click.confirm("Fetch it?", default=True, err=True)

    def _echo(self, line: str) -> None:
        self.bar.close()
        self._tell = None
        remark(line)
