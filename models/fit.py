"""The context and the GPU layers with which a target and its drafts fit into the free memory.

The drafts are placed on the GPU first, as a whole, since they run most passes, all of them or none; then as many layers
of the target as fit.
The rest is in the CPU's memory. There llama.cpp maps weights from the file: weights that do not fit still run, but are
read from the disk again in every pass, so they do not count as fitting. Caches, recurrent states and buffers must fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.errors import OptionError

from .memory import MachineMemory, machine_memory
from .sizes import Sizes, amount, sizes

DEFAULT_CONTEXT = 4096  #: tokens of context where none are requested and they fit
_LEAST, _STEP = 512, 256  # tokens: the shortest context that is chosen automatically, and the step between two
_SPARE = 200 << 20  # bytes to leave free for the rest of the program
_SPARE_GPU = 400 << 20  # bytes to leave free on each GPU, for its kernels and the display
ALL = -1  #: all layers, as in `Device`
Drafts = Sizes | Sequence[Sizes] | None  #: one, several, or none


@dataclass(frozen=True, slots=True)
class Requested:
    """The user's request.

    Args:
        context: tokens; 0 for what fits.
        gpu_layers: layers of the target on the GPU; None for what fits, `ALL` for all.
        draft_gpu_layers: layers of each draft, likewise.
    """

    context: int = 0
    gpu_layers: int | None = None
    draft_gpu_layers: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a pair is loaded, and the memory that it takes.

    Args:
        context: tokens.
        gpu_layers: layers of the target on the GPU, as in `Device`; `draft_gpu_layers` likewise.
        layers: layers of the target, its output included; 0 where not known.
        weights: bytes of all models' weights.
        cache: bytes of all KV caches; None where not known.
        buffers: bytes of compute buffers.
        on_gpu: bytes of all these on GPUs.
        in_ram: bytes of all these in the CPU's memory.
        free: the memory that was free.
        shortened: whether the context is shorter than the default.
        state: bytes of all copies of all models' recurrent states.
        copies: copies of the target's recurrent state that its session keeps; 0 where it has none.
    """

    context: int
    gpu_layers: int
    draft_gpu_layers: int
    layers: int
    weights: int
    cache: int | None
    buffers: int
    on_gpu: int
    in_ram: int
    free: MachineMemory
    shortened: bool
    state: int = 0
    copies: int = 0

    @property
    def beside(self) -> int:
        """Bytes of caches, recurrent states and buffers."""
        return (self.cache or 0) + self.state + self.buffers

    @property
    def largest(self) -> int:
        """Bytes of weights that would fit with this context."""
        return max(0, room(self.free) - self.beside)

    @property
    def largest_on_gpu(self) -> int:
        """Bytes of weights that would fit on the GPUs with this context."""
        return max(0, _on_gpus(self.free) - self.beside)

    @property
    def needed(self) -> int:
        """Bytes of weights, caches, recurrent states and buffers."""
        return self.weights + self.beside

    @property
    def lacking(self) -> int:
        """Bytes that are missing in the CPU's memory."""
        return max(0, self.in_ram + _SPARE - self.free.free)

    @property
    def mapped(self) -> int:
        """Bytes of weights in the CPU's memory; those that do not fit are read from the disk in every pass."""
        return max(0, self.in_ram - self.beside)

    @property
    def fits(self) -> bool:
        return not self.lacking


def plan(
    target: Path,
    draft: Path | Sequence[Path] | None = None,
    asked: Requested | None = None,
    *,
    head: bool = True,
    beside: bool = False,
) -> Plan:
    """The plan for these files in the memory that is free now.

    Args:
        draft: one, several, or none.
        head: whether the head in the target's file is used, if there is one. A draft takes its place.
        beside: whether it is used beside drafts as well.

    Raises:
        ModelFileError: a file cannot be read.
        OptionError: the request does not fit.
    """
    found = sizes(target) if head else sizes(target).without_head()
    if beside:  # it counts as a part of the model, which nothing takes the place of
        found = replace(found, head_layers=0, head_buffers=0)
    drafts = [draft] if isinstance(draft, Path) else draft or ()
    return choose(found, [sizes(each) for each in drafts], machine_memory(), asked or Requested())


def choose(target: Sizes, draft: Drafts, free: MachineMemory, asked: Requested) -> Plan:
    """The plan with the requested context, else with the longest one up to the default, with which everything fits.

    If nothing fits, the first plan whose caches, states and buffers fit without the weights.

    Raises:
        OptionError: a requested context, or requested GPU layers, do not fit.
    """
    target, drafts = _together(target, draft)
    plans = (_placed(target, drafts, free, asked, context) for context in _contexts(target, asked))
    running: Plan | None = None
    for found in plans:
        if found.fits:
            return found
        if running is None and found.in_ram - found.mapped <= free.free:
            running = found
    if running is None:
        raise OptionError(_too_long(target, drafts, found, asked))
    return running


def longest(target: Sizes, draft: Drafts, free: MachineMemory) -> int:
    """The most tokens of context with which everything fits: a multiple of 256, up to the target's training context."""
    target, drafts = _together(target, draft)
    contexts = range(_STEP, max(target.trained, DEFAULT_CONTEXT) + 1, _STEP)
    fitting = bisect_left(contexts, True, key=lambda n: not _placed(target, drafts, free, Requested(n), n).fits)
    return contexts[fitting - 1] if fitting else 0


def _together(target: Sizes, draft: Drafts) -> tuple[Sizes, Sequence[Sizes]]:
    """The sizes of a target and its drafts, which take the place of a head in its file."""
    drafts = [draft] if isinstance(draft, Sizes) else draft or ()
    return target.without_head() if drafts else target, [each.as_draft() for each in drafts]


def room(free: MachineMemory) -> int:
    """Bytes available for weights, caches and buffers together, in the memory of the CPU and the GPUs."""
    return max(0, free.free - _SPARE) + (0 if free.shared else _on_gpus(free))


def _on_gpus(free: MachineMemory) -> int:
    there = sum(max(0, gpu.free - _SPARE_GPU) for gpu in free.gpus)
    return min(there, max(0, free.free - _SPARE)) if free.shared else there


def _contexts(target: Sizes, asked: Requested) -> Iterator[int]:
    """The requested context, else the default and shorter ones."""
    if asked.context:
        yield asked.context
        return
    default = _default(target)
    yield default
    yield from range((default - 1) // _STEP * _STEP, _LEAST - 1, -_STEP)


def _default(target: Sizes) -> int:
    return min(target.trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def _too_long(target: Sizes, drafts: Sequence[Sizes], found: Plan, asked: Requested) -> str:
    most = longest(target, drafts, found.free)
    out = "close other programs, or take a smaller model"
    if asked.context:
        out = f"--ctx {most} fits" if most else "give a smaller --ctx"
    return (
        f"a context of {found.context} tokens takes {amount(found.beside)} besides the weights, and only "
        f"{amount(found.free.free)} of memory are free; {out}"
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A model with its last `count` layers on GPUs: its bytes there, and in the CPU's memory."""

    count: int
    on_gpu: int
    in_ram: int


def _part(model: Sizes, count: int, context: int, gpus: int) -> _Part:
    if not model.weights:
        return _Part(0, 0, 0)
    there = model.layers[len(model.layers) - count :]
    moved = sum(layer.weights for layer in there if not layer.copied)
    held = sum(model.held(layer, context) for layer in there)
    computing = model.computing(context)
    on_gpu = sum(layer.weights for layer in there) + held + computing * gpus if there else 0
    wholly = bool(there) and count == len(model.layers)
    whole = model.cached(context) + model.states
    return _Part(count, on_gpu, model.weights - moved + whole - held + (0 if wholly else computing))


class _Placing:
    """The free memory of the GPUs while models are placed there, for one context."""

    def __init__(self, free: MachineMemory, context: int) -> None:
        self.left = _on_gpus(free)
        self._gpus, self._context = len(free.gpus), context

    def put(self, model: Sizes, asked: int | None, *, wholly: bool) -> _Part:
        """Place the requested layers of a model; without a request as many as fit, or with `wholly` all or none.

        Raises:
            OptionError: the requested layers do not fit.
        """
        most = len(model.layers) if self._gpus else 0
        if asked is not None:
            part = self._part(model, most if asked == ALL else min(asked, most))
            if part.on_gpu > self.left:
                raise OptionError(
                    f"{part.count} layers on the GPU take {amount(part.on_gpu)}, and {amount(self.left)} are free "
                    f"there; {self._most(model, most).count} fit: give fewer --gpu-layers, or leave it out"
                )
        else:
            part = self._part(model, most) if wholly else self._most(model, most)
            if part.on_gpu > self.left:
                part = self._part(model, 0)
        self.left -= part.on_gpu
        return part

    def put_drafts(self, drafts: Sequence[Sizes], asked: int | None) -> list[_Part]:
        """Place the requested layers of each draft; without a request all drafts wholly, or none. Raises as `put`."""
        left = self.left
        parts = [self.put(draft, asked, wholly=True) for draft in drafts]
        if asked is None and any(part.count < len(draft.layers) for part, draft in zip(parts, drafts, strict=True)):
            self.left = left
            parts = [self.put(draft, 0, wholly=True) for draft in drafts]
        return parts

    def _most(self, model: Sizes, most: int) -> _Part:
        parts = (self._part(model, count) for count in range(most, -1, -1))
        return next(part for part in parts if part.on_gpu <= self.left)

    def _part(self, model: Sizes, count: int) -> _Part:
        return _part(model, count, self._context, self._gpus)


def _placed(target: Sizes, drafts: Sequence[Sizes], free: MachineMemory, asked: Requested, context: int) -> Plan:
    placing = _Placing(free, context)
    # A target that is kept off the GPU keeps its drafts off it, too.
    theirs = asked.draft_gpu_layers if asked.draft_gpu_layers is not None or asked.gpu_layers != 0 else 0
    if asked.gpu_layers is None:
        drafting = placing.put_drafts(drafts, theirs)
        part = placing.put(target, None, wholly=False)
    else:
        part = placing.put(target, asked.gpu_layers, wholly=False)
        drafting = placing.put_drafts(drafts, theirs)
    models = [target, *drafts]
    on_gpu = part.on_gpu + sum(each.on_gpu for each in drafting)
    return Plan(
        context,
        _layers(target, part, asked.gpu_layers, free),
        _draft_layers(drafts, drafting, theirs, free),
        len(target.layers),
        sum(each.weights for each in models),
        sum(each.cached(context) for each in models) if all(each.cache is not None for each in models) else None,
        sum(each.computing(context) for each in models),
        on_gpu,
        part.in_ram + sum(each.in_ram for each in drafting) + (on_gpu if free.shared else 0),
        free,
        context < _default(target),
        sum(each.states for each in models),
        target.in_context,
    )


def _draft_layers(drafts: Sequence[Sizes], parts: Sequence[_Part], asked: int | None, free: MachineMemory) -> int:
    """The number of GPU layers of each draft, as in `Device`."""
    found = {_layers(draft, part, asked, free) for draft, part in zip(drafts, parts, strict=True)}
    if len(found) == 1:
        return found.pop()
    return _layers(Sizes(0), _Part(0, 0, 0), asked, free) if not found else asked or 0


def _layers(model: Sizes, part: _Part, asked: int | None, free: MachineMemory) -> int:
    """The number of GPU layers as in `Device`. Without GPUs or known layers the engine decides."""
    if not free.gpus or not model.layers:
        return ALL if asked is None else asked
    return ALL if part.count == len(model.layers) else part.count
