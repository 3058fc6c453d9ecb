"""A head for multi-token prediction in a file of its own, with fewer rows in its output matrix.

Most of what a guess of a head costs is its output matrix, of which texts use a small part. Matrices are quantized row
by row, so the rows that stay are copied byte by byte. llama.cpp runs the result as a head of so few tokens; edgespec
maps them to those of the target. A token without a row is never guessed; as an input it is taken for the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.backends.gguf_header import Header, header
from edgespec.backends.head_header import EAGLE3, TARGET_TOKENS, TOKENS, drafts, head_layers, shares_cache, written
from edgespec.converters.atomic_file import atomic_file, check_file
from edgespec.errors import ConversionError

_LEAST = 64  # rows
_CONTROL = 3  # the type of control tokens, such as those that end a turn
_BY_TOKEN = ("token_embd.weight", "output.weight")  # tensors with a row for each token
_OWN_BY_TOKEN = (".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight")


def check_output(output: Path, *, force: bool) -> None:
    """ConversionError unless the file can be written there."""
    check_file(output, ".gguf", force)


def write(source: Path, output: Path, rows: int, *, force: bool = False) -> int:
    """Write the head in the GGUF file `source` with the `rows` likeliest tokens to `output`; returns the bytes written.

    Control tokens come first, then those with the lowest numbers: vocabularies are numbered by how common tokens are.

    Raises:
        ConversionError: the file holds no head that edgespec runs and that has rows of its own; a wrong number of
            rows; the output cannot be written.
        ModelFileError: the file cannot be read.
    """
    check_output(output, force=force)
    head = header(source)
    _require_head(source, head, rows)
    from gguf import GGUFReader, GGUFWriter  # noqa: PLC0415 - takes as long to import as all else here

    reader = GGUFReader(source)
    tokens = _chosen(reader, head.vocabulary.size, rows)
    first = head.layers - head_layers(head)
    kept = [tensor for tensor in reader.tensors if _of_head(tensor.name, first)]
    size = sum(int(tensor.n_bytes) for tensor in kept)
    with atomic_file(output, size, force) as file:
        writer = GGUFWriter(file.name, head.architecture)
        for key, value, kind, inner in _fields(reader, head, tokens):
            writer.add_key_value(key, value, kind, inner)
        for tensor in kept:
            trimmed = tensor.name in _BY_TOKEN or tensor.name.endswith(_OWN_BY_TOKEN)
            data = tensor.data[tokens] if trimmed else tensor.data
            writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return output.stat().st_size


def _require_head(source: Path, head: Header, rows: int) -> None:
    fixed = shares_cache(head) or head.architecture == EAGLE3 or TOKENS in head.fields
    if not drafts(head) or fixed or head.parts > 1:
        raise ConversionError(
            f"{source} holds no head whose rows can be chosen; give a GGUF file in one part with a head of its own, "
            "such as one of Qwen3.5"
        )
    if not _LEAST <= rows <= head.vocabulary.size:
        raise ConversionError(
            f"the head cannot have {rows} rows; give a number from {_LEAST} to {head.vocabulary.size}"
        )


def _chosen(reader: Any, size: int, rows: int) -> npt.NDArray[np.int64]:
    """The tokens that stay, in order."""
    found = reader.get_field("tokenizer.ggml.token_type")
    types = np.asarray(found.contents() if found is not None else [], np.int64)
    control = np.flatnonzero(types == _CONTROL)[:rows]
    others = np.setdiff1d(np.arange(size), control)[: rows - len(control)]
    return np.sort(np.concatenate([control, others]))


def _of_head(name: str, first: int) -> bool:
    kind, _, following = name.partition(".")
    number = following.partition(".")[0]
    if kind == "blk":
        return number.isdigit() and int(number) >= first
    return kind in ("token_embd", "output", "output_norm")


def _fields(reader: Any, head: Header, tokens: npt.NDArray[np.int64]) -> Iterator[tuple[str, Any, Any, Any]]:
    """Key, value, type, and the type of the elements of an array."""
    from gguf import GGUFValueType  # noqa: PLC0415

    prefix = f"{head.architecture}."
    for key, field in reader.fields.items():
        if key.startswith(prefix) and key != f"{prefix}vocab_size":
            kinds = [*field.types, None]
            yield key, field.contents(), kinds[0], kinds[1]
    yield "general.name", f"{head.name or 'head'} with {len(tokens)} rows", GGUFValueType.STRING, None
    yield f"{prefix}vocab_size", len(tokens), GGUFValueType.UINT32, None
    yield "tokenizer.ggml.model", "none", GGUFValueType.STRING, None
    yield TOKENS, written(tokens.tolist()), GGUFValueType.STRING, None
    yield TARGET_TOKENS, head.vocabulary.size, GGUFValueType.UINT32, None
