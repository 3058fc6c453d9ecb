"""Three layers that copy from the first step on, set by hand: heads that look one, two and three tokens back, and
induction heads, which find where the last three tokens stood before and say what followed (Olsson et al. 2022,
In-context Learning and Induction Heads, arXiv 2209.11895).

Without them a small model learns to copy only after tens of millions of tokens. They are ordinary weights of an
ordinary Llama, and training changes them like all others.

RoPE turns a pair of numbers by position x frequency. Heads that look back use all pairs, with a query turned back by
the offset; heads that compare tokens use only the slow pairs, which hardly turn within a few hundred tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .growing import Weights
from .layout import OFFSETS, Layout, token_codes

LAYERS = 3
INDUCING = (1, 2)  # two layers of independent random projections: a wrong match of one is outvoted
_LOUDNESS = 0.1  # of all added dimensions against the embedding: they must not move the old layers' norms
_SHARP = 11.0  # what a score falls by, about, from the wanted offset to its neighbours
_MATCH = (12.0, 9.0, 7.0)  # what the score rises by for an equal token one, two, three places before
_SKIPPED = 1.5  # how much more of that where the last token is skipped
_SINK = 16.0  # the score of the first place of all: more than one equal token, less than two
_START = 1  # the token that begins a chat


@dataclass(frozen=True)
class Heads:
    """The attention's shape; `theta` is RoPE's base."""

    query: int
    kv: int
    size: int
    theta: float

    @property
    def frequencies(self) -> torch.Tensor:
        half = self.size // 2
        return self.theta ** (-torch.arange(half) / half)

    @property
    def slow(self) -> torch.Tensor:
        """Places in a head of the pairs that turn less than half a radian in 100 tokens."""
        pairs = torch.nonzero(self.frequencies < 0.5 / 100).flatten()
        return torch.cat([pairs, pairs + self.size // 2])


@dataclass(frozen=True)
class Alias:
    """Two tokens of which one counts as the other where contexts are compared: the word before an answer's newline
    ("assistant") as the sign before a text's (":"), so that an answer begins as the text did."""

    token: int
    as_token: int


def install(
    weights: Weights, layout: Layout, heads: Heads, alias: Alias, gain: float, generator: torch.Generator
) -> None:
    """Write the circuit into the first layers of a grown model's state dict, its embedding and its output head.

    `gain` scales the last norm and the output head's codes: its square says how sure the model is at first of what it
    copies. A residual stream that grows on its way up needs more."""
    embedding = weights["model.embed_tokens.weight"]
    codes = token_codes(len(embedding), layout.code, generator)
    size = embedding[:, : layout.base].norm(dim=1, keepdim=True) * _LOUDNESS
    said = codes.clone()
    codes[alias.token], said[alias.token], said[_START] = codes[alias.as_token], 0.0, 0.0
    embedding[:, layout.own] = codes * size
    embedding[:, layout.one] = size[:, 0]
    # RMSNorm: a number of the size `loud` becomes 1 when the norm's weight is its inverse.
    unit = _LOUDNESS * math.sqrt(layout.width) / math.sqrt(1 + 2 * _LOUDNESS**2)
    _look_back(weights, layout, heads, unit)
    written = float(size.median())
    for layer in INDUCING:
        _induce(weights, layout, heads, (layer, unit, written), generator)
    head = torch.zeros_like(embedding)
    head[:, : layout.base] = weights.pop("lm_head.weight", embedding)[:, : layout.base]
    head[:, layout.out] = said * gain
    weights["lm_head.weight"] = head
    weights["model.norm.weight"][layout.base :] = gain


def _look_back(weights: Weights, layout: Layout, heads: Heads, unit: float) -> None:
    """Layer 0: query heads 0.. of key head 0 and 1 look `offset` places back and copy the token's code."""
    q, k, v, o = _projections(weights, 0)
    frequencies = heads.frequencies
    loud = math.sqrt(_SHARP * math.sqrt(heads.size))  # both of query and key
    shared = heads.query // heads.kv
    used = {number // shared for number in range(len(OFFSETS))}
    for number in used:
        rows = slice(number * heads.size, (number + 1) * heads.size)
        k[rows] = 0
        v[rows] = 0
        k[rows, layout.one][: heads.size // 2] = loud / unit
        v[rows, layout.own] = torch.eye(heads.size, layout.code) / unit
    for number, offset in enumerate(OFFSETS):
        rows = slice(number * heads.size, (number + 1) * heads.size)
        q[rows] = 0
        turned = torch.cat([torch.cos(offset * frequencies), -torch.sin(offset * frequencies)])
        q[rows, layout.one] = turned * loud / unit
        scale = float(weights["model.embed_tokens.weight"][:, : layout.base].norm(dim=1).median()) * _LOUDNESS
        o[layout.back(offset), rows] = torch.eye(layout.before, heads.size) * scale


def _induce(
    weights: Weights, layout: Layout, heads: Heads, place: tuple[int, float, float], generator: torch.Generator
) -> None:
    """Layers 1 and 2: heads compare the last tokens with those before each earlier place, and copy the token there.

    Of the query heads of a key head one compares three tokens and the next skips the last one, which goes on after a
    word that was replaced. Where little is equal they see the first place of all, and copy nothing that is read."""
    layer, unit, written = place
    q, k, v, o = _projections(weights, layer)
    slow, shared = heads.slow, heads.query // heads.kv
    compared, sink = slow[slow % (heads.size // 2) != heads.size // 2 - 1], heads.size // 2 - 1
    here = [slice(layout.own.start, layout.own.start + layout.before), *map(layout.back, OFFSETS[:-1])]
    there = [layout.back(offset) for offset in OFFSETS]
    q.zero_()
    k.zero_()
    for number in range(heads.kv):
        first = number * heads.size
        k[first + sink] = _first_place(weights, layout) * math.sqrt(_SINK * math.sqrt(heads.size)) / unit
        for strength, seen, own in zip(_MATCH, there, here, strict=True):
            loud = math.sqrt(strength * math.sqrt(heads.size)) / unit
            mixed = _projection(len(compared), layout.before, generator) * loud
            k[first + compared, seen] = mixed
            for head in range(number * shared, (number + 1) * shared):
                skipping = (head - number * shared) % 2
                factor = (0.0 if own == here[0] else _SKIPPED) if skipping else 1.0
                q[head * heads.size + compared, own] = mixed * factor
                q[head * heads.size + sink, layout.one] = math.sqrt(_SINK * math.sqrt(heads.size)) / unit
        v[first : first + heads.size] = 0
        v[first : first + heads.size, layout.own] = torch.eye(heads.size, layout.code) / unit
    for head in range(heads.query):
        rows = slice(head * heads.size, (head + 1) * heads.size)
        o[layout.out, rows] = torch.eye(layout.code, heads.size) * written / heads.query / len(INDUCING) * 2


def _first_place(weights: Weights, layout: Layout) -> torch.Tensor:
    """A row that reads 1 at the first place of a chat: it has its own token also as the one before it."""
    embedding = weights["model.embed_tokens.weight"]
    code = embedding[_START, layout.own][: layout.before]
    row = torch.zeros(layout.width)
    sizes = embedding[:, : layout.base].norm(dim=1)
    reading = code / code.norm() * math.sqrt(layout.code / layout.before) / 2
    row[layout.own][: layout.before] = reading
    # What was written has the size of the median embedding; it is read against that of the first token's.
    row[layout.back(1)] = reading * float(sizes[_START] / sizes.median())
    return row


def _projection(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Random, and it keeps the length of a code whose first `columns` of 64 numbers it sees, on average."""
    return torch.randn(rows, columns, generator=generator) * math.sqrt(64 / columns / rows)


def _projections(weights: Weights, layer: int) -> list[torch.Tensor]:
    return [weights[f"model.layers.{layer}.self_attn.{name}_proj.weight"] for name in "qkvo"]
