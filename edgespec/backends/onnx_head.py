"""The metadata of heads that `edgespec convert HEAD --for TARGET` wrote as ONNX files, read without an engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError

from ..errors import ModelFileError
from ..storage.files import regular
from .head_labels import SampledLabels
from .onnx_proto import parse

_FORMAT = "1"
_KINDS = ("medusa", "eagle")
_LARGEST = 1 << 31  # bytes
_MOST = 1 << 24  # of any number
#: The numbers of fields in the format: of a ModelProto, and of a GraphProto.
_GRAPH, _PROPERTY, _IN_AND_OUT = 7, 14, (11, 12)
_SKIPPED = {1: 8, 5: 4}  # bytes of a field that is a number of a fixed size, by the type in its tag
_VARIABLE, _BYTES = 0, 2
_KIND = re.compile(rb"^\n.edgespec\.head\x12.([a-z0-9-]{1,40})$", re.DOTALL)  # key and value of a property
_LONGEST = 1 << 20  # bytes of a field that is read
_AGAIN = "convert the head again, or copy it again"


@dataclass(frozen=True, slots=True)
class DescribedHead:
    """A head, by its `metadata_props`.

    Args:
        heads: guesses of a pass at successive places.
        width: numbers of the hidden state that it reads.
        rows: tokens that it knows.
        guesses: tokens that it names at each place.
        parameters: its weights.
        target: the name of the model it was converted for.
        target_tokens: the tokens of that.
        labels: some of them (`head_fit`).
        kv_heads, head_dim: the shape of its KV cache; 0 for a head without one.
    """

    path: Path
    kind: str
    quantization: str
    heads: int
    width: int
    rows: int
    guesses: int
    parameters: int
    target: str
    target_tokens: int
    labels: Mapping[int, str]
    kv_heads: int = 0
    head_dim: int = 0

    @property
    def vocabulary(self) -> SampledLabels:
        """The tokens of its target, as far as they are known."""
        return SampledLabels(self.target_tokens, self.labels)

    @property
    def attention(self) -> tuple[int, ...]:
        """The layers with keys and values."""
        return (0,) if self.kv_heads else ()

    @property
    def cache_bytes(self) -> int:
        """Bytes of one token in its KV cache."""
        return 8 * self.kv_heads * self.head_dim

    @property
    def summary(self) -> str:
        """For users: "medusa head for Qwen (5 heads, 16384 tokens, 150.0M, int8)"."""
        size = f"{self.rows} tokens, {self.parameters / 1e6:.1f}M, {self.quantization}"
        return f"{self.kind} head for {self.target} ({f'{self.heads} heads, ' if self.heads > 1 else ''}{size})"


def kind(path: Path) -> str:
    """The kind of the head in the ONNX file at `path`; empty if it has none, as far as it can be read.

    The graph with its weights, which comes before the metadata, is skipped.
    """
    try:
        with regular(path).open("rb") as file:
            for number, length in _fields(file, path.stat().st_size):
                if number == _PROPERTY and (found := _KIND.search(file.read(min(length, _LONGEST)))):
                    return found[1].decode("ascii")
    except (OSError, ValueError):
        pass
    return ""


def _skimmed(path: Path) -> bytes:
    """The model at `path` without its nodes and weights, of which there may be gigabytes. Raises ValueError."""
    with regular(path).open("rb") as file:
        parts = []
        for number, length in _fields(file, path.stat().st_size):
            if number == _GRAPH:
                inner = [(each, _content(file, size)) for each, size in _fields(file, file.tell() + length)
                         if each in _IN_AND_OUT]  # fmt: skip
                parts.append(_field(number, b"".join(_field(each, data) for each, data in inner)))
            elif number == _PROPERTY:
                parts.append(_field(number, _content(file, length)))
    return b"".join(parts)


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int]]:
    """The number and the bytes of each field with content up to the position `end`; the file is at that content.

    Raises:
        ValueError: the fields end elsewhere, or one is malformed.
    """
    while file.tell() < end:
        tag = _number(file)
        if tag & 7 == _BYTES:
            length, start = _number(file), file.tell()
            if length > end - start:
                raise ValueError("it is truncated")
            yield tag >> 3, length
            file.seek(start + length)
        elif tag & 7 == _VARIABLE:
            _number(file)
        elif tag & 7 in _SKIPPED:
            file.seek(_SKIPPED[tag & 7], 1)
        else:
            raise ValueError("a field of an unknown type")
    if file.tell() != end:
        raise ValueError("it is truncated")


def _number(file: BinaryIO) -> int:
    """A number of variable length."""
    value = 0
    for shift in range(0, 63, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("it is truncated")
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise ValueError("a number without end")


def _content(file: BinaryIO, length: int) -> bytes:
    if length > _LONGEST:
        raise ValueError(f"a field of {length} bytes")
    return file.read(length)


def _field(number: int, content: bytes) -> bytes:
    """A field of a message, with its tag."""
    length, rest = b"", len(content)
    while rest > 127:
        length, rest = length + bytes([rest & 127 | 128]), rest >> 7
    return bytes([number << 3 | _BYTES]) + length + bytes([rest]) + content


def read_head(path: Path) -> DescribedHead:
    """The metadata of the head at `path`, compared with its graph.

    Raises:
        ModelFileError: it cannot be read, is no head of a kind that is known, or contradicts itself.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is larger than ONNX files are")
        model = parse(_skimmed(path))
        found = _described(path, _metadata(model))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error
    except (DecodeError, KeyError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ModelFileError(f"{path} is no head, or it is damaged ({reason:.80}); {_AGAIN}") from error
    if (_shapes(model.graph.input), _shapes(model.graph.output)) != _expected(found):
        raise ModelFileError(f"{path} contradicts its metadata; {_AGAIN}")
    return found


def _shapes(values: Any) -> dict[str, list[int]]:
    """The shapes of inputs or outputs by name; 0 is any length."""
    return {_text(each.name): [axis.dim_value for axis in each.type.tensor_type.shape.dim] for each in values}


def _expected(head: DescribedHead) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """The shapes of the inputs and outputs that a head of its kind has."""
    if head.kind == "medusa":
        named = [head.heads, head.guesses]
        return {"hidden": [1, head.width]}, {"tokens": named, "logs": named}
    cache, named = [1, head.kv_heads, 0, head.head_dim], [1, head.guesses]
    numbers = {"input_ids": [1, 0], "hidden": [1, 0, head.width], "positions": [0]}
    lengths = {"seqlens_k": [1], "total_sequence_length": [1]}
    inputs = {**numbers, **lengths, "past.0.key": cache, "past.0.value": cache}
    own = {"tokens": named, "logs": named, "state": [1, head.width]}
    return inputs, {**own, "present.0.key": cache, "present.0.value": cache}


def _described(path: Path, props: Mapping[str, str]) -> DescribedHead:
    what, form = props["edgespec.head"], props["edgespec.head.format"]
    if what not in _KINDS or form != _FORMAT:
        raise ModelFileError(
            f"{path} is a head of the kind {what!r:.40}, format {form!r:.40}; this edgespec drafts with those of "
            f"{', '.join(_KINDS)}, format {_FORMAT!r}: update it, or convert the head again"
        )

    def number(key: str) -> int:
        text = props[f"edgespec.head.{key}"]
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 13 and int(text) > 0):
            raise ValueError(f"{key} is {text[:30]!a}")
        if int(text) > _MOST and key != "parameters":
            raise ValueError(f"{key} is {text}")
        return int(text)

    labels = json.loads(props["edgespec.head.labels"])
    if not isinstance(labels, dict) or not labels or not all(isinstance(label, str) for label in labels.values()):
        raise ValueError("labels are not texts")
    return DescribedHead(
        path,
        what,
        _shown(props["edgespec.quantization"]),
        number("heads"),
        number("width"),
        number("rows"),
        number("guesses"),
        number("parameters"),
        _shown(props["edgespec.head.target"]),
        number("target_tokens"),
        {int(token): label for token, label in labels.items()},
        *((number("kv_heads"), number("head_dim")) if what != "medusa" else ()),
    )


def _metadata(model: Any) -> dict[str, str]:
    return {_text(entry.key): _text(entry.value) for entry in model.metadata_props}


def _text(field: str | bytes) -> str:
    return field if isinstance(field, str) else field.decode("utf-8", "replace")


def _shown(text: str) -> str:
    return "".join(character for character in text if character.isprintable())
