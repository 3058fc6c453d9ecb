"""How other runtimes choose the draft length, written down anew from what their sources do.

Each takes one chain a round, of the first of its drafters that has one, as they do. llama.cpp:
`common/speculative.cpp`, draft-simple (n_max 3 and p_min 0 are the defaults, n_max 16 was). transformers:
`candidate_generator.py`, schedule "heuristic", and the confidence threshold with its ROC update. ONNX Runtime GenAI:
`AdaptiveKController` of `speculative_decoding_strategy.h`. exllamav3: `update_draft_ema` of `generator/job.py`, a
decayed mean of what was accepted, its rise and fall bounded by 1.30 and 0.65, its ceiling the window, and one round of
16 where it is below 0.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from edgespec.drafters import Drafter
from edgespec.types import Draft, Round
from edgespec.verify import RoundContext


class Heuristic:
    """Drafts up to `k` tokens, stopping before the first whose probability is below `p_min`."""

    def __init__(self, drafters: Sequence[Drafter], k: int, p_min: float = 0.0) -> None:
        self.drafters = tuple(drafters)
        self.k = k
        self.p_min = p_min
        self.probs: list[float] = []

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        """A chain; an empty one where nobody has a guess, or the text is all but over."""
        self.probs = []
        for drafter in self.drafters if min(self.k, limit) > 0 else ():
            drafter.begin(round_context)
            if tokens := self._draft(drafter, min(self.k, limit)):
                return Draft.chain(tokens, drafter.name)
        return Draft()

    def _draft(self, drafter: Drafter, limit: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < limit:
            guesses = drafter.guess(tokens, 1)
            if not guesses or (drafter.step_price and guesses[0].confidence < self.p_min):
                break
            tokens.append(guesses[0].token)
            self.probs.append(guesses[0].confidence)
        return tokens

    def observe(self, round: Round) -> None:  # noqa: A002
        """It never changes its mind."""


class PlusTwoMinusOne(Heuristic):
    """transformers, schedule "heuristic": two more where all were accepted, else one less; from 20 down to 1."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters, 20)

    def observe(self, round: Round) -> None:  # noqa: A002
        self.k = self.k + 2 if len(round.path) == self.k else max(1, self.k - 1)


class ConfidenceThreshold(Heuristic):
    """transformers' default: up to 20 tokens above a probability, which is set where a false stop costs thrice a
    needless token on what was seen so far."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters, 20, 0.4)
        self._seen: list[tuple[float, bool]] = []

    def observe(self, round: Round) -> None:  # noqa: A002
        tried = self.probs[: len(round.path) + 1]
        self._seen += [(prob, node < len(round.path)) for node, prob in enumerate(tried)]
        if len(self._seen) > 5 and 0 < sum(hit for _, hit in self._seen) < len(self._seen):
            self.p_min = _best_threshold(self._seen)


def _best_threshold(seen: Sequence[tuple[float, bool]]) -> float:
    """The probability from which to draft, with the least false positive rate plus thrice the false negative rate."""
    probs, hits = np.array(seen).T
    order = np.argsort(-probs, kind="stable")
    right, wrong = np.cumsum(hits[order]), np.cumsum(1 - hits[order])
    cost = wrong / wrong[-1] + 3 * (1 - right / right[-1])
    last = np.append(probs[order][1:] != probs[order][:-1], True)  # equal probabilities stand or fall together
    return float(probs[order][last][cost[last].argmin()])


class Ema(Heuristic):
    """exllamav3: as many tokens as were accepted of late, rounded up."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters, 4)
        self._ema = 4.0
        self._rounds = 0

    def observe(self, round: Round) -> None:  # noqa: A002
        self._rounds += 1
        if self.k:
            accepted = len(round.path) + (len(round.path) == self.k)
            self._ema = min(max(accepted, 0.65 * self._ema), 1.3 * max(self._ema, 0.3))
        self.k = math.ceil(self._ema) if self._ema >= 0.3 else int(self._rounds % 16 == 0)


class HillClimbing(Heuristic):
    """ONNX Runtime GenAI: probes one more or one less by acceptance, and keeps what does not slow it down."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        super().__init__(drafters, 1)
        #: By K: tokens and seconds a round, acceptance, and how often it was seen.
        self._known: dict[int, tuple[float, float, float, int]] = {}
        self._origin = 0
        self._since = 0
        self._cooldown = 0

    def observe(self, round: Round) -> None:  # noqa: A002
        if len(round.draft) < self.k:
            return
        seen = (len(round.tokens), round.verify_seconds + round.draft_seconds, len(round.path) / self.k)
        tokens, seconds, acceptance, n = self._known.get(self.k, (*seen, 0))
        blend = [old + 0.25 * (new - old) for old, new in zip((tokens, seconds, acceptance), seen, strict=True)]
        self._known[self.k] = (blend[0], blend[1], blend[2], n + 1)
        self._since += 1
        if self._origin:
            self._judge(blend[0] / blend[1], blend[2])
        elif self._cooldown:
            self._cooldown -= 1
        elif n + 1 >= 2:
            if blend[2] < 0.5 and self.k > 1:
                self._probe(self.k - 1)
            elif blend[2] >= 0.75 and self.k < 16 and self._since >= 2:
                self._probe(self.k + 1)

    def _judge(self, throughput: float, acceptance: float) -> None:
        tokens, seconds, *_ = self._known[self._origin]
        ratio = throughput * seconds / tokens
        if ratio < 0.8:
            self._finish(keep=False)
        elif self._since >= 2:
            self._finish(keep=ratio >= 0.97 and (self.k < self._origin or acceptance >= 0.75))

    def _probe(self, k: int) -> None:
        self._origin, self._since, self.k = self.k, 0, k

    def _finish(self, *, keep: bool) -> None:
        self.k = self.k if keep else self._origin
        self._origin, self._since = 0, 0
        self._cooldown = 1 if keep else 6
