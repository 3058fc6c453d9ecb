"""Mixtures of experts: their counts, and their tensors, for which checkpoints have three layouts.

Older checkpoints have a tensor per expert, `mlp.experts.3.up_proj.weight` or, in Mixtral,
`block_sparse_moe.experts.3.w3`. transformers 5 stores those of a layer as one tensor, gate above up (its
conversion_mapping.py). `split_experts` maps all of them to the first layout, without changing a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from edgespec.converters.stored_tensor import StoredTensor

_FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
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
        return {"experts": self.count, "expert": self.ffn, "shared": self.shared}


def split_experts(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors, with one tensor per expert. Fused tensors of an unexpected shape are left unchanged."""
    return {name: part for key, stored in tensors.items() for name, part in _parts(key, stored)}


def _parts(name: str, stored: StoredTensor) -> Iterator[tuple[str, StoredTensor]]:
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
    before, block, after = name.partition(".block_sparse_moe.")
    if not block:
        return name
    return f"{before}.mlp.{re.sub(r'(experts[.][0-9]+[.])(w[123])', lambda m: m[1] + _MIXTRAL[m[2]], after)}"
