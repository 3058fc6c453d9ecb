"""Parts of a target as its draft: its first layers with shared weights, or some of its layers in a file of their own.

The first layers of a model, with its own norm and output matrix, are a draft (early exit; LayerSkip, Elhoushi et al.
2024, arXiv 2404.16710). `split` cuts a GGUF file into three parts: metadata, the tensors that both models need, and the
rest. The draft has metadata of its own and, as its second part, a link to the shared one, so that the operating system
holds these weights once. Types that llama.cpp repacks when it loads them (Q4_0 and Q4_K on CPUs) are not shared.

`keep` writes chosen layers under new numbers, for training; beyond a few layers dropped the result is useless as it is.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.backends.gguf_header import Header, header
from edgespec.backends.head_header import LAYERS_KEPT, has_head, is_alone, written
from edgespec.converters import ConversionProgress, native
from edgespec.converters.atomic_file import atomic_file, check_file
from edgespec.converters.atomic_folder import atomic_folder, check_folder
from edgespec.errors import ConversionError, OptionError
from edgespec.storage import pair_file

_BLOCK = re.compile(r"blk\.(\d+)\.")
_TARGET = tuple(f"target-{part:05}-of-00003.gguf" for part in (1, 2, 3))
_DRAFT = tuple(f"draft-{part:05}-of-00002.gguf" for part in (1, 2))
_NAMES = {*_TARGET, *_DRAFT, pair_file.NAME}


@dataclass(frozen=True, slots=True)
class _File:
    """A GGUF file to write."""

    path: Path
    layers: Sequence[int]  # of the source, for its metadata; empty for parts without
    tensors: Sequence[Any]  # of the reader
    split: tuple[int, int, int] | None = None  # number of the part, parts, tensors of all parts


def split(source: Path, output: Path, layer: int, *, force: bool = False) -> Iterator[ConversionProgress]:
    """Cut the GGUF file `source` into the folder `output`: the same model, and the draft of its first `layer` layers.

    Raises:
        OptionError: there is no such layer.
        ConversionError: the model cannot be cut, or the output not be written.
        ModelFileError: the file cannot be read.
    """
    check_folder(output, _foreign, force)
    head = _checked(source)
    if not 1 <= layer < head.layers:
        raise OptionError(f"the exit layer is {layer}; {source} has {head.layers} layers: give 1 to {head.layers - 1}")
    return _split(source, head, output, layer, force=force)


def keep(source: Path, output: Path, layers: str, *, force: bool = False) -> Iterator[ConversionProgress]:
    """Write these layers of the GGUF file `source`, as "0-5,26-31", as a model of their own.

    Raises: as `split`.
    """
    check_file(output, ".gguf", force)
    head = _checked(source)
    return _kept(source, head, output, layers_of(layers, head.layers), force=force)


def layers_of(text: str, count: int) -> list[int]:
    """The layers of ranges such as "0-5,26-31". OptionError unless they ascend below `count`."""
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, -1)
        if not (found[-1] if found else -1) < first <= last < count:
            raise OptionError(
                f"the layers {text!r:.60} are not ascending ranges below {count}; give some such as 0-{count - 1}"
            )
        found.extend(range(first, last + 1))
    return found


def _split(source: Path, head: Header, output: Path, layer: int, *, force: bool) -> Iterator[ConversionProgress]:
    reader = _reader(source)
    early = [tensor for tensor in reader.tensors if (_layer(tensor.name) or 0) < layer]
    rest = [tensor for tensor in reader.tensors if (_layer(tensor.name) or 0) >= layer]
    total = len(early) + len(rest)
    with atomic_folder(
        output, 2 * head.length + sum(int(tensor.n_bytes) for tensor in reader.tensors), force
    ) as folder:
        files = (
            _File(folder / _TARGET[0], range(head.layers), (), (0, 3, total)),
            _File(folder / _TARGET[1], (), early, (1, 3, total)),
            _File(folder / _TARGET[2], (), rest, (2, 3, total)),
            _File(folder / _DRAFT[0], range(layer), (), (0, 2, len(early))),
        )
        for number, file in enumerate(files):
            yield ConversionProgress(file.path.name, number, len(files))
            _write(reader, head, file)
        _link(folder / _TARGET[1], folder / _DRAFT[1])
        for name in (_TARGET[0], _DRAFT[0]):
            native.check_loads(folder / name, runs=True)
        about = {"target": _TARGET[0], "draft": _DRAFT[0]}
        (folder / pair_file.NAME).write_bytes(pair_file.content(about))
        yield ConversionProgress("done", len(files), len(files))


def _kept(
    source: Path, head: Header, output: Path, layers: Sequence[int], *, force: bool
) -> Iterator[ConversionProgress]:
    reader = _reader(source)
    tensors = [tensor for tensor in reader.tensors if (found := _layer(tensor.name)) is None or found in layers]
    with atomic_file(output, head.length + sum(int(tensor.n_bytes) for tensor in tensors), force) as file:
        yield ConversionProgress(output.name, 0, 1)
        path = Path(file.name)
        _write(reader, head, _File(path, layers, tensors))
        native.check_loads(path, runs=True)
    yield ConversionProgress("done", 1, 1)


def _checked(source: Path) -> Header:
    if source.suffix.lower() != ".gguf":
        raise ConversionError(f"{source} is no GGUF file; convert the checkpoint to gguf first, and give that file")
    head = header(source)
    if head.parts > 1 or is_alone(head) or has_head(head) or head.number("attention.shared_kv_layers"):
        raise ConversionError(
            f"{source} cannot be cut: expected a whole model in one part, without a head for drafting and without "
            "layers that read the cache of others"
        )
    if {_layer(name) for name in head.tensors} - {None} != set(range(head.layers)):
        raise ConversionError(f"{source} does not have tensors of {head.layers} layers; fetch it again")
    return head


def _layer(name: str) -> int | None:
    found = _BLOCK.match(name)
    return int(found[1]) if found else None


def _reader(source: Path) -> Any:
    from gguf import GGUFReader  # noqa: PLC0415 - takes as long to import as all else here

    return GGUFReader(source)


def _write(reader: Any, head: Header, file: _File) -> None:
    from gguf import GGUFValueType, GGUFWriter  # noqa: PLC0415

    writer = GGUFWriter(file.path, head.architecture)
    for key, value, kind, inner in _fields(reader, head, file.layers) if file.layers else ():
        writer.add_key_value(key, value, kind, inner)
    if file.layers and len(file.layers) < head.layers:
        writer.add_string(LAYERS_KEPT, written(file.layers))
    if file.split is not None:
        part, parts, tensors = file.split
        writer.add_key_value("split.no", part, GGUFValueType.UINT16)
        writer.add_key_value("split.count", parts, GGUFValueType.UINT16)
        writer.add_key_value("split.tensors.count", tensors, GGUFValueType.INT32)
    numbers = {layer: number for number, layer in enumerate(file.layers)}
    for tensor in file.tensors:
        name, layer = tensor.name, _layer(tensor.name)
        if numbers and layer is not None:
            name = _BLOCK.sub(f"blk.{numbers[layer]}.", name, count=1)
        writer.add_tensor(name, np.ascontiguousarray(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _fields(reader: Any, head: Header, layers: Sequence[int]) -> Iterator[tuple[str, Any, Any, Any]]:
    """Key, value, type, and the type of the elements of an array, for a model of these layers."""
    prefix, count = f"{head.architecture}.", head.key("block_count")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in {"general.architecture", "split.no", "split.count", "split.tensors.count"}:
            continue
        kinds, value = [*field.types, None], field.contents()
        if key == count:
            value = len(layers)
        elif key.startswith(prefix) and isinstance(value, list) and len(value) == head.layers:
            value = [value[layer] for layer in layers]
        yield key, value, kinds[0], kinds[1]


def _link(shared: Path, name: Path) -> None:
    """A second name of a file; a copy where the disk knows neither kind of link."""
    try:
        os.link(shared, name)
    except OSError:
        try:
            name.symlink_to(shared.name)
        except OSError:
            shutil.copyfile(shared, name)


def _foreign(folder: Path) -> str:
    """A file in `folder` that `split` did not write; empty if there is none."""
    return next((path.name for path in sorted(folder.iterdir()) if path.name not in _NAMES), "")
