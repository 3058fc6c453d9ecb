"""Folders of ONNX models whose metadata, graph, weights or tokenizer are not as they should be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import onnx as onnx_package

from edgespec.models.model_source import vocabulary

from .. import folders, spoil, use
from ..judge import Wrong
from ..place import Place
from .templates import HOSTILE

_MODEL, _DATA = "model.onnx", "model.onnx.data"
_JSON = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json")
_NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "3",
    "100",
    "99999",
    "2147483648",
    "9" * 30,
    "9" * 5000,
    "x",
    "",
    "1.5",
    " 2 ",
    "1_0",
    "٣",
    "\x1b[0m",
)


def _run(place: Place, folder: Path, context: int = 0) -> bool:
    place.attempt(lambda: vocabulary(folder).label(0))
    return use.models(place, folder, context=context)


def _spoilt(change: Callable[[Path], object], base: str = "qwen2") -> Callable[[Place], None]:
    def run(place: Place) -> None:
        folder = folders.copied(place, place.models.onnx(base), "model")
        change(folder)
        _run(place, folder)

    return run


def _refused(change: Callable[[Path], object]) -> Callable[[Place], None]:
    """As `_spoilt`, where nothing but a refusal will do."""

    def run(place: Place) -> None:
        folder = folders.copied(place, place.models.onnx("qwen2"), "model")
        change(folder)
        if _run(place, folder):
            raise Wrong("accepted", "weights that are not those of the model were loaded")

    return run


def _says(**given: str) -> Callable[[Path], None]:
    """With other metadata."""

    def change(folder: Path) -> None:
        _edit(folder, lambda model: _set(model, given))

    return change


def _edit(folder: Path, change: Callable[[onnx_package.ModelProto], object]) -> None:
    path = folder / _MODEL
    model = onnx_package.load_model(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())


def _set(model: onnx_package.ModelProto, given: Mapping[str, str]) -> None:
    for entry in model.metadata_props:
        entry.value = given.get(entry.key.removeprefix("edgespec."), entry.value)


def _bytes_for(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / _MODEL
        path.write_bytes(path.read_bytes().replace(old, new))

    return change


def _fill(byte: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / _DATA
        path.write_bytes(byte * path.stat().st_size)

    return change


def _file(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def _pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


_FILES = (_MODEL, _DATA, *_JSON, "chat_template.jinja")
CORPUS: Mapping[str, Callable[[Place], object]] = {
    "sound folders": lambda place: use.sound_models(place, *map(place.models.onnx, place.models.onnxs)),
    **{
        f"{key} is {value:.20}": _spoilt(_says(**{key: value}))
        for key in ("layers", "kv_heads", "head_dim", "hidden", "vocabulary", "context", "parameters", "data_bytes")
        for value in ("0", "-1", "99999")
    },
    "more layers than there are": _spoilt(_says(layers="3")),
    "fewer layers than there are": _spoilt(_says(layers="1")),
    "a number of 5000 digits": _spoilt(_says(context="9" * 5000)),
    "another quantization": _spoilt(_says(quantization="fp16")),
    "an unknown quantization": _spoilt(_says(quantization="x")),
    "a name that is no text": _spoilt(_bytes_for(b"edgespec.name", b"edgespec.\xff\xfe\xfd\xfc")),
    "a quantization that is no text": _spoilt(_bytes_for(b"int8", b"\xff\xfe\xfd\xfc")),
    "a name that commands the terminal": _spoilt(_says(name="\x1b]0;title\x07")),
    "weights of zero": _refused(_fill(b"\0")),
    "weights of NaN": _refused(_fill(b"\xff")),
    "a template of brackets": _spoilt(_file("chat_template.jinja", b"{{ " + b"(" * 500 + b")" * 500 + b" }}")),
    "a template that is not UTF-8": _spoilt(_file("chat_template.jinja", b"{{ '\xff' }}")),
    "a temperature that is a text": _spoilt(_file("generation_config.json", b'{"temperature": "hot"}')),
    "a temperature of NaN": _spoilt(_file("generation_config.json", b'{"temperature": NaN}')),
    "a temperature of 1e400": _spoilt(_file("generation_config.json", b'{"temperature": 1' + b"0" * 400 + b"}")),
    "a top_k of 20.0": _spoilt(_file("generation_config.json", b'{"do_sample": true, "top_k": 20.0}')),
    "a top_k without end": _spoilt(_file("generation_config.json", b'{"do_sample": true, "top_k": Infinity}')),
    "eos tokens of all kinds": _spoilt(
        _file("generation_config.json", b'{"eos_token_id": [1, "x", null, -1, 1.5, 10000000]}')
    ),
    "added tokens of no objects": _spoilt(
        lambda folder: folders.put(folder / "tokenizer_config.json", "added_tokens_decoder", value={"1": None, "x": 5})
    ),
    "a special token that is a lone surrogate": _spoilt(
        lambda folder: folders.put(folder / "tokenizer_config.json", "eos_token", value="\ud800")
    ),
    **({f"{name} is a pipe": _spoilt(_pipe(name)) for name in _FILES} if hasattr(os, "mkfifo") else {}),
}


def play(rng: Random, place: Place) -> None:
    """A sound folder with a change or a few."""
    name = rng.choice(place.models.onnxs)
    folder = folders.copied(place, place.models.onnx(name), "model")
    notes = folders.spoilt(rng, folder, CHANGES)
    place.note(f"{name}: {'; '.join(notes)}")
    _run(place, folder, rng.choice((0, 0, 64)))


def _metadata(rng: Random, folder: Path) -> str:
    said: list[str] = []

    def change(model: onnx_package.ModelProto) -> None:
        entry = rng.choice(model.metadata_props)
        entry.value = rng.choice((*_NUMBERS, spoil.text(rng, entry.value).encode("utf-8", "replace").decode()))
        said.append(f"{entry.key} is {entry.value!r:.80}")
        if rng.random() < 0.1:
            model.metadata_props.remove(entry)

    return _edited(folder, change, said)


def _edited(folder: Path, change: Callable[[onnx_package.ModelProto], None], said: list[str]) -> str:
    try:
        _edit(folder, change)
    except Exception as error:  # noqa: BLE001 - it was spoilt before, or cannot be spoilt so
        return f"not edited ({type(error).__name__})"
    return " ".join(said)


def _graph(rng: Random, folder: Path) -> str:
    said: list[str] = []

    def change(model: onnx_package.ModelProto) -> None:
        graph = model.graph
        match rng.randrange(8):
            case 0:
                tensor = rng.choice(graph.initializer)
                at = rng.randrange(len(tensor.dims))
                tensor.dims[at] = rng.choice((0, 1, -1, tensor.dims[at] + 1, 2**31, 2**62))
                said.append(f"{tensor.name} has the shape {list(tensor.dims)}")
            case 1:
                tensor = rng.choice(graph.initializer)
                tensor.data_type = rng.choice((0, 1, 2, 3, 7, 10, 16, 22, 99))
                said.append(f"{tensor.name} has the type {tensor.data_type}")
            case 2:
                entries = [entry for tensor in graph.initializer for entry in tensor.external_data]
                entry = rng.choice(entries)
                entry.value = rng.choice(("0", "-1", "99999999999", "/etc/passwd", "../../x", "", "x", "\x1b[0m"))
                said.append(f"{entry.key} of weights is {entry.value!r}")
            case 3:
                node = rng.choice(graph.node)
                node.op_type = rng.choice(("Identity", "Nothing", "", "Loop", rng.choice(graph.node).op_type))
                said.append(f"a node is {node.op_type!r}")
            case 4:
                del graph.node[rng.randrange(len(graph.node))]
                said.append("a node less")
            case 5:
                values = rng.choice((graph.input, graph.output))
                value = rng.choice(values)
                value.name = rng.choice(("x", "", rng.choice(values).name))
                said.append(f"an input or output is {value.name!r}")
            case 6:
                node = rng.choice([each for each in graph.node if each.attribute])
                attribute = rng.choice(node.attribute)
                attribute.i = rng.choice((0, -1, 3, 2**31, 2**62))
                said.append(f"{attribute.name} of {node.op_type} is {attribute.i}")
            case _:
                model.ir_version = rng.choice((0, 1, 99, 2**40))
                said.append(f"version {model.ir_version}")

    return _edited(folder, change, said)


def _json(rng: Random, folder: Path) -> str:
    path = folder / rng.choice(_JSON)
    try:
        return folders.spoilt_json(rng, path)
    except (ValueError, OSError):  # spoilt before
        return folders.spoilt_file(rng, path)


def _any(rng: Random, folder: Path) -> str:
    return folders.spoilt_file(rng, folder / rng.choice(_FILES))


def _template(rng: Random, folder: Path) -> str:
    text = rng.choice(HOSTILE)
    (folder / "chat_template.jinja").write_bytes(text.encode("utf-8", "surrogatepass"))
    return f"the template {text!r:.100}"


def _sampling(rng: Random, folder: Path) -> str:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "eos_token_id", "do_sample")
    given = {"do_sample": True, rng.choice(names): rng.choice((spoil.value(rng), spoil.number(rng)))}
    (folder / "generation_config.json").write_bytes(spoil.written(rng, given))
    return json.dumps(given)[:200]


CHANGES: tuple[Callable[[Random, Path], str], ...] = (
    _metadata, _metadata, _graph, _graph, _json, _json, _any, _template, _sampling,
)  # fmt: skip
