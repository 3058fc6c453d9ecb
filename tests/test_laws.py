"""Laws of texts and of accepted lengths: exactly, over every outcome of one round; by many draws, over many rounds.

One round keeps the target's law if all it draws is independent: the exact tests. Rounds are independent if no number
of the noise serves twice, and the noise is good (`test_sampling.py`). The many draws test it all together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgespec.backends.toy import Rule
from edgespec.sampling import Sampling, uniform
from edgespec.testing import Outcomes
from edgespec.types import Doubles, Draft, Ints
from edgespec.verify import VERIFIERS, Verifier, verifier

from .helpers import fits, logits, table
from .languages import (
    DRAFT,
    SAMPLINGS,
    TARGET,
    Propose,
    accept,
    committed,
    drawn_chain,
    drawn_tree,
    fixed_chain,
    fixed_tree,
    mixed_tree,
    settled_chain,
    text_law,
    text_probabilities,
)
from .many import Many

JUDGING = ("rejection", "block")  # by p and q; match is plain picking, tested as such
SHAPES = [drawn_chain, settled_chain, fixed_chain, drawn_tree, mixed_tree, fixed_tree]


def generate(rule: str, propose: Propose, sampling: Sampling, n: int, k: int, target: Rule = TARGET) -> tuple[int, ...]:
    """`n` tokens of `target` in rounds."""
    judge, context = verifier(rule), [0]
    while len(context) <= n:
        draft = propose(judge, context, sampling, k)
        context += committed(draft, accept(judge, target, draft, context, sampling))
    return tuple(context[1 : n + 1])


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("propose", SHAPES)
@pytest.mark.parametrize("rule", JUDGING)
def test_a_round_keeps_the_law_of_the_text(rule: str, propose: Propose, sampling: Sampling) -> None:
    longest = 4 if propose in {drawn_chain, settled_chain, fixed_chain} else 3
    wanted = text_probabilities(TARGET, sampling, longest)
    texts = text_law(verifier(rule), propose, sampling, longest)
    assert sum(texts.values()) == pytest.approx(1)
    assert [texts[text] for text in wanted] == pytest.approx([*wanted.values()], abs=1e-9)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("rule", VERIFIERS)
def test_many_texts_have_the_law_of_the_target(rule: str, sampling: Sampling) -> None:
    """Three tokens in rounds of up to three drafted; the first of these texts as the verifier says them."""
    many = Many(TARGET, DRAFT, sampling, n=3, k=3)
    texts, _ = many.generate(rule, range(200_000))
    for seed in range(300):
        assert generate(rule, drawn_chain, replace(sampling, seed=seed), 3, 3) == tuple(texts[seed]), seed
    assert fits(Counter(map(tuple, texts.tolist())), text_probabilities(TARGET, sampling, 3))


@pytest.mark.parametrize(("rule", "sampling"), [*((rule, "plain") for rule in VERIFIERS), ("block", "top-p")])
def test_trees_keep_the_law_over_rounds(rule: str, sampling: str) -> None:
    texts = (generate(rule, drawn_tree, replace(SAMPLINGS[sampling], seed=seed), 3, 0) for seed in range(3000))
    assert fits(Counter(texts), text_probabilities(TARGET, SAMPLINGS[sampling], 3))


class Noise:
    """Writes down every number of the noise that is used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used: list[tuple[int, int, int, int]] = []
        monkeypatch.setattr("edgespec.sampling.uniform", self._uniform)

    def _uniform(self, seed: int, position: int, tokens: Ints, purpose: int) -> Doubles:
        self.used += [(seed, position, purpose, token) for token in tokens.tolist()]
        return uniform(seed, position, tokens, purpose)


@pytest.mark.parametrize("rule", JUDGING)
def test_no_number_of_the_noise_serves_twice(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in two rounds that come by the same place, nor for two things in one."""
    noise = Noise(monkeypatch)
    generate(rule, drawn_chain, Sampling(temperature=1, seed=5), 300, 4)
    assert len(noise.used) > 1000
    assert max(Counter(noise.used).values()) == 1


#: Two languages without memory, and what is made of them: 2 tokens of the target.
SAYS, GUESSES = table({}, (0.5, 0.3, 0.2)), table({}, (0.2, 0.3, 0.5))


class Learner:
    """Drafts two tokens; then one, if the round before had 0 drafted in its place, or none.

    As a controller may that learns from all that was drafted and from what it took.
    """

    def __init__(self) -> None:
        self._last: Sequence[int] = ()

    def __call__(self, rule: Verifier, context: Sequence[int], sampling: Sampling, _n: int) -> Draft:
        if self._last[len(context) - 1 : len(context)] not in {(), (0,)}:
            return Draft()
        draft = drawn_chain(rule, context, sampling, 1 if self._last else 2, GUESSES)
        self._last = (*context[1:], *draft.tokens)
        return draft


def guess(rule: Verifier, context: Sequence[int], sampling: Sampling, n: int) -> Draft:
    return drawn_chain(rule, context, sampling, n, GUESSES)


@pytest.mark.parametrize(("rule", "propose"), [("block", lambda: guess), ("rejection", Learner)])
def test_noise_of_the_place_alone_would_bias(
    rule: str, propose: Callable[[], Propose], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `round_seed` is for. The next round comes by places where this one drafted, and for block tested, tokens
    that it did not accept: with the same numbers the rounds are not independent."""

    def right() -> bool:
        plain = SAMPLINGS["plain"]
        texts = (generate(rule, propose(), replace(plain, seed=seed), 2, 2, SAYS) for seed in range(4000))
        return fits(Counter(texts), text_probabilities(SAYS, plain, 2))

    assert right()
    monkeypatch.setattr("edgespec.verify.block.round_seed", lambda seed, _start: seed)
    monkeypatch.setattr("edgespec.verify.rejection.round_seed", lambda seed, _start: seed)
    assert not right()


def accepted(rule: str, target: Rule, draft: Rule, k: int) -> float:
    """The mean number of drafted tokens that one round accepts, exactly."""
    judge, sampling = verifier(rule), SAMPLINGS["plain"]

    def length() -> int:
        chain = drawn_chain(judge, [0], sampling, k, draft)
        return len(accept(judge, target, chain, [0], sampling).path)

    with Outcomes() as outcomes:
        return sum(n * probability for n, probability in outcomes.of(length).items())


def agreed(target: Rule, draft: Rule, k: int, context: tuple[int, ...] = (0,)) -> float:
    """The same for match. With shared Gumbel noise both pick x with probability 1 / sum_y max(p_y / p_x, q_y / q_x)
    (Daliri et al. 2024)."""
    if k == 0:
        return 0.0
    p, q = np.exp(target(context)), np.exp(draft(context))
    both = [1 / np.maximum(p / p[x], q / q[x]).sum() for x in range(len(p))]
    return sum(chance * (1 + agreed(target, draft, k - 1, (*context, x))) for x, chance in enumerate(both))


def languages(seed: int) -> tuple[Rule, Rule]:
    """A target and a drafter at random, more or less alike, of two tokens of memory."""
    random = np.random.default_rng(seed)
    p = random.dirichlet([1, 1, 1], size=(3, 3))
    q = p + random.uniform(0.1, 2) * random.dirichlet([1, 1, 1], size=(3, 3))
    q /= q.sum(axis=2, keepdims=True)

    def says(probs: Doubles) -> Rule:
        return lambda context: logits(*probs[tuple([0, 0, *context][-2:])])

    return says(p), says(q)


def test_block_accepts_most_and_match_least() -> None:
    """Exactly, for pairs more or less alike."""
    means = []
    for seed in range(30):
        target, draft = languages(seed)
        match = agreed(target, draft, 3)
        rejection, block = (accepted(rule, target, draft, 3) for rule in JUDGING)
        assert match <= rejection <= block + 1e-9, seed
        means.append((match, rejection, block))
    match, rejection, block = np.mean(means, axis=0)
    assert rejection > 1.02 * match
    assert block > 1.01 * rejection


def test_as_much_is_accepted_as_the_papers_say() -> None:
    """Sun et al. 2024, section 1: (1/3, 2/3) drafted by (2/3, 1/3), two tokens: 10/9 by rejection and 11/9 by block."""
    target, draft = table({}, (1 / 3, 2 / 3)), table({}, (2 / 3, 1 / 3))
    assert accepted("rejection", target, draft, 2) == pytest.approx(10 / 9, abs=1e-6)
    assert accepted("block", target, draft, 2) == pytest.approx(11 / 9, abs=1e-6)


@pytest.mark.parametrize("rule", VERIFIERS)
def test_many_rounds_accept_what_is_expected(rule: str) -> None:
    _, lengths = Many(TARGET, DRAFT, SAMPLINGS["plain"], n=1, k=3).generate(rule, range(200_000))
    wanted = agreed(TARGET, DRAFT, 3) if rule == "match" else accepted(rule, TARGET, DRAFT, 3)
    assert lengths.mean() == pytest.approx(wanted, abs=4 * lengths.std() / 200_000**0.5)


@pytest.mark.parametrize("propose", SHAPES)
def test_block_accepts_more_than_rejection_wherever_it_can(propose: Propose) -> None:
    """In trees and by filtered distributions too. A look-up leaves nothing to make up for: no token has q below p."""
    for sampling in SAMPLINGS.values():
        means = []
        for rule in map(verifier, JUDGING):

            def length(rule: Verifier = rule, sampling: Sampling = sampling) -> int:
                return len(accept(rule, TARGET, propose(rule, [0], sampling, 3), [0], sampling).path)

            with Outcomes() as outcomes:
                means.append(sum(n * p for n, p in outcomes.of(length).items()))
        assert means[1] >= means[0] - 1e-9
        if sampling is SAMPLINGS["plain"]:
            assert (means[1] > 1.005 * means[0]) == (propose not in {fixed_chain, fixed_tree})
