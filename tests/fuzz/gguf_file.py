"""A GGUF file taken apart and put together again, whatever it then says.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `gguf` writes sound files only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

TEXT, ARRAY = 8, 9
#: By the number of a type, how `struct` writes it.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_RANGES = {"B": (0, 8), "b": (1, 7), "H": (0, 16), "h": (1, 15), "I": (0, 32), "i": (1, 31), "Q": (0, 64), "q": (1, 63)}


class Value(NamedTuple):
    """A value with the number of its type; `items` is that of an array's items."""

    kind: int
    value: Any
    items: int = 0


class Tensor(NamedTuple):
    """A tensor's entry: `kind` is the number of its type, `offset` where it begins after the head."""

    name: bytes
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Gguf:
    """A file: a key may stand twice. `counts`, if given, is what it says it holds, of tensors and of fields."""

    fields: tuple[tuple[bytes, Value], ...]
    tensors: tuple[Tensor, ...]
    data: bytes
    version: int = 3
    magic: bytes = b"GGUF"
    counts: tuple[int, int] | None = None
    alignment: int = field(default=32)

    @classmethod
    def read(cls, path: Path) -> Gguf:
        """The sound file at `path`."""
        reader = _Reader(path.read_bytes())
        magic, version = reader.take(4), reader.number("I")
        tensors, fields = reader.number("Q"), reader.number("Q")
        found = [(reader.text(), reader.value()) for _ in range(fields)]
        entries = [reader.tensor() for _ in range(tensors)]
        start = -(-reader.at // 32) * 32
        return cls(tuple(found), tuple(entries), reader.data[start:], version, magic)

    def get(self, key: str) -> Value | None:
        """The first value of `key`."""
        return next((value for name, value in self.fields if name == key.encode()), None)

    @property
    def architecture(self) -> str:
        found = self.get("general.architecture")
        return found.value.decode("utf-8", "replace") if found is not None and isinstance(found.value, bytes) else ""

    def put(self, key: str, kind: int, value: Any, items: int = 0) -> Gguf:
        """With this value of `key`, in place of the one it has; `ARCH` stands for the architecture."""
        name = key.replace("ARCH", self.architecture).encode()
        new = Value(kind, value.encode() if isinstance(value, str) else value, items)
        if all(each != name for each, _ in self.fields):
            return replace(self, fields=(*self.fields, (name, new)))
        return replace(self, fields=tuple((each, new if each == name else old) for each, old in self.fields))

    def without(self, key: str) -> Gguf:
        name = key.replace("ARCH", self.architecture).encode()
        return replace(self, fields=tuple(each for each in self.fields if each[0] != name))

    def written(self) -> bytes:
        """The file."""
        tensors, fields = self.counts or (len(self.tensors), len(self.fields))
        parts = [self.magic, struct.pack("<IQQ", self.version & 0xFFFFFFFF, tensors % 2**64, fields % 2**64)]
        for key, value in self.fields:
            parts += [_text(key), struct.pack("<I", value.kind), _written(value)]
        for tensor in self.tensors:
            shape = b"".join(struct.pack("<Q", n % 2**64) for n in tensor.shape)
            kind = struct.pack("<IQ", tensor.kind % 2**32, tensor.offset % 2**64)
            parts += [_text(tensor.name), struct.pack("<I", len(tensor.shape)), shape, kind]
        head = b"".join(parts)
        return head + bytes(-len(head) % self.alignment) + self.data


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _written(value: Value) -> bytes:
    if value.kind == TEXT:
        return _text(value.value if isinstance(value.value, bytes) else str(value.value).encode("utf-8", "replace"))
    if value.kind == ARRAY:
        items = b"".join(_written(Value(value.items, each)) for each in value.value)
        return struct.pack("<IQ", value.items, len(value.value)) + items
    return scalar(value.kind, value.value)


def scalar(kind: int, value: Any) -> bytes:
    """A number as its type has it; one beyond its range is wrapped around, and of an unknown type there is nothing."""
    form = SCALARS.get(kind)
    if form is None:
        return b""
    if form in "fd":
        try:
            return struct.pack(f"<{form}", float(value))
        except (OverflowError, ValueError, TypeError):
            return struct.pack(f"<{form}", float("inf"))
    try:
        number = int(value)
    except (OverflowError, ValueError, TypeError):
        number = 0
    if form == "?":
        return bytes([number % 256])
    signed, bits = _RANGES[form]
    number %= 1 << (bits + signed)
    return struct.pack(f"<{form}", number - (1 << (bits + 1)) if signed and number >> bits else number)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, n: int) -> bytes:
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def text(self) -> bytes:
        return self.take(self.number("Q"))

    def value(self, kind: int | None = None) -> Value:
        kind = self.number("I") if kind is None else kind
        if kind == TEXT:
            return Value(kind, self.text())
        if kind == ARRAY:
            items, n = self.number("I"), self.number("Q")
            return Value(kind, [self.value(items).value for _ in range(n)], items)
        return Value(kind, self.number(SCALARS[kind]))

    def tensor(self) -> Tensor:
        name, dimensions = self.text(), self.number("I")
        shape = tuple(self.number("Q") for _ in range(dimensions))
        return Tensor(name, shape, self.number("I"), self.number("Q"))
