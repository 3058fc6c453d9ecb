"""Laws of the output where several drafters guess in one round: exactly, and by many draws; and that these tests notice
the mistakes that several drafters invite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest

from edgespec.backends.toy import Rule
from edgespec.controller.candidates import Candidates
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.prediction import Prediction
from edgespec.sampling import Sampling, distribution
from edgespec.testing import Outcomes
from edgespec.types import Distribution, Draft, Guess
from edgespec.verify import RoundContext, Verifier, rejection, verifier

from .helpers import FunctionDrafter, fits, table
from .languages import DRAFT, SAMPLINGS, TARGET, Propose, accept, committed, text_law, text_probabilities
from .many import first_of_two

JUDGING = ("rejection", "block")
#: Another drafter that is often wrong, otherwise than `DRAFT`.
OTHER = table({(): (0.1, 0.1, 0.8), (1,): (0.2, 0.2, 0.6), (2,): (0.9, 0.05, 0.05)}, (0.4, 0.4, 0.2), skip=1)


class Drawing(FunctionDrafter):
    """A draft model: it draws from a rule."""

    def __init__(self, rule: Rule, name: str) -> None:
        super().__init__(lambda _context, path: self._round.draw(rule([*self._round.tokens, *path]), path), name)

    def begin(self, round_context: RoundContext) -> None:
        super().begin(round_context)
        self._round = round_context


def looking_up(*tokens: int) -> Drafter:
    """A look-up: always the same tokens, without q."""
    return FunctionDrafter(lambda _context, path: [Guess(token, 0.5) for token in tokens[len(path) :]], "lookup")


def predicting() -> Drafter:
    """A predicted text of which the answer departs now and then."""
    return Prediction((2, 1, 0, 0, 2, 1), 0)


def merged(make: Callable[[], Sequence[Drafter]], k: int = 2) -> Propose:
    """The chains of some drafters, as `Fixed` merges them."""

    def propose(rule: Verifier, context: Sequence[int], sampling: Sampling, _n: int) -> Draft:
        return Fixed(make(), k, nodes=15).choose(RoundContext(rule, sampling, context, lambda _token: False), 15)

    return propose


def twice(rule: Verifier, context: Sequence[int], sampling: Sampling, _n: int) -> Draft:
    """Two draws of one drafter without replacement, and one below each; the second q lacks the first token."""
    if sampling.greedy or rule.trims:
        raise ValueError(rule, sampling)

    def q(*path: int) -> Distribution:
        return distribution(DRAFT([*context, *path]), sampling, sampling.recent(context, path))

    def drawn(q: Distribution) -> tuple[int, Distribution]:
        return cast("int", vars(rejection)["draw"](q, 0, 0, 0)), q  # `Outcomes` replaces it there

    first, q1 = drawn(q())
    found = [(first, q1, -1), (*drawn(q(first)), 0)]
    left = q1.tokens != first
    if left.any():
        second, q2 = drawn(Distribution(q1.tokens[left], q1.probs[left] / q1.probs[left].sum()))
        found += [(second, q2, -1), (*drawn(q(second)), 2)]
    tokens, qs, parents = zip(*found, strict=True)
    return Draft(tokens, parents, ("test",) * len(tokens), qs)


SHAPES: dict[str, Propose] = {
    "two drawn": merged(lambda: [Drawing(DRAFT, "model"), Drawing(OTHER, "model2")]),
    "the same twice": merged(lambda: [Drawing(DRAFT, "model"), Drawing(DRAFT, "model2")]),
    "point first": merged(lambda: [looking_up(2, 1), Drawing(DRAFT, "model")]),
    "drawn first": merged(lambda: [Drawing(DRAFT, "model"), looking_up(0, 1)]),
    "two drawn, two points": merged(
        lambda: [looking_up(0), Drawing(DRAFT, "model"), looking_up(0, 2), Drawing(OTHER, "model2")]
    ),
    "without replacement": twice,
    "a prediction": merged(lambda: [predicting()]),
    "a prediction first": merged(lambda: [predicting(), Drawing(DRAFT, "model")]),
    "a prediction last": merged(lambda: [Drawing(DRAFT, "model"), predicting(), looking_up(0, 2)]),
}


def is_lossless(rule: str, propose: Propose, sampling: Sampling, n: int = 3) -> bool:
    wanted, found = text_probabilities(TARGET, sampling, n), text_law(verifier(rule), propose, sampling, n)
    return [found[text] for text in wanted] == pytest.approx([*wanted.values()], abs=1e-9)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", JUDGING)
def test_a_round_of_several_drafters_keeps_the_law_of_the_text(rule: str, shape: str, sampling: Sampling) -> None:
    assert is_lossless(rule, SHAPES[shape], sampling)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "prediction" in shape])
@pytest.mark.parametrize("rule", JUDGING)
def test_predictions_keep_the_law_at_a_usual_temperature(rule: str, shape: str) -> None:
    assert is_lossless(rule, SHAPES[shape], Sampling(temperature=0.8))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", JUDGING)
def test_a_second_drafter_is_worth_something(rule: str, shape: str) -> None:
    """More tokens of a round are accepted than of the first chain alone, or these laws would test nothing."""
    alone: dict[str, list[Drafter]] = {
        "point first": [looking_up(2, 1)],
        "two drawn, two points": [looking_up(0)],
        "a prediction": [],
        "a prediction first": [predicting()],
    }
    first = merged(lambda: alone.get(shape, [Drawing(DRAFT, "model")]))
    few, more = (accepted(rule, propose) for propose in (first, SHAPES[shape]))
    assert more > 1.05 * few


@pytest.mark.parametrize(
    ("rule", "wanted"), [("rejection", (0.96, 0.60, 1.09, 0.96, 1.20)), ("block", (1.00, 0.66, 1.13, 1.02, 1.24))]
)
def test_what_a_second_drafter_adds(rule: str, wanted: Sequence[float]) -> None:
    """The table of docs/drafters/several.md."""
    sets: list[tuple[Rule, ...]] = [(DRAFT,), (OTHER,), (DRAFT, OTHER), (OTHER, DRAFT), (DRAFT, DRAFT)]

    def drawing(rules: Sequence[Rule]) -> Propose:
        return merged(lambda: [Drawing(each, f"model{n}") for n, each in enumerate(rules)])

    assert [accepted(rule, drawing(rules)) for rules in sets] == pytest.approx(wanted, abs=0.006)


def accepted(rule: str, propose: Propose) -> float:
    judge, sampling = verifier(rule), SAMPLINGS["plain"]

    def length() -> int:
        return len(accept(judge, TARGET, propose(judge, [0], sampling, 3), [0], sampling).path)

    with Outcomes() as outcomes:
        return sum(n * probability for n, probability in outcomes.of(length).items())


# --- mistakes that the law must notice


class Merging(Candidates):
    """Drawn tokens share the node of an equal one, which then has their q."""

    def _equal(self, parent: int, guess: Guess) -> int | None:
        for node, token in enumerate(self.tokens):
            if (self._parents[node], token) == (parent, guess.token):
                self._q[node] = guess.q or self._q[node]
                return node
        return None


@pytest.mark.parametrize("shape", ["two drawn", "the same twice", "point first", "a prediction first"])
@pytest.mark.parametrize("rule", JUDGING)
def test_merging_drawn_tokens_would_bias(rule: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.controller.fixed.Candidates", Merging)
    assert not is_lossless(rule, SHAPES[shape], SAMPLINGS["plain"])


@pytest.mark.parametrize("rule", JUDGING)
def test_a_point_guess_that_shares_the_node_of_a_drawn_token_comes_too_often(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P(x) = min(p, q) + (1 - q) p: 0.75 where p and q are 0.5."""
    even, judge = table({}, (0.5, 0.5)), verifier(rule)
    propose = merged(lambda: [looking_up(0), Drawing(even, "model")], 1)

    def said() -> int:
        draft = propose(judge, [0], Sampling(temperature=1), 1)
        return committed(draft, accept(judge, even, draft, [0], Sampling(temperature=1)))[0]

    with Outcomes() as outcomes:
        assert outcomes.of(said)[0] == pytest.approx(0.5)
        monkeypatch.setattr("edgespec.controller.fixed.Candidates", Merging)
        assert outcomes.of(said)[0] == pytest.approx(0.75)


def changed(change: Callable[[Draft], Draft]) -> Propose:
    """The draft of two drafters, changed after it was drawn."""
    propose = merged(lambda: [Drawing(DRAFT, "model"), Drawing(OTHER, "model2")], 1)
    return lambda *given: change(propose(*given))


def picked(draft: Draft, nodes: Sequence[int]) -> Draft:
    """These nodes of a draft of siblings, in this order."""
    assert draft.q is not None
    return Draft(
        tuple(draft.tokens[n] for n in nodes),
        (-1,) * len(nodes),
        ("test",) * len(nodes),
        tuple(draft.q[n] for n in nodes),
    )


MISTAKES: dict[str, Callable[[Draft], Draft]] = {
    "siblings ordered by token": lambda draft: picked(draft, np.argsort(draft.tokens, kind="stable").tolist()),
    "siblings ordered by probability": lambda draft: picked(
        draft, sorted((0, 1), key=lambda n: -draft.q[n].of(draft.tokens[n]) if draft.q else 0)
    ),
    "the first bought if the second is 0": lambda draft: picked(draft, (0, 1) if draft.tokens[1] == 0 else (1,)),
    "only the likelier one bought": lambda draft: picked(
        draft, [max((0, 1), key=lambda n: draft.q[n].of(draft.tokens[n]) if draft.q else 0)]
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("rule", JUDGING)
def test_choosing_after_drawing_would_bias(rule: str, mistake: str) -> None:
    assert is_lossless(rule, changed(lambda draft: draft), SAMPLINGS["plain"])
    assert not is_lossless(rule, changed(MISTAKES[mistake]), SAMPLINGS["plain"])


def replaced(rule: Verifier, context: Sequence[int], sampling: Sampling, _n: int) -> Draft:
    """Without replacement, but with the q of a draw with it."""
    draft = twice(rule, context, sampling, 0)
    return Draft(draft.tokens, draft.parents, draft.drafters, draft.q and (*draft.q[:2], draft.q[0], *draft.q[3:]))


@pytest.mark.parametrize("rule", JUDGING)
def test_a_second_draw_without_replacement_has_another_q(rule: str) -> None:
    assert not is_lossless(rule, replaced, SAMPLINGS["plain"])


# --- the noise


SEEDS = 200_000
#: p of a target without memory, and q of two drafters.
P, Q = (0.5, 0.3, 0.2), ((0.1, 0.1, 0.8), (0.05, 0.6, 0.35))


def said_by_one_seed(rule: str, seed: int) -> tuple[int, ...]:
    judge, sampling = verifier(rule), Sampling(temperature=1, seed=seed)
    draft = merged(lambda: [Drawing(table({}, q), name) for q, name in zip(Q, ("model", "model2"), strict=True)], 1)
    drawn = draft(judge, [0], sampling, 1)
    return (*drawn.tokens, committed(drawn, accept(judge, table({}, P), drawn, [0], sampling))[0])


@pytest.mark.parametrize("rule", JUDGING)
def test_many_rounds_of_two_drafters_have_the_law_of_the_target(rule: str) -> None:
    """By whole arrays of seeds, of which the first are checked against the verifier."""
    drawn, said = first_of_two(rule, P, Q, SEEDS, (0, 1))
    for seed in range(300):
        assert said_by_one_seed(rule, seed) == (*drawn[seed], said[seed]), seed
    assert fits(Counter(said.tolist()), dict(enumerate(P)))
    assert len(set(map(tuple, drawn.tolist()))) == 9, "two drafters are independent of each other"


@pytest.mark.parametrize("rule", JUDGING)
def test_two_drafters_that_share_their_noise_would_bias(rule: str) -> None:
    """What `drafting` is for: the second draw says something of the first, and of what is rejected."""
    _, said = first_of_two(rule, P, Q, SEEDS, (0, 0))
    assert not fits(Counter(said.tolist()), dict(enumerate(P)))
