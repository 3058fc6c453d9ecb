"""Mixtures of experts: their counts, and their tensors, for which checkpoints have three layouts.

Older checkpoints have a tensor per expert, `mlp.experts.3.up_proj.weight` or, in Mixtral,
`block_sparse_moe.experts.3.w3`. transformers 5 stores those of a layer as one tensor, gate above up (its
conversion_mapping.py). gpt-oss has such a tensor column by column, or as MXFP4, with rows of gate and up in turn; its
biases are one tensor as well. `split_experts` maps all of them to the first layout, without changing a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from edgespec.converters import mxfp4
from edgespec.converters.stored_tensor import StoredTensor

#: The model types whose experts ONNX Runtime computes, and those of them whose experts are not weighted by a softmax of
#: the highest scores: these it computes only where they are quantized.
IN_ONNX = ("mixtral", "qwen3_moe", "qwen3_5_moe_text", "qwen3_5_moe", "lfm2_moe")
QUANTIZED_IN_ONNX = ("lfm2_moe",)
_FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_GRANITE = {"input": ".mlp.experts.gate_up_proj", "output": ".mlp.experts.down_proj"}
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


@dataclass(frozen=True, slots=True)
class Experts:
    """`count` experts of `ffn` rows in each layer from `first` on, of which each token uses `used`.

    With `shared` each token uses one more, of that many rows.
    """

    count: int
    used: int
    ffn: int
    shared: int = 0
    first: int = 0

    def sizes(self) -> dict[str, int]:
        """By the words of roles.py."""
        return {"experts": self.count, "expert": self.ffn, "expert twice": 2 * self.ffn, "shared": self.shared}


def split_experts(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors, with one tensor per expert. Fused tensors of an unexpected shape are left unchanged."""
    return {name: part for key, stored in tensors.items() for name, part in _layout(key, stored, tensors)}


def _layout(name: str, stored: StoredTensor, tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor]]:
    fused = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)(_bias|_blocks|_scales|)", name)
    if not fused or f"{fused[1]}.{fused[2]}_bias" not in tensors:
        yield from _parts(name, stored)
        return
    blocks = tensors.get(name.replace("_scales", "_blocks")) if fused[3] == "_scales" else None
    if blocks and any(mxfp4.matrices(blocks, stored, 1)):  # which are yielded with their scales
        return
    found = list(_alternating(fused, stored, tensors))
    yield from found or [(name, stored)]


def _alternating(
    fused: re.Match[str], stored: StoredTensor, tensors: Mapping[str, StoredTensor]
) -> Iterator[tuple[str, StoredTensor]]:
    """gpt-oss's tensors; nothing for one of an unexpected shape."""
    block, parts, kind = fused[1], _FUSED[fused[2]], fused[3]
    wide = len(stored.shape) > 1 and stored.nbytes and stored.shape[-1] % len(parts) == 0
    kept = [(range(i, stored.shape[-1], len(parts)),) for i in range(len(parts) if wide else 0)]
    if kind == "_bias" and len(stored.shape) == 2:
        yield from ((f"{block}.{part}.bias", stored.picked(own)) for part, own in zip(parts, kept, strict=False))
    if kind == "_blocks" and (scales := tensors.get(f"{block}.{fused[2]}_scales")):
        for expert, matrices in enumerate(mxfp4.matrices(stored, scales, len(parts))):
            yield from ((f"{block}.{expert}.{part}.weight", each) for part, each in zip(parts, matrices, strict=True))
    if kind == "" and len(stored.shape) == 3:
        for expert in range(stored.shape[0]):
            one = replace(stored.rows(range(expert, expert + 1)), shape=stored.shape[1:])
            for part, own in zip(parts, kept, strict=False):
                yield f"{block}.{expert}.{part}.weight", one.picked(own).transposed()


def _parts(name: str, stored: StoredTensor) -> Iterator[tuple[str, StoredTensor]]:
    name = re.sub(r"\.block_sparse_moe\.(input|output)_linear\.weight$", lambda m: _GRANITE[m[1]], name)
    fused = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)", name)
    if not fused:
        yield _renamed(name), stored
        return
    parts = _FUSED[fused[2]]
    if len(stored.shape) != 3 or stored.shape[1] % len(parts) or not stored.nbytes:
        yield name, stored
        return
    shape = (stored.shape[1] // len(parts), stored.shape[2])
    nbytes = stored.nbytes // prod(stored.shape) * prod(shape)
    for expert in range(stored.shape[0]):
        for place, part in enumerate(parts):
            offset = stored.offset + (expert * len(parts) + place) * nbytes
            yield f"{fused[1]}.{expert}.{part}.weight", replace(stored, shape=shape, offset=offset, nbytes=nbytes)


def _renamed(name: str) -> str:
    if "block_sparse_moe.router" in name:  # Granite's
        return name
    before, block, after = name.partition(".block_sparse_moe.")
    if not block:
        return name
    return f"{before}.mlp.{re.sub(r'(experts[.][0-9]+[.])(w[123])', lambda m: m[1] + _MIXTRAL[m[2]], after)}"
