"""What a converted model's file says of itself, read without an engine and before its weights are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from ..errors import ModelFileError

_FORMAT = "1"
_LARGEST = 64_000_000  # bytes of a graph, whose weights lie beside it; ours are thousands
_AGAIN = "convert it again, or copy it again"


@dataclass(frozen=True, slots=True)
class Described:
    """A converted model, by its `metadata_props`.

    Args:
        weights: a hash of the names, shapes and types of its weights: what the price of a pass depends on.
        data_bytes: how large the file of its weights is.
        digest: the checksum of that file (checksum.py); empty where an older edgespec wrote none.
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

    @property
    def data(self) -> Path:
        """The file of its weights."""
        return self.path.with_name(f"{self.path.name}.data")

    @property
    def half(self) -> bool:
        """Whether activations, cache and bias are float16, and not float32."""
        return self.quantization.endswith("fp16")

    @property
    def least_rows(self) -> int:
        """The fewest rows of logits a pass can give: quantized in the graph, activations must be some."""
        return int(self.quantization == "r8")

    @property
    def summary(self) -> str:
        """Name, parameters and quantization: Qwen (7.6B, int4)."""
        size = f"{self.parameters / 1e9:.1f}B" if self.parameters >= 1e9 else f"{self.parameters / 1e6:.1f}M"
        return f"{self.name or self.path.parent.name} ({size}, {self.quantization})"


def read(path: Path) -> Described:
    """What the file at `path` says.

    Raises:
        ModelFileError: it cannot be read, is no ONNX model or not one that edgespec converted, or its weights are
            missing or not whole.
    """
    try:
        props = _metadata(path)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{path.parent} holds no {path.name}; give the folder of an ONNX model or a .gguf file, and convert a "
            "checkpoint with `edgespec convert`"
        ) from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error
    except (DecodeError, ValueError) as error:
        raise ModelFileError(f"{path} is not an ONNX model, or it is truncated ({error}); {_AGAIN}") from error
    described = _described(path, props)
    _check_weights(described)
    return described


def _described(path: Path, props: dict[str, str]) -> Described:
    form = props.get("edgespec.format")
    if form is None:
        raise ModelFileError(
            f"{path} is an ONNX model of another converter, whose inputs and outputs edgespec does not know; convert "
            "the checkpoint it was made from with `edgespec convert --to onnx`"
        )
    if form != _FORMAT:
        raise ModelFileError(
            f"{path} has format {form!r} of edgespec's ONNX models; this edgespec reads {_FORMAT!r}: update it, or "
            "convert the checkpoint again"
        )

    def number(key: str) -> int:
        return int(props[f"edgespec.{key}"])

    try:
        return Described(
            path,
            props["edgespec.name"],
            props["edgespec.quantization"],
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
        )
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{path} does not say what it holds ({error}); convert the checkpoint again") from error


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


def _metadata(path: Path) -> dict[str, str]:
    """The `metadata_props` of the model at `path`; none of a file larger than ours ever are.

    Raises:
        DecodeError, ValueError: it is no ONNX model.
    """
    if path.stat().st_size > _LARGEST:
        return {}
    import onnx  # noqa: PLC0415 - with the first ONNX model

    return {entry.key: entry.value for entry in onnx.load_model(path, load_external_data=False).metadata_props}
