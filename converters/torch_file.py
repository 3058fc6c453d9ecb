"""The tensors of a file of `torch.save`, found without torch and read in place.

Since PyTorch 1.6 such a file is an uncompressed ZIP archive: `NAME/data.pkl` (torch_pickle.py), a storage of numbers in
each `NAME/data/KEY`, and `NAME/byteorder`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO

from edgespec.converters import torch_pickle
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.converters.torch_pickle import PickledTensor
from edgespec.errors import ConversionError
from edgespec.storage.files import regular

#: By what the names of such files end.
SUFFIXES = (".bin", ".pt", ".pth")

_WIDTHS = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8, "F64": 8
}  # fmt: skip
_LONGEST_PICKLE = 16_000_000  # bytes; a tensor takes about 150
_LOCAL = 30  # bytes of an entry's own header before its name
_ENCRYPTED, _UTF_8 = 1, 1 << 11  # flags of an entry
_WAY_OUT = "load it with PyTorch and save it again"


def header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file of `torch.save`, by name. Nothing of the file is executed.

    ConversionError unless it holds tensors only, whole and by rows.
    """
    try:
        with regular(path).open("rb") as file:
            if file.read(4) != b"PK\3\4":
                raise ConversionError(_no_archive(path, file))
            with zipfile.ZipFile(file) as archive:
                return _read(path, file, archive)
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, RuntimeError) as error:
        raise ConversionError(f"{path} is not a whole PyTorch file: {error}; fetch it again") from error


def _no_archive(path: Path, file: BinaryIO) -> str:
    file.seek(0)
    if file.read(2) == b"\x80\x02":
        return f"{path} was saved by PyTorch before 1.6, or is another pickle; {_WAY_OUT}"
    return f"{path} is not a file of torch.save, which are ZIP archives; fetch it again"


def _read(path: Path, file: BinaryIO, archive: zipfile.ZipFile) -> dict[str, StoredTensor]:
    entries = _entries(path, archive)
    (root, *others) = [name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")] or [""]
    if others or root.count("/") != 1 or f"{root}constants.pkl" in entries:
        raise ConversionError(f"{path} is a ZIP archive, but not one of torch.save with a state_dict; {_WAY_OUT}")
    order = entries.get(f"{root}byteorder")
    if order is not None and archive.read(order) != b"little":
        raise ConversionError(f"{path} was saved on a big-endian machine; {_WAY_OUT} on one of today's")
    if entries[f"{root}data.pkl"].file_size > _LONGEST_PICKLE:
        raise ConversionError(f"{path}: its list of tensors has more than {_LONGEST_PICKLE:,} bytes; fetch it again")
    listed = torch_pickle.tensors(archive.read(f"{root}data.pkl"), str(path))
    starts: dict[str, int] = {}
    found = {}
    for name, tensor in listed.items():
        key = f"{root}data/{tensor.storage.key}"
        if key not in entries:
            raise ConversionError(f"{path} lacks the numbers of {name}; fetch it again")
        if key not in starts:
            starts[key] = _start(path, file, entries[key], archive.start_dir)
        found[name] = _stored(path, name, tensor, starts[key], entries[key].file_size)
    _check_apart(path, {key: (start, entries[key].file_size) for key, start in starts.items()})
    return found


def _entries(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        if entry.filename in found:
            raise ConversionError(f"{path} has the entry {entry.filename!r:.80} twice; fetch it again")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
            raise ConversionError(
                f"{path} is a compressed or encrypted archive, which torch.save does not write; unpack it first"
            )
        found[entry.filename] = entry
    return found


def _start(path: Path, file: BinaryIO, entry: zipfile.ZipInfo, end: int) -> int:
    """Where the data of an entry begin: its own header has a padding that the archive's directory does not list."""
    file.seek(entry.header_offset)
    own = file.read(_LOCAL)
    name = file.read(int.from_bytes(own[26:28], "little"))
    start = entry.header_offset + _LOCAL + len(name) + int.from_bytes(own[28:30], "little")
    written = name.decode("utf-8" if entry.flag_bits & _UTF_8 else "cp437")
    if own[:4] != b"PK\3\4" or written != entry.orig_filename or start + entry.file_size > end:
        raise ConversionError(f"{path}: the entry {entry.filename!r:.80} is not where the archive says; fetch it again")
    return start


def _stored(path: Path, name: str, tensor: PickledTensor, start: int, size: int) -> StoredTensor:
    storage, width = tensor.storage, _WIDTHS[tensor.storage.dtype]
    count = prod(tensor.shape)
    if storage.count * width != size or tensor.offset + count > storage.count:
        raise ConversionError(
            f"{path}: {name} is {storage.dtype} {list(tensor.shape)}, which its {size:,} bytes do not hold; "
            "fetch the file again"
        )
    if not _by_rows(tensor):
        raise ConversionError(
            f"{path}: {name} has the strides {list(tensor.strides)} and is not stored by rows; "
            f"{_WAY_OUT} with .contiguous()"
        )
    return StoredTensor(name, storage.dtype, tensor.shape, path, start + tensor.offset * width, count * width)


def _by_rows(tensor: PickledTensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _check_apart(path: Path, places: Mapping[str, tuple[int, int]]) -> None:
    end = 0
    for key, (start, size) in sorted(places.items(), key=lambda place: place[1]):
        if start < end:
            raise ConversionError(f"{path}: the entry {key!r:.80} overlaps the one before it; fetch it again")
        end = start + size
