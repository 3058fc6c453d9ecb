"""Texts of very many seeds at once, by the rules as their papers write them: forwards, whole arrays at a time.

Nothing here comes from the verifiers; even the noise is written down anew. One seed must give one text, here and there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from edgespec.backends.toy import Rule
from edgespec.sampling import ACCEPTING, DRAFTING, RESIDUAL, SHARED, Sampling, distribution
from edgespec.types import Doubles, Ints

Words = npt.NDArray[np.uint64]

_VOCAB = 3
_ROUND, _PURPOSES = 4, 5


class Many:
    """All texts of `n` tokens after a prompt of one, drafted by chains of `k`.

    A text is a number: 0 the empty one, and 3 * text + 1 + token the text that goes on with the token.
    """

    def __init__(self, target: Rule, draft: Rule, sampling: Sampling, n: int, k: int) -> None:
        self._p = _table(target, sampling, n + k)
        self._q = _table(draft, sampling, n + k)
        self._n = n
        self._k = k

    def generate(self, rule: str, seeds: Sequence[int]) -> tuple[Ints, Doubles]:
        """The texts, int64 [seeds, n], and the mean number of drafted tokens that the first round accepts."""
        seed = np.array(seeds, dtype=np.uint64)
        text, length = np.zeros(len(seed), dtype=np.int64), np.zeros(len(seed), dtype=np.int64)
        accepted = None
        while (going := length < self._n).any():
            tau, said = self._round(rule, seed[going], text[going], length[going] + 1)
            accepted = tau.astype(np.float64) if accepted is None else accepted
            text[going] = said
            length[going] += tau + 1
        assert accepted is not None
        return self._tokens(text, length), accepted

    def _round(self, rule: str, seed: Words, text: Ints, start: Ints) -> tuple[Ints, Ints]:
        own = seed if rule == "match" else _key(seed, _ROUND, start)
        texts = [text]
        for i in range(self._k):
            drafted = _draw(self._q[texts[-1]], own, start + i, SHARED if rule == "match" else DRAFTING)
            texts.append(_VOCAB * texts[-1] + 1 + drafted)
        tau, rest, purpose = getattr(self, f"_{rule}")(own, np.array(texts), start)
        kept = np.array(texts)[tau, np.arange(len(tau))]
        return tau, _VOCAB * kept + 1 + _draw(rest, own, start + tau, purpose)

    def _match(self, seed: Words, texts: Ints, start: Ints) -> tuple[Ints, Doubles, int]:
        says = [_draw(self._p[text], seed, start + i, SHARED) for i, text in enumerate(texts)]
        right = np.array([said == (text - 1) % _VOCAB for said, text in zip(says, texts[1:], strict=False)])
        tau = right.cumprod(axis=0).sum(axis=0)
        return tau, self._p[texts[tau, np.arange(len(tau))]], SHARED

    def _rejection(self, seed: Words, texts: Ints, start: Ints) -> tuple[Ints, Doubles, int]:
        """Leviathan et al. 2023, Algorithm 1."""
        passed = []
        for i in range(self._k):
            chance = self._likely(self._p, texts, i) / self._likely(self._q, texts, i)
            passed.append(_accepting(seed, start + i, i) < chance)
        tau = np.array(passed).cumprod(axis=0).sum(axis=0)
        return tau, self._rest(np.ones(len(seed)), texts, tau), RESIDUAL

    def _block(self, seed: Words, texts: Ints, start: Ints) -> tuple[Ints, Doubles, int]:
        """Sun et al. 2024, Algorithm 2."""
        tau = np.zeros(len(seed), dtype=np.int64)
        kept = [np.ones(len(seed))]
        for i in range(1, self._k + 1):
            ratio = self._likely(self._p, texts, i - 1) / self._likely(self._q, texts, i - 1)
            kept.append(np.minimum(kept[-1] * ratio, 1.0))
            chance = kept[i]
            if i < self._k:
                left = np.maximum(kept[i][:, None] * self._p[texts[i]] - self._q[texts[i]], 0).sum(axis=1)
                with np.errstate(invalid="ignore"):  # 0 / 0: then the next test passes for certain
                    chance = left / (left + 1 - kept[i])
            tau = np.where(_accepting(seed, start + i, i - 1) < chance, i, tau)
        return tau, self._rest(np.array(kept)[tau, np.arange(len(tau))], texts, tau), RESIDUAL

    def _rest(self, kept: Doubles, texts: Ints, tau: Ints) -> Doubles:
        at = texts[tau, np.arange(len(tau))]
        left = np.maximum(kept[:, None] * self._p[at] - self._q[at], 0)
        return np.where((tau == self._k)[:, None], self._p[at], left)

    def _likely(self, table: Doubles, texts: Ints, i: int) -> Doubles:
        """The probability of the draft's token `i`."""
        return table[texts[i], (texts[i + 1] - 1) % _VOCAB]

    def _tokens(self, text: Ints, length: Ints) -> Ints:
        columns = []
        for depth in range(self._n + self._k, 0, -1):
            here = length >= depth
            columns.append(np.where(here, (text - 1) % _VOCAB, -1))
            text = np.where(here, (text - 1) // _VOCAB, text)
        return np.array(columns[::-1]).T[:, : self._n]


def first_of_two(
    rule: str, p: Sequence[float], q: Sequence[Sequence[float]], seeds: int, streams: Sequence[int]
) -> tuple[Ints, Ints]:
    """What two drafters draw for one place, int64 [seeds, 2], and the token said there, int64 [seeds].

    Args:
        p, q: the probabilities of the target and of each drafter, whatever the context.
        streams: the number of each drafter, which says what noise it has.
    """
    own = _key(np.arange(seeds, dtype=np.uint64), _ROUND, start := np.ones(seeds, dtype=np.int64))
    left, said, drawn = np.tile(p, (seeds, 1)), np.full(seeds, -1), []
    for node, (each, stream) in enumerate(zip(np.array(q), streams, strict=True)):
        token = _draw(np.tile(each, (seeds, 1)), own, start, DRAFTING + _PURPOSES * stream)
        drawn.append(token)
        chance = left[np.arange(seeds), token] / each[token]
        passed = _accepting(own, start + (rule == "block"), node) < chance
        said = np.where((said < 0) & passed, token, said)
        left = np.maximum(left - each, 0)
        left /= left.sum(axis=1, keepdims=True)
    return np.array(drawn).T, np.where(said < 0, _draw(left, own, start, RESIDUAL), said)


def _table(rule: Rule, sampling: Sampling, depth: int) -> Doubles:
    """The probabilities after every text up to `depth` tokens, float64 [texts, 3]."""
    rows = []
    for n in range(depth + 1):
        for text in product(range(_VOCAB), repeat=n):
            p = distribution(rule((0, *text)), sampling, sampling.recent((0, *text)))
            rows.append([p.of(token) for token in range(_VOCAB)])
    return np.array(rows)


def _draw(weights: Doubles, seed: Words, position: Ints, purpose: int) -> Ints:
    """One token for each row of `weights`, by the Gumbel-max trick."""
    noise = np.stack([-np.log(-np.log(_uniform(seed, position, purpose, t))) for t in range(_VOCAB)], axis=1)
    with np.errstate(divide="ignore"):
        return (np.log(weights) + noise).argmax(axis=1)


def _accepting(seed: Words, position: Ints, node: int) -> Doubles:
    return _uniform(seed, position, ACCEPTING, node)


def _uniform(seed: Words, position: Ints, purpose: int, token: int) -> Doubles:
    word = _mix(_key(seed, purpose, position) + np.uint64(token + 1) * _GAMMA)
    return ((word >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


_GAMMA = np.array([0x9E3779B97F4A7C15], dtype=np.uint64)  # an array wraps around without a warning


def _key(seed: Words, purpose: int, position: Ints) -> Words:
    return _mix(_mix(_mix(seed + _GAMMA) + np.uint64(purpose) * _GAMMA) + position.astype(np.uint64) * _GAMMA)


def _mix(word: Words) -> Words:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
