"""Files as `torch.save` writes them, without torch: a ZIP archive with a pickle that is written by hand."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .checkpoints import Raw

_KINDS = {"F32": "Float", "F16": "Half", "BF16": "BFloat16", "F64": "Double", "I64": "Long", "BOOL": "Bool"}
_NAMES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "bool": "BOOL"}
_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8, "BOOL": 1}

EMPTY = b"ccollections\nOrderedDict\n)R"


def text(value: str) -> bytes:
    """The instruction for a text."""
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def whole(value: int) -> bytes:
    """The instruction for a number."""
    return b"J" + value.to_bytes(4, "little", signed=True)


def sizes(values: Sequence[int]) -> bytes:
    """The instructions for a tuple of numbers."""
    return b"(" + b"".join(map(whole, values)) + b"t"


def storage(dtype: str, key: str, count: int) -> bytes:
    """The instructions for a storage of numbers."""
    kind = f"ctorch\n{_KINDS[dtype]}Storage\n".encode()
    return b"(" + text("storage") + kind + text(key) + text("cpu") + whole(count) + b"tQ"


def tensor(numbers: bytes, offset: int, shape: Sequence[int], strides: Sequence[int]) -> bytes:
    """The instructions for a view of a storage."""
    view = whole(offset) + sizes(shape) + sizes(strides)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + numbers + view + b"\x89" + EMPTY + b"tR"


def by_rows(shape: Sequence[int]) -> list[int]:
    """The strides of a tensor that is stored by rows."""
    return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]


def dictionary(values: Mapping[str, bytes]) -> bytes:
    """A pickle of a dictionary, with the attribute that a state_dict has."""
    items = b"".join(text(name) + value for name, value in values.items())
    return b"\x80\x02" + EMPTY + b"q\x00(" + items + b"u}q\x01" + text("_metadata") + EMPTY + b"sb."


def archive(
    pickle: bytes,
    storages: Mapping[str, bytes],
    *,
    order: bytes = b"little",
    root: str = "archive",
    more: Sequence[tuple[str, bytes]] = (),
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    """The bytes of a file. As PyTorch does, data are aligned by a padding that only an entry's own header lists."""
    entries = [("data.pkl", pickle), ("byteorder", order), *((f"data/{key}", data) for key, data in storages.items())]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as file:
        for name, data in (*entries, *more, ("version", b"3\n")):
            entry = zipfile.ZipInfo(f"{root}/{name}")
            entry.compress_type = compression
            spare = -(made.tell() + 34 + len(entry.filename)) % 64
            entry.extra = b"FB" + spare.to_bytes(2, "little") + bytes(spare)
            file.writestr(entry, data)
            entry.extra = b""
    return made.getvalue()


def saved(tensors: Mapping[str, npt.NDArray[Any] | Raw]) -> bytes:
    """The bytes of `torch.save` of these tensors. Arrays have their dtype; all else is (dtype, shape, bytes)."""
    values, storages = {}, {}
    for place, (name, given) in enumerate(tensors.items()):
        dtype, shape, data = (
            given if isinstance(given, tuple) else (_NAMES[given.dtype.name], given.shape, bytes(given.data))
        )
        storages[str(place)] = data
        numbers = storage(dtype, str(place), len(data) // _WIDTHS[dtype])
        values[name] = tensor(numbers, 0, shape, by_rows(shape))
    return archive(dictionary(values), storages)


def pickled(folder: Path) -> None:
    """Turn the weights of a checkpoint of safetensors into those of PyTorch."""
    from edgespec.converters.checkpoint import header  # noqa: PLC0415

    path = folder / "model.safetensors"
    content = path.read_bytes()
    found = {
        name: (stored.dtype, stored.shape, content[stored.offset : stored.offset + stored.nbytes])
        for name, stored in header(path).items()
    }
    path.unlink()
    (folder / "pytorch_model.bin").write_bytes(saved(found))
