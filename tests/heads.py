"""Tiny GGUF models with a head that drafts: of random weights, or a target and a head that knows what it says.

The target that is known ("right") says a ring of tokens: what follows a token depends on nothing else. Its blocks add
nothing, tokens of the ring have orthogonal embeddings, and its output matrix has the embedding of each in the row of
the next. The head knows the ring, too, but reads the target's hidden row only, not the token given with it: with the
row of another position it is always wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from . import hybrids
from .hybrids import ARRAY, F32, HEAD, HEADS, INNER, KV_HEADS, LAYERS, TOKENS, TRUTH, U32, WIDTH, Array, Fields, Shapes

RING = range(100, 124)

_OUT = ("attn_output.weight", "ssm_out.weight", "ffn_down.weight")  # matrices with which blocks add to the stream
_SMALL = 32  # the width of an assistant
#: Logits of the right token beyond the others. At temperature 0.8 it then has a probability of about 0.6.
_MARGIN = 5.0


def qwen35(
    folder: Path, *, right: bool = False, seed: int = 0, architecture: str = "qwen35", quantized: bool = False
) -> Path:
    """A model with its head in one file, the matrices with a row for each token quantized or not."""
    fields, tensors = _qwen35(right, seed, architecture)
    for name in ("token_embd.weight", "output.weight") if quantized else ():
        tensors[name] = gguf.quantize(tensors[name], hybrids.Q8_0)
    return hybrids.write_file(folder / f"{architecture}-with-head.gguf", architecture, fields, tensors)


def qwen35_apart(folder: Path, *, right: bool = False, seed: int = 0) -> tuple[Path, Path]:
    """The same in two files."""
    fields, tensors = _qwen35(right, seed, "qwen35")
    block = f"blk.{LAYERS}."
    model = {name: values for name, values in tensors.items() if not name.startswith(block)}
    head = {name: values for name, values in tensors.items() if name.startswith((block, "token_embd", "output"))}
    plain = {**fields, "block_count": (U32, LAYERS), "nextn_predict_layers": (U32, None)}
    return (
        hybrids.write_file(folder / "model.gguf", "qwen35", plain, model),
        hybrids.write_file(folder / "mtp-model.gguf", "qwen35", fields, head),
    )


def gemma4(folder: Path, *, right: bool = False, seed: int = 0, window: int = 16) -> tuple[Path, Path]:
    """A target with windowed and full attention, and its assistant."""
    fields, shapes = _gemma4(LAYERS, WIDTH)
    own, small = _gemma4(2, _SMALL, queries=True)
    own |= {"embedding_length_out": (U32, WIDTH), "nextn_predict_layers": (U32, 2)}
    small |= {"nextn.pre_projection.weight": (_SMALL, 2 * WIDTH), "nextn.post_projection.weight": (WIDTH, _SMALL)}
    model, head = hybrids.drawn(shapes, seed), hybrids.drawn(small, seed + 1)
    if right:
        model |= _ring_of_target(model)
        head |= _silenced(head) | _ring_of_assistant(model)
    for tensors in (model, head):
        for name in tensors:
            if name.endswith(("attn_q_norm.weight", "attn_k_norm.weight")):
                tensors[name] *= 0.3  # attention without a scale is so sharp that rounding would choose other tokens
        turned = HEAD // 4
        tensors["rope_freqs.weight"] = np.array([1.0] * turned + [1e30] * (HEAD // 2 - turned), np.float32)
    fields["attention.sliding_window"] = own["attention.sliding_window"] = (U32, window)
    return (
        hybrids.write_file(folder / "gemma4.gguf", "gemma4", fields, model),
        hybrids.write_file(folder / "mtp-gemma4.gguf", "gemma4-assistant", own, head),
    )


def _qwen35(right: bool, seed: int, architecture: str) -> tuple[Fields, dict[str, Array]]:
    fields, shapes = hybrids.ARCHITECTURES[architecture]()
    fields |= {"block_count": (U32, LAYERS + 1), "nextn_predict_layers": (U32, 1)}
    shapes |= {"token_embd.weight": (len(TOKENS), WIDTH), "output.weight": (len(TOKENS), WIDTH)}
    like = f"blk.{LAYERS - 1}."  # the head's block is one of attention
    shapes |= {name.replace(like, f"blk.{LAYERS}."): shape for name, shape in shapes.items() if name.startswith(like)}
    shapes |= {
        f"blk.{LAYERS}.nextn.{name}.weight": shape
        for name, shape in {
            "eh_proj": (WIDTH, 2 * WIDTH),
            "enorm": (WIDTH,),
            "hnorm": (WIDTH,),
            "shared_head_norm": (WIDTH,),
        }.items()
    }
    tensors = hybrids.drawn(shapes, seed)
    if right:
        tensors |= _ring_of_target(tensors)
        known = tensors["token_embd.weight"][RING]
        after = np.roll(known, -1, axis=0).T @ known  # from the embedding of a token to that of the next
        tensors[f"blk.{LAYERS}.nextn.eh_proj.weight"] = np.concatenate([np.zeros_like(after), after], 1)
    return fields, tensors


def _ring_of_target(tensors: Mapping[str, Array]) -> dict[str, Array]:
    known = _orthogonal(WIDTH)
    embeddings, output = tensors["token_embd.weight"].copy(), np.zeros((len(TOKENS), WIDTH), np.float32)
    embeddings[RING] = known
    output[np.roll(RING, -1)] = known * _MARGIN / WIDTH**0.5
    return _silenced(tensors) | {"token_embd.weight": embeddings, "output.weight": output}


def _ring_of_assistant(model: Mapping[str, Array]) -> dict[str, Array]:
    theirs, own = model["token_embd.weight"][RING], _orthogonal(_SMALL)
    embeddings = np.zeros((len(TOKENS), _SMALL), np.float32)
    embeddings[np.roll(RING, -1)] = own * _MARGIN / _SMALL**0.5
    after = np.roll(own, -1, axis=0).T @ theirs
    return {
        "token_embd.weight": embeddings,
        "nextn.pre_projection.weight": np.concatenate([np.zeros_like(after), after], 1),
        "nextn.post_projection.weight": theirs.T @ own * (WIDTH / _SMALL) ** 0.5,
    }


def _silenced(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Blocks that add nothing, and norms without weights."""
    changed = {name: np.zeros_like(values) for name, values in tensors.items() if name.endswith(_OUT)}
    changed |= {name: np.zeros_like(values) for name, values in tensors.items() if "down_exps" in name}
    changed |= {name: np.zeros_like(values) for name, values in tensors.items() if "down_shexp" in name}
    norms = ("norm.weight", "output_scale.weight")
    return changed | {name: np.ones_like(values) for name, values in tensors.items() if name.endswith(norms)}


def _orthogonal(width: int) -> Array:
    """A unit vector for each token of the ring."""
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))
    return basis[: len(RING)].astype(np.float32)


def _gemma4(layers: int, width: int, *, queries: bool = False) -> tuple[Fields, Shapes]:
    windowed = [layer % 2 == 0 for layer in range(layers)]
    fields: Fields = {
        "block_count": (U32, layers),
        "embedding_length": (U32, width),
        "feed_forward_length": (U32, INNER),
        "attention.head_count": (U32, HEADS),
        "attention.head_count_kv": (U32, KV_HEADS),
        "attention.sliding_window_pattern": (ARRAY, windowed),
        "attention.shared_kv_layers": (U32, layers if queries else 0),
        "embedding_length_per_layer_input": (U32, 0),
        "rope.freq_base": (F32, 1e4),
        "rope.freq_base_swa": (F32, 1e2),
        "rope.scaling.finetuned": (TRUTH, False),
    }
    for end in ("", "_swa"):
        fields |= {f"attention.{part}_length{end}": (U32, HEAD) for part in ("key", "value")}
        fields[f"rope.dimension_count{end}"] = (U32, HEAD)
    shapes: Shapes = {"token_embd.weight": (len(TOKENS), width), "output_norm.weight": (width,)}
    for layer in range(layers):
        block: Shapes = {
            "attn_norm": (width,),
            "attn_q": (HEADS * HEAD, width),
            "attn_q_norm": (HEAD,),
            "attn_output": (width, HEADS * HEAD),
            "post_attention_norm": (width,),
            "ffn_norm": (width,),
            "ffn_gate": (INNER, width),
            "ffn_up": (INNER, width),
            "ffn_down": (width, INNER),
            "post_ffw_norm": (width,),
            "layer_output_scale": (1,),
        }
        if not queries:
            kv = (KV_HEADS * HEAD, width)
            block |= {"attn_k": kv, "attn_v": kv, "attn_k_norm": (HEAD,)}
        shapes |= hybrids._named(layer, block)
    return fields, shapes
