"""GGUF files whose metadata, tensors or bytes are not as they should be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random

from edgespec.models.model_source import vocabulary

from .. import spoil, use
from ..gguf_file import ARRAY, SCALARS, TEXT, Gguf, Tensor, Value
from ..place import Place
from .templates import HOSTILE

_U32, _I32, _F32, _BOOL, _U64 = 4, 5, 6, 7, 10
_ARCHITECTURES = (
    "llama", "qwen2", "gemma3", "mamba", "rwkv7", "bert", "t5", "gpt2", "phi3", "deepseek2", "none", "", "x",
)  # fmt: skip
_TOKENIZERS = ("none", "no_vocab", "llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "", "x")
_TYPES = (0, 1, 2, 3, 6, 7, 8, 9, 10, 12, 14, 15, 16, 24, 27, 28, 30, 34, 39, 4, 5, 99, 2**31)


@lru_cache(maxsize=8)
def _base(path: Path) -> Gguf:
    return Gguf.read(path)


def _run(place: Place, content: bytes, *, context: int = 0) -> None:
    path = place.write("model.gguf", content)
    place.attempt(lambda: vocabulary(path).size)
    use.models(place, path, context=context)


def _changed(change: Callable[[Gguf], Gguf], base: str = "qwen2") -> Callable[[Place], None]:
    return lambda place: _run(place, change(_base(place.models.gguf(base))).written())


def _doubled(gguf: Gguf) -> Gguf:
    """With the 301st token's text that of the 300th."""
    tokens = gguf.get("tokenizer.ggml.tokens")
    assert tokens is not None
    return gguf.put("tokenizer.ggml.tokens", ARRAY, [*tokens.value[:301], tokens.value[300], *tokens.value[302:]], TEXT)


def _without_bytes(gguf: Gguf) -> Gguf:
    """A vocabulary of SentencePiece's kind without tokens for bytes."""
    tokens, kinds = gguf.get("tokenizer.ggml.tokens"), gguf.get("tokenizer.ggml.token_type")
    assert tokens is not None
    assert kinds is not None
    plain = [
        b"plain%d" % i if kind == 6 else text
        for i, (text, kind) in enumerate(zip(tokens.value, kinds.value, strict=True))
    ]
    other = [1 if kind == 6 else kind for kind in kinds.value]
    return gguf.put("tokenizer.ggml.tokens", ARRAY, plain, TEXT).put("tokenizer.ggml.token_type", ARRAY, other, _I32)


def _quantized_norm(gguf: Gguf) -> Gguf:
    tensors = tuple(each._replace(kind=8) if each.name == b"output_norm.weight" else each for each in gguf.tensors)
    return replace(gguf, tensors=tensors)


def _put(key: str, kind: int, value: object, base: str = "qwen2") -> Callable[[Place], None]:
    return _changed(lambda gguf: gguf.put(key, kind, value), base)


def _aligned(n: int) -> Callable[[Gguf], Gguf]:
    return lambda gguf: gguf.put("general.alignment", _U32, n)


CORPUS: Mapping[str, Callable[[Place], object]] = {
    "sound files": lambda place: use.sound_models(place, *map(place.models.gguf, place.models.ggufs)),
    "a duplicate token": _changed(_doubled),
    "a duplicate token, SentencePiece": _changed(_doubled, "spm"),
    "no layers": _put("ARCH.block_count", _U32, 0),
    "65536 layers": _put("ARCH.block_count", _U32, 65536),
    "2^31 layers": _put("ARCH.block_count", _U32, 2**31),
    "SentencePiece without byte tokens": _changed(_without_bytes, "spm"),
    "the tokenizer llama over another's tokens": _put("tokenizer.ggml.model", TEXT, "llama"),
    "a negative epsilon": _put("ARCH.attention.layer_norm_rms_epsilon", _F32, -1.0),
    "an epsilon of NaN": _put("ARCH.attention.layer_norm_rms_epsilon", _F32, math.nan),
    "a quantized output_norm": _changed(_quantized_norm),
    "no vocabulary": _put("tokenizer.ggml.model", TEXT, "none"),
    "no vocabulary, by another name": _put("tokenizer.ggml.model", TEXT, "no_vocab"),
    "alignment 1": _changed(_aligned(1)),
    "alignment 8": _changed(_aligned(8)),
    "alignment 0": _changed(_aligned(0)),
    "a context of 2^31": _put("ARCH.context_length", _U32, 2**31),
    "a context of 2^32 - 1": _put("ARCH.context_length", _U32, 2**32 - 1),
    "no context": _put("ARCH.context_length", _U32, 0),
    "a name that is not UTF-8": _put("general.name", TEXT, b"\xff\xfe name"),
    "a name that commands the terminal": _put("general.name", TEXT, b"\x1b]0;title\x07\n"),
    "a template that is not UTF-8": _put("tokenizer.chat_template", TEXT, b"{{ '\xff' }}"),
    "a temperature that is a text": _put("general.sampling.temp", TEXT, "hot"),
    "a temperature of NaN": _put("general.sampling.temp", _F32, math.nan),
    "a top_k of 20.0": _put("general.sampling.top_k", _F32, 20.0),
    "a top_k without end": _put("general.sampling.top_k", _F32, math.inf),
    "a negative top_k": _put("general.sampling.top_k", _I32, -1),
    "a top_p that is a list": _changed(lambda gguf: gguf.put("general.sampling.top_p", ARRAY, [0.5], _F32)),
    "a penalty of true": _put("general.sampling.penalty_repeat", _BOOL, True),
    "no heads": _put("ARCH.attention.head_count", _U32, 0),
    "an embedding of nothing": _put("ARCH.embedding_length", _U32, 0),
    "a bos beyond the vocabulary": _put("tokenizer.ggml.bos_token_id", _U32, 10**6),
    "no tensors": _changed(lambda gguf: replace(gguf, tensors=(), data=b"")),
    "only a head": _changed(lambda gguf: replace(gguf, data=b"")),
    "2^60 fields": _changed(lambda gguf: replace(gguf, counts=(len(gguf.tensors), 2**60))),
    "2^60 tensors": _changed(lambda gguf: replace(gguf, counts=(2**60, len(gguf.fields)))),
    "an empty file": lambda place: _run(place, b""),
    "four bytes": lambda place: _run(place, b"GGUF"),
}


def play(rng: Random, place: Place) -> None:
    """A sound file with a change or a few, and then put to use."""
    name = rng.choice(place.models.ggufs)
    gguf = _base(place.models.gguf(name))
    notes = [name]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(_CHANGES)
        gguf, note = change(rng, gguf)
        notes.append(note)
    content = gguf.written()
    if rng.random() < 0.1:
        content, note = _bytes(rng, content)
        notes.append(note)
    place.note("; ".join(notes))
    _run(place, content, context=rng.choice((0, 0, 64, 512)))


_Change = Callable[[Random, Gguf], tuple[Gguf, str]]


def _bytes(rng: Random, content: bytes) -> tuple[bytes, str]:
    end = len(content) if rng.random() < 0.2 else min(len(content), 40_000)
    return spoil.data(rng, content[:end]) + content[end:], "bytes"


def _key(rng: Random, gguf: Gguf) -> int:
    """A field, those of the architecture and of the tokenizer more often."""
    weights = [4 if not name.startswith(b"general.") else 1 for name, _ in gguf.fields]
    return rng.choices(range(len(gguf.fields)), weights)[0] if gguf.fields else -1


def _field(rng: Random, gguf: Gguf) -> tuple[Gguf, str]:
    """Another value of a field."""
    at = _key(rng, gguf)
    if at < 0:
        return gguf, "no field"
    name, old = gguf.fields[at]
    new, how = _value(rng, old)
    fields = (*gguf.fields[:at], (name, new), *gguf.fields[at + 1 :])
    return replace(gguf, fields=fields), f"{name.decode('utf-8', 'replace')} {how}"


def _value(rng: Random, old: Value) -> tuple[Value, str]:
    if rng.random() < 0.2:
        return _typed(rng)
    if old.kind == ARRAY:
        return _array(rng, old)
    if old.kind == TEXT:
        new = _encoded(spoil.text(rng, old.value.decode("utf-8", "replace")))
        if rng.random() < 0.2:
            new = spoil.data(rng, old.value, 2)
        return old._replace(value=new), f"is {new[:60]!r}"
    number = spoil.number(rng)
    return old._replace(value=number), f"is {number!r}"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _typed(rng: Random) -> tuple[Value, str]:
    """A value of any type."""
    kind = rng.choice((*SCALARS, TEXT, ARRAY, 13, 255))
    if kind == TEXT:
        text = rng.choice(spoil.TEXTS)
        return Value(TEXT, _encoded(text)), f"is {text[:60]!r}"
    if kind == ARRAY:
        items = rng.choice((0, _U32, _I32, _F32, TEXT, ARRAY))
        values = [] if items == ARRAY else [b"x" if items == TEXT else 1] * rng.choice((0, 1, 2, 5))
        return Value(ARRAY, values, items), f"is {len(values)} of type {items}"
    number = spoil.number(rng)
    return Value(kind, number), f"is {number!r} of type {kind}"


def _array(rng: Random, old: Value) -> tuple[Value, str]:
    items = list(old.value)
    at = rng.randrange(len(items)) if items else 0
    match rng.randrange(6):
        case 0:
            return old._replace(value=items[:at]), f"cut to {at}"
        case 1:
            return old._replace(value=items + items[at : at + 1]), f"with {at} again at the end"
        case 2 if items:
            other = rng.randrange(len(items))
            items[at], items[other] = items[other], items[at]
            return old._replace(value=items), f"with {at} and {other} swapped"
        case 3 if items:
            items[at] = items[rng.randrange(len(items))]
            return old._replace(value=items), f"with another at {at}"
        case 4 if items:
            items[at] = _item(rng, items[at])
            return old._replace(value=items), f"with {items[at]!r:.60} at {at}"
    return old._replace(items=rng.choice((0, _I32, _F32, TEXT)), value=items[:8]), "of other items"


def _item(rng: Random, old: object) -> object:
    if isinstance(old, bytes):
        return rng.choice((spoil.data(rng, old, 1), b"", b"\xff", b"\0", _encoded(rng.choice(spoil.TEXTS))))
    return spoil.number(rng)


def _known(rng: Random, gguf: Gguf) -> tuple[Gguf, str]:
    """A field that means something, new or in place of the old."""
    key, kind, values = rng.choice(_MEANING)
    value = rng.choice(values) if values else spoil.number(rng)
    new = _encoded(value) if isinstance(value, str) else value
    return gguf.put(key, kind, new), f"{key} is {value!r:.80}"


_MEANING: tuple[tuple[str, int, tuple[object, ...]], ...] = (
    ("general.architecture", TEXT, _ARCHITECTURES),
    ("tokenizer.ggml.model", TEXT, _TOKENIZERS),
    ("tokenizer.ggml.pre", TEXT, ("default", "llama-bpe", "qwen2", "gpt-2", "tekken", "x", "", "whisper", "superbpe")),
    ("tokenizer.chat_template", TEXT, HOSTILE),
    ("general.alignment", _U32, (0, 1, 2, 8, 16, 31, 64, 2**20, 2**31)),
    *((f"general.sampling.{name}", kind, ()) for name in ("temp", "top_k", "top_p", "min_p", "penalty_repeat")
      for kind in (_F32, _I32, TEXT, _BOOL)),
    ("general.name", TEXT, spoil.TEXTS),
    ("general.file_type", _U32, ()),
    ("general.type", TEXT, ("adapter", "mmproj", "imatrix", "")),
    ("split.count", 2, (0, 1, 2, 65535)),
    ("split.no", 2, (0, 1, 65535)),
    *((f"ARCH.{name}", _U32, ()) for name in (
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "rope.dimension_count", "attention.key_length", "attention.value_length",
        "attention.sliding_window", "expert_count", "expert_used_count", "vocab_size", "pooling_type",
        "attention.sliding_window_pattern", "leading_dense_block_count", "expert_feed_forward_length",
    )),
    *((f"ARCH.{name}", _F32, ()) for name in (
        "rope.freq_base", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.scaling.factor",
        "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "expert_weights_scale",
    )),
    ("ARCH.rope.scaling.type", TEXT, ("none", "linear", "yarn", "longrope", "x")),
    *((f"tokenizer.ggml.{name}_token_id", _U32, ()) for name in ("bos", "eos", "eot", "unknown", "padding", "fim_pre")),
    *((f"tokenizer.ggml.add_{name}", _BOOL, (True, False)) for name in ("bos_token", "eos_token", "space_prefix")),
)  # fmt: skip


def _structure(rng: Random, gguf: Gguf) -> tuple[Gguf, str]:
    """Fields that are missing, twice there, or in each other's place."""
    at, other = _key(rng, gguf), _key(rng, gguf)
    if at < 0:
        return gguf, "no field"
    fields, name = list(gguf.fields), gguf.fields[at][0].decode("utf-8", "replace")
    match rng.randrange(5):
        case 0:
            del fields[at]
            note = f"without {name}"
        case 1:
            fields.append(fields[at])
            note = f"{name} twice"
        case 2:
            fields[at], fields[other] = (fields[at][0], fields[other][1]), (fields[other][0], fields[at][1])
            note = f"{name} and {fields[other][0]!r} swapped"
        case 3:
            new = spoil.data(rng, fields[at][0], 1)
            fields[at] = (new, fields[at][1])
            note = f"{name} called {new!r}"
        case _:
            counts = (rng.choice((0, 1, len(gguf.tensors) + 1, 2**32, 2**63)), rng.choice((len(fields), 0, 2**40)))
            return replace(gguf, counts=counts), f"counts {counts}"
    return replace(gguf, fields=tuple(fields)), note


def _tensor(rng: Random, gguf: Gguf) -> tuple[Gguf, str]:
    """A tensor with another shape, type, place or name, missing or twice there."""
    if not gguf.tensors:
        return gguf, "no tensor"
    tensors, at = list(gguf.tensors), rng.randrange(len(gguf.tensors))
    old = tensors[at]
    match rng.randrange(7):
        case 0:
            tensors[at] = old._replace(shape=_shape(rng, old))
        case 1:
            tensors[at] = old._replace(kind=rng.choice(_TYPES))
        case 2:
            offset = rng.choice((0, old.offset + 1, old.offset + 32, 2**31, 2**63, len(gguf.data)))
            tensors[at] = old._replace(offset=offset)
        case 3:
            name = rng.choice((spoil.data(rng, old.name, 1), b"", b"x" * 100, rng.choice(tensors).name))
            tensors[at] = old._replace(name=name)
        case 4:
            del tensors[at]
        case 5:
            tensors.append(old)
        case _:
            other = rng.randrange(len(tensors))
            tensors[at], tensors[other] = old._replace(name=tensors[other].name), tensors[other]._replace(name=old.name)
    new = tensors[at] if at < len(tensors) else None
    return replace(gguf, tensors=tuple(tensors)), f"tensor {old} is {new}"


def _shape(rng: Random, old: Tensor) -> tuple[int, ...]:
    shape = list(old.shape)
    at = rng.randrange(len(shape))
    match rng.randrange(5):
        case 0:
            shape[at] = rng.choice((0, 1, shape[at] - 1, shape[at] + 1, 2 * shape[at], 2**31, 2**62, 2**63))
        case 1:
            shape.reverse()
        case 2:
            shape.append(rng.choice((1, 2)))
        case 3:
            del shape[at]
        case _:
            shape = [1] * rng.choice((0, 5, 100))
    return tuple(shape)


def _weights(rng: Random, gguf: Gguf) -> tuple[Gguf, str]:
    """Weights that are missing or mean nothing."""
    data, n = gguf.data, len(gguf.data)
    match rng.randrange(5):
        case 0:
            end = rng.randrange(n + 1)
            return replace(gguf, data=data[:end]), f"data cut to {end}"
        case 1:
            return replace(gguf, data=bytes(n)), "weights of zero"
        case 2:
            return replace(gguf, data=b"\xff" * n), "weights of NaN"
        case 3:
            return replace(gguf, data=data + bytes(rng.choice((1, 32, 10_000)))), "more data"
    return replace(gguf, data=spoil.data(rng, data)), "data spoilt"


def _version(rng: Random, gguf: Gguf) -> tuple[Gguf, str]:
    version = rng.choice((0, 1, 2, 4, 3 << 24, 2**32 - 1))
    if rng.random() < 0.2:
        return replace(gguf, magic=rng.choice((b"FUGG", b"ggml", b"GGUE"))), "magic"
    return replace(gguf, version=version), f"version {version}"


_CHANGES: tuple[_Change, ...] = (
    _field,
    _field,
    _field,
    _known,
    _known,
    _known,
    _structure,
    _tensor,
    _weights,
    _version,
)
