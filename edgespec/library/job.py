"""Progress, notices, consent and cancellation while models are loaded, as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..backends import Interrupt
from ..errors import Interrupted, OptionError
from ..values import shown


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stage.

    Args:
        stage: `fetch`, `convert` or `measure`.
        what: the file that is downloaded, the tensor that is converted, or the model (`target` or `draft`) whose passes
            are measured.
        done: bytes downloaded, parameters converted, or the share of measurements done.
        total: the value of `done` at the end; 1 for a share.
    """

    stage: str
    what: str
    done: float
    total: float


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for the user.

    Args:
        kind: `quantization` (not the default one was chosen), `draft` (a draft model was found on the hub), `no-draft`
            (one was left out, or the search failed), `convert` (a checkpoint is converted, or the result differs from
            it), `context` (shorter than the default), `layers` (fewer on the GPU than the default), `memory` (the
            model does not fit), `checksum` (a file is another one than the registry lists), `pictures` (the model is
            made to read pictures, too, which edgespec does not), or `model` (invalid values in a model's files, and how
            it drafts).
        text: the message, one line.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Files that are not in the cache and would be downloaded.

    Args:
        what: their names, by repository.
        size: bytes to download; 0 if not known.
        folder: the cache folder.
        weights: bytes of all models that will be loaded; 0 if they are converted first.
        room: bytes of memory that are free for them.
    """

    what: str
    size: int
    folder: Path
    weights: int = 0
    room: int = 0


#: Called with progress and notices, on the thread that does the work.
OnProgress = Callable[[Progress | Notice], None]
#: Whether files may be downloaded; a function is called each time.
Fetch = bool | Callable[[Wanted], bool]


@dataclass(frozen=True, slots=True)
class Job:
    """The settings of loading a model.

    Args:
        fetch: whether files may be downloaded.
        on_progress: reports progress and notices.
        interrupt: stops the work.
        notices: all notices reported so far.
    """

    fetch: Fetch = True
    on_progress: OnProgress | None = None
    interrupt: Interrupt = field(default_factory=Interrupt)
    notices: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.fetch, bool) and not callable(self.fetch):
            raise OptionError(f"fetch is {shown(self.fetch)}; it must be True, False or a function that takes a Wanted")

    def progress(self, stage: str, what: str, done: float, total: float) -> None:
        """Report progress. Raises Interrupted if the work was stopped."""
        self.check()
        if self.on_progress is not None:
            self.on_progress(Progress(stage, what, done, total))

    def notice(self, kind: str, text: str) -> None:
        """Report a message for the user."""
        self.notices.append(notice := Notice(kind, text))
        if self.on_progress is not None:
            self.on_progress(notice)

    def check(self) -> None:
        """Raises Interrupted if the work was stopped."""
        if self.interrupt.is_set:
            raise Interrupted
