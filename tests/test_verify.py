"""`match` against plain picking; what `rejection` and `block` promise case by case. Their laws: `test_laws.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.backends import Interrupt
from edgespec.backends.toy import Bytes, Rule, ngram_rule
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import Rate
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Request, Text
from edgespec.errors import OptionError
from edgespec.prices import Prices
from edgespec.sampling import Sampling, distribution, pick
from edgespec.types import Acceptance, Distribution, Draft
from edgespec.verify import VERIFIERS, Verifier, verifier
from edgespec.verify.rest import rest

from .helpers import ALL_ON, Clock, Priced, count, decode_plain, fits, logits, table, trusting
from .languages import DRAFT, TARGET, accept, committed, drawn_chain, text_probabilities

ALL = [verifier(name) for name in VERIFIERS]
JUDGES = ("rejection", "block")  # by p and q
JUDGING = [verifier(name) for name in JUDGES]


@pytest.mark.parametrize("rule", JUDGING, ids=JUDGES)
def test_judging_keeps_the_distribution_along_one_text(rule: Verifier) -> None:
    """One seed, many places: the noise of neighbouring places must not be related."""
    sampling = Sampling(temperature=1.0, seed=3)
    said = []
    p, q = logits(0.5, 0.3, 0.2), logits(0.2, 0.3, 0.5)
    for position in range(16000):
        drawn = rule.draw(q, sampling, range(position), ())
        assert drawn.q is not None
        draft = Draft.chain([drawn.token], "test", [drawn.q])
        got = rule.accept(draft, np.stack([p, p]), sampling, range(position))
        said.append(drawn.token if got.path else got.token)
    assert fits(count(said), {0: 0.5, 1: 0.3, 2: 0.2})
    pairs = count(zip(said[::2], said[1::2], strict=True))
    assert fits(pairs, {(a, b): x * y for a, x in enumerate((0.5, 0.3, 0.2)) for b, y in enumerate((0.5, 0.3, 0.2))})


@pytest.mark.parametrize("rule", JUDGING, ids=JUDGES)
def test_everything_is_accepted_where_q_is_p(rule: Verifier) -> None:
    for seed in range(300):
        sampling = Sampling(temperature=1, seed=seed)
        draft = drawn_chain(rule, [0], sampling, 3)
        assert accept(rule, DRAFT, draft, [0], sampling).path == (0, 1, 2)


@pytest.mark.parametrize("rule", JUDGING, ids=JUDGES)
def test_a_token_the_target_filtered_out_is_refused(rule: Verifier) -> None:
    """p is 0 there, whatever the draft believes, and whatever follows it; the correction comes from what is left."""
    sampling = Sampling(temperature=1, top_k=1)
    unsure = Distribution(np.array([0, 1]), np.array([0.01, 0.99]))
    for q in (Distribution(np.array([2]), np.ones(1)), unsure):  # the latter is a drafter's error, and harmless
        draft = Draft.chain([2, 0], "test", [q, unsure])
        got = rule.accept(draft, np.stack([logits(0.6, 0.3, 0.1)] * 3), sampling, [0])
        assert got == Acceptance((), 0)


@pytest.mark.parametrize("rule", JUDGING, ids=JUDGES)
def test_a_correction_comes_from_the_rest_and_not_from_p(rule: Verifier) -> None:
    """After a refused point mass the same token must not come again as its own correction."""
    draft = Draft.chain([0], "test")
    rows = np.stack([logits(0.5, 0.3, 0.2)] * 2)
    tokens = []
    for seed in range(500):
        got = rule.accept(draft, rows, Sampling(temperature=1, seed=seed), [0])
        if not got.path:
            tokens.append(got.token)
    assert set(tokens) == {1, 2}


@pytest.mark.parametrize("rule", JUDGING, ids=JUDGES)
def test_rounding_leaves_something_to_say(rule: Verifier) -> None:
    """p and q the same but for the last digits, so that nothing or next to nothing is left when a token is refused."""
    row = logits(0.5, 0.3, 0.2)
    p = distribution(row, Sampling(temperature=1))
    for factors in ((1.0, 1.0, 1.0), (1 + 4e-16, 1.0, 1 - 4e-16)):
        left, mass = rest(p, Distribution(p.tokens, p.probs * factors))
        assert left.probs.sum() == pytest.approx(1)
        assert 0 <= mass < 1e-15
    for seed in range(50):
        sampling = Sampling(temperature=1, seed=seed)
        q = Distribution(p.tokens, p.probs * (1 + 4e-16, 1.0, 1 - 4e-16))
        got = rule.accept(Draft.chain([0, 2], "test", [q, q]), np.stack([row] * 3), sampling, [0])
        assert got.path == (0, 1)
        # The same error, made large: q is above p everywhere. A token may be refused, and nothing is left.
        above = Distribution(p.tokens, p.probs * 1.5)
        got = rule.accept(Draft.chain([0, 2], "test", [above] * 2), np.stack([row] * 3), sampling, [0])
        assert got.token in {0, 1, 2}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=5), ALL_ON], ids=["0", "0.8", "all"])
def test_match_says_what_plain_decoding_says(sampling: Sampling) -> None:
    """Random trees over few tokens, so that siblings repeat and parts are right; chains among them."""
    random = np.random.default_rng(2)
    target = ngram_rule(8, sharpness=2.0)
    lengths = []
    for _ in range(300):
        n = int(random.integers(0, 12))
        parents = tuple(int(random.integers(-1, node)) if random.random() < 0.5 else node - 1 for node in range(n))
        context = random.integers(0, 8, 5).tolist()
        right = greedy_tree(target, context, parents, sampling, random)
        got = accept(verifier("match"), target, right, context, sampling)
        said = [*(right.tokens[node] for node in got.path), got.token]
        assert said == decode_plain(target, context, sampling, len(said))
        leaf = got.path[-1] if got.path else -1
        assert got.token not in [right.tokens[node] for node in right.children(leaf)], "it stopped too early"
        above = (-1, *got.path)
        assert all(right.parents[node] == parent for parent, node in zip(above, got.path, strict=False))
        lengths.append(len(got.path))
    assert 0 in lengths
    assert max(lengths) >= 4, "too little was accepted to mean anything"


def greedy_tree(
    target: Rule,
    context: Sequence[int],
    parents: tuple[int, ...],
    sampling: Sampling,
    random: np.random.Generator,
) -> Draft:
    """Nodes that are right three times out of four."""
    found: list[tuple[int, ...]] = []
    for parent in parents:
        above = found[parent] if parent >= 0 else ()
        text = [*context, *above]
        right = pick(target(text), sampling, len(text), sampling.recent(text))
        found.append((*above, right if random.random() < 0.75 else int(random.integers(0, 8))))
    return Draft(tuple(path[-1] for path in found), parents, ("test",) * len(parents), None)


def test_greedy_is_greedy_by_any_rule() -> None:
    """At temperature 0 p is a point mass: all must say the likeliest token, and draw it when drafting."""
    target = ngram_rule(8)
    random = np.random.default_rng(4)
    for _ in range(100):
        context = random.integers(0, 8, 3).tolist()
        draft = greedy_tree(target, context, (-1, 0, 0, 2, -1), Sampling(), random)
        said = {committed(draft, accept(rule, target, draft, context, Sampling())) for rule in ALL}
        assert len(said) == 1
    row = target([1])
    assert {rule.draw(row, Sampling(), [1, 2, 3], ()).token for rule in ALL} == {int(row.argmax())}
    assert all(rule.draw(row, Sampling(), [1, 2, 3], ()).q is None for rule in ALL)


@pytest.mark.parametrize("rule", ALL, ids=VERIFIERS)
def test_an_empty_draft_is_plain_decoding(rule: Verifier) -> None:
    row = logits(0.1, 0.8, 0.1)
    assert rule.accept(Draft(), row[None], Sampling(), [0]) == Acceptance((), 1)


@pytest.mark.parametrize("rule", ALL, ids=VERIFIERS)
def test_penalties_see_the_accepted_tokens(rule: Verifier) -> None:
    """By the penalties of the context alone it would say 0 for ever."""
    row = logits(0.6, 0.4)
    sampling = Sampling(presence_penalty=5.0, penalty_window=1)
    got = rule.accept(Draft.chain([0, 1, 0], "test"), np.stack([row] * 4), sampling, [1, 1])
    assert got == Acceptance((0, 1, 2), 1)


def test_confidence_is_the_likeliest_token_s_probability() -> None:
    """And not the drawn token's: a length decided by that would bias rejection sampling."""
    row = logits(0.7, 0.2, 0.1)
    for rule in ALL:
        assert rule.draw(row, Sampling(), (), ()).confidence == pytest.approx(0.7, rel=1e-5)
        tops = {round(rule.draw(row, Sampling(temperature=1, seed=s), (), ()).confidence, 5) for s in range(50)}
        assert tops == {0.7}


def test_an_unknown_verifier_names_the_known() -> None:
    with pytest.raises(OptionError, match="no verifier 'hope'; there are match, rejection, block"):
        verifier("hope")


# The bias trap. A draft whose first token is 0 continues surely, any other unsurely, and only sure drafts of
# two tokens pay. A controller that cut drafts knowing their tokens would verify those that begin with 0 and
# no others, and so say 0 far too often.
TRAP_DRAFT = table({(): (0.5, 0.3, 0.2), (0,): (0.98, 0.01, 0.01)}, (0.34, 0.33, 0.33), skip=1)
TRAP_PRICES = (1.0, 2.0, 1.85, *[9.0] * 13)


def said_in_the_trap(rule: Verifier, seed: int, clock: Clock) -> tuple[tuple[int, ...], int]:
    target, draft = Priced(TARGET, 3, clock, TRAP_PRICES), Priced(TRAP_DRAFT, 3, clock, [1e-3])
    known = trusting("model")
    known.ahead("model").first, known.ahead("model").later = Rate(0.6, 1.0), Rate(0.98, 1.0)
    controller = Adaptive([ModelDrafter(draft, 3, 1e-3)], Prices(TRAP_PRICES), known, clock=clock.perf_counter)
    engine = Engine(target, Bytes(), controller, rule, Interrupt())
    said: list[int] = []
    drafted = 0
    for event in engine.generate(Request([0], Sampling(temperature=1, seed=seed), max_tokens=3)):
        if isinstance(event, Text):
            said += event.tokens
            drafted += len(event.round.draft)
    return tuple(said), drafted


@pytest.mark.parametrize("rule", JUDGING, ids=JUDGES)
def test_judging_stays_unbiased_when_the_controller_chooses_the_length(
    rule: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.engine.time", clock := Clock())
    runs = [said_in_the_trap(rule, seed, clock) for seed in range(4000)]
    assert sum(drafted for _, drafted in runs) > 4000, "the trap was not set: nothing was drafted"
    assert fits(count(said for said, _ in runs), text_probabilities(TARGET, Sampling(temperature=1), 3))


@pytest.mark.parametrize("rule", JUDGING, ids=JUDGES)
def test_the_trap_is_one(rule: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: with drafts cut by their tokens it does."""
    monkeypatch.setattr("edgespec.engine.time", clock := Clock())
    monkeypatch.setattr(rule, "trims", True)
    said = count(said_in_the_trap(rule, seed, clock)[0][:1] for seed in range(500))
    assert not fits(said, text_probabilities(TARGET, Sampling(temperature=1), 1))


@pytest.mark.parametrize("size", [4096, 1 << 16, 128_256 + 17])
def test_how_sure_a_greedy_guess_is(size: int) -> None:
    """Its probability; of a large vocabulary an estimate, a little above it, whatever the last tokens are."""
    row = (2 * np.random.default_rng(size).standard_normal(size)).astype(np.float32)
    for places in ([7, 900, 2500], [size - 1, size - 2, 3], [5, 6 + size // 2, size - 3]):
        likely = row.copy()
        likely[places] = (19.0, 18.0, 17.0)
        guess = verifier("match").draw(likely, Sampling(temperature=0), (1,), ())
        exact = float(np.exp(likely[places[0]]) / np.exp(likely, dtype=np.float64).sum())
        assert guess.token == places[0]
        assert exact - 1e-6 <= guess.confidence <= exact + (0.01 if size > 1 << 15 else 1e-6)
