"""Files of `torch.save`: tensors are found, nothing is executed, and whatever else is refused in one line."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgespec.converters import convert
from edgespec.converters.checkpoint import tensors
from edgespec.converters.stored_tensor import float32
from edgespec.errors import ConversionError

from . import checkpoints, torch_files
from .torch_files import EMPTY, archive, by_rows, dictionary, saved, storage, tensor, text

EIGHT = np.arange(8, dtype=np.float32).tobytes()


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(data)
    return path


def refused(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(ConversionError, match=words) as caught:
        tensors(written(tmp_path, data))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def one(pickled: bytes, **options: Any) -> bytes:
    """A file with one tensor of this pickle, over a storage of eight numbers."""
    return archive(dictionary({"x": pickled}), {"0": EIGHT}, **options)


def view(offset: int = 0, shape: tuple[int, ...] = (2, 4), strides: tuple[int, ...] = (4, 1), count: int = 8) -> bytes:
    return tensor(storage("F32", "0", count), offset, shape, strides)


def test_tensors_are_found(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    given: dict[str, npt.NDArray[Any]] = {
        "matrix": draw.standard_normal((5, 7)).astype(np.float32),
        "half": draw.standard_normal((3, 4)).astype(np.float16),
        "vector": draw.standard_normal(6).astype(np.float32),
        "number": np.array(2.5, np.float32),
        "ids": np.arange(4),
        "flags": np.array([True, False]),
    }
    found = tensors(written(tmp_path, saved(given)))
    assert [(name, each.dtype, each.shape) for name, each in found.items()] == [
        ("matrix", "F32", (5, 7)),
        ("half", "F16", (3, 4)),
        ("vector", "F32", (6,)),
        ("number", "F32", ()),
        ("ids", "I64", (4,)),
        ("flags", "BOOL", (2,)),
    ]
    for name in ("matrix", "half", "vector"):
        numbers = np.concatenate([float32(block) for block in found[name].blocks()]).reshape(given[name].shape)
        assert np.array_equal(numbers, given[name].astype(np.float32))


def test_two_tensors_of_one_storage(tmp_path: Path) -> None:
    parts = {"whole": view(), "row": view(4, (1, 4), (99, 1)), "parameter": _parameter(view(4, (4,), (1,)))}
    found = tensors(written(tmp_path, archive(dictionary(parts), {"0": EIGHT})))
    numbers = {name: np.concatenate(list(each.blocks())).ravel().tolist() for name, each in found.items()}
    assert numbers == {"whole": list(range(8)), "row": [4, 5, 6, 7], "parameter": [4, 5, 6, 7]}


def _parameter(value: bytes) -> bytes:
    return b"ctorch._utils\n_rebuild_parameter\n(" + value + b"\x88" + EMPTY + b"tR"


def test_a_newer_protocol(tmp_path: Path) -> None:
    """With frames, short texts, a memo without numbers, and names from the stack."""

    def short(value: str) -> bytes:
        return b"\x8c" + bytes([len(value)]) + value.encode() + b"\x94"

    numbers = b"(" + short("storage") + short("torch") + short("FloatStorage") + b"\x93" + short("0") + short("cpu")
    made = short("torch._utils") + short("_rebuild_tensor_v2") + b"\x93(" + numbers + b"K\x08tQ"
    whole = b"\x80\x04\x95" + bytes(8) + b"}\x94" + short("x") + made + b"K\x00K\x02K\x04\x86K\x04K\x01\x86\x89}tRs."
    found = tensors(written(tmp_path, archive(whole, {"0": EIGHT})))
    assert found["x"].shape == (2, 4)


def test_zip64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 0)
    data = saved({"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    monkeypatch.undo()
    assert b"PK\6\6" in data, "an archive of this kind"
    (found,) = tensors(written(tmp_path, data)).values()
    assert np.concatenate(list(found.blocks())).ravel().tolist() == list(range(6))


def test_a_checkpoint_of_pytorch_is_that_of_safetensors(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    list(convert(source, tmp_path / "safe.gguf"))
    torch_files.pickled(source)
    list(convert(source, tmp_path / "pickled.gguf"))
    assert (tmp_path / "pickled.gguf").read_bytes() == (tmp_path / "safe.gguf").read_bytes()


def test_shards(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    list(convert(source, tmp_path / "whole.gguf"))
    torch_files.pickled(source)
    found = tensors(source / "pytorch_model.bin")
    content = (source / "pytorch_model.bin").read_bytes()
    (source / "pytorch_model.bin").unlink()
    weight_map: dict[str, str] = {}
    for shard in (0, 1):
        file = f"pytorch_model-0000{shard + 1}-of-00002.bin"
        part = {
            name: (each.dtype, each.shape, content[each.offset : each.offset + each.nbytes])
            for place, (name, each) in enumerate(found.items())
            if place % 2 == shard
        }
        (source / file).write_bytes(saved(part))
        weight_map |= dict.fromkeys(part, file)
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    list(convert(source, tmp_path / "sharded.gguf"))
    assert (tmp_path / "sharded.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    shutil.copy(source / "pytorch_model-00001-of-00002.bin", source / "pytorch_model-00002-of-00002.bin")
    with pytest.raises(ConversionError, match="is both in"):
        list(convert(source, tmp_path / "twice.gguf"))


class _Hostile:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._made = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._made


def _system(place: Path) -> bytes:
    # os.system as Linux and macOS name it; the pickle of another machine names nt.
    call = b"cposix\nsystem\n(" + text(f"touch {place}") + b"tR"
    return b"\x80\x02}" + text("x") + call + b"s."


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_executed(protocol: int, tmp_path: Path) -> None:
    place = tmp_path / "executed"
    for made in (_Hostile(Path.touch, place), _Hostile(eval, f"open({str(place)!r}, 'w')"), [_Hostile(exec, "1")]):
        refused(tmp_path, archive(pickle.dumps({"x": made}, protocol), {}), r"nothing was executed")
    refused(tmp_path, archive(_system(place), {}), r"calls for 'posix.system'.*nothing was executed")
    assert not place.exists()


def test_names_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "edgespec_never_imported.py").write_text("raise SystemExit")
    sys.path.insert(0, str(tmp_path))
    try:
        refused(tmp_path, archive(b"\x80\x02cedgespec_never_imported\nx\n)R.", {}), "nothing was executed")
    finally:
        sys.path.remove(str(tmp_path))
    assert "edgespec_never_imported" not in sys.modules


def test_a_hostile_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(archive(_system(tmp_path / "executed"), {}))
    output = tmp_path / "out"
    output.mkdir()
    with pytest.raises(ConversionError, match=r"posix\.system"):
        list(convert(source, output / "model.gguf"))
    assert not list(output.iterdir())
    assert not (tmp_path / "executed").exists()


PICKLES: dict[str, tuple[bytes, str]] = {
    "a module": (pickle.dumps(Path("x"), 2), "nothing was executed"),
    "a number": (b"\x80\x02K\x05.", "no dictionary of tensors"),
    "a number among tensors": (dictionary({"x": b"K\x05"}), "something else under 'x'"),
    "a dictionary of dictionaries": (dictionary({"model": EMPTY}), "a dictionary under 'model'"),
    "a name twice": (b"\x80\x02}(" + 2 * (text("x") + view()) + b"u.", "the name 'x' twice"),
    "a name that is a number": (b"\x80\x02}K\x01" + view() + b"s.", "a name that is no text"),
    "a name of two lines": (dictionary({"x\ny": view()}), r"the name 'x\\ny', which is none"),
    "a name of a book": (dictionary({"x" * 10_000: b"K\x05"}), "which is none"),
    "a name that is a list": (b"\x80\x02}]" + view() + b"s.", "a name that is no text"),
    "no end": (dictionary({"x": view()})[:-1], "pickle is damaged"),
    "nothing": (b"", "pickle is damaged"),
    "bytes": (b"\xff\xfe\xfd", "pickle is damaged"),
    "no operand": (b"\x80\x02R.", "lacks its operand"),
    "a mark as an operand": (b"\x80\x02(R.", "lacks its operand"),
    "no mark": (b"\x80\x02t.", "lacks its mark"),
    "a call of a tensor": (dictionary({"x": view() + b")R"}), "pickle is damaged"),
    "a call without arguments": (dictionary({"x": b"ctorch._utils\n_rebuild_tensor_v2\n)R"}), "pickle is damaged"),
    "an unknown memo": (b"\x80\x02h\x05.", "pickle is damaged"),
    "a memo of 2^32": (b"\x80\x02}r\xff\xff\xff\xff.", ""),
    "a stack without end": (b"\x80\x02" + b"}" * 200_000 + b".", "objects at once"),
    "tuples of tuples as a name": (b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.", "a name that is no text"),
    "a text without end": (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.", "pickle is damaged"),
    "a number of 5000 digits": (b"\x80\x02I" + b"9" * 5000 + b"\n.", "damaged|instruction INT"),
    "another kind of storage": (dictionary({"x": view().replace(b"Float", b"Quant")}), "calls for 'torch.Quant"),
    "a storage of another module": (dictionary({"x": view().replace(b"ctorch\nF", b"cevil_\nF")}), "calls for 'evil_"),
    "a negative size": (dictionary({"x": view(shape=(-2, 4))}), "a size that cannot be"),
    "more strides than axes": (dictionary({"x": view(strides=(4, 1, 1))}), "another number of strides"),
    "beyond the storage": (dictionary({"x": view(offset=1)}), "do not hold"),
    "a storage of another size": (dictionary({"x": view(count=9)}), "do not hold"),
    "columns": (dictionary({"x": view(strides=(1, 2))}), r"the strides \[1, 2\].*\.contiguous"),
    "numbers that are not there": (dictionary({"x": view().replace(text("0"), text("7"))}), "lacks the numbers of x"),
}  # fmt: skip


@pytest.mark.parametrize("case", PICKLES)
def test_bad_pickles(case: str, tmp_path: Path) -> None:
    data, words = PICKLES[case]
    if words:
        refused(tmp_path, archive(data, {"0": EIGHT}), words)
    else:
        assert tensors(written(tmp_path, archive(data, {"0": EIGHT}))) == {}


def swapped(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new)


def overlapping() -> bytes:
    """A second storage whose entry in the archive's directory leads into the first one."""
    values = {name: tensor(storage("F32", name, 8), 0, (8,), (1,)) for name in "01"}
    data = archive(dictionary(values), {"0": EIGHT, "1": EIGHT})
    first, second = data.index(b"archive/data/0"), data.index(b"archive/data/1")
    directory = data.index(b"PK\1\2")
    places = [data.index(f"archive/data/{name}".encode(), directory) - 4 for name in "01"]
    changed = bytearray(data)
    changed[first : first + 14] = b"archive/data/1"
    changed[second : second + 14] = b"archive/data/1"
    changed[places[0] + 4 : places[0] + 18] = b"archive/data/1"
    changed[places[1] + 4 : places[1] + 18] = b"archive/data/0"
    changed[places[1] : places[1] + 4] = (first - 30).to_bytes(4, "little")
    return bytes(changed)


ARCHIVES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a file of torch.save"),
    "before 1.6": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "before 1.6"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "not a file of torch.save"),
    "cut off": (one(view())[:-40], "not a whole PyTorch file"),
    "half": (one(view())[: len(one(view())) // 2], "not a whole PyTorch file"),
    "another archive": (archive(b"", {}).replace(b"data.pkl", b"else.pkl"), "not one of torch.save"),
    "two lists": (one(view(), more=[("more/data.pkl", b"")]), "not one of torch.save"),
    "a script": (one(view(), more=[("constants.pkl", b"")]), "not one of torch.save"),
    "an entry twice": (swapped(one(view(), more=[("data/1", EIGHT)]), b"data/1", b"data/0"), "data/0' twice"),
    "big-endian": (one(view(), order=b"big"), "big-endian"),
    "compressed": (one(view(), compression=zipfile.ZIP_DEFLATED), "compressed or encrypted"),
    "another name inside": (one(view()).replace(b"archive/data/0", b"archive/data/9", 1), "not where the archive says"),
    "overlapping": (overlapping(), "overlaps|not where the archive says|[Oo]verlapped"),
    "a damaged list": (swapped(one(view()), b"_rebuild_tensor_v2", b"_rebuild_tensor_v9"), "not a whole PyTorch file"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("case", ARCHIVES)
def test_bad_archives(case: str, tmp_path: Path) -> None:
    data, words = ARCHIVES[case]
    refused(tmp_path, data, words)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="cannot be read"):
        tensors(tmp_path / "nothing.bin")


def test_strides_of_axes_of_one_do_not_matter(tmp_path: Path) -> None:
    found = tensors(written(tmp_path, one(view(shape=(1, 8), strides=(1, 1)))))
    assert found["x"].shape == (1, 8)
    assert by_rows((2, 3, 4)) == [12, 4, 1]
