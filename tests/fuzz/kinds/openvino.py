"""Folders that OpenVINO runs: IR models whose graph, weights or config are not as they should be, models of other
kinds, and spoilt folders of ONNX models."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import numpy as np

from edgespec.backends.openvino_package import bindings
from edgespec.models.model_source import vocabulary

from .. import folders, spoil, use
from ..judge import Wrong
from ..place import Place
from . import onnx

_GRAPH, _DATA = "openvino_model.xml", "openvino_model.bin"
_FILES = (_GRAPH, _DATA, "config.json", "tokenizer.json", "tokenizer_config.json")
_SIZES = ("0", "1", "-1", "2", "3", "7", "64", "4096", "99999", "2147483648", "9223372036854775808", "9" * 30, "x", "")
_TYPES = ("f32", "f16", "bf16", "i64", "i32", "u8", "i8", "u4", "i4", "u1", "nf4", "boolean", "dynamic", "string", "x")
_KINDS = (
    "Add", "Multiply", "MatMul", "Reshape", "Transpose", "Gather", "Concat", "Split", "Result", "Parameter", "Const",
    "ReadValue", "Assign", "ScaledDotProductAttention", "ShapeOf", "Convert", "Loop", "If", "TensorIterator",
    "LSTMCell", "Convolution", "TopK", "NonMaxSuppression", "PagedAttentionExtension", "Nothing", "",
)  # fmt: skip
_VERSIONS = ("opset1", "opset3", "opset13", "opset16", "opset99", "extension", "experimental", "", "x")


def _run(place: Place, folder: Path, context: int = 0) -> bool:
    place.attempt(lambda: vocabulary(folder).label(0))
    return use.models(place, folder, context=context, backend="openvino")


def _spoilt(change: Callable[[Path], object], base: str = "groups") -> Callable[[Place], None]:
    def run(place: Place) -> None:
        folder = folders.copied(place, place.models.ir(base), "model")
        change(folder)
        _run(place, folder)

    return run


def _refused(change: Callable[[Path], object]) -> Callable[[Place], None]:
    """As `_spoilt`, where nothing but a refusal will do."""

    def run(place: Place) -> None:
        folder = folders.copied(place, place.models.ir("plain"), "model")
        change(folder)
        if _run(place, folder):
            raise Wrong("accepted", "a model that is not what it should be was loaded")

    return run


def _other(make: Callable[[], Any]) -> Callable[[Place], None]:
    """Another model in place of the language model."""
    return _refused(lambda folder: bindings().save_model(make(), folder / _GRAPH, compress_to_fp16=False))


def _parameter(name: str, shape: list[int], kind: str = "i64") -> Any:
    parameter = bindings().opset13.parameter(shape, getattr(bindings().Type, kind), name=name)
    parameter.output(0).set_names({name})
    return parameter


def _named(node: Any, name: str) -> Any:
    node.output(0).set_names({name})
    return node


def _image_model() -> Any:
    ops = bindings().opset13
    image = _parameter("pixel_values", [-1, 3, 32, 32], "f32")
    weights = np.full((8, 3, 3, 3), 0.1, np.float32)
    found = ops.convolution(image, ops.constant(weights), [1, 1], [1, 1], [1, 1], [1, 1])
    pooled = ops.reduce_mean(found, ops.constant(np.array([2, 3])), keep_dims=False)
    return bindings().Model([ops.result(_named(ops.relu(pooled), "logits"))], [image], "image")


def _encoder() -> Any:
    """Attention of all tokens to all, and no state."""
    ops = bindings().opset13
    ids, attended = _parameter("input_ids", [-1, -1]), _parameter("attention_mask", [-1, -1])
    table = ops.constant(np.full((512, 16), 0.1, np.float32))
    x = ops.unsqueeze(ops.gather(table, ids, ops.constant(np.int64(0))), ops.constant(np.int64(1)))
    found = ops.squeeze(ops.scaled_dot_product_attention(x, x, x), ops.constant(np.int64(1)))
    logits = ops.matmul(found, table, transpose_a=False, transpose_b=True)
    return bindings().Model([ops.result(_named(logits, "logits"))], [ids, attended], "encoder")


def _stateful(attention: bool) -> Any:
    """A state that no attention reads, beside a model without or with it."""
    ov, ops = bindings(), bindings().opset13
    ids, attended = _parameter("input_ids", [-1, -1]), _parameter("attention_mask", [-1, -1])
    places, beams = _parameter("position_ids", [-1, -1]), _parameter("beam_idx", [-1], "i32")
    table = ops.constant(np.full((512, 16), 0.1, np.float32))
    x = ops.gather(table, ids, ops.constant(np.int64(0)))
    if attention:
        x = ops.squeeze(
            ops.scaled_dot_product_attention(*[ops.unsqueeze(x, ops.constant(np.int64(1)))] * 3),
            ops.constant(np.int64(1)),
        )
    info = ov.op.util.VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([-1, 16]), ov.Type.f32, "state"
    variable = ov.op.util.Variable(info)
    summed = ops.reduce_sum(x, ops.constant(np.array([1])), keep_dims=False)
    state = ops.read_value(summed, variable)
    sink = ops.assign(ops.add(state, summed), variable)
    logits = ops.matmul(
        ops.add(x, ops.unsqueeze(state, ops.constant(np.int64(1)))), table, transpose_a=False, transpose_b=True
    )
    inputs = [ids, attended, places, beams]
    return ov.Model([ops.result(_named(logits, "logits"))], [sink], inputs, "recurrent")


def _no_words() -> Any:
    """A model with the inputs of a language model, whose logits are of another rank."""
    ops = bindings().opset13
    ids = _parameter("input_ids", [-1, -1])
    summed = ops.reduce_sum(ops.convert(ids, "f32"), ops.constant(np.array([0, 1])), keep_dims=False)
    return bindings().Model([ops.result(_named(summed, "logits"))], [ids], "sum")


def _replaced(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / _GRAPH).read_text("utf-8")
        if old not in text:
            raise Wrong("corpus", f"{old} is not in the graph")
        (folder / _GRAPH).write_text(text.replace(old, new, 1), "utf-8")

    return change


def _file(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def _fill(byte: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / _DATA).write_bytes(byte * (folder / _DATA).stat().st_size)


def _pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def _sound(place: Place) -> None:
    for name in place.models.irs:
        if not _run(place, place.models.ir(name)) or place.refusals:
            raise Wrong("refused-sound", f"{name} is refused")
    for name in place.models.onnxs:
        if not _run(place, place.models.onnx(name)) or place.refusals:
            raise Wrong("refused-sound", f"{name} is refused")


CORPUS: Mapping[str, Callable[[Place], object]] = {
    "sound folders": _sound,
    "an image model": _other(_image_model),
    "an encoder": _other(_encoder),
    "a state without attention": _other(lambda: _stateful(attention=False)),
    "a state beside attention": _other(lambda: _stateful(attention=True)),
    "logits of rank 0": _other(_no_words),
    "no weights": _refused(lambda folder: (folder / _DATA).unlink()),
    "weights cut short": _refused(lambda folder: os.truncate(folder / _DATA, 1000)),
    "empty weights": _refused(_file(_DATA, b"")),
    "weights of zero": _spoilt(_fill(b"\0")),
    "weights of NaN": _spoilt(_fill(b"\xff")),
    "a graph of nothing": _refused(_file(_GRAPH, b"<net></net>")),
    "a graph of entities": _refused(
        _file(_GRAPH, b'<!DOCTYPE n [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;">]><net>&b;</net>')
    ),
    "brackets in brackets": _refused(_file(_GRAPH, b"<net>" + b"<a>" * 50_000)),
    "a graph in another encoding": _refused(_file(_GRAPH, "<?xml version='1.0'?><net/>".encode("utf-16"))),
    "a layer of another opset": _spoilt(_replaced('version="opset13"', 'version="opset99"')),
    "a constant beyond the weights": _spoilt(_replaced('offset="4"', 'offset="999999"')),
    "a constant larger than its bytes": _spoilt(_replaced('shape="64, 64"', 'shape="6400, 64"'), "plain"),
    "a state of another width": _spoilt(_replaced('variable_shape="?,2,?,16"', 'variable_shape="?,2,?,8"')),
    "a state without a name": _spoilt(_replaced('variable_id="', 'x="')),
    "positions without end": _spoilt(
        lambda folder: folders.put(folder / "config.json", "max_position_embeddings", value=2**31 - 1)
    ),
    "one position": _spoilt(lambda folder: folders.put(folder / "config.json", "max_position_embeddings", value=1)),
    **({f"{name} is a pipe": _spoilt(_pipe(name)) for name in _FILES} if hasattr(os, "mkfifo") else {}),
}


def play(rng: Random, place: Place) -> None:
    """A sound folder with a change or a few: of an IR model, or now and then of an ONNX model."""
    if rng.random() < 0.2:
        name = rng.choice(place.models.onnxs)
        folder = folders.copied(place, place.models.onnx(name), "model")
        notes = folders.spoilt(rng, folder, onnx.CHANGES)
    else:
        name = rng.choice(place.models.irs)
        folder = folders.copied(place, place.models.ir(name), "model")
        notes = folders.spoilt(rng, folder, _CHANGES)
    place.note(f"{name}: {'; '.join(notes)}")
    _run(place, folder, rng.choice((0, 0, 64)))


def _edited(folder: Path, change: Callable[[ElementTree.Element], str]) -> str:
    try:
        tree = ElementTree.parse(folder / _GRAPH)  # noqa: S314 - written here
    except ElementTree.ParseError:
        return "the graph is spoilt already"
    said = change(tree.getroot())
    tree.write(folder / _GRAPH, encoding="utf-8", xml_declaration=True)
    return said


def _layers(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Of each kind as many, for half of the layers are constants."""
    kinds: dict[str, list[ElementTree.Element]] = {}
    for layer in root.iter("layer"):
        kinds.setdefault(layer.get("type", ""), []).append(layer)
    return [layer for found in kinds.values() for layer in found[:4]]


def _text(rng: Random, old: str) -> str:
    """An attribute like `old`, that XML can hold."""
    new = rng.choice((*_SIZES, *_TYPES, spoil.text(rng, old)))
    return "".join(each for each in new if each.isprintable() and not 0xD800 <= ord(each) < 0xE000)


def _data(rng: Random, folder: Path) -> str:
    """An attribute of an operator: an axis, an offset, a type, a shape."""

    def change(root: ElementTree.Element) -> str:
        data = rng.choice([each for layer in _layers(root) if (each := layer.find("data")) is not None and each.keys()])
        key = rng.choice(list(data.keys()))
        if rng.random() < 0.1:
            del data.attrib[key]
            return f"no {key}"
        if "shape" in key:
            sizes = data.get(key, "").split(",")
            sizes[rng.randrange(len(sizes))] = rng.choice((*_SIZES, "?"))
            data.set(key, rng.choice((",".join(sizes), ",".join(sizes[1:]), ",".join([*sizes, "1"]))))
        elif "type" in key:
            data.set(key, rng.choice(_TYPES))
        else:
            data.set(key, rng.choice((rng.choice(_SIZES), _text(rng, data.get(key, "")))))
        return f"{key} is {data.get(key)!r:.80}"

    return _edited(folder, change)


def _layer(rng: Random, folder: Path) -> str:
    """An operator that is another, missing, twice there or of another name."""

    def change(root: ElementTree.Element) -> str:
        layers = root.find("layers")
        layer = rng.choice(_layers(root))
        name, kind = layer.get("name"), layer.get("type")
        assert layers is not None
        match rng.randrange(6):
            case 0:
                layers.remove(layer)
                return f"no {kind} {name}"
            case 1:
                layers.append(layer)
                return f"{kind} {name} twice"
            case 2:
                layer.set("type", rng.choice(_KINDS))
                return f"{kind} {name} is {layer.get('type')!r}"
            case 3:
                layer.set("version", rng.choice(_VERSIONS))
                return f"{kind} {name} is of {layer.get('version')!r}"
            case 4:
                layer.set("id", rng.choice((*_SIZES, rng.choice(_layers(root)).get("id", ""))))
                return f"{kind} {name} has the id {layer.get('id')!r:.50}"
            case _:
                layer.set("name", rng.choice((rng.choice(_layers(root)).get("name", ""), _text(rng, name or ""))))
                return f"{kind} {name} is called {layer.get('name')!r:.50}"

    return _edited(folder, change)


def _port(rng: Random, folder: Path) -> str:
    """The name, type or shape of what an operator takes or gives."""

    def change(root: ElementTree.Element) -> str:
        layer = rng.choice([each for each in _layers(root) if each.find("*/port") is not None])
        port = rng.choice(layer.findall("*/port"))
        sizes = port.findall("dim")
        match rng.randrange(5):
            case 0 if sizes:
                size = rng.choice(sizes)
                size.text = rng.choice(_SIZES)
                said = f"a size of {size.text:.40}"
            case 1 if sizes:
                port.remove(rng.choice(sizes))
                said = "a size less"
            case 2:
                port.set("precision", rng.choice(_TYPES).upper())
                said = f"the type {port.get('precision')}"
            case 3:
                port.set("id", rng.choice(_SIZES))
                said = f"the id {port.get('id')!r:.40}"
            case _:
                port.set("names", rng.choice(("", "logits", "input_ids", "beam_idx", "x,logits", "past_key_values.0")))
                said = f"the name {port.get('names')!r}"
        return f"a port of {layer.get('type')} {layer.get('name')} has {said}"

    return _edited(folder, change)


def _edge(rng: Random, folder: Path) -> str:
    """A connection that is missing or leads elsewhere."""

    def change(root: ElementTree.Element) -> str:
        edges = root.find("edges")
        assert edges is not None
        edge = rng.choice(edges.findall("edge"))
        if rng.random() < 0.2:
            edges.remove(edge)
            return f"no edge {edge.attrib}"
        if rng.random() < 0.2:
            edges.append(ElementTree.Element("edge", dict(edge.attrib)))
        key, other = rng.choice(list(edge.keys())), rng.choice(edges.findall("edge"))
        edge.set(key, rng.choice((other.get(key, ""), other.get(key, ""), rng.choice(_SIZES))))
        return f"{key} of an edge is {edge.get(key)!r:.40}"

    return _edited(folder, change)


def _weights(rng: Random, folder: Path) -> str:
    path = folder / _DATA
    content = path.read_bytes()
    match rng.randrange(5):
        case 0:
            path.write_bytes(content[: rng.randrange(len(content))])
            return "weights cut"
        case 1:
            path.write_bytes(content + bytes(rng.choice((1, 4096))))
            return "more weights"
        case 2:
            path.write_bytes(rng.randbytes(len(content)))
            return "weights at random"
        case 3:
            path.write_bytes(rng.choice((b"\0", b"\xff", b"\x80")) * len(content))
            return "weights of one byte"
    # Integers of the graph's own lie among the first constants.
    at, end = sorted((rng.randrange(400), rng.randrange(400)))
    path.write_bytes(content[:at] + rng.randbytes(end - at) + content[end:])
    return f"constants from {at} to {end} at random"


def _config(rng: Random, folder: Path) -> str:
    path = folder / "config.json"
    config = json.loads(path.read_bytes())
    key = rng.choice((*config, "sliding_window", "layer_types", "attention_chunk_size", "n_positions", "seq_length"))
    config[key] = rng.choice((spoil.value(rng), spoil.number(rng), spoil.like(rng, config.get(key))))
    path.write_bytes(spoil.written(rng, config))
    return f"{key} is {config[key]!r:.100}"


def _json(rng: Random, folder: Path) -> str:
    return folders.spoilt_json(rng, folder / rng.choice(_FILES[2:]))


def _any(rng: Random, folder: Path) -> str:
    return folders.spoilt_file(rng, folder / rng.choice(_FILES))


_CHANGES: tuple[Callable[[Random, Path], str], ...] = (
    _data, _data, _data, _data, _layer, _layer, _port, _port, _edge, _edge, _edge, _weights, _weights, _config, _json,
    _any,
)  # fmt: skip
