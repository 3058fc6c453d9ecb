"""The memory that a model takes, computed from the headers of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.backends.gguf_header import Header, header
from edgespec.backends.llama_recurrent import Copies

from .graph_file import described, is_graph, weights_of

_ROWS = 512  # tokens of a prefill pass
_LOGIT_ROWS = 64  # rows of logits that are kept besides


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes of a layer's weights, and of one token in its cache. `copied` where the CPU keeps the weights as well.
    `state` is the bytes of its recurrent state, of all copies of it after `Sizes.with_copies`."""

    weights: int
    cache: int = 0
    copied: bool = False
    state: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The memory that a model takes.

    Args:
        weights: bytes of all weights.
        layers: the layers that can be on a GPU, from the input on, with the output matrix as the last; without the
            embeddings. Empty where llama.cpp does not run the model, or its header was not read.
        cache: bytes of one token in the caches of all layers; None where not known.
        buffers: bytes of compute buffers at an empty context; each token of context adds `_ROWS` 2-byte numbers.
        trained: tokens of context that it was trained for; 0 where not known.
        architecture: of a GGUF model.
        saved: bytes of recurrent states that are saved in the CPU's memory.
    """

    weights: int
    layers: tuple[Layer, ...] = ()
    cache: int | None = None
    buffers: int = 0
    trained: int = 0
    architecture: str = ""
    saved: int = 0

    @property
    def states(self) -> int:
        """Bytes of recurrent states in the context, and saved."""
        return sum(layer.state for layer in self.layers) + self.saved

    def with_copies(self, *, drafts: bool) -> Sizes:
        """With the copies of a recurrent state that a session has, of a target or (`drafts`) of a draft model."""
        size = sum(layer.state for layer in self.layers)
        if not size:
            return self
        copies = Copies.of(self.architecture, size, drafts=drafts)
        times = copies.in_context // size
        layers = tuple(replace(layer, state=times * layer.state) for layer in self.layers)
        return replace(self, layers=layers, saved=copies.on_host)

    def computing(self, context: int) -> int:
        """Bytes of compute buffers with this many tokens of context."""
        return self.buffers + 2 * _ROWS * context


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
    stem, part, rest = path.name.partition("-00001-of-")
    if part:
        return sum(each.stat().st_size for each in path.parent.glob(f"{stem}-*-of-{rest}"))
    data = weights_of(path)
    return path.stat().st_size + (data.stat().st_size if data is not None else 0)


def sizes(path: Path) -> Sizes:
    """The sizes of a GGUF file, of an ONNX model that edgespec converted, or of an OpenVINO IR model.

    Raises:
        ModelFileError: it is none of these, or truncated.
    """
    if is_graph(path):
        return _of_graph(path)
    return of_header(header(path), size_of(path))


def of_header(head: Header, size: int) -> Sizes:
    """The sizes of a GGUF model by its header and the bytes of all its parts."""
    vocabulary, caches = head.vocabulary.size, head.cache()
    inner = head.number("feed_forward_length") or (
        head.number("expert_feed_forward_length") * max(1, head.number("expert_used_count"))
    )
    widths = (vocabulary + 2 * inner + 4 * head.number("embedding_length")) * _ROWS + vocabulary * _LOGIT_ROWS
    layers = tuple(_layers(head, size, caches or (0,) * head.layers)) if head.layers else ()
    cache = sum(caches) if caches else None
    return Sizes(size, layers, cache, 4 * widths, head.number("context_length"), head.architecture if layers else "")


def _layers(head: Header, size: int, caches: Sequence[int]) -> Iterator[Layer]:
    """The layers of a GGUF, and its output."""
    if head.parts > 1:  # this header lists only the tensors of its own part
        each = size // (len(caches) + 1)
        kept = zip((*caches, 0), (*head.states(), 0), strict=True)
        yield from (Layer(each, cache, state=state) for cache, state in kept)
        return
    weights, output = [0] * len(caches), 0
    tensors = head.tensor_sizes(size)
    for name, bytes_ in tensors.items():
        kind, _, following = name.partition(".")
        number = following.partition(".")[0]
        if kind == "blk" and number.isdigit() and int(number) < len(weights):
            weights[int(number)] += bytes_
        elif kind in ("output", "output_norm"):
            output += bytes_
    for each, cache, state in zip(weights, caches, head.states(), strict=True):
        yield Layer(each, cache, state=state)
    # Embeddings that serve as the output matrix, too, are copied to the GPU.
    tied = "output.weight" not in tensors
    yield Layer(output + tensors.get("token_embd.weight", 0) * tied, copied=tied)


def _of_graph(path: Path) -> Sizes:
    model = described(path)
    cache = model.cache_bytes
    widths = (model.vocabulary * _LOGIT_ROWS + 8 * model.hidden * _ROWS) * 4
    return Sizes(model.data_bytes, (), cache, widths, model.context)
