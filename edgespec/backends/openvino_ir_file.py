"""The metadata of an OpenVINO IR model, read without the engine: openvino_model.xml, and config.json beside it.

Models of optimum-intel are supported: decoders that keep keys and values in their state.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ..errors import ModelFileError
from ..storage.files import contents, regular
from ..values import shown

NAME = "openvino_model.xml"  #: the name of the model among the files of its folder
_LARGEST = 256_000_000  # bytes of a graph without weights; those of large models have 10 MB
_AGAIN = "export or fetch it again"
_INPUTS = {"input_ids", "attention_mask", "position_ids", "beam_idx"}
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_BITS = {"u4": "int4", "i4": "int4", "u8": "int8", "i8": "int8", "f16": "fp16", "f32": "fp32"}
_MOST = 1 << 31  # of a number in config.json or in a shape


@dataclass(frozen=True, slots=True)
class DescribedIr:
    """An IR model.

    Args:
        group: the numbers of a matrix that share a scale; 0 for whole rows.
        context: the number of positions.
        window: the tokens that some layers attend to by config.json; 0 if all layers attend to all tokens.
        cache_bytes: of one token in the caches of all layers.
        weights: a hash of the shapes and types of the weights, which determine the price of a pass.
        data_bytes: the size of the file of weights.
    """

    path: Path
    quantization: str
    group: int
    vocabulary: int
    context: int
    window: int
    hidden: int
    parameters: int
    cache_bytes: int
    weights: str
    data_bytes: int

    @property
    def data(self) -> Path:
        """The file of the weights."""
        return self.path.with_suffix(".bin")

    @property
    def summary(self) -> str:
        """Name, number of parameters and quantization, for example "Qwen (7.6B, int4)"."""
        folder = self.path.parent.resolve()
        # In the cache of a hub: models--org--name/snapshots/commit
        name = folder.parents[1].name.rpartition("--")[2] if folder.parent.name == "snapshots" else folder.name
        size = f"{self.parameters / 1e9:.1f}B" if self.parameters >= 1e9 else f"{self.parameters / 1e6:.1f}M"
        return f"{''.join(each for each in name if each.isprintable())} ({size}, {self.quantization})"


def read(path: Path) -> DescribedIr:
    """The metadata of the model at `path`, an .xml file.

    Raises:
        ModelFileError: it cannot be read, is not an IR model of a stateful decoder, its weights are missing or have
            another size, or config.json does not give the number of positions.
    """
    found = _Layers()
    try:
        if regular(path).stat().st_size > _LARGEST:
            raise ValueError("it is too large for a graph")
        _scan(path, found)
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} does not exist; give the folder of an OpenVINO IR model") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelFileError(f"{path} is not an OpenVINO IR model, or it is truncated ({reason}); {_AGAIN}") from error
    _check_kind(path, found)
    _check_data(path, found.end)
    config = _config(path.parent)
    quantization, group = found.quantization
    context = _context(path.parent, config)
    return DescribedIr(
        path,
        quantization,
        group,
        found.vocabulary,
        context,
        _window(config, context),
        _number(config, "hidden_size"),
        found.parameters,
        2 * sum(found.states),  # float16
        hashlib.sha256(repr(found.matrices).encode()).hexdigest(),
        found.end,
    )


@dataclass(slots=True)
class _Layers:
    """What the layers of the XML file hold.

    Args:
        inputs: the names of the inputs.
        states: of each state, the numbers of one token in it.
        matrices: types and shapes of the constants with two dimensions or more that are no scales.
        vocabulary: the width of a row of logits.
        end: the end of the last constant in the file of weights.
    """

    inputs: list[str] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    matrices: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    vocabulary: int = 0
    end: int = 0

    def add(self, layer: Any) -> None:
        kind, data = layer.get("type"), layer.find("data")
        outputs = layer.findall("output/port")
        if kind == "Parameter":
            names = outputs[0].get("names", "").split(",")
            self.inputs.append(next((name for name in names if name in _INPUTS), names[0] or layer.get("name", "")))
        elif kind == "Const":
            self._constant(data)
        elif kind in ("ReadValue", "Assign") and (data is None or not data.get("variable_id")):
            raise ValueError("a state has no variable_id")  # OpenVINO's reader ends the process
        elif kind == "ReadValue":
            self.states.append(prod(size for size in _dimensions(outputs[0]) if size > 0))
        for port in outputs:
            if "logits" in port.get("names", "").split(","):
                self.vocabulary = max(0, _dimensions(port)[-1])

    def _constant(self, data: Any) -> None:
        if data is not None and data.get("offset") is None:  # its value is in the graph
            return
        if data is None or data.get("shape") is None:
            raise ValueError("a constant has no shape")
        self.end = max(self.end, _whole(data.get("offset")) + _whole(data.get("size")))
        shape = tuple(_whole(size) for size in data.get("shape").split(",") if size.strip())
        if len(shape) > 1 and shape[-1] > 1:
            self.matrices.append((data.get("element_type"), shape))

    @property
    def parameters(self) -> int:
        return sum(prod(shape) for _, shape in self.matrices)

    @property
    def quantization(self) -> tuple[str, int]:
        """The format of most of the weights, and the numbers that share a scale, 0 for whole rows."""
        kinds: Counter[tuple[str, int]] = Counter()
        for kind, shape in self.matrices:
            group = shape[-1] if len(shape) == 3 and kind in _BITS and _BITS[kind].startswith("int") else 0
            kinds[_BITS.get(kind, kind), group] += prod(shape)
        ((name, group), _), *_ = kinds.most_common(1) or [(("fp32", 0), 0)]
        return (f"{name}-b{group}" if group else name), group


def _scan(path: Path, found: _Layers) -> None:
    """Read the layers, and free each element after it was read."""
    root = None
    for event, element in ElementTree.iterparse(path, events=("start", "end")):  # noqa: S314 - expat limits entities
        if root is None:
            root = element
            if element.tag != "net":
                raise ValueError(f"its root is {shown(element.tag)} and not net")
        if event == "end" and element.tag == "layer":
            found.add(element)
            element.clear()


def _check_kind(path: Path, found: _Layers) -> None:
    """Refuse what is no stateful decoder of text."""
    inputs = [shown(name)[:60] for name in found.inputs]
    if any(name.startswith("past_key_values") for name in found.inputs):
        raise ModelFileError(
            f"{path} takes its keys and values as inputs; export the checkpoint with state, as optimum-cli does "
            "without --disable-stateful"
        )
    if "input_ids" not in found.inputs:
        raise ModelFileError(
            f"{path} is no decoder of text: it has the inputs {', '.join(inputs[:6]) or 'none'} and not input_ids; "
            "give the folder of a language model"
        )
    if not found.vocabulary:
        raise ModelFileError(
            f"{path} is no decoder of text: none of its outputs is called logits and has the width of a vocabulary; "
            "give the folder of a language model"
        )
    if strange := sorted(set(found.inputs) - _INPUTS):
        raise ModelFileError(
            f"{path} has the input {shown(strange[0])[:60]}, which edgespec cannot provide; give a language model that "
            "takes text alone"
        )
    if not found.states:
        raise ModelFileError(
            f"{path} keeps no keys and values; export the checkpoint for text-generation-with-past with optimum-cli"
        )


def _check_data(path: Path, expected: int) -> None:
    data = path.with_suffix(".bin")
    try:
        size = regular(data).stat().st_size
    except OSError as error:
        raise ModelFileError(f"{data}, which holds the weights of {path}, cannot be read; {_AGAIN}") from error
    if size != expected:
        raise ModelFileError(
            f"{data} has {size} bytes and not {expected}: it is truncated, or of another model; {_AGAIN}"
        )


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    try:
        read = json.loads(contents(path) or b"null")
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelFileError(f"{path} cannot be read: {reason}; copy it from the checkpoint") from error
    if not isinstance(read, dict):
        raise ModelFileError(f"{path} is missing, or not a JSON object; copy it from the checkpoint")
    return read


def _context(folder: Path, config: Mapping[str, Any]) -> int:
    found = next((number for key in _POSITIONS if (number := _number(config, key))), 0)
    if not found:
        raise ModelFileError(
            f"{folder / 'config.json'} gives no number of positions (max_position_embeddings is "
            f"{shown(config.get('max_position_embeddings'))}); copy it from the checkpoint"
        )
    return found


def _window(config: Mapping[str, Any], context: int) -> int:
    """The shortest window that a layer of the model has; 0 if none is shorter than the context."""
    kinds = config.get("layer_types")
    windows = []
    for key, kind in (("sliding_window", "sliding_attention"), ("attention_chunk_size", "chunked_attention")):
        if isinstance(kinds, list) and kind not in kinds:
            continue
        if config.get("use_sliding_window") is not False or key != "sliding_window":
            windows.append(_number(config, key))
    return min((window for window in windows if 0 < window < context), default=0)


def _number(config: Mapping[str, Any], key: str) -> int:
    """A positive number of the configuration; 0 if there is none."""
    value = config.get(key)
    return value if type(value) is int and 0 < value < _MOST else 0


def _dimensions(port: Any) -> list[int]:
    """The sizes of an output; -1 for any."""
    return [-1 if size.text == "-1" else _whole(size.text) for size in port.findall("dim")] or [0]


def _whole(text: str | None) -> int:
    """A number of the XML file."""
    if text is None or not (text.strip().isascii() and text.strip().isdigit() and len(text) < 19):
        raise ValueError(f"{shown(text)} is no whole number")
    return int(text)
