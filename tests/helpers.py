"""What several tests need: rules, terms, drafters that are wrong, and a clock that is told the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from edgespec.backends.toy import Rule, ToySession
from edgespec.drafters import Terms
from edgespec.sampling import Sampling, pick
from edgespec.types import Draft, Floats, Round
from edgespec.verify import Drawing, Drawn, verifier

#: Everything on at once.
ALL_ON = Sampling(
    temperature=0.8,
    top_k=12,
    top_p=0.95,
    min_p=0.02,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    penalty_window=16,
    logit_bias=((3, 1.5), (4, -np.inf)),
    seed=7,
)


def never(_token: int) -> bool:
    """For texts that do not end."""
    return False


Cell = TypeVar("Cell", bound=Hashable)


def fits(counts: Mapping[Cell, int], expected: Mapping[Cell, float]) -> bool:
    """Whether `counts` may come from the probabilities `expected`, by chi-square.

    Passes below the mean of the statistic plus 5 of its standard deviations: by chance one seed in 10^4 or
    fewer does not, and the seeds here are fixed.
    """
    if any(expected.get(cell, 0) <= 0 for cell in counts):
        return False
    n = sum(counts.values())
    cells = {cell: p * n for cell, p in expected.items() if p > 0}
    assert min(cells.values()) >= 5, "too few draws for this test"
    freedom = len(cells) - 1
    chi_square = sum((counts.get(cell, 0) - mean) ** 2 / mean for cell, mean in cells.items())
    return bool(chi_square < freedom + 5 * (2 * freedom) ** 0.5)


def count(cells: Iterable[Cell]) -> Mapping[Cell, int]:
    return Counter(cells)


def logits(*probs: float) -> Floats:
    """Logits that mean just these probabilities."""
    with np.errstate(divide="ignore"):
        row: Floats = np.log(np.array(probs)).astype(np.float32)
    return row


def table(rows: Mapping[tuple[int, ...], Sequence[float]], default: Sequence[float], skip: int = 0) -> Rule:
    """A rule by the whole text after the first `skip` tokens."""
    known = {text: logits(*probs) for text, probs in rows.items()}
    other = logits(*default)
    return lambda context: known.get(tuple(context[skip:]), other)


def plainly(
    rule: Rule, prompt: Sequence[int], sampling: Sampling, n: int, ends: Callable[[int], bool] = never
) -> list[int]:
    """Plain decoding written down anew, from the rule alone: what the engine must say."""
    context = list(prompt)
    while len(context) < len(prompt) + n:
        context.append(pick(rule(context), sampling, len(context), sampling.recent(context)))
        if ends(context[-1]):
            break
    return context[len(prompt) :]


class Freely:
    """Terms that let a drafter draft to the limit, or as long as `more` says; they note what was asked."""

    def __init__(
        self,
        limit: int,
        context: Sequence[int] = (),
        sampling: Sampling | None = None,
        *,
        rule: str = "match",
        ends: Callable[[int], bool] = never,
        more: Callable[[float], bool] = lambda _top: True,
    ) -> None:
        self.limit = limit
        self.tops: list[float] = []
        self._more = more
        self._drawing = Drawing(verifier(rule), sampling or Sampling(), context, ends)

    def another(self, top: float) -> bool:
        self.tops.append(top)
        return self._more(top)

    def ends(self, token: int) -> bool:
        return self._drawing.ends(token)

    def draw(self, row: Floats, drafted: Sequence[int]) -> Drawn:
        return self._drawing.draw(row, drafted)


class FromRule:
    """A drafter that says what a rule says, for nothing; the rule may be wrong. Point masses: no q."""

    step_price = 0.0

    def __init__(self, rule: Rule, name: str = "rule", confidence: float = 0.7) -> None:
        self.name = name
        self.rounds: list[Round] = []
        self.closed = 0
        self._rule = rule
        self._confidence = confidence

    def propose(self, context: Sequence[int], terms: Terms) -> Draft:
        tokens: list[int] = []
        while len(tokens) < terms.limit and terms.another(self._confidence):
            tokens.append(int(self._rule([*context, *tokens]).argmax()))
        return Draft.chain(tokens, [self._confidence] * len(tokens), self.name)

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        self.rounds.append(round)

    def close(self) -> None:
        self.closed += 1


class Tree(FromRule):
    """Proposes a tree: below a node the rule's worst token, then its best ones, the very best last.

    It goes on below the best and, in turns, below another. So wrong siblings come before the right one, and
    branches are mixed up in the order of the nodes.
    """

    def __init__(self, rule: Rule, width: int = 2) -> None:
        super().__init__(rule, "tree")
        self._width = width

    def propose(self, context: Sequence[int], terms: Terms) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        paths: list[tuple[int, ...]] = [()]
        waiting = [-1]
        best = True
        while len(tokens) < terms.limit:
            node = waiting.pop() if best else waiting.pop(0)
            best = not best or len(waiting) < 2
            order = np.argsort(self._rule([*context, *paths[node + 1]]))
            for token in order[[0, *range(-self._width, 0)]][: terms.limit - len(tokens)].tolist():
                waiting.append(len(tokens))
                tokens.append(token)
                parents.append(node)
                paths.append((*paths[node + 1], token))
        return Draft(tuple(tokens), tuple(parents), (0.5,) * len(tokens), None, self.name)


class Clock:
    """Stands for the module `time`: it goes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Priced(ToySession):
    """A toy session whose passes take time by a list: `seconds[n - 1]` for n tokens, the last for more."""

    def __init__(
        self,
        rule: Rule,
        vocab: int,
        clock: Clock,
        seconds: Sequence[float],
    ) -> None:
        super().__init__(rule, vocab)
        self._clock = clock
        self._prices = seconds

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        self._clock.now += self._prices[min(len(tokens), len(self._prices)) - 1]
        return super().decode(tokens, tree)
