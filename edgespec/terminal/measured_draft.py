"""Opening a pair, and measuring what its draft is worth, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends import Device
from ..library import fitted, open_model_files
from ..runtime.loading import Files
from ..runtime.runtime import Runtime
from ..runtime.speculation import Speculation
from ..sampling import Sampling
from ..tools.draft_value import DraftValue, measure_draft
from . import background
from .progress import progress
from .terminal_job import terminal_job


def opened(files: Files, speculation: Speculation, device: Device | None = None) -> Runtime:
    """A runtime over `files`; Ctrl-C ends the loading. Raises as `open_model_files`."""
    with terminal_job() as job:
        device = fitted(files, device or Device(), job)
        return background.call(lambda: open_model_files(files, device, speculation, job), job.interrupt.set)


def measured(
    runtime: Runtime, prompts: Sequence[Sequence[int]], sampling: Sampling, max_tokens: int, title: str
) -> DraftValue:
    """The value of the runtime's drafts, by answers to all of `prompts`; Ctrl-C ends it with Interrupted.

    Args:
        title: of the progress bar.
    """
    known: list[DraftValue] = []
    with progress(title) as tell:
        for value in background.stream(measure_draft(runtime, prompts, sampling, max_tokens), runtime.cancel):
            known.append(value)
            tell(title, len(known), len(prompts))
    return known[-1]
