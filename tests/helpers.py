"""What several tests need: rules, drafters that are wrong, a controller that buys all, and a clock that is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from edgespec.backends.toy import Rule, ToySession
from edgespec.controller.calibration import AGAINST, AGREED, ALONE, Calibration, Guesses
from edgespec.controller.draft_tree import Candidates
from edgespec.drafters import Drafter
from edgespec.sampling import Sampling, pick
from edgespec.types import Draft, Floats, Guess, Round
from edgespec.verify import Drawing, verifier

RELATIONS = (ALONE, AGREED, AGAINST)

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


def drawing(
    context: Sequence[int] = (1, 2, 3),
    sampling: Sampling | None = None,
    rule: str = "match",
    ends: Callable[[int], bool] = never,
) -> Drawing:
    """A place of a text that does not end, sampled greedily unless said otherwise."""
    return Drawing(verifier(rule), sampling or Sampling(), context, ends)


def trusting(*names: str) -> Calibration:
    """A calibration that takes these drafters at their word: what they promised so far, they kept."""
    kept = [[30.0, 30.0], *[[0.0, 0.0]] * len(Guesses(ALONE).cells)]
    return Calibration.of(
        {"guesses": [[name, rank, relation, kept] for name in names for rank in range(4) for relation in RELATIONS]}
    )


class Clock:
    """Stands for the module `time`: it goes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Saying:
    """A drafter that says what a function of context and path says, and notes what it is asked and told.

    A guess takes `step_price`, by the clock if there is one.
    """

    def __init__(
        self,
        says: Callable[[Sequence[int], Sequence[int]], Sequence[Guess]],
        name: str = "saying",
        *,
        step_price: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.step_price = step_price
        self.begun = 0
        self.asked: list[tuple[int, ...]] = []
        self.rounds: list[Round] = []
        self.closed = 0
        self._says = says
        self._clock = clock or Clock()
        self._context: Sequence[int] = ()

    def begin(self, drawing: Drawing) -> None:
        self.begun += 1
        self._context = drawing.context

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        self.asked.append(tuple(path))
        self._clock.now += self.step_price
        return self._says(self._context, path)[:most]

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        self.rounds.append(round)

    def close(self) -> None:
        self.closed += 1


def by_book(name: str, book: Mapping[tuple[int, ...], Sequence[Guess]], step_price: float = 0.0) -> Saying:
    """A drafter that says what `book` has for a path, whatever the context; elsewhere nothing."""
    return Saying(lambda _context, path: book.get(tuple(path), ()), name, step_price=step_price)


class FromRule(Saying):
    """Says what a rule says, for nothing; the rule may be wrong. Point masses: no q."""

    def __init__(self, rule: Rule, name: str = "rule", confidence: float = 0.7) -> None:
        def says(context: Sequence[int], path: Sequence[int]) -> Sequence[Guess]:
            best = np.argsort(-rule([*context, *path]), kind="stable")[:4].tolist()
            return [Guess(token, confidence / (1 + 2 * rank)) for rank, token in enumerate(best)]

        super().__init__(says, name)


class WrongFirst(FromRule):
    """Where two are wanted it says another token before the rule's best: wrong siblings stand before the right one."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        best = super().guess(path, 1)[0]
        return (Guess(int(best.token == 0), 0.2), best)[-most:]


class Whole:
    """A controller that buys all that all drafters say, two guesses a place, as one tree of at most `n` nodes.

    In turns it goes on from the newest and from the oldest place, so branches are mixed up in the order of the nodes.
    """

    def __init__(self, drafters: Sequence[Drafter], n: int) -> None:
        self.drafters = tuple(drafters)
        self._n = n

    def choose(self, drawing: Drawing, limit: int) -> Draft:
        tree = Candidates(Calibration())
        for drafter in self.drafters:
            drafter.begin(drawing)
        waiting, turn = [-1], 0
        while waiting and len(tree) < self._n:
            node, turn = waiting.pop(-1 if turn % 2 else 0), turn + 1
            path = tree.path(node)
            if len(path) >= limit:
                continue
            for drafter in self.drafters:
                nodes = tree.add(node, drafter.name, drafter.guess(path, 2))
                waiting += [new for new in nodes if new not in waiting]
        return tree.draft([node for node in range(len(tree)) if node < self._n])

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        """It learns nothing."""


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
