"""A Hugging Face checkpoint folder: its JSON files and the headers of its weights, checked when it is opened.

The safetensors layout is an 8-byte little-endian length, a JSON header of that length and the data; see
https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from edgespec.converters import experts, torch_file
from edgespec.converters.stored_tensor import StoredTensor, check_name
from edgespec.errors import ConversionError
from edgespec.storage.files import contents, regular, text

Json = dict[str, Any]

_WIDTHS = {  # bytes of all dtypes of the format: files can hold tensors that no graph uses
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
_LONGEST_HEADER = 100_000_000  # the format's own limit
#: The names of a checkpoint's weights, or of the index of several files of them.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked folder: all its tensors are complete. Each expert has tensors of its own (experts.py)."""

    folder: Path
    config: Json
    generation: Json
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the JSON files and the headers of the weights in `folder`.

        ConversionError if one is missing or malformed.
        """
        if not folder.is_dir():
            what = "is not a folder" if folder.exists() else "does not exist"
            raise ConversionError(f"{folder} {what}; give a local Hugging Face checkpoint folder")
        config = read_json(folder / "config.json")
        if config is None:
            if (folder / "adapter_config.json").is_file():
                raise ConversionError(
                    f"{folder} is an adapter (LoRA, say) and no model of its own; merge it into its base model, and "
                    "give the folder of that"
                )
            raise ConversionError(f"{folder} has no config.json; give a Hugging Face checkpoint folder")
        method = config.get("quantization_config")
        kind = method.get("quant_method") if isinstance(method, dict) else None
        if method and kind != "mxfp4":
            raise ConversionError(
                f"{folder} is already quantized ({kind or 'quantization_config'}); "
                "give the F32, F16 or BF16 checkpoint that it was made from"
            )
        if isinstance(text := config.get("text_config"), dict):  # a model that takes pictures, say
            config = {**text, **{key: value for key, value in config.items() if value is not None}}
        generation = read_json(folder / "generation_config.json") or {}
        return cls(folder, config, generation, experts.split_experts(folder_tensors(folder)))

    def json(self, name: str) -> Json | None:
        """The object in the folder's file `name`; None where there is no such file."""
        return read_json(self.folder / name)

    def text(self, name: str) -> str | None:
        """The folder's file `name` as text; None where there is no such file."""
        return read_text(self.folder / name)


def read_text(path: Path) -> str | None:
    """A UTF-8 file, or None where there is none. ConversionError if it cannot be read or decoded."""
    with _readable(path):
        return text(path)


def read_bytes(path: Path) -> bytes | None:
    """A file, or None where there is none. ConversionError if it cannot be read, or is a link to nothing or a pipe."""
    with _readable(path):
        return contents(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error.strerror or error}; fetch it again") from error
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path} cannot be read as UTF-8 text: {error}; fetch it again") from error


def read_json(path: Path) -> Json | None:
    """The JSON object in a file, or None where there is none. ConversionError if it is anything else."""
    found = read_text(path)
    return None if found is None else _object(found, path)


def _object(text: str | bytes, path: Path) -> Json:
    try:
        value = json.loads(text, object_pairs_hook=_no_twins)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{path} does not hold the JSON expected: {error}; fetch it again") from error
    if not isinstance(value, dict):
        raise ConversionError(f"{path} does not hold a JSON object; fetch it again")
    return value


def _no_twins(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is repeated")
    return found


def folder_tensors(folder: Path) -> dict[str, StoredTensor]:
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return tensors(folder / name)
        index = folder / f"{name}.index.json"
        listing = read_json(index)
        if listing is not None:
            shards = listing.get("weight_map")
            if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
                raise ConversionError(f"{index} has no weight_map of tensor names to file names; fetch it again")
            return _sharded(folder, index, shards)
    raise ConversionError(_no_weights(folder))


def _sharded(folder: Path, index: Path, shards: Mapping[str, str]) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for shard in sorted(set(shards.values())):
        if Path(shard).name != shard:
            raise ConversionError(f"{index} names {shard!r}, which is not a file of its own folder")
        if not (folder / shard).is_file():
            raise ConversionError(f"{index} names {shard}, which is not in {folder}; fetch it too")
        for name, stored in tensors(folder / shard).items():
            if name in found:
                raise ConversionError(f"{name} is both in {found[name].path} and in {shard}; fetch them again")
            found[name] = stored
    for name, shard in shards.items():
        if name not in found:
            raise ConversionError(f"{index} lists {name} in {shard}, which lacks it; fetch both again")
    return found


def _no_weights(folder: Path) -> str:
    others = sorted(path.name for path in folder.iterdir() if path.suffix in {".safetensors", *torch_file.SUFFIXES})
    met = f"only {others[0]}" if others else "no weights"
    return (
        f"{folder} has {met}: expected model.safetensors, pytorch_model.bin, or several files with an index beside "
        "them; fetch the whole checkpoint"
    )


def tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file of weights, by name: of safetensors, or of PyTorch by its suffix.

    ConversionError unless it is whole.
    """
    return torch_file.header(path) if path.suffix.lower() in torch_file.SUFFIXES else header(path)


def header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, by name. ConversionError unless they cover its data without gaps."""
    try:
        size = path.stat().st_size
        with regular(path).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise ConversionError(
                    f"{path} is not a whole safetensors file: a header of {length:,} bytes in {size:,}; fetch it again"
                )
            entries = _object(file.read(length), path)
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error.strerror or error}") from error
    entries.pop("__metadata__", None)
    found = {name: _entry(path, name, entry, 8 + length) for name, entry in entries.items()}
    _check_tiling(path, list(found.values()), 8 + length, size)
    return found


def _entry(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    check_name(name, path)

    def whole(numbers: Any) -> bool:
        return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)

    if not isinstance(entry, dict) or not whole(entry.get("shape")) or not whole(entry.get("data_offsets")):
        raise ConversionError(f"{path}: the header's entry for {name} is malformed; fetch the file again")
    dtype, shape, offsets = entry.get("dtype"), tuple(entry["shape"]), entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _WIDTHS:
        raise ConversionError(f"{path}: {name} has the unknown dtype {dtype!r}; F32, F16 and BF16 are supported")
    nbytes = prod(shape) * _WIDTHS[dtype]
    if len(offsets) != 2 or offsets[1] - offsets[0] != nbytes:
        raise ConversionError(
            f"{path}: {name} is {dtype} {list(shape)}, {nbytes:,} bytes, but has the offsets {offsets}; "
            "fetch the file again"
        )
    return StoredTensor(name, dtype, shape, path, start + offsets[0], nbytes)


def _check_tiling(path: Path, stored: list[StoredTensor], start: int, size: int) -> None:
    for tensor in sorted(stored, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != start:
            what = "overlaps the tensor before it" if tensor.offset < start else "leaves a hole before it"
            raise ConversionError(f"{path}: {tensor.name} {what}; fetch the file again")
        start += tensor.nbytes
    if start != size:
        what = "is cut off" if start > size else "goes on"
        raise ConversionError(f"{path}: its tensors end at byte {start:,}, the file {what} at {size:,}; fetch it again")
