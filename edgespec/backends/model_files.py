"""The files of models: which one a path means, and which engines open it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..errors import ModelFileError
from .head_header import is_head_file

#: The engines that open files of a suffix; the first where none is requested.
ENGINES = {".gguf": ("llama",), ".onnx": ("onnx", "openvino"), ".xml": ("openvino",)}
_IR = "openvino_model.xml"  # beside it in a folder: openvino_tokenizer.xml and openvino_detokenizer.xml


def find_model(path: Path, backend: str) -> tuple[str, Path]:
    """The engine and the file for the model at `path`, a file or a folder with one model.

    Args:
        backend: the requested engine, or "auto".

    Raises:
        ModelFileError: there is no model, or several, or none for the requested engine.
    """
    found = _models_at(path)
    if not found:
        raise ModelFileError(
            f"{path} is not a model file that edgespec opens ({', '.join(ENGINES)}); "
            "convert a Hugging Face folder with `edgespec convert`"
        )
    fitting = [file for file in found if backend in ("auto", *_engines_of(file))]
    if not fitting:
        raise ModelFileError(
            f"{path} is a model for the backend {' or '.join(_engines_of(found[0]))}, not for {backend}; "
            "leave --backend out, or convert the checkpoint into the other format"
        )
    if len(fitting) > 1:
        names = ", ".join(file.name for file in fitting)
        several = len({_engines_of(file) for file in fitting}) > 1
        way = "give the path of one" + (", or --backend" if several else "")
        raise ModelFileError(f"{path} holds several models ({names}); {way}")
    (file,) = fitting
    return (_engines_of(file)[0] if backend == "auto" else backend), file


def engines(path: Path) -> Sequence[str]:
    """The engines that open the model at `path`, the default first.

    Raises:
        ModelFileError: as `find_model`.
    """
    return _engines_of(find_model(path, "auto")[1])


def state_head_kind(path: Path) -> str:
    """The kind of the head that the file at `path` holds as ONNX, such as "medusa"; empty for other files."""
    if path.suffix.lower() != ".onnx" or find_spec("google.protobuf") is None:
        return ""
    from .onnx_head import kind  # noqa: PLC0415 - needs protobuf

    return kind(path)


def _engines_of(file: Path) -> Sequence[str]:
    return ENGINES[file.suffix.lower()]


def _models_at(path: Path) -> list[Path]:
    """The model files at `path`, a file or a folder; of a folder, heads without their model only if all are."""
    try:
        if not path.exists():
            raise ModelFileError(f"no model at {path}; give the path of a {' or '.join(ENGINES)} file")
        if not path.is_file() and not path.is_dir():  # opening a pipe would wait for its other end
            raise ModelFileError(f"{path} is a pipe or a device, not a file; give the path of a model file")
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        models = [file for file in files if file.suffix.lower() in ENGINES and file.is_file()]
        models = [file for file in models if path.is_file() or file.suffix.lower() != ".xml" or file.name == _IR]
        return models if len(models) < 2 else [file for file in models if not _is_head(file)] or models
    except OSError as error:  # a name too long, a folder that may not be searched
        raise ModelFileError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error


def _is_head(file: Path) -> bool:
    """Whether a file holds a head without its model; False if it cannot be read."""
    try:
        return bool(state_head_kind(file)) or is_head_file(file)
    except ModelFileError:
        return False
