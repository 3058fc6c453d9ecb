"""Checks of a GGUF file before llama.cpp loads it.

llama.cpp ends the process by an assertion, a division by zero or an access out of bounds if values in a file
contradict each other. It reports other faults (a missing key, a value of another type, a tensor of another shape)
as errors, and most failed assertions while loading through `llama_library`; those are not checked here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from ..errors import ModelFileError
from . import parallel
from .gguf_header import Header, header
from .head_header import EAGLE3, TOKENS, is_alone, target_layers, tokens_of

_ALIGNMENT = 32  # bytes: the alignment of all buffers in ggml
_INT32 = (1 << 31) - 1
#: Whole numbers of the architecture with their least and greatest values. Layers, experts: the limits of llama.cpp.
_RANGES = {
    "block_count": (1, 512),
    "context_length": (1, _INT32),
    "embedding_length": (1, _INT32),
    # A greater value makes llama.cpp allocate gigabytes.
    "attention.sliding_window": (0, 1 << 24),
    **{f"attention.{part}_length{kind}": (0, 1 << 13) for part in ("key", "value") for kind in ("", "_swa")},
    "expert_count": (0, 1024),
}
_SCALINGS = ("none", "linear", "yarn", "longrope")
_TOKENIZERS = ("llama", "gpt2", "gemma4", "plamo2")
_LONGEST = 400  # characters of a message about a file, whose names may be long
_F32, _I64, _F64 = 0, 27, 28
_TARGET_LAYERS = 3  # that an EAGLE-3 head reads
#: Types of enum ggml_type without matrix products: Q8_1, Q8_K, the integers and F64.
_NO_MATRICES = (9, 15, 24, 25, 26, 27, _F64)
_TABLE = "ffn_gate_tid2eid.weight"  # integers: the experts of each token
_QUERIES = re.compile(r"blk\.(\d+)\.attn_(qkv|q|q_a|q_b|kv_a_mqa)\.weight")
_PART = re.compile(r"(.*)-00001-of-(\d{5})\.gguf", re.DOTALL)


def check(path: Path) -> Header:
    """The header of a file, which is refused if it would make llama.cpp end the process.

    Raises:
        ModelFileError: the file has such a fault, of which the message names the first; or cannot be read, or is
            truncated.
    """
    head = header(path)
    if head.architecture == "clip" or head.fields.get("general.type") == "mmproj":
        raise ModelFileError(f"{path} is an image projector (mmproj), not a language model; give the model's own file")
    faults = [_faults(head)]
    if head.architecture == EAGLE3:
        faults.append(_eagle3(path, head))
    if head.parts > 1 and (first := _PART.fullmatch(path.name)) is not None:
        numbers = range(2, int(first[2]) + 1)
        others = (path.with_name(f"{first[1]}-{number:05d}-of-{first[2]}.gguf") for number in numbers)
        faults += [_part_faults(header(other)) for other in others if other.exists()]
    if (fault := next(chain(*faults), None)) is not None:
        shown = "".join(each if each.isprintable() else "\ufffd" for each in fault[:_LONGEST])
        raise ModelFileError(f"{path} cannot be loaded: {shown}; download or convert it again")
    return head


def _faults(head: Header) -> Iterator[str]:
    yield from _part_faults(head)
    yield from _out_of_range(head)
    yield from _heads(head)
    yield from _projections(head)
    yield from _rotations(head)
    yield from _experts(head)
    yield from _parallel(head)
    yield from _vocabulary(head)


def _parallel(head: Header) -> Iterator[str]:
    try:
        parallel.read(head.fields, parallel.GGUF_MASK, head.vocabulary.size)
    except ValueError as error:
        yield str(error)


def _part_faults(head: Header) -> Iterator[str]:
    """Faults of a single file, whether it is the whole model or a part of it."""
    names = (*head.fields, *head.tensors, str(head.fields.get("general.architecture")))
    if hidden := next((name for name in names if "\0" in name), None):
        yield f"the name {hidden!r:.80} contains a zero byte, after which llama.cpp reads no further"
    alignment = head.fields.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % _ALIGNMENT:
        yield f"general.alignment is {alignment!r:.40}, not a multiple of {_ALIGNMENT}"
    for name, tensor in head.tensors.items():
        flat = len(tensor.shape) < 2 or name.endswith(("norm.weight", ".bias"))
        if flat and tensor.kind != _F32 and name.endswith((".weight", ".bias")):
            yield f"the tensor {name} is of type {tensor.kind}; one of its kind must be of type {_F32} (F32)"
        elif tensor.kind in _NO_MATRICES and name.endswith(".weight") and not name.endswith(_TABLE):
            yield f"the tensor {name} is of type {tensor.kind}, which matrices of weights cannot have"


def _out_of_range(head: Header) -> Iterator[str]:
    for key, (least, most) in _RANGES.items():
        value = head.fields.get(head.key(key))
        if isinstance(value, int) and not least <= value <= most:
            yield f"{head.key(key)} is {value}; it must be from {least} to {most}"
    if head.number("nextn_predict_layers") > head.number("block_count"):
        yield f"{head.key('nextn_predict_layers')} is more than {head.key('block_count')}"
    for key, value in head.fields.items():
        if key.endswith("epsilon") and isinstance(value, float) and not 0 <= value < math.inf:
            yield f"{key} is {value}; it must be 0 or more"
    scaling = head.fields.get(head.key("rope.scaling.type"))
    if isinstance(scaling, str) and scaling not in _SCALINGS:
        yield f"{head.key('rope.scaling.type')} is {scaling!r:.40}; it must be one of {', '.join(_SCALINGS)}"


def _heads(head: Header) -> Iterator[str]:
    key = head.key("attention.head_count")
    heads = head.by_layer("attention.head_count") or (0,)
    if heads[0] <= 0:
        recurs = any(".ssm." in key for key in head.fields)  # its first layer may have no heads
        if not recurs and any(".attn_" in name for name in head.tensors):
            yield f"{key} is missing or 0, but there are tensors of attention"
        return
    width = head.number("embedding_length")
    if width % heads[0] and not head.number("attention.key_length"):
        yield f"{key} is {heads[0]}, which does not divide {head.key('embedding_length')}, {width}"
    groups = head.by_layer("attention.head_count_kv") or heads
    for all_, shared in zip(heads, groups, strict=False):
        if shared and all_ % shared:
            yield f"{key} is {all_}, which is not a multiple of {key}_kv, {shared}"


def _projections(head: Header) -> Iterator[str]:
    """llama.cpp loads some families without the tensors of a layer's queries, and then reads from address 0."""
    given = {found[1] for name in head.tensors if (found := _QUERIES.fullmatch(name)) is not None}
    shared = head.by_layer("attention.head_count_kv") or ()
    for name in head.tensors:
        layer = name.removeprefix("blk.").removesuffix(".attn_output.weight")
        if not layer.isdecimal() or layer in given:
            continue
        if int(layer) >= len(shared) or shared[int(layer)]:  # 0 in a linear layer of Nemotron models
            yield f"the tensors of layer {layer} include attn_output, but neither attn_qkv nor attn_q"


def _rotations(head: Header) -> Iterator[str]:
    heads = (head.by_layer("attention.head_count") or (0,))[0]
    width = head.number("attention.key_length") or (head.number("embedding_length") // heads if heads > 0 else 0)
    for suffix in ("", "_swa"):
        key = f"rope.dimension_count{suffix}"
        limit = head.number(f"attention.key_length{suffix}") or width
        stated = head.fields.get(head.key(key))
        rotated = stated if isinstance(stated, int) else limit
        if limit and not (0 < rotated <= limit and rotated % 2 == 0):  # with 0, ggml loops for ever
            yield f"{head.key(key)} is {rotated}; it must be even, and at most the {limit} of a head"


def _experts(head: Header) -> Iterator[str]:
    experts, used = head.number("expert_count"), head.by_layer("expert_used_count") or (0,)
    if max(used) > experts or (experts and not max(used)):
        yield f"{head.key('expert_used_count')} is {max(used)}, but {head.key('expert_count')} is {experts}"
    groups, chosen = head.number("expert_group_count"), head.number("expert_group_used_count")
    if (groups or experts) and groups >= max(1, experts):
        yield f"{head.key('expert_group_count')} is {groups}, but {head.key('expert_count')} is {experts}"
    elif groups > 1 and (experts % groups or not 0 < chosen < groups):
        yield f"{head.key('expert_group_count')} is {groups}, which does not fit {experts} experts in {chosen} groups"


def _vocabulary(head: Header) -> Iterator[str]:
    model = head.fields.get("tokenizer.ggml.model")
    if TOKENS in head.fields and is_alone(head):  # a head with fewer rows has no tokenizer
        yield from _rows(head)
        return
    if model not in _TOKENIZERS:
        yield f"tokenizer.ggml.model is {model!r:.40}; edgespec supports {', '.join(_TOKENIZERS)}"
    if head.fields.get("tokenizer.ggml.pre") == "whitespace":  # llama.cpp asserts on spaces in text for this type
        yield "tokenizer.ggml.pre is 'whitespace', which belongs to models that do not generate text"
    tokens = [token.partition(b"\0")[0] for token in head.vocabulary.tokens]
    if not tokens:
        yield "tokenizer.ggml.tokens is missing or empty"
    known = {*tokens}
    empty = tokens.count(b"")  # llama.cpp gives each of these a unique name
    if len(known) - (empty > 0) + empty < len(tokens):
        yield f"tokenizer.ggml.tokens has a token twice: {_repeated(tokens)!r:.80}"
    if model == "llama" and (lacking := [byte for byte in range(256) if known.isdisjoint(_spellings(byte))]):
        yield f"tokenizer.ggml.tokens lacks the token <0x{lacking[0]:02X}>, and those of {len(lacking) - 1} other bytes"


def _rows(head: Header) -> Iterator[str]:
    """Faults of the tokens of a head with fewer rows than its target has tokens."""
    if head.fields.get("tokenizer.ggml.model") != "none":
        yield "tokenizer.ggml.model must be 'none' in a head with tokens of its own"
    try:
        tokens_of(head)
    except ValueError as error:
        yield str(error)


def _eagle3(path: Path, head: Header) -> Iterator[str]:
    """Faults of an EAGLE-3 head, for which llama.cpp ends the process when its context is opened or used."""
    if head.number("block_count") != 1:
        yield f"{head.key('block_count')} is {head.number('block_count')}; a head has one layer"
    if len(target_layers(head)) != _TARGET_LAYERS or min(target_layers(head)) < 0:
        yield f"{head.key('target_layers')} is {target_layers(head)}; expected {_TARGET_LAYERS} layers"
    usual = head.number("embedding_length") // max(1, head.number("attention.head_count"))
    sizes = [head.number(f"attention.{part}_length") or usual for part in ("key", "value")]
    if sizes[0] != sizes[1]:
        yield f"keys have {sizes[0]} numbers and values {sizes[1]}; they must be as many"
    known = head.vocabulary.size
    rows = head.tensors["output.weight"].shape[-1] if "output.weight" in head.tensors else known  # else the target's
    table = head.tensors.get("d2t")
    if table is None or rows > known:
        if rows != known:
            yield f"output.weight has {rows} rows for {known} tokens, and there is no d2t"
        return
    if table.kind != _I64 or table.shape != (rows,):
        yield f"d2t is of type {table.kind} and shape {table.shape}; expected a whole number for each of {rows} rows"
        return
    with path.open("rb") as file:
        tokens = np.fromfile(file, "<i8", rows, offset=head.length + table.offset)
    if len(tokens) < rows or tokens.min(initial=0) < 0 or tokens.max(initial=0) >= known:
        yield f"d2t has tokens that are not among the {known} of the vocabulary"


def _spellings(byte: int) -> tuple[bytes, bytes]:
    """The tokens that may represent a single byte of text."""
    return f"<0x{byte:02X}>".encode(), bytes([byte])


def _repeated(tokens: list[bytes]) -> str:
    seen: set[bytes] = set()
    for token in tokens:
        if token and token in seen:
            return token.decode("utf-8", "replace")
        seen.add(token)
    return ""
