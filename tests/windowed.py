"""Tiny GGUF models of random weights whose layers, but for some, have a sliding window of 16 tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from edgespec.backends import llama

from .hybrids import ARRAY, F32, HEAD, HEADS, INNER, KV_HEADS, TOKENS, U32, WIDTH, Fields, Shapes, write_model

WINDOW = 16
#: Tokens of context with which layers with a window hold only `CELLS`, where passes are short.
CONTEXT, CELLS = 1024, 256
#: As in `hybrid_steps`. Gemma 4 does not scale the scores of attention down, which makes its random weights sensitive.
ROUNDING = {"gemma3": 2e-2, "gemma4": 1e-1, "gpt-oss": 2e-2}
#: Each token uses all experts: where it chooses, a difference by rounding may make it choose others.
EXPERTS, EXPERT = 4, 32
_WIDE = 2 * HEAD  # of a head in layers without a window, in Gemma 4


def write(path: Path, architecture: str, *, seed: int = 0, **fields: Any) -> Path:
    """A model of `architecture`, one of `ARCHITECTURES`, at `path`; the arguments are those of `hybrids.write`."""
    return write_model(path, architecture, ARCHITECTURES[architecture](), seed=seed, **fields)


@contextmanager
def short_passes() -> Iterator[None]:
    """Contexts opened here have passes of at most 64 tokens, and so few cells."""
    with patch.object(llama, "_CHUNK", 64):
        yield


@contextmanager
def whole_cache() -> Iterator[None]:
    """In contexts opened here, layers with a window hold all tokens."""
    with patch.object(llama, "cells", lambda _window, context, _rows: context):
        yield


def _common(layers: int) -> Fields:
    return {
        "block_count": (U32, layers),
        "feed_forward_length": (U32, INNER),
        "attention.head_count": (U32, HEADS),
        "attention.head_count_kv": (U32, KV_HEADS),
        "attention.key_length": (U32, HEAD),
        "attention.value_length": (U32, HEAD),
        "attention.sliding_window": (U32, WINDOW),
        "rope.freq_base": (F32, 1e4),
    }


def _attention(layer: int, head: int = HEAD) -> Shapes:
    return _weights(
        layer,
        {
            "attn_norm": (WIDTH,),
            "attn_q": (HEADS * head, WIDTH),
            "attn_k": (KV_HEADS * head, WIDTH),
            "attn_v": (KV_HEADS * head, WIDTH),
            "attn_output": (WIDTH, HEADS * head),
            "post_attention_norm": (WIDTH,),
        },
    )


def _gemma_layer(layer: int, head: int = HEAD) -> Shapes:
    shapes = {
        "attn_q_norm": (head,),
        "attn_k_norm": (head,),
        "ffn_norm": (WIDTH,),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
        "post_ffw_norm": (WIDTH,),
    }
    return _attention(layer, head) | _weights(layer, shapes)


def _weights(layer: int, shapes: Shapes) -> Shapes:
    return {f"blk.{layer}.{name}.weight": shape for name, shape in shapes.items()}


def _gemma3() -> tuple[Fields, Shapes]:
    """Six layers, the last of them without a window, as llama.cpp has it for this architecture."""
    shapes: Shapes = {"output_norm.weight": (WIDTH,)}
    for layer in range(6):
        shapes |= _gemma_layer(layer)
    return _common(6), shapes


def _gemma4() -> tuple[Fields, Shapes]:
    """Six layers by a list; the last two read the cache of two before them. Heads are wider without a window."""
    windowed = [True, True, True, False, True, False]
    fields = {
        **_common(6),
        "attention.key_length": (U32, _WIDE),
        "attention.value_length": (U32, _WIDE),
        "attention.key_length_swa": (U32, HEAD),
        "attention.value_length_swa": (U32, HEAD),
        "attention.sliding_window_pattern": (ARRAY, windowed),
        "attention.shared_kv_layers": (U32, 2),
        "embedding_length_per_layer_input": (U32, 0),
        "rope.dimension_count": (U32, _WIDE),
        "rope.dimension_count_swa": (U32, HEAD),
    }
    shapes: Shapes = {"output_norm.weight": (WIDTH,), "rope_freqs.weight": (_WIDE // 2,)}
    for layer, narrow in enumerate(windowed):
        shapes |= _gemma_layer(layer, HEAD if narrow else _WIDE)
    return fields, shapes


def _gpt_oss() -> tuple[Fields, Shapes]:
    """Every other layer has a window; four experts."""
    fields: Fields = {
        **_common(4),
        "rope.dimension_count": (U32, HEAD),
        "expert_count": (U32, EXPERTS),
        "expert_used_count": (U32, EXPERTS),
        "expert_feed_forward_length": (U32, EXPERT),
    }
    shapes: Shapes = {"output_norm.weight": (WIDTH,), "output.weight": (len(TOKENS), WIDTH)}
    for layer in range(4):
        experts = {
            "attn_sinks": (HEADS,),
            "ffn_gate_inp": (EXPERTS, WIDTH),
            "ffn_gate_exps": (EXPERTS, EXPERT, WIDTH),
            "ffn_up_exps": (EXPERTS, EXPERT, WIDTH),
            "ffn_down_exps": (EXPERTS, WIDTH, EXPERT),
        }
        weights = _attention(layer) | _weights(layer, experts)
        biases = {name.replace(".weight", ".bias"): shape[:-1] for name, shape in weights.items() if len(shape) > 1}
        shapes |= weights | biases
    return fields, shapes


ARCHITECTURES: Mapping[str, Callable[[], tuple[Fields, Shapes]]] = {
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "gpt-oss": _gpt_oss,
}
