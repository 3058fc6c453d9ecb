"""Lossless acceptance: which of a draft's tokens the target would have said itself.

`match` lets the target pick by the shared noise and keeps the draft for as long as it says the same (Daliri et
al. 2024; at temperature 0 this is plain greedy verification). The text then depends on the seed alone.

`rejection` accepts a token x drawn from q with probability min(1, p(x)/q(x)) and otherwise continues with the
normalised rest max(p - q, 0): Leviathan et al. 2023, Chen et al. 2023; siblings of a tree are tried in turn
against what is left, Miao et al. 2024. It accepts somewhat more, and promises the distribution, not the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from .errors import OptionError
from .sampling import ACCEPTING, DRAFTING, RESIDUAL, SHARED, Sampling, distribution, draw, pick, picks, uniform
from .types import Acceptance, Distribution, Draft, Floats, Guess


class Verifier(Protocol):
    """How drafters draw, and what is accepted of what they drew."""

    name: str
    #: Whether a draft may be cut once its tokens are known. Not for rejection: keeping a drawn token because
    #: of what it is (or of what follows it) would bias the output; how far to draft must be settled before.
    trims: bool

    def draw(self, row: Floats, sampling: Sampling, position: int, recent: Sequence[int]) -> Guess:
        """A drafter's token from its own logits `row`, float32 [vocabulary]."""
        ...

    def accept(self, draft: Draft, rows: Floats, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        """What the target keeps of `draft`.

        `rows` float32 [1 + n, vocabulary]: the target's logits after the context and after each draft node.
        """
        ...


class Drawing(NamedTuple):
    """How tokens are drawn at one place of one text: what `Verifier.draw` needs beside the logits."""

    verifier: Verifier
    sampling: Sampling
    context: Sequence[int]
    #: Whether a token ends the text.
    ends: Callable[[int], bool]

    def draw(self, row: Floats, path: Sequence[int], most: int = 1) -> Sequence[Guess]:
        """At most `most` guesses from a drafter's logits `row`, to follow the context and `path`.

        More than one only where a draft may be cut (`Verifier.trims`): others are what the target would say, by the
        noise it shares, if not the first.
        """
        recent = self.sampling.recent(self.context)
        if recent:
            recent = self.sampling.recent((*recent, *path))
        position = len(self.context) + len(path)
        if most > 1 and self.verifier.trims:
            return [Guess(*pick) for pick in picks(row, self.sampling, position, recent, most)]
        return (self.verifier.draw(row, self.sampling, position, recent),)


class Match:
    """Keep the draft for as long as it says what the target says."""

    name = "match"
    trims = True

    def draw(self, row: Floats, sampling: Sampling, position: int, recent: Sequence[int]) -> Guess:
        if sampling.greedy:
            token = pick(row, sampling, position, recent)
            return Guess(token, _top(row), None)
        q = distribution(row, sampling, recent)
        return Guess(draw(q, sampling.seed, position, SHARED), float(q.probs.max()), None)

    def accept(self, draft: Draft, rows: Floats, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        path: list[int] = []
        recent = sampling.recent(context)
        node = -1
        while True:
            token = pick(rows[node + 1], sampling, len(context) + len(path), recent)
            found = next((child for child in draft.children(node) if draft.tokens[child] == token), None)
            if found is None:
                return Acceptance(tuple(path), token)
            path.append(found)
            node = found
            recent = sampling.recent((*recent, token))


class Rejection:
    """Accept with probability min(1, p/q), else go on with what p has more than q."""

    name = "rejection"
    trims = False

    def draw(self, row: Floats, sampling: Sampling, position: int, recent: Sequence[int]) -> Guess:
        if sampling.greedy:
            return Match().draw(row, sampling, position, recent)
        q = distribution(row, sampling, recent)
        return Guess(draw(q, sampling.seed, position, DRAFTING), float(q.probs.max()), q)

    def accept(self, draft: Draft, rows: Floats, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        path: list[int] = []
        recent = sampling.recent(context)
        node = -1
        while True:
            position = len(context) + len(path)
            p = distribution(rows[node + 1], sampling, recent)
            found, p = _try_children(draft, node, p, sampling.seed, position)
            if found is None:
                return Acceptance(tuple(path), draw(p, sampling.seed, position, RESIDUAL))
            path.append(found)
            node = found
            recent = sampling.recent((*recent, draft.tokens[found]))


def _try_children(
    draft: Draft, node: int, p: Distribution, seed: int, position: int
) -> tuple[int | None, Distribution]:
    """The accepted child, or None and the distribution left for the correction."""
    for child in draft.children(node):
        token = draft.tokens[child]
        q = draft.q[child] if draft.q is not None else _point(token)
        # u < p/q, written without the division; siblings may repeat a token, so the node keys the noise.
        u = float(uniform(seed, position, np.array([child], dtype=np.int64), ACCEPTING)[0])
        if u * q.of(token) < p.of(token):
            return child, p
        p = _residual(p, q)
    return None, p


def _residual(p: Distribution, q: Distribution) -> Distribution:
    """max(p - q, 0), normalised. Where q covers p the token was accepted for certain, so some of p is left."""
    order = np.argsort(q.tokens)
    place = np.searchsorted(q.tokens, p.tokens, sorter=order).clip(max=len(order) - 1)
    nearest = order[place]
    taken = np.where(q.tokens[nearest] == p.tokens, q.probs[nearest], 0.0)
    rest = np.maximum(p.probs - taken, 0.0)
    keep = rest > 0
    if not keep.any():  # p equals q up to rounding: the rest is nothing but that rounding
        return p
    return Distribution(p.tokens[keep], rest[keep] / rest[keep].sum())


def _point(token: int) -> Distribution:
    return Distribution(np.array([token], dtype=np.int64), np.ones(1))


def _top(row: Floats) -> float:
    """The softmax probability of the likeliest token, without normalising the rest."""
    return float(1.0 / np.exp(row - row.max()).sum())


_VERIFIERS: dict[str, type[Match] | type[Rejection]] = {"match": Match, "rejection": Rejection}
VERIFIERS = tuple(_VERIFIERS)


def verifier(name: str) -> Verifier:
    """The verifier called `name`.

    Raises:
        OptionError: no such verifier; the message lists them.
    """
    if name not in _VERIFIERS:
        raise OptionError(f"no verifier {name!r}; there are {', '.join(VERIFIERS)}")
    return _VERIFIERS[name]()
