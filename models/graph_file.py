"""Models that are a graph with a file of weights beside it and a tokenizer in their folder: ONNX and OpenVINO IR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.backends.onnx_file import Described
    from edgespec.backends.openvino_ir_file import DescribedIr

ONNX, IR = "model.onnx", "openvino_model.xml"  #: the names of the graph in its folder
_SUFFIXES = (".onnx", ".xml")


def is_graph(path: Path) -> bool:
    """Whether this is such a model: a file, or a folder, since only these are opened by a folder's name."""
    return path.suffix.lower() in _SUFFIXES or path.is_dir()


def graph_in(path: Path) -> Path:
    """The file of the graph of the model at `path`, a file or a folder."""
    if not path.is_dir():
        return path
    return path / (IR if (path / IR).is_file() and not (path / ONNX).is_file() else ONNX)


def described(path: Path) -> Described | DescribedIr:
    """The metadata of the model at `path`, a file or a folder.

    Raises:
        ModelFileError: it cannot be read, or is not a model that edgespec opens.
    """
    from edgespec.backends import onnx_file, openvino_ir_file  # noqa: PLC0415

    file = graph_in(path)
    return openvino_ir_file.read(file) if file.suffix.lower() == ".xml" else onnx_file.read(file)


def kept_bytes(model: Described | DescribedIr, widest: int) -> int:
    """Bytes that a session keeps of what recurrent layers computed, with passes of at most `widest` tokens."""
    from edgespec.backends import onnx_file, ort_recurrent  # noqa: PLC0415

    return ort_recurrent.state_bytes(model, widest) if isinstance(model, onnx_file.Described) else 0


def weights_of(path: Path) -> Path | None:
    """The file of the weights beside the file of a graph; None for another file, or if there is none."""
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        return None
    data = path.with_suffix(".bin") if suffix == ".xml" else path.with_name(f"{path.name}.data")
    return data if data.is_file() else None
