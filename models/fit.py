"""What fits: the context, and the layers on a GPU, of a pair in the memory that is free.

The draft goes on the GPU first and whole, for most passes are its own; then as many layers of the target as there is
room for. What is not on the GPU is in the CPU's memory. There llama.cpp maps weights from the file: what does not fit
still runs, but is read from the disk again in every pass, so it does not count as fitting. Caches and buffers must fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import OptionError

from .memory import Memory, memory
from .sizes import Sizes, amount, sizes

DEFAULT_CONTEXT = 4096  #: tokens, where none are asked for and they fit
_LEAST, _STEP = 512, 256  # tokens: of the shortest context chosen by itself, and between two
_SPARE = 200 << 20  # bytes to leave free for what the program needs besides
_SPARE_GPU = 400 << 20  # on each GPU: its own program, and what the screen takes meanwhile
ALL = -1  #: layers, as `Device` has it


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for: tokens of context, 0 for what fits; layers on the GPU, None for what fits, `ALL`."""

    context: int = 0
    gpu_layers: int | None = None
    draft_gpu_layers: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """How a pair is loaded, and what it takes.

    Args:
        context: tokens.
        gpu_layers: of the target, as `Device` has it; so the draft's.
        layers: how many the target has, its output among them; 0 where that is not known.
        weights: bytes; of both models.
        cache: bytes; None where it is not known.
        buffers: bytes of computing.
        on_gpu: bytes of all this that lie on GPUs.
        in_ram: bytes of it that lie in the CPU's memory.
        free: what was free.
        shortened: whether the context is less than the default.
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
    free: Memory
    shortened: bool

    @property
    def largest(self) -> int:
        """Bytes of weights that would fit with this context."""
        return max(0, room(self.free) - (self.cache or 0) - self.buffers)

    @property
    def needed(self) -> int:
        """Bytes of all."""
        return self.weights + (self.cache or 0) + self.buffers

    @property
    def lacking(self) -> int:
        """Bytes that the CPU's memory is short of."""
        return max(0, self.in_ram + _SPARE - self.free.free)

    @property
    def mapped(self) -> int:
        """Bytes of weights in the CPU's memory: what may be read from the disk over and over in its stead."""
        return max(0, self.in_ram - (self.cache or 0) - self.buffers)

    @property
    def fits(self) -> bool:
        return not self.lacking


def plan(target: Path, draft: Path | None = None, asked: Asked | None = None) -> Plan:
    """The plan for these files in the memory that is free now.

    Raises:
        ModelFileError: a file that cannot be read.
        OptionError: what was asked for does not fit.
    """
    return choose(sizes(target), sizes(draft) if draft is not None else None, memory(), asked or Asked())


def choose(target: Sizes, draft: Sizes | None, free: Memory, asked: Asked) -> Plan:
    """The longest context asked for, else the longest up to the default, with which all fits; else with which all but
    the weights does.

    Raises:
        OptionError: a context, or layers on a GPU, that were asked for and do not fit.
    """
    plans = (_placed(target, draft, free, asked, context) for context in _contexts(target, asked))
    running: Plan | None = None
    for found in plans:
        if found.fits:
            return found
        if running is None and found.in_ram - found.mapped <= free.free:
            running = found
    if running is None:
        raise OptionError(_too_long(target, draft, found, asked))
    return running


def longest(target: Sizes, draft: Sizes | None, free: Memory) -> int:
    """Tokens of context with which all fits, a multiple of 256, up to what the target was trained for."""
    contexts = range(_STEP, max(target.trained, DEFAULT_CONTEXT) + 1, _STEP)
    fitting = bisect_left(contexts, True, key=lambda n: not _placed(target, draft, free, Asked(n), n).fits)
    return contexts[fitting - 1] if fitting else 0


def room(free: Memory) -> int:
    """Bytes that there are for weights, caches and buffers together, on GPUs and beside them."""
    return max(0, free.free - _SPARE) + (0 if free.shared else _on_gpus(free))


def _on_gpus(free: Memory) -> int:
    there = sum(max(0, gpu.free - _SPARE_GPU) for gpu in free.gpus)
    return min(there, max(0, free.free - _SPARE)) if free.shared else there


def _contexts(target: Sizes, asked: Asked) -> Iterator[int]:
    """What was asked for, else the default and shorter ones."""
    if asked.context:
        yield asked.context
        return
    default = _default(target)
    yield default
    yield from range((default - 1) // _STEP * _STEP, _LEAST - 1, -_STEP)


def _default(target: Sizes) -> int:
    return min(target.trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


def _too_long(target: Sizes, draft: Sizes | None, found: Plan, asked: Asked) -> str:
    beside = (found.cache or 0) + found.buffers
    most = longest(target, draft, found.free)
    out = "close other programs, or take a smaller model"
    if asked.context:
        out = f"--ctx {most} fits" if most else "give a smaller --ctx"
    return (
        f"a context of {found.context} tokens takes {amount(beside)} beside the weights, and of memory only "
        f"{amount(found.free.free)} are free; {out}"
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """So many layers of a model on GPUs, its last ones: bytes there, and in the CPU's memory."""

    count: int
    on_gpu: int
    in_ram: int


def _part(model: Sizes, count: int, context: int, gpus: int) -> _Part:
    if not model.weights:
        return _Part(0, 0, 0)
    there = model.layers[len(model.layers) - count :]
    moved = sum(layer.weights for layer in there if not layer.copied)
    caches = context * sum(layer.cache for layer in there)
    computing = model.computing(context)
    on_gpu = sum(layer.weights for layer in there) + caches + computing * gpus if there else 0
    wholly = bool(there) and count == len(model.layers)
    here = model.weights - moved + context * (model.cache or 0) - caches + (0 if wholly else computing)
    return _Part(count, on_gpu, here)


class _Placing:
    """GPUs as they fill up, at a context."""

    def __init__(self, free: Memory, context: int) -> None:
        self.left = _on_gpus(free)
        self._gpus, self._context = len(free.gpus), context

    def put(self, model: Sizes, asked: int | None, *, wholly: bool) -> _Part:
        """So many layers as were asked for; else as many as there is room for, or with `wholly` all or none.

        Raises:
            OptionError: there is no room for so many.
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

    def _most(self, model: Sizes, most: int) -> _Part:
        parts = (self._part(model, count) for count in range(most, -1, -1))
        return next(part for part in parts if part.on_gpu <= self.left)

    def _part(self, model: Sizes, count: int) -> _Part:
        return _part(model, count, self._context, self._gpus)


def _placed(target: Sizes, draft: Sizes | None, free: Memory, asked: Asked, context: int) -> Plan:
    placing = _Placing(free, context)
    second = draft or Sizes(0)
    # Who keeps the target from the GPU wants no draft there either.
    theirs = asked.draft_gpu_layers if asked.draft_gpu_layers is not None or asked.gpu_layers != 0 else 0
    if asked.gpu_layers is None:
        drafting = placing.put(second, theirs, wholly=True)
        part = placing.put(target, None, wholly=False)
    else:
        part = placing.put(target, asked.gpu_layers, wholly=False)
        drafting = placing.put(second, theirs, wholly=True)
    models = [target, draft] if draft is not None else [target]
    on_gpu = part.on_gpu + drafting.on_gpu
    return Plan(
        context,
        _layers(target, part, asked.gpu_layers, free),
        _layers(second, drafting, theirs, free),
        len(target.layers),
        sum(each.weights for each in models),
        context * sum(each.cache or 0 for each in models) if all(each.cache is not None for each in models) else None,
        sum(each.computing(context) for each in models),
        on_gpu,
        part.in_ram + drafting.in_ram + (on_gpu if free.shared else 0),
        free,
        context < _default(target),
    )


def _layers(model: Sizes, part: _Part, asked: int | None, free: Memory) -> int:
    """As `Device` has it. What is not known here is the engine's to decide."""
    if not free.gpus or not model.layers:
        return ALL if asked is None else asked
    return ALL if part.count == len(model.layers) else part.count
