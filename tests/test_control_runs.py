"""The controller in whole runs on a simulated clock that only price lists move: no test depends on the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from edgespec.backends import Interrupt
from edgespec.backends.toy import Bytes, Rule, blend, ngram_rule, scripted
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Request, Text
from edgespec.prices import Prices
from edgespec.sampling import SHARED, Sampling, distribution, uniform
from edgespec.types import Floats, Guess
from edgespec.verify import verifier

from .control_runs import DEAR, Q8_0, RULES, TARGET, VOCAB, Run, adaptive, book, bought, right, with_trees
from .helpers import Clock, FunctionDrafter, Priced, RuleDrafter, count, decode_plain, fits, logits, round_context


@pytest.mark.parametrize("control", [adaptive, with_trees])
@pytest.mark.parametrize("step", [0.02, 0.1, 0.3, 0.8])
def test_an_always_wrong_drafter_costs_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch, step: float, control: Callable[[Drafter, Prices, Clock], Controller]
) -> None:
    """Two thousand tokens take two thousand plain steps, and one and a half per cent more at most."""
    for curve in (Q8_0, (1.0, 1.2, 1.2, 1.2, 1.4, 1.4, 1.5, 1.6, *[2.4] * 8)):
        assert Run(monkeypatch, control, right(0.0), step=step, curve=curve, tokens=2000).seconds < 2030


def test_a_free_drafter_that_is_always_wrong_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = RuleDrafter(right(0.0), confidence=0.9)
    run = Run(monkeypatch, lambda _paid, prices, _clock: Adaptive([asked], prices), TARGET)
    assert run.seconds <= 1015
    assert asked.begun >= len(run.rounds) / 4, "it is asked again and again, and that is how it may come back"


@pytest.mark.parametrize("sure", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("step", [0.0, 0.05, 0.2])
def test_the_best_fixed_length_is_nearly_reached(monkeypatch: pytest.MonkeyPatch, step: float, sure: float) -> None:
    """At an acceptance of .8 and llama.cpp's Q8_0 prices, whatever the draft believes of itself.

    One that thinks little of itself (`sure` 1: a probability of .04) was asked in every round, never wanted,
    never learned of and paid for all the same: 5 to 17 per cent slower than plain decoding, for ever.
    """
    rule = right(0.8, sure=sure)

    def fixed(k: int) -> float:
        return Run(monkeypatch, lambda d, _p, _c: Fixed([d], k), rule, step=step, tokens=400).rate

    best = max(fixed(k) for k in (0, 1, 2, 3, 4, 5, 7, 11, 15))
    assert best > 1.3
    assert Run(monkeypatch, adaptive, rule, step=step).rate >= 0.9 * best


def test_an_always_wrong_drafter_falls_silent_and_is_probed_with_growing_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for account in ("is_left", "is_left_for_priced"):  # pauses would hide who is asked
        monkeypatch.setattr(f"edgespec.controller.budget.Budget.{account}", True)
    run = Run(monkeypatch, adaptive, right(0.0), tokens=1500)
    waits = [b - a for a, b in pairwise(run.asked)]
    silent = [wait for wait in waits if wait > 1]
    assert len(run.rounds) == 1500
    assert len(silent) >= 6
    assert silent == sorted(silent), "after every miss it is left alone for longer"
    assert silent[-2:] == [65, 65], "at most 64 rounds are waited"
    probes = run.asked[-4:]
    assert all(run.rounds[n].draft_seconds == pytest.approx(0.1) for n in probes), "a probe is a single token"
    assert all(run.rounds[n].width == 1 for n in probes), "and is not bought"


def test_asking_in_vain_costs_one_percent_at_most_and_goes_on_where_the_text_repeats_itself() -> None:
    """Asking takes a twentieth of a step here and nothing pays. Then the drafter is sure, and is bought from soon."""
    confidence = 0.05
    free = FunctionDrafter(lambda _context, path: [Guess(len(path), confidence)] if len(path) < 4 else [], "lookup")
    controller = Adaptive([free], Prices([1.0, *[1.3] * 15]))

    def a_round() -> int:
        """How many tokens were bought; a round in which nobody is asked takes no time to decide."""
        before = len(free.asked)
        draft = controller.choose(round_context(), 15)
        asking = 0.05 if len(free.asked) > before else 0.0
        lost.append(asking)
        last = 63 if confidence < 0.5 else len(draft)
        controller.observe(bought(draft, range(len(draft)), *draft.tokens, last, drafting=asking))
        return len(draft)

    lost: list[float] = []
    assert not any(a_round() for _ in range(3000))
    assert 30 <= sum(lost) <= 0.01 * 3000 * 1.05 + 4.1
    confidence = 0.99
    assert sum(a_round() > 0 for _ in range(60)) >= 40


def test_a_hiccup_of_the_machine_is_no_loss_by_drafts() -> None:
    """A pass that took as long as two hundred: no reason to pause, nor to think less of the time."""
    controller = Adaptive([book((1, 0.9), (2, 0.9), (3, 0.9))], Prices(Q8_0))
    lengths = []
    for n in range(100):
        draft = controller.choose(round_context(), 15)
        lengths.append(len(draft))
        seconds = 200.0 if n == 20 else Q8_0[len(draft)]
        controller.observe(bought(draft, range(len(draft)), *draft.tokens, 63, seconds=seconds))
    assert lengths == [3] * 100


def test_hiccups_of_plain_passes_are_no_loss_by_drafts() -> None:
    """Every thirtieth takes three times as long: that alone once made pauses of most rounds."""
    random = np.random.default_rng(0)
    controller = Adaptive([book((1, 0.3))], Prices(DEAR))
    for n in range(300):
        draft = controller.choose(round_context(), 15)
        assert not draft
        assert controller._budget.is_left
        controller.observe(bought(draft, (), 63, seconds=3.0 if n % 30 == 0 else float(random.uniform(0.98, 1.02))))


@pytest.mark.parametrize("verify", RULES)
def test_a_silent_drafter_wakes_when_it_becomes_right(monkeypatch: pytest.MonkeyPatch, verify: str) -> None:
    wrong, good = right(0.0), right(1.0)
    run = Run(
        monkeypatch,
        adaptive,
        lambda text: (wrong if len(text) < 600 else good)(text),
        tokens=3000,
        verify=verify,
    )
    assert len([n for n in run.asked if n < 500]) < 40
    assert sum(len(r.path) for r in run.rounds[-100:]) > 200, "it pays again, and is used"


@pytest.mark.parametrize("verify", RULES)
def test_a_look_up_that_misled_is_bought_from_again_when_the_text_is_copied(
    monkeypatch: pytest.MonkeyPatch, verify: str
) -> None:
    """Random tokens of six repeat themselves everywhere and go on otherwise; then 800 of them are said again. Under
    `rejection` and `block` only what was bought was judged once, so the look-up stayed silent for good."""
    random = np.random.default_rng(5)
    noise = [int(token) for token in random.integers(4, 10, 1200)]
    monkeypatch.setattr("edgespec.engine.time", clock := Clock())
    script = scripted(VOCAB, [1, *noise, *noise[:800]])
    prices = Prices(Q8_0)
    controller = Adaptive([Lookup()], prices, clock=clock.perf_counter)
    engine = Engine(Priced(script, VOCAB, clock, Q8_0), Bytes(), controller, verifier(verify), Interrupt(), prices)
    events = engine.generate(Request([1], max_tokens=1800))
    rounds = [event.round for event in events if isinstance(event, Text)]
    place = np.cumsum([len(round_.tokens) for round_ in rounds])
    copying = [round_ for round_, end in zip(rounds, place, strict=True) if end > 1200][:200]
    assert sum(len(round_.draft) for round_, end in zip(rounds, place, strict=True) if 200 < end <= 1200) < 100
    assert sum(len(round_.tokens) for round_ in copying) > 1.5 * len(copying)
    assert sum(len(round_.tokens) for round_ in copying[-50:]) > 2 * 50


def test_a_plain_step_is_measured_every_64_rounds_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the price of a plain step, that all is weighed against, would go stale."""
    run = Run(monkeypatch, adaptive, right(1.0), tokens=4000)
    plain = [n for n, round_ in enumerate(run.rounds) if round_.width == 1]
    assert len(run.rounds) > 200
    assert all(b - a <= 65 for a, b in pairwise([-1, *plain, len(run.rounds)]))
    assert len(plain) < len(run.rounds) / 30


def test_the_price_of_a_step_is_followed_when_it_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that pays at its old price and not at the new one is left alone."""

    class Slowing(Priced):
        """Its passes take four times as long from its thousandth token on."""

        def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
            if len(self.tokens) > 1000:
                self._clock.now += 3 * self._prices[0]
            return super().decode(tokens, tree)

    def slowing(drafter: Drafter, prices: Prices, clock: Clock) -> Controller:
        drafter = ModelDrafter(Slowing(right(0.8), VOCAB, clock, [0.15]), VOCAB, 0.15)
        return Adaptive([drafter], prices, clock=clock.perf_counter)

    run = Run(monkeypatch, slowing, right(0.8), tokens=3000)
    said = np.cumsum([len(round_.tokens) for round_ in run.rounds])
    before, after = int(np.searchsorted(said, 900)), int(np.searchsorted(said, 1200))
    assert np.mean([r.draft_seconds > 0 for r in run.rounds[:before]]) > 0.9
    assert np.mean([r.draft_seconds > 0 for r in run.rounds[after:]]) < 0.1
    spent = sum(r.draft_seconds + r.verify_seconds for r in run.rounds[after:])
    assert sum(len(r.tokens) for r in run.rounds[after:]) / spent > 0.95


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
    assert Run(monkeypatch, lambda d, _p, _c: Fixed([d], 3), rule, step=0.1).rate < 1


def test_wrong_prices_heal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide passes are three times as dear as was thought.

    The price of the plain step once moved along with theirs, so that they never looked too dear: 2.9 times
    slower than plain decoding.
    """
    for rate in (0.3, 0.6):
        run = Run(monkeypatch, adaptive, right(rate), curve=(1.0, *[3.0] * 15), believed=[1.0] * 16)
        assert run.seconds <= 1100


@pytest.mark.parametrize("seed", range(6))
def test_no_purchase_changes_the_text(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Long runs at random prices, with trees or without: look-ups, a rule and two models that are often wrong."""
    random = np.random.default_rng(seed)
    trees = seed % 3 != 2
    # Trees are grown where passes of 8 tokens are cheap.
    steep = 0.02 if trees else 0.1
    curve = [1.0, *(1 + np.maximum(random.normal(steep, 2 * steep, 15).cumsum(), 0)).tolist()]
    vocab = 24
    target, other = ngram_rule(vocab, order=3, seed=seed), ngram_rule(vocab, order=3, seed=100 + seed)
    clock = Clock()
    monkeypatch.setattr("edgespec.engine.time", clock)
    models = [
        ModelDrafter(Priced(blend(target, other, weight), vocab, clock, [step]), vocab, step)
        for weight, step in ((0.4, 0.05), (0.25, 0.2))
    ]
    models[1].name = "second"
    drafters: list[Drafter] = [Lookup(), RuleDrafter(blend(target, other, 0.5)), *models]
    prices = Prices(curve)
    controller = Adaptive(drafters, prices, trees=trees, clock=clock.perf_counter)
    session = Priced(target, vocab, clock, curve)
    engine = Engine(session, Bytes(), controller, verifier("match"), Interrupt(), prices)
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=seed)):
        events = list(engine.generate(Request([1, 2, 3], sampling, 500)))
        rounds = [event.round for event in events if isinstance(event, Text)]
        assert [token for r in rounds for token in r.tokens] == decode_plain(target, [1, 2, 3], sampling, 500)
        drafted, accepted = sum(len(r.draft) for r in rounds), sum(len(r.path) for r in rounds)
        assert 50 < accepted < drafted
        assert any(not r.draft.is_chain for r in rounds) == trees
        names = {name for r in rounds for name in r.draft.drafters}
        assert any("+" in name for name in names)


# Rejection with a look-up beside a model that draws. The text repeats itself, so that the look-up speaks often, right
# and wrong; after 2 it says what the model draws seldom.
SPEECH = {0: (0.6, 0.3, 0.1), 1: (0.1, 0.5, 0.4), 2: (0.3, 0.3, 0.4)}


DOUBT = {0: (0.3, 0.6, 0.1), 1: (0.2, 0.4, 0.4), 2: (0.05, 0.15, 0.8)}


def by_last(table: dict[int, tuple[float, float, float]]) -> Rule:
    rows = {token: logits(*probs) for token, probs in table.items()}
    return lambda context: rows[context[-1]]


@pytest.mark.parametrize("curve", [(1.0, 1.1, 1.2, 1.3, 1.4), (1.0, 1.5, 1.5, 3.0, 3.0)])
def test_rejection_keeps_its_distribution(monkeypatch: pytest.MonkeyPatch, curve: Sequence[float]) -> None:
    """One controller learns over all answers: what it buys depends on every text before, and must not on this one."""
    clock = Clock()
    monkeypatch.setattr("edgespec.engine.time", clock)
    sampling = Sampling(temperature=1)
    target, prompt = by_last(SPEECH), [0, 1, 2, 1, 0, 0, 1, 2, 2, 0]
    model = ModelDrafter(Priced(by_last(DOUBT), 3, clock, [0.02]), 3, 0.02)
    controller = Adaptive([Lookup(), model], Prices(curve), clock=clock.perf_counter)
    engine = Engine(Priced(target, 3, clock, curve), Bytes(), controller, verifier("rejection"), Interrupt())
    said: list[tuple[int, ...]] = []
    names: set[str] = set()
    for seed in range(2500):
        events = engine.generate(Request(prompt, Sampling(temperature=1, seed=seed), 4))
        rounds = [event.round for event in events if isinstance(event, Text)]
        said.append(tuple(token for r in rounds for token in r.tokens)[:3])
        names |= {name for r in rounds for name in r.draft.drafters}
    assert names >= {"model", "lookup+model"}
    expected: dict[tuple[int, ...], float] = {}
    for text in np.ndindex(3, 3, 3):
        path = [prompt[-1], *text]
        expected[text] = float(
            np.prod([distribution(target(path[: n + 1]), sampling).of(path[n + 1]) for n in range(3)])
        )
    assert fits(count(said), expected)
