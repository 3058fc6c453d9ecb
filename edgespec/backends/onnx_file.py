"""The metadata of a converted ONNX model, read without an engine and without its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ..errors import ModelFileError
from ..storage.files import contents
from . import parallel
from .onnx_proto import parse
from .parallel import Parallel

#: Of plain models, and of those with layers that have a state.
_FORMAT, _RECURRENT = "1", "2"
EXIT = "edgespec.exit_layer"  #: the key of the number of first layers that draft for the others
_LARGEST = 64_000_000  # bytes of a graph without weights; converted ones have some 10 kB
_AGAIN = "convert it again, or copy it again"
_FLOAT16 = 10  # enum TensorProto.DataType of onnx.proto
_ROWS = ("hidden.", "output_norm")  # how the names of outputs with hidden rows begin
_TABLES = ("rope.cos", "rope.local.cos", "position_embd.weight")


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The layers of a model that have a state instead of keys and values.

    Args:
        layers: their numbers.
        kernel: the tokens that their convolution sees.
        channels: the numbers of a token that it sees.
        heads: the heads with a state of their own; 0 where the convolution is all.
        key: the rows of a head's state.
        value: its columns.
    """

    layers: tuple[int, ...]
    kernel: int
    channels: int
    heads: int = 0
    key: int = 0
    value: int = 0

    @property
    def state(self) -> tuple[int, int, int, int]:
        """The shape of the state of a layer, of 32-bit numbers."""
        return (1, self.heads, self.key, self.value)


@dataclass(frozen=True, slots=True)
class Described:
    """A converted model, by its `metadata_props`.

    Args:
        weights: a hash of the names, shapes and types of the weights, which determine the price of a pass.
        data_bytes: the size of the file of weights.
        digest: the checksum of that file (storage/checksum.py); empty if an older edgespec wrote the model.
        recurrence: None for a model whose layers all have attention.
        experts: how many experts a layer has; 0 for a model without experts.
        parallel: how it guesses several tokens in one pass, if it does.
        exit_layer: how many of its first layers draft for it; 0 if they do not.
        rows: the names of the outputs with hidden rows.
    """

    path: Path
    name: str
    quantization: str
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    context: int
    parameters: int
    weights: str
    data_bytes: int
    digest: str
    recurrence: Recurrence | None = None
    experts: int = 0
    parallel: Parallel | None = None
    exit_layer: int = 0
    rows: frozenset[str] = frozenset()

    @property
    def data(self) -> Path:
        """The file of the weights."""
        return self.path.with_name(f"{self.path.name}.data")

    @property
    def half(self) -> bool:
        """Whether activations, cache and bias are float16 rather than float32."""
        return self.quantization.endswith("fp16")

    @property
    def attention(self) -> tuple[int, ...]:
        """The layers with keys and values."""
        recurrent = set(self.recurrence.layers) if self.recurrence else ()
        return tuple(layer for layer in range(self.layers) if layer not in recurrent)

    @property
    def cache_bytes(self) -> int:
        """Bytes of one token in the caches of all layers, and of its stream after an exit layer."""
        numbers = 2 * len(self.attention) * self.kv_heads * self.head_dim + self.hidden * bool(self.exit_layer)
        return numbers * self.number_bytes

    @property
    def number_bytes(self) -> int:
        """Bytes of a number of activations, cache and bias."""
        return 2 if self.half else 4

    @property
    def least_rows(self) -> int:
        """The fewest rows of logits of a pass: 1 if the graph quantizes activations, which cannot be empty."""
        return int(self.quantization == "r8")

    @property
    def summary(self) -> str:
        """Name, number of parameters and quantization, for example "Qwen (7.6B, int4)"."""
        size = f"{self.parameters / 1e9:.1f}B" if self.parameters >= 1e9 else f"{self.parameters / 1e6:.1f}M"
        return f"{self.name or self.path.parent.name} ({size}, {self.quantization})"


def read(path: Path) -> Described:
    """The metadata of the model at `path`, compared with its graph.

    Raises:
        ModelFileError: it cannot be read, is not an ONNX model that edgespec converted, contradicts its graph, or its
            weights are missing or truncated.
    """
    try:
        model = _model(path)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{path.parent} holds no {path.name}; give the folder of an ONNX model or a .gguf file, and convert a "
            "checkpoint with `edgespec convert`"
        ) from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error
    except (DecodeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ModelFileError(f"{path} is not an ONNX model, or it is truncated ({reason}); {_AGAIN}") from error
    described = _described(path, _metadata(model) if model else {})
    if wrong := next(_wrong(described, model.graph), None):
        raise ModelFileError(f"{path} contradicts its metadata: {wrong}; {_AGAIN}")
    _check_weights(described)
    names = (_text(output.name) for output in model.graph.output)
    return replace(described, rows=frozenset(name for name in names if name.startswith(_ROWS)))


def _described(path: Path, props: dict[str, str]) -> Described:
    form = props.get("edgespec.format")
    if form is None:
        raise ModelFileError(
            f"{path} is an ONNX model of another converter, whose inputs and outputs are not known; convert "
            "the checkpoint it was made from with `edgespec convert --to onnx`"
        )
    if form not in (_FORMAT, _RECURRENT):
        raise ModelFileError(
            f"{path} has format {form!r} of edgespec's ONNX models; this edgespec reads {_FORMAT!r} and "
            f"{_RECURRENT!r}: update it, or convert the checkpoint again"
        )

    def number(key: str) -> int:
        text = props[f"edgespec.{key}"]
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
            raise ValueError(f"{key} is {text[:30]!a}, not a positive whole number")
        return int(text)

    try:
        return Described(
            path,
            _shown(props["edgespec.name"]),
            _shown(props["edgespec.quantization"]),
            number("layers"),
            number("kv_heads"),
            number("head_dim"),
            number("hidden"),
            number("vocabulary"),
            number("context"),
            number("parameters"),
            props["edgespec.weights"],
            number("data_bytes"),
            props.get("edgespec.digest", ""),
            None if form == _FORMAT else _recurrence(props, number),
            number("experts") if "edgespec.experts" in props else 0,
            parallel.read(props, parallel.ONNX_MASK, number("vocabulary")),
            number("exit_layer") if EXIT in props else 0,
        )
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{path} has incomplete metadata ({error}); convert the checkpoint again") from error


def _recurrence(props: dict[str, str], number: Callable[[str], int]) -> Recurrence:
    keys = ["kernel", "channels"]
    if "edgespec.state_heads" in props:
        keys += ["state_heads", "state_key", "state_value"]
    return Recurrence(_numbers(props["edgespec.recurrent_layers"]), *(number(key) for key in keys))


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers of layers, separated by commas."""
    found = text.split(",")
    if len(text) > 10_000 or not all(part.isascii() and part.isdigit() for part in found):
        raise ValueError(f"recurrent_layers is {text[:30]!a}, not numbers of layers")
    return tuple(int(part) for part in found)


def _shown(text: str) -> str:
    """`text` without control characters, which a terminal would execute."""
    return "".join(character for character in text if character.isprintable())


def _check_weights(described: Described) -> None:
    data = described.data
    try:
        size = data.stat().st_size
    except OSError as error:
        raise ModelFileError(
            f"{data}, which holds the weights of {described.path}, cannot be read; {_AGAIN}"
        ) from error
    if size != described.data_bytes:
        raise ModelFileError(
            f"{data} has {size} bytes and not {described.data_bytes}: it is truncated, or of another model; {_AGAIN}"
        )


def _model(path: Path) -> Any:
    """The model at `path`; None if the file is too large to be a converted one.

    Raises:
        DecodeError: it is not an ONNX model.
    """
    if path.stat().st_size > _LARGEST:
        return None
    return parse(contents(path) or b"")


def _metadata(model: Any) -> dict[str, str]:
    return {_text(entry.key): _text(entry.value) for entry in model.metadata_props}


def _text(field: str | bytes) -> str:
    """A field as text: protobuf returns bytes if it is not UTF-8."""
    return field if isinstance(field, str) else field.decode("utf-8", "replace")


def _wrong(described: Described, graph: Any) -> Iterator[str]:
    """Contradictions between the graph and the metadata, which determine the size of buffers."""
    inputs, outputs = _shapes(graph.input), _shapes(graph.output)
    if described.exit_layer >= described.layers or (described.exit_layer and described.recurrence is not None):
        yield f"an exit after layer {described.exit_layer} of {described.layers}"
    caches = {name: shape for name, (_, shape) in inputs.items() if name.startswith("past.")}
    if (found := len({name.split(".")[1] for name in caches})) != described.layers:
        yield f"{found} layers and not {described.layers}"
        return
    wanted = _caches(described)
    if strange := next((name for name in {**wanted, **caches} if caches.get(name) != wanted.get(name)), None):
        yield f"{strange} is {caches.get(strange)} and not {wanted.get(strange)}"
        return
    kinds = {inputs[name][0] for name in wanted if not name.endswith((".gates", ".state"))}
    if (half := _FLOAT16 in kinds) != described.half or len(kinds) != 1:
        yield f"numbers of {16 if half else 32} bits, and the quantization {described.quantization}"
    for name, width in (("logits", described.vocabulary), (f"hidden.{described.layers - 1}", described.hidden)):
        if name in outputs and outputs[name][1][-1:] != [width]:
            yield f"{name} is {outputs[name][1]} and not {width} wide"
    for table in graph.initializer:
        if table.name in _TABLES and [*table.dims, 0][0] < described.context:
            yield f"{table.name} has {[*table.dims, 0][0]} positions and not {described.context}"
    if described.recurrence is not None:
        yield from _wrong_kernels(described.recurrence, graph)


def _wrong_kernels(recurrence: Recurrence, graph: Any) -> Iterator[str]:
    found = {tuple(each.dims) for each in graph.initializer if _text(each.name).endswith("conv.weight")}
    if found != (expected := {(recurrence.channels, recurrence.kernel)}):
        yield f"its convolutions are {sorted(found)[:3]} and not {sorted(expected)}"


def _caches(described: Described) -> dict[str, list[int]]:
    """The shapes of the inputs that hold what is kept of earlier tokens."""
    kept = [1, described.kv_heads, 0, described.head_dim]
    found = {f"past.{layer}.{kind}": kept for layer in described.attention for kind in ("key", "value")}
    if described.recurrence is not None:
        recurrence = described.recurrence
        rows = [1, 0 if recurrence.heads else recurrence.kernel - 1, recurrence.channels]
        own = {"rows": rows, "gates": [1, 0, 2 * recurrence.heads], "state": list(recurrence.state)}
        kinds = tuple(own) if recurrence.heads else ("rows",)
        found |= {f"past.{layer}.{kind}": own[kind] for layer in recurrence.layers for kind in kinds}
    return found


def _shapes(values: Any) -> dict[str, tuple[int, list[int]]]:
    """The element type and shape by name; 0 in a shape is any length."""
    kinds = {_text(value.name): value.type.tensor_type for value in values}
    return {name: (kind.elem_type, [axis.dim_value for axis in kind.shape.dim]) for name, kind in kinds.items()}
