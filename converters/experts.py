"""Mixtures of experts: how many there are, and their tensors, which checkpoints spell in three ways.

Older ones hold a tensor an expert, as `mlp.experts.3.up_proj.weight` or, Mixtral, as `block_sparse_moe.experts.3.w3`.
transformers 5 holds those of a layer as one, gate above up (conversion_mapping.py there). `apart` gives all of them the
first spelling; no number is touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from edgespec.converters.stored_tensor import Stored

_FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


@dataclass(frozen=True, slots=True)
class Experts:
    """`count` experts of `ffn` rows in each layer, of which each token asks `used`."""

    count: int
    used: int
    ffn: int


def apart(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """The tensors, each expert's by itself. Fused ones of an odd shape are left as they are."""
    return {name: part for key, stored in tensors.items() for name, part in _parts(key, stored)}


def _parts(name: str, stored: Stored) -> Iterator[tuple[str, Stored]]:
    fused = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)", name)
    if not fused:
        yield _respelt(name), stored
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


def _respelt(name: str) -> str:
    before, block, after = name.partition(".block_sparse_moe.")
    if not block:
        return name
    return f"{before}.mlp.{re.sub(r'(experts[.][0-9]+[.])(w[123])', lambda m: m[1] + _MIXTRAL[m[2]], after)}"
