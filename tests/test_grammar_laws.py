"""Laws of the output under a constraint: p is the target's law after the mask. Exact, over all outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edgespec import testing
from edgespec.backends.toy import Rule
from edgespec.constraint import Mask, MaskedRows
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.sampling import Sampling
from edgespec.types import Floats
from edgespec.verify import RoundContext, verifier

from .languages import DRAFT, SAMPLINGS, TARGET, committed, paths
from .test_laws_several import OTHER, Drawing, looking_up

#: By the last token, those that may follow: after 1 there is no choice.
FOLLOW = {0: (True, True, False), 1: (False, False, True), 2: (True, True, True)}


class Follows:
    """A constraint of three tokens, after a prompt of the token 0."""

    def allowed(self, path: Sequence[int] = ()) -> Mask:
        return np.array(FOLLOW[[0, *path][-1]])

    def admits(self, path: Sequence[int]) -> int:
        return next((n for n, token in enumerate(path) if not self.allowed(path[:n])[token]), len(path))

    def forced(self, path: Sequence[int] = ()) -> Sequence[int]:
        return (2,) if [*path][-1:] == [1] else ()

    def ended(self, path: Sequence[int] = ()) -> bool:
        return False

    def commit(self, token: int) -> None:
        raise NotImplementedError(token)


def masked(context: Sequence[int]) -> Floats:
    return np.where(FOLLOW[context[-1]], TARGET(context), -np.inf).astype(np.float32)


class Unmasked(Drawing):
    """Draws from its own q, whatever is allowed."""

    def begin(self, round_context: RoundContext) -> None:
        super().begin(round_context._replace(constraint=None))


SHAPES: dict[str, Callable[[], list[Drafter]]] = {
    "drawn": lambda: [Drawing(DRAFT, "model")],
    "two drawn": lambda: [Drawing(DRAFT, "model"), Drawing(OTHER, "model2")],
    "point first": lambda: [looking_up(2, 1), looking_up(1, 2), Drawing(DRAFT, "model")],
    "drawn first": lambda: [Drawing(DRAFT, "model"), looking_up(0, 1)],
    "unmasked q": lambda: [Unmasked(DRAFT, "model")],
}


def law(rule: str, make: Callable[[], list[Drafter]], sampling: Sampling, rows: Any, target: Rule, n: int) -> Any:
    """The probability of each text of `n` tokens: a round says its beginning, the masked target the rest."""
    judge, wanted = verifier(rule), testing.text_probabilities(masked, 3, (0,), sampling, n)

    def said() -> tuple[int, ...]:
        place = RoundContext(judge, sampling, [0], lambda _token: False, constraint=Follows())
        draft = Fixed(make(), 2, nodes=15).choose(place, 15)
        logits = np.stack([target([0, *path]) for path in [(), *paths(draft)]])
        return committed(draft, judge.accept(draft, rows(logits, draft), sampling, [0]))

    found = dict.fromkeys(wanted, 0.0)
    with testing.Outcomes() as outcomes:
        rounds = outcomes.of(said)
    for start, probability in rounds.items():
        after = {text: p for text, p in wanted.items() if text[: len(start)] == start}
        total = sum(after.values())
        for text, p in after.items():
            found[text] += probability * p / total if total else np.nan
    return [found[text] for text in wanted], [*wanted.values()]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_round_keeps_the_law_of_the_masked_target(rule: str, shape: str, sampling: Sampling) -> None:
    found, wanted = law(
        rule, SHAPES[shape], sampling, lambda logits, draft: MaskedRows(logits, draft, Follows()), TARGET, 3
    )
    assert sum(found) == pytest.approx(1)
    assert found == pytest.approx(wanted, abs=1e-9)


def test_rows_without_the_mask_do_not() -> None:
    """The law notices."""
    found, wanted = law("block", SHAPES["drawn"], SAMPLINGS["plain"], lambda logits, _draft: logits, TARGET, 3)
    assert found != pytest.approx(wanted, abs=1e-3)


def test_only_rows_that_are_read_are_masked() -> None:
    read: list[tuple[int, ...]] = []

    class Noted(Follows):
        def allowed(self, path: Sequence[int] = ()) -> Mask:
            read.append(tuple(path))
            return super().allowed(path)

    place = RoundContext(verifier("match"), Sampling(), [0], lambda _token: False, constraint=Follows())
    draft = Fixed([looking_up(0, 0), looking_up(1, 2)], 2, nodes=15).choose(place, 15)
    rows = np.zeros((1 + len(draft), 3), np.float32)
    rows[:, 1] = 1.0
    got = verifier("match").accept(draft, MaskedRows(rows, draft, Noted()), Sampling(), [0])
    assert committed(draft, got) == (1, 2, 1)
    assert read == [(), (1,), (1, 2)]
