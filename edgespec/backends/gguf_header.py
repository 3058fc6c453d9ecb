"""The header of a GGUF file: metadata, tokens, and the shapes and sizes of tensors, without the weights.

The format is described in docs/gguf.md of ggml. The reader of the package `gguf` takes seven seconds for a vocabulary
of 150000 tokens and needs the whole file; this one takes 0.1 seconds and needs the first megabytes only, which a hub
can send.
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
_SHORT = 4096  # the longest array of numbers that is kept: those with a number per layer are short
_LONGEST = 1 << 26  # the most bytes of a string or an array of numbers in a valid file
_LAYERS = 1 << 16


class Readable(Protocol):
    """A file, read from its beginning."""

    def read(self, n: int, /) -> bytes:
        """The next `n` bytes, fewer at the end."""
        ...


@dataclass(frozen=True, slots=True)
class HeaderVocabulary:
    """The tokens of a header, to compare two vocabularies (`Labels`)."""

    tokens: Sequence[bytes]

    @property
    def size(self) -> int:
        return len(self.tokens)

    def label(self, token: int) -> str:
        return self.tokens[token].decode("utf-8", "replace")


class Tensor(NamedTuple):
    """A tensor: its dimensions, fastest first; its type, of enum ggml_type; its offset in bytes after the header."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """A header.

    Args:
        fields: the metadata by key, without the tokens; None for long arrays.
        vocabulary: the tokens.
        tensors: the tensors by name.
        length: the size of the header in bytes.
    """

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
        """The model's own name; empty if it has none."""
        return self._text("general.name") or ""

    @property
    def architecture(self) -> str:
        """The name of the architecture; empty if the file has none."""
        return self._text("general.architecture") or ""

    @property
    def parts(self) -> int:
        """The number of files of the model."""
        parts = self.fields.get("split.count")
        return parts if isinstance(parts, int) and parts > 1 else 1

    def number(self, key: str) -> int:
        """The whole number at the architecture's `key`, 0 if there is none."""
        value = self.fields.get(self.key(key))
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    @property
    def layers(self) -> int:
        """The number of layers."""
        return min(self.number("block_count"), _LAYERS)

    def cache(self) -> tuple[int, ...] | None:
        """Bytes per token in the KV cache of each layer, with two bytes per number and as if no sliding window
        discarded tokens. None if the file does not have the values."""
        layers, heads, width = self.layers, self.by_layer("attention.head_count"), self.number("embedding_length")
        groups = self.by_layer("attention.head_count_kv") or heads
        if not layers or groups is None or len(groups) != layers:
            return None
        key, value = self.number("attention.key_length"), self.number("attention.value_length")
        if not (key and value):
            if not width or heads is None or not max(heads):
                return None
            key, value = key or width // max(heads), value or width // max(heads)
        narrow = self.number("attention.key_length_swa") + self.number("attention.value_length_swa")
        windowed = self.fields.get(self.key("attention.sliding_window_pattern"))
        if not narrow or not isinstance(windowed, tuple) or len(windowed) != layers:
            narrow, windowed = key + value, (False,) * layers
        own = layers - self.number("attention.shared_kv_layers")  # those after them read the cache of earlier ones
        widths = [(narrow if windowed[i] else key + value) if i < own else 0 for i in range(layers)]
        return tuple(2 * each * width for each, width in zip(groups, widths, strict=True))

    def tensor_sizes(self, size: int) -> dict[str, int]:
        """Bytes of each tensor of a file of `size` bytes."""
        offsets = {name: tensor.offset for name, tensor in self.tensors.items()}
        starts = sorted(offsets.items(), key=lambda each: each[1])
        ends = [*(offset for _, offset in starts[1:]), size - self.length]
        return {name: max(0, end - start) for (name, start), end in zip(starts, ends, strict=False)}

    def by_layer(self, key: str) -> tuple[int, ...] | None:
        """The numbers at the architecture's `key`, one per layer; the file has one for all layers or one for each."""
        value = self.fields.get(self.key(key))
        if isinstance(value, tuple):
            return value if value and all(isinstance(each, int) for each in value) else None
        number = self.number(key)
        return (number,) * self.layers if number else None

    def key(self, key: str) -> str:
        """The full key in the file of the architecture's `key`."""
        return f"{self.fields.get('general.architecture', '')}.{key}"

    def _text(self, key: str) -> str | None:
        value = self.fields.get(key)
        return value if isinstance(value, str) else None


def header(path: Path) -> Header:
    """The header of the GGUF file at `path`.

    Raises:
        ModelFileError: it cannot be read, is not a GGUF file, or ends before its last tensor.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for its other end
            raise ModelFileError(f"{path} is not a file; give the path of a .gguf file")
        with path.open("rb") as file:
            found = parsed(file, str(path))
        lacking = found.length + max((each.offset for each in found.tensors.values()), default=0) - path.stat().st_size
        if lacking > 0 and found.parts == 1:
            raise ModelFileError(f"{path} is truncated: at least {lacking / 1e6:.1f} MB are missing; fetch it again")
        return found
    except OSError as error:
        raise ModelFileError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error


def parsed(file: Readable, name: str) -> Header:
    """The header at the beginning of `file`.

    Args:
        name: the name of the file in messages.

    Raises:
        ModelFileError: it is not a GGUF file, or truncated.
    """
    with _named_errors(name):
        reader = _Reader(file)
        if reader.take(4) != b"GGUF" or reader.number("<I") not in (2, 3):
            raise ModelFileError(f"{name} is not a GGUF file of version 2 or 3; fetch it again")
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
    """The next tensor, with its name."""
    name, rank = reader.text().decode("utf-8", "replace"), reader.number("<I")
    shape = struct.unpack(f"<{rank}Q", reader.take(8 * rank))
    return name, Tensor(shape, reader.number("<I"), reader.number("<Q"))


@contextmanager
def _named_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, ValueError, MemoryError) as error:
        raise ModelFileError(f"{name} is truncated or not a GGUF file ({error}); fetch it again") from error


class _Reader:
    """Reads values one after another and counts the bytes."""

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
        """The next value, after its type. Long arrays and arrays of strings are None unless `keep`."""
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
