"""`edgespec.load`: from a name, a repository on a hub, a checkpoint or a file to a runtime."""

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
from .resolving import Drafts, resolve


def load(  # noqa: PLR0913 - all but the models are options by name
    model: str | Path | None = None,
    draft: Drafts = None,
    *,
    device: Device | None = None,
    drafters: Sequence[Drafter | Factory] = (),
    speculation: Speculation | None = None,
    fetch: Fetch = True,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
) -> Runtime:
    """Load a target and its draft model, as `edgespec chat` does: find, download, convert, fit into memory, measure.

    Args:
        model: a GGUF file, or the folder of an ONNX model that edgespec converted or of an OpenVINO IR model; a pair
            file or its folder, which names a target and its draft; the folder of a checkpoint, which is converted to
            Q8_0 once, into the cache folder; or, if it is a `str` and there is no such file, a name of `edgespec
            models list`, or a repository on a hub: `org/repo`, `org/repo:q8_0`, `hf.co/org/repo`. A `Path` is never
            looked up on a hub. The bundled demo pair is "demo"; None raises OptionError.
        draft: a draft model, named likewise. None (or "auto") takes the first of these: that of the pair or the name;
            one in the folder of the target, `NAME.draft.gguf` or `draft.gguf` (for a folder `NAME.draft` or `draft`); a
            head for the target in a file in its folder (or beside the folder of an ONNX model), unless its own file
            holds one; a local model, in the folder of
            the target or the hub's cache, with the same tokens and at most a tenth of the bytes; for a target that is
            downloaded, one of its family on the hub. It may be the file of a head (docs/mtp.md). "none" takes none, but
            the head in the target's file drafts unless `speculation` names other drafters only. A list gives several:
            draft models, and at most one head of a kind (docs/drafters/several.md).
        device: where the models run. The context and the GPU layers are chosen by free memory if they are not given.
        drafters: drafters of your own, or factories that make one for a `Target`. Each serves one runtime, which closes
            it; `Runtime.another` has those of factories.
        speculation: how to speculate; None takes the defaults.
        fetch: whether models may be downloaded. True downloads, possibly gigabytes; False uses local files only; a
            function is called with a `Wanted` and returns either.
        interrupt: set it from another thread to cancel. A download ends with the next bytes received or at the
            timeout of the hub's client; the next download continues from the same byte.
        on_progress: called with `Progress` and `Notice` values, on this thread. Prices are measured once per model and
            machine.

    A draft model that was found, not named, and has another vocabulary is left out. `Runtime.notices` has the text of
    every notice.

    Raises:
        ModelError: a file cannot be loaded, or the models do not fit together.
        HubError: a model cannot be downloaded, or, offline (HF_HUB_OFFLINE), is not in the cache.
        ConversionError: a checkpoint cannot be converted.
        MissingPackage: the engine for these files is not installed.
        OptionError: an invalid argument, an unknown name, a download that is not allowed, or a context that does not
            fit into memory.
        DrafterError: a drafter of your own, or of an installed package, cannot be made.
        Interrupted: `interrupt` was set.
    """
    if model is None:
        raise OptionError(
            "model is None; give a file, a folder, a name of `edgespec models list`, or org/repo on the hub (the "
            'bundled demo pair: "demo")'
        )
    device, speculation = settings(device, speculation)
    require_known(speculation.drafters or (), drafters)  # before anything is downloaded
    job = Job(fetch, on_progress, interrupt or Interrupt())
    files = resolve(model, draft, job, context=device.context)
    device = fitted(files, device, job, anywhere=device.gpu_layers < 0, speculation=speculation)
    return open_model_files(files, device, speculation, job, drafters)


def open_model_files(
    files: Files, device: Device, speculation: Speculation, job: Job, drafters: Sequence[Drafter | Factory] = ()
) -> Runtime:
    """Load these files. Raises as `load`."""
    runtime = open_files(
        files,
        device,
        drafters=drafters,
        speculation=speculation,
        interrupt=job.interrupt,
        on_progress=lambda what, share: job.progress("measure", what, share, 1.0),
    )
    try:
        _share_notices(runtime, job)
    except BaseException:
        runtime.close()
        raise
    return runtime


def _share_notices(runtime: Runtime, job: Job) -> None:
    """Give the notices of the job to the runtime, and those of the runtime to the job."""
    known = [notice.text for notice in job.notices]
    for text in runtime.notices:
        job.notice("model", text)
    through_text = [name for name in runtime.drafters if name.startswith("cross-vocabulary")]
    for name in through_text:
        which = f" of the drafter {name}" if len(through_text) > 1 else ""
        known.append(f"The draft model{which} has a vocabulary of its own, so it drafts through text.")
        job.notice("model", known[-1])
    for text in known:
        runtime.add_notice(text)
