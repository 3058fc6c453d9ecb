"""What the head of a GGUF file says, its weights left alone: shapes, tokens, and how large its tensors are.

The form is that of docs/gguf.md of ggml. `gguf`, which has a reader, takes seven seconds for a vocabulary of 150000
tokens and wants the whole file; this takes a tenth of one, and the first megabytes, as a hub sends them.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..errors import ModelFileError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9
_TOKENS = "tokenizer.ggml.tokens"
_SHORT = 4096  # numbers of an array worth keeping: one a layer
_LONGEST = 1 << 26  # bytes of a text, or of an array of numbers: more is no GGUF
_LAYERS = 1 << 16


class Readable(Protocol):
    """A file from its beginning."""

    def read(self, n: int, /) -> bytes:
        """The next `n` bytes, fewer at the end."""
        ...


@dataclass(frozen=True, slots=True)
class HeaderVocabulary:
    """A vocabulary as far as it takes to compare it with another."""

    tokens: Sequence[bytes]

    @property
    def size(self) -> int:
        return len(self.tokens)

    def label(self, token: int) -> str:
        return self.tokens[token].decode("utf-8", "replace")


class Tensor(NamedTuple):
    """A tensor's numbers by row, row by row and so on; its type, of enum ggml_type; where it begins after the head."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a head says: `fields` but for long arrays, the vocabulary, and its tensors. It is `length` bytes long."""

    fields: Mapping[str, Any]
    vocabulary: HeaderVocabulary
    tensors: Mapping[str, Tensor]
    length: int

    @property
    def template(self) -> str | None:
        """The chat template."""
        return self._text("tokenizer.chat_template")

    @property
    def name(self) -> str:
        """What the model calls itself."""
        return self._text("general.name") or ""

    @property
    def parts(self) -> int:
        """How many files the model is spread over."""
        parts = self.fields.get("split.count")
        return parts if isinstance(parts, int) and parts > 1 else 1

    def number(self, key: str) -> int:
        """The whole number of the architecture's `key`, 0 where there is none."""
        value = self.fields.get(self.key(key))
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    @property
    def layers(self) -> int:
        return min(self.number("block_count"), _LAYERS)

    def cache(self) -> tuple[int, ...] | None:
        """Bytes that a token takes in the KV cache of each layer, two bytes a number, no sliding window cut short (it
        must go back). None where the file does not tell."""
        layers, heads, width = self.layers, self.by_layer("attention.head_count"), self.number("embedding_length")
        groups = self.by_layer("attention.head_count_kv") or heads
        if not layers or groups is None or len(groups) != layers:
            return None
        key, value = self.number("attention.key_length"), self.number("attention.value_length")
        if not (key and value):
            if not width or heads is None or not max(heads):
                return None
            key, value = key or width // max(heads), value or width // max(heads)
        return tuple(2 * each * (key + value) for each in groups)

    def tensor_sizes(self, size: int) -> dict[str, int]:
        """Bytes of each tensor of a file of `size` bytes."""
        offsets = {name: tensor.offset for name, tensor in self.tensors.items()}
        starts = sorted(offsets.items(), key=lambda each: each[1])
        ends = [*(offset for _, offset in starts[1:]), size - self.length]
        return {name: max(0, end - start) for (name, start), end in zip(starts, ends, strict=False)}

    def by_layer(self, key: str) -> tuple[int, ...] | None:
        """A number a layer, where one stands for all or each has its own."""
        value = self.fields.get(self.key(key))
        if isinstance(value, tuple):
            return value if value and all(isinstance(each, int) for each in value) else None
        number = self.number(key)
        return (number,) * self.layers if number else None

    def key(self, key: str) -> str:
        """The architecture's `key` as the file spells it."""
        return f"{self.fields.get('general.architecture', '')}.{key}"

    def _text(self, key: str) -> str | None:
        value = self.fields.get(key)
        return value if isinstance(value, str) else None


def header(path: Path) -> Header:
    """The head of the GGUF file at `path`.

    Raises:
        ModelFileError: it cannot be read, is no GGUF file, or ends before its last tensor.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ModelFileError(f"{path} is not a file; give the path of a .gguf file")
        with path.open("rb") as file:
            found = parsed(file, str(path))
        lacking = found.length + max((each.offset for each in found.tensors.values()), default=0) - path.stat().st_size
        if lacking > 0 and found.parts == 1:
            raise ModelFileError(f"{path} is truncated: it lacks {lacking / 1e6:.1f} MB at the least; fetch it again")
        return found
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error


def parsed(file: Readable, name: str) -> Header:
    """The head that `file` begins with.

    Raises:
        ModelFileError: it is none; it is called `name`.
    """
    with _told(name):
        reader = _Reader(file)
        if reader.take(4) != b"GGUF" or reader.number("<I") not in (2, 3):
            raise ModelFileError(f"{name} is no GGUF file of today's form; fetch it again")
        tensors, count = reader.number("<Q"), reader.number("<Q")
        fields: dict[str, Any] = {}
        tokens: Sequence[bytes] = ()
        for _ in range(count):
            key = reader.text().decode("utf-8", "replace")
            value = reader.value(keep=key == _TOKENS)
            if key == _TOKENS:
                tokens = value if isinstance(value, list) else ()
            else:
                fields[key] = value
        found = dict(_tensor(reader) for _ in range(tensors))
        step = fields.get("general.alignment", 32)
        alignment = step if isinstance(step, int) and step > 0 else 32
        return Header(fields, HeaderVocabulary(tokens), found, -(-reader.done // alignment) * alignment)


def _tensor(reader: _Reader) -> tuple[str, Tensor]:
    """A tensor by its name."""
    name, rank = reader.text().decode("utf-8", "replace"), reader.number("<I")
    shape = struct.unpack(f"<{rank}Q", reader.take(8 * rank))
    return name, Tensor(shape, reader.number("<I"), reader.number("<Q"))


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, ValueError, MemoryError) as error:
        raise ModelFileError(f"{name} is truncated or no GGUF file ({error}); fetch it again") from error


class _Reader:
    """Values one after another, counted."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.done = 0

    def take(self, n: int) -> bytes:
        if n > _LONGEST:
            raise ValueError(f"a piece of {n} bytes")
        data = self._file.read(n)
        self.done += n
        if len(data) < n:
            raise EOFError(f"it ends after {self.done - n + len(data)} bytes")
        return data

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> bytes:
        return self.take(int.from_bytes(self.take(8), "little"))

    def value(self, *, keep: bool) -> Any:
        """A value with its type before it. A long array only where it is to be kept, else None."""
        kind = self.number("<I")
        if kind == _TEXT:
            return self.text().decode("utf-8", "replace")
        if kind != _ARRAY:
            return self.number(self._form(kind))
        kind, n = self.number("<I"), self.number("<Q")
        if kind == _TEXT:
            return self._texts(n, keep=keep)
        form = self._form(kind)
        data = self.take(n * struct.calcsize(form))
        return struct.unpack(f"<{n}{form[1]}", data) if n <= _SHORT else None

    def _texts(self, n: int, *, keep: bool) -> list[bytes] | None:
        texts = (self.text() for _ in range(n))
        if keep:
            return list(texts)
        deque(texts, maxlen=0)
        return None

    def _form(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise ValueError(f"a value of type {kind}")
        return _SCALARS[kind]
