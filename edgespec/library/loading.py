"""A name, a hub's repository, a checkpoint or a file to a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..backends import Device, Interrupt
from ..drafters import Drafter, Factory
from ..errors import OptionError
from ..runtime.loading import Files, open_files, settings
from ..runtime.outside import require_known
from ..runtime.runtime import Runtime
from ..runtime.speculation import Speculation
from .fitting import fitted
from .job import Fetch, Job, OnProgress
from .resolving import resolve


def load(  # noqa: PLR0913 - all but the models are options by name
    model: str | Path | None = None,
    draft: str | Path | None = None,
    *,
    device: Device | None = None,
    drafters: Sequence[Drafter | Factory] = (),
    speculation: Speculation | None = None,
    fetch: Fetch = True,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
) -> Runtime:
    """Load a target and its draft model, as `edgespec chat` does: find, fetch, convert, fit into memory, measure.

    Args:
        model: a GGUF file, or the folder of an ONNX model that edgespec converted; the file of a pair, or its folder,
            which name a target and its draft; the folder of a checkpoint, which is converted to Q8_0, once, into the
            cache folder; and if it is a `str` and no such file is there, a name of `edgespec models list`, or a
            repository of a hub: `org/repo`, `org/repo:q8_0`, `hf.co/org/repo`. A `Path` is never asked of a hub.
            None is an OptionError; the bundled demo pair is `from edgespec import models; models.demo().target`.
        draft: a small one, named likewise. None (or "auto") takes that of the pair or of the name; else the one that
            lies beside the target: `NAME.draft.gguf` or `draft.gguf`, of a folder `NAME.draft` or `draft`; else one
            that is here, beside the target or in the hub's cache, has the same tokens and at most a tenth of the bytes;
            else, for a model that is fetched, one of its family that the hub has. "none" takes none.
        device: where it runs. What it leaves open is made to fit: the context, and the layers on the GPU.
        drafters: drafters of your own, or what makes one for a `Target`. Each serves one runtime, which closes it;
            `Runtime.another` has those that it can make anew.
        fetch: whether models that are not here may be fetched. True fetches, gigabytes perhaps; False asks no hub and
            takes what is here; a function is given what is `Wanted` and says.
        interrupt: set it from another thread to give up. A download hears it with the next bytes that come, or when the
            hub's client gives up waiting for them; what has come is kept, and the next fetch goes on from there.
        on_progress: told what happens, `Progress` and `Notice`, on this thread. Measuring runs once for each model and
            machine.

    A draft that nobody named and whose vocabulary is another is left out. `Runtime.notices` has the text of every
    notice.

    Raises:
        ModelError: a file that cannot be loaded, or a pair that does not fit together.
        HubError: a model that cannot be fetched; offline (HF_HUB_OFFLINE), one that is not in the cache.
        ConversionError: a checkpoint that cannot be converted.
        MissingPackage: the engine for these files is not installed.
        OptionError: an argument that makes no sense, a name that is not known, something to fetch where that is not
            allowed, or a context that does not fit into memory.
        DrafterError: a drafter of your own, or an installed one that was named, cannot be made.
        Interrupted: `interrupt` was set.
    """
    if model is None:
        raise OptionError(
            "model is None; give a file, a folder, a name of `edgespec models list`, or org/repo on the hub (the "
            "bundled demo pair: `from edgespec import models`, models.demo().target)"
        )
    device, speculation = settings(device, speculation)
    require_known(speculation.drafters or (), drafters)  # before anything is fetched
    job = Job(fetch, on_progress, interrupt or Interrupt())
    files = resolve(model, draft, job, context=device.context)
    device = fitted(files, device, job, anywhere=device.gpu_layers < 0)
    return open_model_files(files, device, speculation, job, drafters)


def open_model_files(
    files: Files, device: Device, speculation: Speculation, job: Job, drafters: Sequence[Drafter | Factory] = ()
) -> Runtime:
    """Load files that are settled. Raises as `load`."""
    runtime = open_files(
        files,
        device,
        drafters=drafters,
        speculation=speculation,
        interrupt=job.interrupt,
        on_progress=lambda what, share: job.progress("measure", what, share, 1.0),
    )
    try:
        _tell(runtime, job)
    except BaseException:
        runtime.close()
        raise
    return runtime


def _tell(runtime: Runtime, job: Job) -> None:
    """Let both have all notices."""
    known = [notice.text for notice in job.notices]
    for text in runtime.notices:
        job.notice("model", text)
    if "cross-vocabulary" in runtime.drafters:
        known.append("The draft model has a vocabulary of its own, so it drafts through text.")
        job.notice("model", known[-1])
    for text in known:
        runtime.add_notice(text)
