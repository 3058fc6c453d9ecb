"""What a model takes, read from its files' heads before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.backends.gguf_header import Header, header

_ROWS = 512  # tokens of a prefill pass
_JUDGED = 64  # rows of logits that are kept beside it


@dataclass(frozen=True, slots=True)
class Layer:
    """Bytes of a layer's weights, and of what a token takes in its cache. `copied` where the CPU keeps them too."""

    weights: int
    cache: int = 0
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a model takes.

    Args:
        weights: bytes of all.
        layers: those that may lie on a GPU, from the input on, the output matrix as the last; embeddings are none.
            Empty where llama.cpp does not run the model, or its head was not seen.
        cache: bytes a token takes in all layers; None where that is not known.
        buffers: bytes of computing, at a context of no tokens; a token of context takes `_ROWS` 2-byte numbers more.
        trained: tokens it was trained for, 0 where that is not known.
    """

    weights: int
    layers: tuple[Layer, ...] = ()
    cache: int | None = None
    buffers: int = 0
    trained: int = 0

    def computing(self, context: int) -> int:
        """Bytes of buffers."""
        return self.buffers + 2 * _ROWS * context


def amount(size: float) -> str:
    """So many bytes, for a person."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6)):
        if size >= bytes_:
            return f"{size / bytes_:.{2 if unit == 'GB' else 1}f} {unit}"
    return f"{size / 1e3:.1f} kB"


def size_of(path: Path) -> int:
    """Bytes of a model: of a GGUF with all its parts, of a folder all that is in it."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.iterdir() if each.is_file())
    stem, part, rest = path.name.partition("-00001-of-")
    if part:
        return sum(each.stat().st_size for each in path.parent.glob(f"{stem}-*-of-{rest}"))
    data = path.with_name(f"{path.name}.data")  # the weights of an ONNX model
    return path.stat().st_size + (data.stat().st_size if path.suffix == ".onnx" and data.is_file() else 0)


def sizes(path: Path) -> Sizes:
    """Of a GGUF file, or of an ONNX model that edgespec converted.

    Raises:
        ModelFileError: it is none of these, or not whole.
    """
    if is_onnx(path):
        return _of_onnx(path)
    return of_header(header(path), size_of(path))


def is_onnx(path: Path) -> bool:
    """Whether this is an ONNX model, or a folder, which can hold nothing else that is opened by its name."""
    return path.suffix.lower() == ".onnx" or path.is_dir()


def of_header(head: Header, size: int) -> Sizes:
    """Of a GGUF of so many bytes in all its parts."""
    vocabulary, caches = head.vocabulary.size, head.cache()
    inner = head.number("feed_forward_length") or (
        head.number("expert_feed_forward_length") * max(1, head.number("expert_used_count"))
    )
    widths = (vocabulary + 2 * inner + 4 * head.number("embedding_length")) * _ROWS + vocabulary * _JUDGED
    layers = tuple(_layers(head, size, caches or (0,) * head.layers)) if head.layers else ()
    cache = sum(caches) if caches else None
    return Sizes(size, layers, cache, 4 * widths, head.number("context_length"))


def _layers(head: Header, size: int, caches: Sequence[int]) -> Iterator[Layer]:
    """The layers of a GGUF, and its output."""
    if head.parts > 1:  # this head tells of its own tensors alone
        each = size // (len(caches) + 1)
        yield from (Layer(each, cache) for cache in (*caches, 0))
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
    yield from map(Layer, weights, caches)
    # A model whose output is its embeddings has them on the GPU once more.
    tied = "output.weight" not in tensors
    yield Layer(output + tensors.get("token_embd.weight", 0) * tied, copied=tied)


def _of_onnx(path: Path) -> Sizes:
    from edgespec.backends.ort_file import read  # noqa: PLC0415

    model = read(path / "model.onnx" if path.is_dir() else path)
    number = 2 if model.half else 4
    cache = 2 * model.layers * model.kv_heads * model.head_dim * number
    widths = (model.vocabulary * _JUDGED + 8 * model.hidden * _ROWS) * 4
    return Sizes(model.data_bytes, (), cache, widths, model.context)
