"""A small trained Llama model in a large one's shape, which says what the small one says at a large one's price.

    python -m benchmarks.gpu.shapes SMALL.gguf OUTPUT.gguf --shape 1B --weights Q4_K_M

Width, layers, heads, neurons and vocabulary are those of a real model. Weights beyond the small model's are random, but
nothing of them reaches its residual stream: the rows that would write to it are silent (`blocks`). So acceptance is
that of a trained pair. The file is written in blocks, without a conversion, in seconds.

- RMSNorm divides by a mean over more numbers, most of them zero: its weights are scaled by the root of the ratio of the
  widths, and epsilon by the ratio.
- A group of the small model has fewer query heads than one of the large model; the others are silent.
- Tokens beyond the small vocabulary have logits far below all others: every embedding has a small number in the first
  column beyond the small width, which only the output matrix reads, and only in the rows of these tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import gguf
import numpy as np
from gguf.quants import dequantize

from .blocks import KINDS, Bytes, Floats, Kind, quantized, rows

_MARK, _WEIGHT, _BANNED = 1e-3, 1e3, -1e4  # of the column that bans tokens: embedding, norm, output
_UNUSED = 5  # the type of a token, as in LLAMA_TOKEN_TYPE_UNUSED
WEIGHTS = ("Q4_0", "Q4_K_M", "Q8_0", "F16")


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of a Llama model: layers, width, neurons of a layer, heads of queries and of keys, and tokens."""

    layers: int
    width: int
    ffn: int
    heads: int
    groups: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """About as many, for heads of 64 numbers."""
        attention = 2 * 64 * (self.heads + self.groups)
        return self.width * (self.layers * (attention + 3 * self.ffn) + 2 * self.vocabulary)


#: 1B is Llama 3.2's. 8B has the parameters of Llama 3.1's and as many bytes of keys and values, in heads of 64 numbers
#: rather than 128. 14B is Qwen2.5's with that vocabulary, in such heads. `draft` is as wide as a small model of the
#: family, `tiny` is for rehearsals.
SHAPES = {
    "1B": Shape(16, 2048, 8192, 32, 8, 128256),
    "8B": Shape(32, 4096, 14336, 64, 16, 128256),
    "14B": Shape(48, 5120, 13824, 80, 16, 128256),
    "draft": Shape(6, 512, 2048, 8, 4, 128256),
    "tiny": Shape(8, 1024, 4096, 16, 4, 8192),
    "tiny-draft": Shape(2, 256, 768, 4, 2, 8192),
}


class Small:
    """The tensors of a trained Llama model in GGUF, as float32 [rows, columns], and its numbers."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        self.layers, self.width = int(self.field("block_count")), int(self.field("embedding_length"))
        self.heads, self.groups = (int(self.field(f"attention.head_count{kind}")) for kind in ("", "_kv"))
        self.head = int(self.field("attention.key_length"))
        self.epsilon = float(self.field("attention.layer_norm_rms_epsilon"))

    def field(self, key: str) -> Any:
        return self.reader.fields[f"llama.{key}"].contents()

    def head_matrix(self) -> Floats:
        """The output matrix, which is that of the embeddings in models that have no other."""
        return self.tensor("output.weight" if "output.weight" in self._tensors else "token_embd.weight")

    def tensor(self, name: str) -> Floats:
        found = self._tensors[name]
        values: Floats = dequantize(found.data, found.tensor_type).astype(np.float32)
        return values


def kind_of(weights: str, name: str, layer: int, layers: int) -> Kind:
    """The type of a matrix. Q4_K_M has more bits for the output and for some layers' values, as llama-quantize does."""
    if weights != "Q4_K_M":
        return KINDS[weights]
    eighth = layers // 8
    more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
    best = name == "output" or (name in ("attn_v", "ffn_down") and more)
    return KINDS["Q6_K" if best else "Q4_K"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file.

    Args:
        name: in the file.
        shape: its numbers, rows first.
        kind: the type of its numbers, None for float32.
        make: computes them: uint8 [rows, bytes of a row], or float32 [numbers].
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind | None
    make: Callable[[], Bytes | Floats]

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.shape[0] * (4 if self.kind is None else self.kind.bytes_of(self.shape[1]))

    def describe(self, writer: Any) -> None:
        """Add it to the header of a file."""
        if self.kind is None or self.kind.name == "F16":
            kind, stored = (np.float32, self.shape) if self.kind is None else (np.float16, self.shape)
            writer.add_tensor_info(self.name, stored, np.dtype(kind), self.size)
        else:
            packed = (self.shape[0], self.kind.bytes_of(self.shape[1]))
            writer.add_tensor_info(self.name, packed, np.dtype(np.uint8), self.size, raw_dtype=self.kind.number)


class Enlarged:
    """The matrices of a small model in a larger shape."""

    def __init__(self, small: Small, shape: Shape, weights: str) -> None:
        self._small, self._shape, self._weights = small, shape, weights
        self.epsilon = small.epsilon * small.width / shape.width

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, in the order of the file."""
        shape = self._shape
        table = (shape.vocabulary, shape.width)
        kind = kind_of(self._weights, "token_embd", 0, shape.layers)
        yield Tensor("token_embd.weight", table, kind, partial(self._embedding, kind))
        for layer in range(shape.layers):
            yield from self._layer(layer)
        norm = partial(self._norm, "output_norm.weight", _WEIGHT)
        yield Tensor("output_norm.weight", (shape.width,), None, norm)
        kind = kind_of(self._weights, "output", 0, shape.layers)
        yield Tensor("output.weight", table, kind, partial(self._output, kind))

    def _layer(self, layer: int) -> Iterator[Tensor]:
        shape, head = self._shape, self._small.head
        wide, keys = shape.heads * head, shape.groups * head
        sizes = {
            "attn_q": (wide, shape.width),
            "attn_k": (keys, shape.width),
            "attn_v": (keys, shape.width),
            "attn_output": (shape.width, wide),
            "ffn_gate": (shape.ffn, shape.width),
            "ffn_up": (shape.ffn, shape.width),
            "ffn_down": (shape.width, shape.ffn),
        }
        for name in ("attn_norm", "ffn_norm"):
            full = f"blk.{layer}.{name}.weight"
            own = full if layer < self._small.layers else ""
            yield Tensor(full, (shape.width,), None, partial(self._norm, own, 0.0))
        for i, (name, size) in enumerate(sizes.items()):
            kind = kind_of(self._weights, name, layer, shape.layers)
            make = partial(self._matrix, layer, name, *size, kind, seed=8 * layer + i)
            yield Tensor(f"blk.{layer}.{name}.weight", size, kind, make)

    def _matrix(self, layer: int, name: str, count: int, columns: int, kind: Kind, *, seed: int) -> Bytes:
        """A matrix of a layer. Those that write to the residual stream are silent but for the small model's own."""
        writes = name in ("attn_output", "ffn_down")
        made = rows(kind, count, columns, silent=writes, seed=seed)
        if layer < self._small.layers:
            own = self._small.tensor(f"blk.{layer}.{name}.weight")
            if name == "attn_q":
                own = self._spread(own)
            elif name == "attn_output":
                own = self._spread(own.T).T
            _put(made, kind, own)
        return made

    def _spread(self, own: Floats) -> Floats:
        """Rows of query heads, moved to the heads that share the same keys in the larger shape; others are zero."""
        small, shape = self._small, self._shape
        mine, theirs = small.heads // small.groups, shape.heads // shape.groups
        found = np.zeros((small.groups * theirs * small.head, own.shape[1]), np.float32)
        for head in range(small.heads):
            to = (head // mine * theirs + head % mine) * small.head
            found[to : to + small.head] = own[head * small.head : (head + 1) * small.head]
        return found

    def _norm(self, name: str, mark: float) -> Floats:
        """The weights of a norm, 1 beyond the small width; `mark` in the column that bans tokens."""
        small, shape = self._small, self._shape
        found = np.ones(shape.width, np.float32)
        if name:
            found[: small.width] = self._small.tensor(name)
        found[: small.width] *= math.sqrt(small.width / shape.width)
        if shape.width > small.width:
            found[small.width] = mark
        return found

    def _marked(self, own: Floats, mark: float) -> Floats:
        """Rows with `mark` in the column behind them, where the larger shape has one."""
        if self._shape.width == self._small.width:
            return own
        return np.concatenate([own, np.full((len(own), 1), mark, np.float32)], axis=1)

    def _embedding(self, kind: Kind) -> Bytes:
        made = rows(kind, self._shape.vocabulary, self._shape.width, silent=True, seed=1)
        _put(made, kind, self._marked(self._small.tensor("token_embd.weight"), _MARK))
        return made

    def _output(self, kind: Kind) -> Bytes:
        """Rows of the small model's tokens; those of others have nothing but the mark in the columns that are read."""
        made = rows(kind, self._shape.vocabulary, self._shape.width, seed=2)
        own = self._marked(self._small.head_matrix(), 0.0)
        _put(made, kind, own)
        banned = quantized(kind, self._marked(np.zeros((1, self._small.width), np.float32), _BANNED))
        made[len(own) :, : banned.shape[1]] = banned
        return made


def _put(made: Bytes, kind: Kind, own: Floats) -> None:
    """Put rows of given values, padded to whole blocks, to the beginning of others."""
    packed = quantized(kind, own)
    made[: len(packed), : packed.shape[1]] = packed


def write(small: Path, output: Path, shape: Shape, weights: str) -> None:
    """Write the small model in a larger shape to `output`."""
    source = Small(small)
    enlarged = Enlarged(source, shape, weights)
    part = output.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    _describe(writer, source, shape, enlarged.epsilon)
    for tensor in enlarged.tensors():
        tensor.describe(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in enlarged.tensors():
        writer.write_tensor_data(tensor.make())
    writer.close()
    part.replace(output)


def _describe(writer: Any, source: Small, shape: Shape, epsilon: float) -> None:
    numbers = {
        "vocab_size": shape.vocabulary,
        "context_length": 32768,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ffn,
        "block_count": shape.layers,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.groups,
        "attention.key_length": source.head,
        "attention.value_length": source.head,
        "rope.dimension_count": int(source.field("rope.dimension_count")),
    }
    for key, value in numbers.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", epsilon)
    writer.add_float32("llama.rope.freq_base", float(source.field("rope.freq_base")))
    for key, field in source.reader.fields.items():
        if not key.startswith(("tokenizer.", "edgespec.")):
            continue
        contents: Any = field.contents()
        kind, *inner = field.types
        if isinstance(contents, list):
            contents = _more(key, contents, shape.vocabulary)
        writer.add_key_value(key, contents, kind, inner[-1] if inner else None)


def _more(key: str, values: Sequence[Any], count: int) -> list[Any]:
    """The lists of a tokenizer with unused tokens at the end."""
    beyond = range(len(values), count)
    if key == "tokenizer.ggml.tokens":
        return [*values, *(f"<unused{n}>" for n in beyond)]
    if key == "tokenizer.ggml.token_type":
        return [*values, *(_UNUSED for _ in beyond)]
    return [*values, *(0.0 for _ in beyond)] if key == "tokenizer.ggml.scores" else list(values)


@click.command()
@click.argument("small", type=click.Path(path_type=Path, exists=True))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--shape", type=click.Choice(list(SHAPES)), default="1B", show_default=True)
@click.option("--weights", type=click.Choice(WEIGHTS), default="Q4_K_M", show_default=True)
def main(small: Path, output: Path, shape: str, weights: str) -> None:
    """Write SMALL in a larger shape to OUTPUT."""
    write(small, output, SHAPES[shape], weights)
    click.echo(f"{output}: {output.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
