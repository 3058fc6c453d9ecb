"""The memory that a model takes, computed from the headers of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.backends import attention_window, state_head_kind
from edgespec.backends.gguf_header import Header, header
from edgespec.backends.recurrent_state import Copies, has_attention_too, recurrent_layers, state_bytes

from . import draft_head
from .graph_file import described, is_graph, kept_bytes, weights_of

_ROWS = 512  # tokens of a prefill pass
_PARTS = 64  # of a model whose layers are not known
_LOGIT_ROWS = 64  # rows of logits that are kept besides


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes of a layer's weights, of one token in its cache, and of one copy of its recurrent state. `copied` where the
    CPU keeps the weights as well; `windowed` are bytes of one token in a cache that need only hold a sliding window."""

    weights: int
    cache: int = 0
    copied: bool = False
    state: int = 0
    windowed: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The memory that a model takes.

    Args:
        weights: bytes of all weights.
        layers: the layers that can be on a GPU, from the input on, with the output matrix as the last; without the
            embeddings. Empty where llama.cpp does not run the model, or its header was not read.
        cache: bytes of one token in the caches of all layers that hold the whole text; None where not known.
        buffers: bytes of compute buffers at an empty context; each token of context adds `_ROWS` 2-byte numbers.
        trained: tokens of context that it was trained for; 0 where not known.
        copies: the recurrent state and the copies of it that a session keeps; None without such a state.
        head_layers: of the layers, those before the last that belong to a head in the target's file.
        head_buffers: of the buffers, those of the head.
        estimated: whether the header was not read: the layers are equal parts, and what is not known is left out.
        windowed: bytes of one token in the caches of all layers that need only hold a sliding window.
        window: tokens of that window.
    """

    weights: int
    layers: tuple[Layer, ...] = ()
    cache: int | None = None
    buffers: int = 0
    trained: int = 0
    copies: Copies | None = None
    estimated: bool = False
    windowed: int = 0
    window: int = 0
    head_layers: int = 0
    head_buffers: int = 0

    def cached(self, context: int) -> int:
        """Bytes of all caches with this many tokens of context, with the window that is saved in the CPU's memory."""
        cells = self._cells(context)
        saved = self.window if cells < context else 0
        return context * (self.cache or 0) + (cells + saved) * self.windowed

    def held(self, layer: Layer, context: int) -> int:
        """Bytes of the cache and the states of a layer, on its device."""
        return context * layer.cache + self._cells(context) * layer.windowed + self.in_context * layer.state

    def _cells(self, context: int) -> int:
        """Tokens in caches that need only hold a sliding window."""
        return min(context, attention_window.cells(self.window, context, _ROWS))

    @property
    def state(self) -> int:
        """Bytes of one copy of the recurrent state of all layers."""
        return self.copies.size if self.copies is not None else 0

    @property
    def in_context(self) -> int:
        """Copies of the state in the engine's context, of each layer on its device."""
        return self.copies.in_context if self.copies is not None else 0

    @property
    def states(self) -> int:
        """Bytes of all copies of the recurrent state, those that are saved in the CPU's memory included."""
        return self.state * (self.in_context + self.copies.saved) if self.copies is not None else 0

    def as_draft(self) -> Sizes:
        """The sizes of the model as a draft, whose passes are too narrow for snapshots of its state."""
        return replace(self, copies=replace(self.copies, snapshots=0)) if self.copies is not None else self

    def without_head(self) -> Sizes:
        """The sizes where the head in the target's file is not loaded."""
        if not self.head_layers:
            return self
        first = len(self.layers) - 1 - self.head_layers
        head = self.layers[first:-1]
        cache = self.cache - sum(layer.cache for layer in head) if self.cache is not None else None
        return replace(
            self,
            weights=self.weights - sum(layer.weights for layer in head),
            layers=(*self.layers[:first], *(Layer(0) for _ in head), self.layers[-1]),
            cache=cache,
            buffers=self.buffers - self.head_buffers,
            head_layers=0,
            head_buffers=0,
        )

    def computing(self, context: int) -> int:
        """Bytes of compute buffers with this many tokens of context."""
        return self.buffers + 2 * _ROWS * context


def estimated(
    size: int,
    cache: int | None = None,
    copies: Copies | None = None,
    vocabulary: int = 0,
    *,
    windowed: int = 0,
    window: int = 0,
) -> Sizes:
    """The sizes of a GGUF file whose header was not read, of `size` bytes.

    Args:
        cache, copies, windowed, window: as in `Sizes`.
        vocabulary: tokens; 0 where not known.
    """
    state = copies.size if copies is not None else 0
    whole = (size, cache or 0, state, windowed)
    each, rest = [number // _PARTS for number in whole], [number % _PARTS for number in whole]
    layer, last = (Layer(weights, cached, state=kept, windowed=few) for weights, cached, kept, few in (each, rest))
    buffers = 4 * vocabulary * (_ROWS + _LOGIT_ROWS)
    layers = (last, *(layer,) * _PARTS)
    return Sizes(size, layers, cache, buffers, 0, copies, windowed=windowed, window=window, estimated=True)


def amount(size: float) -> str:
    """A number of bytes with its unit, for people."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6)):
        if size >= bytes_:
            return f"{size / bytes_:.{2 if unit == 'GB' else 1}f} {unit}"
    return f"{size / 1e3:.1f} kB"


def size_of(path: Path) -> int:
    """Bytes of a model: of a GGUF file all its parts, of a folder all its files."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.iterdir() if each.is_file())
    data = weights_of(path)
    return sum(each.stat().st_size for each in parts(path)) + (data.stat().st_size if data is not None else 0)


def parts(path: Path) -> list[Path]:
    """All files of a GGUF model by its first part; the file itself if it has no others."""
    stem, part, rest = path.name.partition("-00001-of-")
    return list(path.parent.glob(f"{stem}-*-of-{rest}")) if part else [path]


def sizes(path: Path) -> Sizes:
    """The sizes of a GGUF file, of an ONNX model that edgespec converted, or of an OpenVINO IR model.

    Raises:
        ModelFileError: it is none of these, or truncated.
    """
    if state_head_kind(path):
        from edgespec.backends.onnx_head import read_head  # noqa: PLC0415 - needs protobuf

        return Sizes(size_of(path), cache=read_head(path).cache_bytes)
    if is_graph(path):
        return _of_graph(path)
    return of_header(header(path), size_of(path))


def of_header(head: Header, size: int) -> Sizes:
    """The sizes of a GGUF model by its header and the bytes of all its parts."""
    alone = draft_head.is_alone(head)
    vocabulary, states = head.vocabulary.size, (0,) * head.layers if alone else state_bytes(head)
    caches = _caches(head)
    inner = head.number("feed_forward_length") or (
        head.number("expert_feed_forward_length") * max(1, head.number("expert_used_count"))
    )
    widths = (vocabulary + 2 * inner + 4 * head.number("embedding_length")) * _ROWS + vocabulary * _LOGIT_ROWS
    window = attention_window.windowed_layers(head)
    layers = tuple(_layers(head, size, _caching(caches or (0,) * head.layers, states, window))) if head.layers else ()
    windowed = sum(layer.windowed for layer in layers)
    unused = _unused(head)
    beside = draft_head.used_in(head)  # a head runs in a context of its own
    return Sizes(
        size - sum(layers[i].weights for i in unused),
        tuple(Layer(0) if i in unused else layer for i, layer in enumerate(layers)),
        sum(caches) - windowed if caches else None,
        4 * widths * (1 + beside),
        head.number("context_length"),
        Copies.of(head.architecture, sum(states), drafts=False) if any(states) else None,
        windowed=windowed,
        window=attention_window.window(head) if windowed else 0,
        head_layers=draft_head.head_layers(head) * beside,
        head_buffers=4 * widths * beside,
    )


def _unused(head: Header) -> range:
    """The layers that are not loaded: those of a head that this version does not use, and, of a head in a file of its
    own, those of the model."""
    first = head.layers - draft_head.head_layers(head)
    if draft_head.is_alone(head):
        return range(first)
    loaded = draft_head.used_in(head) or not draft_head.has_head(head)
    return range(head.layers if loaded else first, head.layers)


def _caches(head: Header) -> tuple[int, ...] | None:
    """Bytes per token in the KV cache of each layer; None where not known. Recurrent layers have none."""
    recurrent, unused = recurrent_layers(head), _unused(head)
    if draft_head.shares_cache(head):
        return (0,) * head.layers
    if recurrent and all(recurrent) and not has_attention_too(head):
        return (0,) * head.layers
    caches = head.cache()
    if caches is None or has_attention_too(head):
        return caches
    return tuple(0 if recurrent[i] or i in unused else bytes_ for i, bytes_ in enumerate(caches))


def _caching(caches: Sequence[int], states: Sequence[int], windowed: Sequence[bool]) -> list[Layer]:
    """The layers of a GGUF without their weights."""
    layers = zip(caches, states, windowed, strict=True)
    return [Layer(0, 0 if few else cache, state=state, windowed=cache if few else 0) for cache, state, few in layers]


def _layers(head: Header, size: int, layers: Sequence[Layer]) -> Iterator[Layer]:
    """The layers of a GGUF, and its output."""
    if head.parts > 1:  # this header lists only the tensors of its own part
        each = size // (len(layers) + 1)
        yield from (replace(layer, weights=each) for layer in layers)
        yield Layer(each)
        return
    weights, output = [0] * len(layers), 0
    tensors = head.tensor_sizes(size)
    for name, bytes_ in tensors.items():
        kind, _, following = name.partition(".")
        number = following.partition(".")[0]
        if kind == "blk" and number.isdigit() and int(number) < len(weights):
            weights[int(number)] += bytes_
        elif kind in ("output", "output_norm"):
            output += bytes_
    yield from (replace(layer, weights=weight) for layer, weight in zip(layers, weights, strict=True))
    # Embeddings that serve as the output matrix, too, are copied to the GPU.
    tied = "output.weight" not in tensors
    yield Layer(output + tensors.get("token_embd.weight", 0) * tied, copied=tied)


def _of_graph(path: Path) -> Sizes:
    model = described(path)
    cache = model.cache_bytes
    widths = (model.vocabulary * _LOGIT_ROWS + 8 * model.hidden * _ROWS) * 4
    buffers = widths + kept_bytes(model, _ROWS)
    return Sizes(model.data_bytes, (), cache, buffers, model.context)
