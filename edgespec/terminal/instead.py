"""Which models of the registry fit into the memory of this machine, also in place of one that does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgespec.errors import OptionError
from edgespec.models import fit, registry, runtime_support
from edgespec.models.memory import MachineMemory
from edgespec.models.model_source import MIN_SIZE_RATIO
from edgespec.models.model_summary import ModelSummary
from edgespec.models.registry import Entry
from edgespec.models.sizes import Sizes, amount

_NAMED = 3  # models that are named in place of another


def fit_of(entry: Entry, free: MachineMemory) -> str:
    """Where the weights of an entry have room: `GPU` (all of them), `GPU+CPU`, `yes` (no GPU) or `no`; `not run` if
    this version does not run it."""
    if not runs(entry):
        return "not run"
    target = entry.target.sizes
    if target.cache is None:  # a share of the weights, as where a header cannot be read
        target = replace(target, buffers=target.buffers + target.weights // MIN_SIZE_RATIO)
    return _place(target, entry.drafting.sizes if entry.drafting is not None else None, free)


def runs(entry: Entry) -> bool:
    """Whether this version runs the target of an entry."""
    architecture = entry.target.memory.architecture
    return not architecture or runtime_support.runs_state_of(architecture)


def _place(target: Sizes, draft: fit.Drafts, free: MachineMemory, context: int = 0) -> str:
    try:
        plan = fit.choose(target, draft, free, fit.Requested(context))
    except OptionError:
        return "no"
    if not plan.fits:
        return "no"
    if not free.gpus:
        return "yes"
    return "GPU" if plan.gpu_layers == fit.ALL else "GPU+CPU" if plan.gpu_layers else "yes"


def lines(target: ModelSummary, drafts: Sequence[ModelSummary], free: MachineMemory, context: int) -> Iterator[str]:
    """What would fit, where a pair does not fit, or not onto the GPUs that there are."""
    place = _place(target.sizes, [draft.sizes for draft in drafts], free, context)
    wanted = "GPU" if free.gpus else "yes"
    if place == wanted:
        return
    by_size = sorted(registry.entries().values(), key=lambda entry: -entry.size)
    fitting = [each for each in by_size if each.newest and fit_of(each, free) == wanted]
    names = ", ".join(f"{each.name} ({amount(each.size)})" for each in fitting[:_NAMED])
    where = "wholly onto the GPU" if free.gpus else "into memory"
    limit = _largest(target, drafts, free, context)
    coarser = f"a coarser quantization of at most {amount(limit)}" if limit else ""
    if options := " or ".join(filter(None, (names, coarser))):
        yield f"what would fit {where}: {options}"


def _largest(target: ModelSummary, drafts: Sequence[ModelSummary], free: MachineMemory, context: int) -> int:
    """Bytes of weights of the target that would fit where they are wanted; 0 if none would."""
    try:
        plan = fit.choose(target.sizes, [draft.sizes for draft in drafts], free, fit.Requested(context))
    except OptionError:
        return 0
    return max(0, (plan.largest_on_gpu if free.gpus else plan.largest) - sum(draft.size for draft in drafts))
