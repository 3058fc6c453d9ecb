"""The purchase against brute force, the calibration against known rates, and whole runs on a simulated clock.

Every time here is read from a clock that only the sessions' price lists move: no test depends on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from edgespec.backends import Interrupt
from edgespec.backends.toy import Bytes, Rule, ngram_rule
from edgespec.calibration import Calibration
from edgespec.control import Adaptive, Controller, Fixed
from edgespec.drafters import Drafter, Terms
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Finished, Request, Text
from edgespec.errors import OptionError
from edgespec.prices import Prices
from edgespec.sampling import SHARED, Sampling, uniform
from edgespec.types import Asked, Distribution, Draft, Floats, Round
from edgespec.verify import Drawing, verifier

from .helpers import Clock, FromRule, Priced, never

VOCAB = 64
TARGET = ngram_rule(VOCAB, order=3, seed=9)
#: llama.cpp, Q8_0, as measured for a 1B model on two CPU cores (t(n) / t(1)).
Q8_0 = (1.0, 1.5, 1.8, 1.8, 2.8, 3.0, 3.0, 2.9, 3.5, 3.8, 4.0, 4.1, 4.6, 4.9, 5.1, 5.2)


class Given(FromRule):
    """Proposes just this, whatever the terms say."""

    def __init__(self, tokens: Sequence[int], confidence: Sequence[float], name: str = "given") -> None:
        super().__init__(TARGET, name)
        self.draft = Draft.chain(tokens, confidence, name)
        self.asked = 0

    def propose(self, context: Sequence[int], terms: Terms) -> Draft:
        self.asked += 1
        return self.draft.first(terms.limit)


def drawing(rule: str = "match", context: Sequence[int] = (1, 2, 3), sampling: Sampling | None = None) -> Drawing:
    return Drawing(verifier(rule), sampling or Sampling(), context, never)


def plain_round(n: int = 1) -> Round:
    return Round(Draft(), (), (1,) * n, 1.0)


@pytest.mark.parametrize("seed", range(40))
def test_the_purchase_is_the_best_of_all_prefixes(seed: int) -> None:
    random = np.random.default_rng(seed)
    prices = Prices([1.0, *(1 + random.exponential(0.5, 15).cumsum() * random.uniform(0, 1, 15))])
    confidence = random.uniform(0.2, 1.0, int(random.integers(1, 16))).tolist()
    drafter = Given(list(range(len(confidence))), confidence)
    controller = Adaptive([drafter], prices)
    for _ in range(30):  # some experience: the calibration is then no longer the confidence itself
        accepted = int(random.integers(0, len(confidence) + 1))
        said = (*range(accepted), 63)
        asked = Asked(drafter.draft, 0, 0.0)
        controller.observe(Round(drafter.draft, tuple(range(accepted)), said, float(random.uniform(1, 3)), (asked,)))
    reach, expected, values = 1.0, 0.0, [0.0]
    for n, sure in enumerate(confidence, 1):
        reach *= controller.calibration.conditional("given", sure, n - 1)
        expected += reach
        values.append(expected - controller.rate * (prices.price(1 + n) - prices.plain()))
    choice = controller.choose(drawing(), 15)
    assert values[len(choice.draft)] == pytest.approx(max(values))
    assert choice.asked[0].draft is drafter.draft


def test_a_draft_that_pays_at_width_4_only_is_drafted_through_the_dear_widths() -> None:
    """Looking one token ahead stops at width 2, which alone does not pay."""
    prices = Prices([1.0, 2.5, 2.5, 1.1, *[9.0] * 12])
    for verify in ("match", "rejection"):
        draft = Adaptive([FromRule(TARGET, confidence=0.8)], prices).choose(drawing(verify), 15).draft
        assert len(draft) == 3
    paid = Priced(TARGET, VOCAB, Clock(), [0.0])
    controller = Adaptive([ModelDrafter(paid, VOCAB, step_price=0.05)], prices)
    assert len(controller.choose(drawing(sampling=Sampling(temperature=0.01)), 15).draft) == 3


def test_nothing_is_bought_where_nothing_pays() -> None:
    """Widths cost as much as passes of their own; and a draft nobody believes in."""
    dear = Prices([float(n) for n in range(1, 17)])
    sure, doubtful = FromRule(TARGET, confidence=0.99), FromRule(TARGET, confidence=0.05)
    assert not Adaptive([sure], dear).choose(drawing(), 15).draft
    assert not Adaptive([doubtful], Prices(Q8_0)).choose(drawing(), 15).draft
    assert not Adaptive([], Prices(Q8_0)).choose(drawing(), 15).draft
    assert len(Adaptive([sure], Prices(Q8_0)).choose(drawing(), 15).draft) >= 3


def test_no_more_is_drafted_than_the_limit_and_the_widths() -> None:
    free = Prices([1.0] * 16)
    for limit in (0, 1, 4, 15, 400):
        drafter = FromRule(TARGET, confidence=0.99)
        assert len(Adaptive([drafter], free).choose(drawing(), limit).draft) == min(limit, 15)


def test_the_better_of_two_free_drafts_is_bought() -> None:
    prices = Prices([1.0, 1.1, 1.2, *[1.3] * 13])
    poor, good = Given([1, 2], [0.3, 0.3], "poor"), Given([5], [0.9], "good")
    for order in ([poor, good], [good, poor]):
        choice = Adaptive(order, prices).choose(drawing(), 15)
        assert choice.draft.drafter == "good"
        assert {asked.draft.drafter for asked in choice.asked} == {"poor", "good"}


def introduced(name: str) -> Round:
    """A round in which the drafter `name` was asked for the first time, and said nothing."""
    return Round(Draft(), (), (1,), 1.0, (Asked(Draft(drafter=name), 1, 0.1),))


def test_a_stranger_is_introduced_once() -> None:
    """However little is expected: on a machine where drafting hardly pays, nothing would ever be learned."""
    dear = ModelDrafter(Priced(TARGET, VOCAB, Clock(), [0.0]), VOCAB, step_price=0.9)
    controller = Adaptive([Given([1], [0.99]), dear], Prices([1.0] + [9.0] * 15))
    first = controller.choose(drawing(), 15)
    assert [asked.draft.drafter for asked in first.asked] == ["model"]
    assert len(first.draft) == 3
    controller.observe(Round(first.draft, (), (1,), 9.0, first.asked))
    assert all(not controller.choose(drawing(), 15).draft for _ in range(5))


def test_a_paid_drafter_is_asked_only_for_what_is_worth_more_than_what_is_in_hand() -> None:
    paid = ModelDrafter(Priced(TARGET, VOCAB, Clock(), [0.0]), VOCAB, step_price=0.1)
    for sure, names in ((0.99, ["given"]), (0.1, ["given", "model"])):
        controller = Adaptive([paid, Given([1] * 7, [sure] * 7)], Prices(Q8_0))
        controller.observe(introduced("model"))
        choice = controller.choose(drawing(), 15)
        assert [asked.draft.drafter for asked in choice.asked] == names


def test_rejection_buys_all_or_nothing_of_what_was_drawn() -> None:
    """Cutting it by what was drawn would bias the text: `Verifier.trims`. `match` may, and does."""
    prices = Prices([1.0, 1.1, 9.0, *[9.0] * 13])
    drafter = Given([1, 2, 3], [0.9, 0.9, 0.1])
    assert len(Adaptive([drafter], prices).choose(drawing("match"), 15).draft) == 1
    assert len(Adaptive([drafter], prices).choose(drawing("rejection"), 15).draft) == 3


def test_fixed_takes_the_first_drafter_that_has_any() -> None:
    silent, one, two = Given([], [], "silent"), Given([1, 2, 3], [0.1] * 3, "one"), Given([4], [0.9], "two")
    choice = Fixed([silent, one, two], 2).choose(drawing(), 9)
    assert choice.draft.tokens == (1, 2)
    assert [asked.draft.drafter for asked in choice.asked] == ["silent", "one"]
    assert two.asked == 0
    assert Fixed([one], 2).choose(drawing(), 1).draft.tokens == (1,)
    assert Fixed([one], 0).choose(drawing(), 9) == Fixed([one], 2).choose(drawing(), 0) == (Draft(), ())
    with pytest.raises(OptionError, match="k is -1"):
        Fixed([], -1)


# --- calibration


def learn(calibration: Calibration, hits: Sequence[bool], confidence: float = 0.9, *, by_text: bool = True) -> None:
    """One round in which the tokens of a draft turn out so."""
    accepted = hits.index(False) if False in hits else len(hits)
    draft = Draft.chain(range(len(hits)), [confidence] * len(hits), "d")
    said = (*range(accepted), 99)
    asked = Asked(draft, 0, 0.0)
    calibration.observe(Round(draft, tuple(range(accepted)), said, 1.0, (asked,)), by_text=by_text)


def views(calibration: Calibration, depth: int) -> tuple[float, float]:
    return calibration.conditional("d", 0.9, depth), calibration.expected("d", depth)


@pytest.mark.parametrize("by_text", [True, False])
def test_a_token_behind_the_first_rejection_is_no_evidence(by_text: bool) -> None:
    """At depths 2 and 3 nothing was tried; as misses they would make long drafts look hopeless."""
    calibration = Calibration()
    before = [calibration.expected("d", depth) for depth in range(4)]
    for _ in range(20):
        learn(calibration, [True, False, False, False], by_text=by_text)
    after = [calibration.expected("d", depth) for depth in range(4)]
    assert after[0] > before[0]
    assert after[1] < 0.2
    assert after[2:] == before[2:]


@pytest.mark.parametrize("by_text", [True, False])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.85])
def test_calibration_converges_to_a_known_rate(rate: float, by_text: bool) -> None:
    """Whatever the drafter believes of itself: .9 here."""
    random = np.random.default_rng(1)
    calibration = Calibration()
    seen = []
    for n in range(600):
        learn(calibration, (random.random(3) < rate).tolist(), by_text=by_text)
        if n > 100:
            seen.append([*views(calibration, 0), views(calibration, 1)[0]])
    assert np.mean(seen, axis=0) == pytest.approx([rate] * 3, abs=0.1)


def test_calibration_follows_a_change() -> None:
    calibration = Calibration()
    for _ in range(500):
        learn(calibration, [True])
    assert min(views(calibration, 0)) > 0.95
    for _ in range(60):
        learn(calibration, [False])
    assert max(views(calibration, 0)) < 0.3
    for _ in range(200):
        learn(calibration, [False])
    assert calibration.conditional("d", 0.9, 5) < 0.3, "and so, more slowly, at depths that were never reached"


def test_calibration_keeps_confidences_depths_and_drafters_apart() -> None:
    calibration = Calibration()
    for _ in range(100):
        learn(calibration, [True], confidence=0.9)
        learn(calibration, [False], confidence=0.2)
    assert calibration.conditional("d", 0.9, 0) > 0.9
    assert calibration.conditional("d", 0.2, 0) < 0.1
    assert calibration.conditional("another", 0.2, 0) == pytest.approx(0.2)
    assert calibration.conditional("d", 0.5, 0) == pytest.approx(0.5), "nothing is known: it is taken at its word"
    for _ in range(100):
        learn(calibration, [True, False], confidence=0.9)
    assert calibration.conditional("d", 0.9, 0) > 0.9
    assert calibration.conditional("d", 0.9, 1) < 0.2


def test_what_was_not_bought_is_evidence_where_the_text_decides() -> None:
    """Under `match` a proposal is right or wrong, bought or not; under rejection it is neither."""
    draft = Draft.chain([5, 6], [0.9, 0.9], "d")
    unbought = Round(Draft(), (), (7,), 1.0, (Asked(draft, 0, 0.0),))
    for by_text in (True, False):
        calibration = Calibration()
        for _ in range(20):
            calibration.observe(unbought, by_text=by_text)
        assert (calibration.expected("d", 0) < 0.2) == by_text


def test_a_wrong_proposal_is_no_evidence_beyond_its_first_mistake() -> None:
    """Another draft was bought, and the text went on: behind the mistake ours stood in another context."""
    ours, theirs = Draft.chain([5, 6, 7], [0.9] * 3, "ours"), Draft.chain([1, 2, 3], [0.9] * 3, "theirs")
    calibration = Calibration()
    before = [calibration.expected("ours", depth) for depth in (1, 2)]
    for _ in range(20):
        asked = (Asked(ours, 0, 0.0), Asked(theirs, 0, 0.0))
        calibration.observe(Round(theirs, (0, 1, 2), (1, 2, 3, 4), 1.0, asked), by_text=True)
    assert calibration.expected("ours", 0) < 0.2
    assert [calibration.expected("ours", depth) for depth in (1, 2)] == before
    assert calibration.expected("theirs", 2) > 0.9


def test_a_drafter_gets_no_credit_for_another_s_draft() -> None:
    """Two said the same, one was bought: that says nothing of how sure the other may be."""
    ours, theirs = Draft.chain([5], [0.95], "ours"), Draft.chain([5], [0.2], "theirs")
    calibration = Calibration()
    before = calibration.expected("theirs", 0), calibration.conditional("theirs", 0.95, 0)
    for _ in range(20):
        asked = (Asked(theirs, 0, 0.0), Asked(ours, 1, 0.1))
        calibration.observe(Round(ours, (0,), (5, 1), 1.0, asked), by_text=False)
    assert calibration.expected("ours", 0) > 0.9
    assert (calibration.expected("theirs", 0), calibration.conditional("theirs", 0.95, 0)) == before


def test_drafts_with_q_are_judged_by_acceptance() -> None:
    """An accepted token that is later cut from the text (a stop string), or one accepted by min(1, p/q)."""
    q = (Distribution(np.array([5]), np.ones(1)),)
    draft = Draft.chain([5], [0.9], "d", q)
    controller = Adaptive([Given([5], [0.9], "d")], Prices([1.0] * 16))
    for _ in range(20):
        controller.observe(Round(draft, (0,), (), 1.0, (Asked(draft, 0, 0.0),)))
    assert controller.calibration.expected("d", 0) > 0.9


# --- whole runs


def right(rate: float, *, sure: float = 8.0) -> Rule:
    """A draft rule that is right with probability `rate` at each place, and equally sure always."""

    def rule(context: Sequence[int]) -> Floats:
        said = int(TARGET(context).argmax())
        lucky = float(uniform(1, len(context), np.array([context[-1]]), SHARED)[0]) < rate
        row = np.zeros(VOCAB, dtype=np.float32)
        row[said if lucky else (said + 1) % VOCAB] = sure
        return row

    return rule


class Run:
    """A run of the engine on a simulated clock."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        control: Callable[[Drafter, Prices], Controller],
        rule: Rule,
        *,
        step: float = 0.1,
        curve: Sequence[float] = Q8_0,
        believed: Sequence[float] = (),
        tokens: int = 1000,
        verify: str = "match",
    ) -> None:
        clock = Clock()
        patch.setattr("edgespec.control.time", clock)
        patch.setattr("edgespec.engine.time", clock)
        target = Priced(TARGET, VOCAB, clock, curve)
        prices = Prices(believed or curve)
        drafter = ModelDrafter(Priced(rule, VOCAB, clock, [step]), VOCAB, step)
        controller = control(drafter, prices)
        engine = Engine(target, Bytes(), controller, verifier(verify), Interrupt(), prices)
        events = list(engine.generate(Request([1, 2, 3], max_tokens=tokens)))
        assert isinstance(events[-1], Finished)
        self.rounds = [event.round for event in events if isinstance(event, Text)]
        self.seconds = clock.now
        self.rate = tokens / clock.now

    @property
    def asked(self) -> list[int]:
        """The rounds in which the drafter was asked."""
        return [n for n, round_ in enumerate(self.rounds) if round_.asked]


def adaptive(drafter: Drafter, prices: Prices) -> Controller:
    return Adaptive([drafter], prices)


@pytest.mark.parametrize("step", [0.02, 0.1, 0.3, 0.8])
def test_an_always_wrong_drafter_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """A thousand tokens take a thousand plain steps, and three per cent more at most."""
    for curve in (Q8_0, (1.0, 1.2, 1.2, 1.2, 1.4, 1.4, 1.5, 1.6, *[2.4] * 8)):
        assert Run(monkeypatch, adaptive, right(0.0), step=step, curve=curve).seconds <= 1030


def test_a_free_drafter_that_is_always_wrong_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = FromRule(right(0.0), confidence=0.9)
    run = Run(monkeypatch, lambda _paid, prices: Adaptive([asked], prices), TARGET)
    assert run.seconds <= 1030
    assert len(run.asked) >= len(run.rounds) - 1, "it costs nothing to ask, and that is how it may come back"


@pytest.mark.parametrize("sure", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("step", [0.0, 0.05, 0.2])
def test_the_best_fixed_length_is_nearly_reached(monkeypatch: pytest.MonkeyPatch, step: float, sure: float) -> None:
    """At an acceptance of .8 and llama.cpp's Q8_0 prices, whatever the draft believes of itself.

    One that thinks little of itself (`sure` 1: a probability of .04) was asked in every round, never wanted,
    never learned of and paid for all the same: 5 to 17 per cent slower than plain decoding, for ever.
    """
    rule = right(0.8, sure=sure)

    def fixed(k: int) -> float:
        return Run(monkeypatch, lambda d, _p: Fixed([d], k), rule, step=step, tokens=400).rate

    best = max(fixed(k) for k in (0, 1, 2, 3, 4, 5, 7, 11, 15))
    assert best > 1.3
    assert Run(monkeypatch, adaptive, rule, step=step).rate >= (0.9 if step <= 0.05 else 0.85) * best


def test_an_always_wrong_drafter_falls_silent_and_is_probed_with_doubling_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(monkeypatch, adaptive, right(0.0), tokens=1500)
    waits = [b - a for a, b in pairwise(run.asked)]
    silent = [wait for wait in waits if wait > 1]
    assert len(run.rounds) == 1500
    assert silent == sorted(silent)
    assert silent[-2:] == [257, 257], "at most 256 rounds are waited"
    assert all(b - 1 == min(2 * (a - 1), 256) for a, b in pairwise(silent))
    probes = run.asked[-4:]
    assert all(len(run.rounds[n].asked[0].draft) == 1 for n in probes), "a probe is a single token"
    assert all(run.rounds[n].width == 1 for n in probes), "and is not bought"


def test_a_silent_drafter_wakes_when_it_becomes_right(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, good = right(0.0), right(1.0)
    run = Run(monkeypatch, adaptive, lambda text: (wrong if len(text) < 600 else good)(text), tokens=3000)
    assert len([n for n in run.asked if n < 500]) < 40
    assert sum(len(r.path) for r in run.rounds[-100:]) > 200, "it pays again, and is used"


def test_a_plain_step_is_measured_every_64_rounds_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the price of a plain step, that all is weighed against, would go stale."""
    run = Run(monkeypatch, adaptive, right(1.0), tokens=4000)
    plain = [n for n, round_ in enumerate(run.rounds) if round_.width == 1]
    assert len(run.rounds) > 200
    assert all(b - a <= 65 for a, b in pairwise([-1, *plain, len(run.rounds)]))
    assert len(plain) < len(run.rounds) / 30


@pytest.mark.parametrize("step", [0.05, 0.1])
def test_an_unsure_drafter_can_prove_right_under_rejection(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """There no token may come along unbought: only probes, which are bought, can tell; and they pay off."""
    assert Run(monkeypatch, adaptive, right(0.8, sure=1.0), step=step, verify="rejection").rate > 1.2
    assert Run(monkeypatch, adaptive, right(0.0, sure=1.0), step=step, verify="rejection").rate > 0.98


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.5, 0.6])
@pytest.mark.parametrize("step", [0.05, 0.1, 0.3, 0.6])
def test_a_drafter_that_does_not_pay_is_hardly_paid_for(
    monkeypatch: pytest.MonkeyPatch, step: float, rate: float
) -> None:
    """Right too seldom for its price, and right often enough to tempt: probes must not add up."""
    for sure in (3.0, 8.0):
        assert Run(monkeypatch, adaptive, right(rate, sure=sure), step=step).seconds <= 1090


def test_a_drafter_that_is_sure_by_turns_is_used_when_it_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the average it does not pay; asking pays all the same, for most of it is declined in time."""

    def rule(context: Sequence[int]) -> Floats:
        sure = float(uniform(2, len(context), np.array([context[-1]]), SHARED)[0]) < 0.5
        return right(0.98, sure=8.0)(context) if sure else right(0.05, sure=1.0)(context)

    assert Run(monkeypatch, adaptive, rule, step=0.1).rate > 1.15
    assert Run(monkeypatch, lambda d, _p: Fixed([d], 3), rule, step=0.1).rate < 1


def test_wrong_prices_heal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide passes are three times as dear as was thought.

    The price of the plain step once moved along with theirs, so that they never looked too dear: 2.9 times
    slower than plain decoding.
    """
    for rate in (0.3, 0.6):
        run = Run(monkeypatch, adaptive, right(rate), curve=(1.0, *[3.0] * 15), believed=[1.0] * 16)
        assert run.seconds <= 1100


def test_a_drafter_that_answers_without_its_name_is_no_error() -> None:
    """`Draft()` is the natural way to say: nothing."""

    class Nameless(FromRule):
        def propose(self, context: Sequence[int], terms: Terms) -> Draft:
            return Draft()

    controller = Adaptive([Nameless(TARGET, "nameless")], Prices(Q8_0))
    choice = controller.choose(drawing(), 4)
    controller.observe(Round(choice.draft, (), (1,), 1.0, choice.asked))
    assert controller.choose(drawing(), 4).asked[0].draft.drafter == "nameless"


def test_the_rate_is_what_rounds_earn_of_late_and_at_least_the_plain_one() -> None:
    controller = Adaptive([], Prices([0.5] * 16))
    assert controller.rate == 2.0
    for _ in range(300):
        controller.observe(plain_round(5))
    assert controller.rate == pytest.approx(5.0)
    for _ in range(300):
        controller.observe(Round(Draft(), (), (1,), 100.0))
    assert controller.rate == 2.0
