"""What is reported while models are made ready, and how that is controlled. All of it is values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..backends import Interrupt
from ..errors import Interrupted, OptionError
from ..values import shown


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is.

    Args:
        stage: `fetch`, `convert` or `measure`.
        what: the file that is fetched, the tensor that is converted, or the model (`target` or `draft`) whose passes
            are measured.
        done: bytes of all files fetched, parameters converted, or the share measured.
        total: of how many; 1 for a share.
    """

    stage: str
    what: str
    done: float
    total: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user should know, in a line.

    Args:
        kind: `quantization` (another than the usual one was chosen), `draft` (one was found on the hub), `no-draft`
            (one was left out, or none could be looked for), `convert` (a checkpoint is converted, or in what the result
            differs from it), `context` (it is shorter than the default), `layers` (fewer on the GPU than hoped for),
            `memory` (the model does not fit), or `model` (what a model is not as it states, and what drafts how).
        text: the line.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is not here and would be fetched.

    Args:
        what: its files, by repository.
        size: bytes to fetch; 0 where that is not known.
        folder: the cache they go to.
        weights: bytes of all models that are to be loaded; 0 where they are converted first.
        room: bytes of memory that are free for them.
    """

    what: str
    size: int
    folder: Path
    weights: int = 0
    room: int = 0


#: Told what happens; from whatever thread does the work.
OnProgress = Callable[[Progress | Notice], None]
#: Whether what is not here may be fetched; a function is asked each time.
Fetch = bool | Callable[[Wanted], bool]


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work: whom it reports to, what it may fetch, and what stops it.

    `notices` are all that were reported.
    """

    fetch: Fetch = True
    on_progress: OnProgress | None = None
    interrupt: Interrupt = field(default_factory=Interrupt)
    notices: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.fetch, bool) and not callable(self.fetch):
            raise OptionError(f"fetch is {shown(self.fetch)}; it must be True, False or a function of what is wanted")

    def progress(self, stage: str, what: str, done: float, total: float) -> None:
        """Report how far it is. Raises Interrupted."""
        self.check()
        if self.on_progress is not None:
            self.on_progress(Progress(stage, what, done, total))

    def notice(self, kind: str, text: str) -> None:
        """Report what the user should know."""
        self.notices.append(notice := Notice(kind, text))
        if self.on_progress is not None:
            self.on_progress(notice)

    def check(self) -> None:
        """Raises Interrupted if it was stopped."""
        if self.interrupt.is_set:
            raise Interrupted
