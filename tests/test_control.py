"""The controller: what it asks, buys and learns, round by round and in whole runs on a simulated clock.

Every time here is read from a clock that only price lists move: no test depends on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from edgespec.backends import Interrupt
from edgespec.backends.toy import Bytes, Rule, ToySession, blend, ngram_rule, scripted
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import AGREED, ALONE, Calibration, Rate
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Finished, Request, Text
from edgespec.errors import OptionError
from edgespec.prices import Prices, RunningPrice
from edgespec.sampling import SHARED, Sampling, distribution, uniform
from edgespec.types import Distribution, Draft, Floats, Guess, Round
from edgespec.verify import verifier

from .helpers import Clock, FromRule, Priced, Saying, by_book, count, fits, logits, plainly, round_context, trusting

VOCAB = 64
TARGET = ngram_rule(VOCAB, order=3, seed=9)
#: llama.cpp, Q8_0, as measured for a 1B model on two CPU cores (t(n) / t(1)).
Q8_0 = (1.0, 1.5, 1.8, 1.8, 2.8, 3.0, 3.0, 2.9, 3.5, 3.8, 4.0, 4.1, 4.6, 4.9, 5.1, 5.2)
FREE = (1.0,) * 16
DEAR = tuple(float(n) for n in range(1, 17))
RULES = ("match", "rejection")


def book(*words: tuple[int, float], name: str = "lookup", step_price: float = 0.0, q: bool = False) -> Saying:
    """A drafter with one chain to say: tokens, and how sure it is of each."""
    path = tuple(token for token, _ in words)
    guesses = [Guess(token, sure, Distribution.point(token) if q else None) for token, sure in words]
    return by_book(name, {path[:n]: [guess] for n, guess in enumerate(guesses)}, step_price)


def bought(draft: Draft, path: Sequence[int], *said: int, seconds: float = 1.0, drafting: float = 0.0) -> Round:
    """The round of a purchase: the nodes accepted, and what was committed."""
    return Round(draft, tuple(path), said, seconds, drafting)


def introduced(controller: Adaptive, *said: int) -> None:
    """Strangers have had their introduction, and were wrong, or right if they said `said`."""
    for earner in range(2):
        draft = controller.choose(round_context(), 15)
        hits = [node for node, (token, truth) in enumerate(zip(draft.tokens, said, strict=False)) if token == truth]
        controller.observe(bought(draft, hits, *(said or (63,))))
        assert earner or draft


# --- one purchase


@pytest.mark.parametrize("seed", range(30))
def test_the_purchase_is_the_best_of_all_prefixes_at_todays_rate(seed: int) -> None:
    """After some experience: the calibration is then no longer the confidence, nor the rate the plain one."""
    random = np.random.default_rng(seed)
    curve = [1.0, *(1 + random.exponential(0.4, 15).cumsum() * random.uniform(0, 1, 15))]
    sure = random.uniform(0.3, 1.0, int(random.integers(1, 16))).tolist()
    drafter = book(*enumerate(sure))
    controller = Adaptive([drafter], Prices(curve))
    for _ in range(30):
        draft = controller.choose(round_context(), 15)
        right = int(random.geometric(0.3)) - 1
        path = range(min(right, len(draft)))
        controller.observe(bought(draft, path, *range(len(path)), 63, 63, seconds=float(random.uniform(0.4, 0.9))))
    rate, reach, expected = controller.rate(1.0), 1.0, 0.0
    assert rate > 1
    gains, yields = [0.0], [1 / rate]
    for n, confidence in enumerate(sure, 1):
        if reach <= 0.03:
            break  # nobody is asked any more
        reach *= controller.calibration.cell("lookup", 0, ALONE, confidence).value
        expected += reach
        gains.append(expected - rate * (curve[n] - curve[0]))
        yields.append((1 + expected) / (rate * curve[n]))
    draft = controller.choose(round_context(), 15)
    values = yields if max(yields) > 1 else gains
    assert values[len(draft)] == pytest.approx(max(values))
    assert draft.tokens == tuple(range(len(draft)))
    assert draft.is_chain


@pytest.mark.parametrize("rule", RULES)
def test_prices_that_pay_at_width_4_only(rule: str) -> None:
    prices = Prices([1.0, 2.5, 2.5, 1.1, *[9.0] * 12])
    free = book(*((n, 0.85) for n in range(9)))
    assert len(Adaptive([free], prices).choose(round_context(rule=rule), 15)) == 3
    paid = book(*((n, 0.9) for n in range(9)), name="model", step_price=0.05, q=rule == "rejection")
    controller = Adaptive([paid], prices, clock=Clock().perf_counter)
    introduced(controller, 0, 1, 2, 3)
    paid.asked.clear()
    assert len(controller.choose(round_context(rule=rule), 15)) == 3
    assert len(paid.asked) == 3


def test_nothing_is_bought_where_nothing_pays() -> None:
    """Widths cost as much as passes of their own; and a draft nobody believes in."""
    sure, doubtful = book((1, 0.99), (2, 0.99), (3, 0.99)), book((1, 0.05))
    for trees in (False, True):
        assert not Adaptive([sure], Prices(DEAR), trees=trees).choose(round_context(), 15)
        assert not Adaptive([doubtful], Prices(Q8_0), trees=trees).choose(round_context(), 15)
        assert not Adaptive([], Prices(Q8_0), trees=trees).choose(round_context(), 15)
        assert len(Adaptive([sure], Prices(Q8_0), trees=trees).choose(round_context(), 15)) == 3


@pytest.mark.parametrize("trees", [False, True])
def test_no_more_is_drafted_than_the_limit_and_the_widths(trees: bool) -> None:
    for limit in (0, 1, 4, 15, 400):
        for widths in (1, 2, 16):
            controller = Adaptive(
                [FromRule(TARGET, confidence=0.99)], Prices([1.0] * widths), trusting("rule"), trees=trees
            )
            assert len(controller.choose(round_context(), limit)) == min(limit, widths - 1)
            model = ModelDrafter(ToySession(TARGET, VOCAB), VOCAB, step_price=0.01)
            controller = Adaptive([model], Prices([1.0] * widths), trees=trees, clock=Clock().perf_counter)
            for _ in range(3):
                draft = controller.choose(round_context(), limit)
                assert len(draft) <= min(limit, widths - 1)
                controller.observe(bought(draft, range(len(draft)), *draft.tokens, 1))


def test_trees_are_bought_where_they_can_be_verified_and_no_draw_is_judged() -> None:
    two = by_book("lookup", {(): [Guess(1, 0.6), Guess(2, 0.6)], (1,): [Guess(3, 0.6)], (2,): [Guess(4, 0.6)]})
    draft = Adaptive([two], Prices(FREE), trees=True).choose(round_context(), 15)
    assert sorted(zip(draft.tokens, draft.parents, strict=True)) == [(1, -1), (2, -1), (3, 0), (4, 1)]
    for trees, rule, surcharge in ((False, "match", 0.01), (True, "rejection", 0.01), (True, "match", 5.0)):
        controller = Adaptive([two], Prices(FREE), trees=trees)
        controller.surcharge = RunningPrice(surcharge)
        draft = controller.choose(round_context(rule=rule), 15)
        assert draft
        assert draft.is_chain


def test_no_tree_is_grown_where_wide_passes_are_dear() -> None:
    """Second guesses are not even asked for; once such passes prove cheap they are."""
    prices = Prices([1.0, *[1.3] * 15])
    two = by_book("lookup", {(): [Guess(1, 0.6), Guess(2, 0.6)], (1,): [Guess(3, 0.6)], (2,): [Guess(4, 0.6)]})
    controller = Adaptive([two], prices, trees=True)
    assert controller.choose(round_context(), 15).parents == (-1, 0)
    assert (2,) not in two.asked
    for n in [*range(16, 0, -1)] * 20:
        prices.observe(n, 64, 1.2 if n > 1 else 1.0)
    assert not controller.choose(round_context(), 15).is_chain


def test_drafters_share_a_tree() -> None:
    """Two look-ups that say the same at first: one node for both, and a branch for each."""
    one, two = book((1, 0.9), (2, 0.8), name="one"), book((1, 0.5), (3, 0.8), name="two")
    draft = Adaptive([one, two], Prices(FREE), trees=True).choose(round_context(), 15)
    assert draft.tokens == (1, 2, 3)
    assert draft.parents == (-1, 0, 0)
    assert draft.drafters == ("one+two", "one", "two")


# --- whom to ask


def test_a_drafter_not_yet_known_is_bought_from_where_it_may_pay_and_probed_elsewhere() -> None:
    """A probe takes a small share of the time; its guess is compared with the text and need not be bought."""
    clock = Clock()
    cheap = book((1, 0.9), (2, 0.9), name="model", step_price=0.05)
    assert Adaptive([cheap], Prices(FREE), clock=clock.perf_counter).choose(round_context(), 15).tokens == (1, 2)
    dear = Saying(lambda _context, path: [] if path else [Guess(1, 0.9)], "model", step_price=0.9, clock=clock)
    controller = Adaptive([dear], Prices(DEAR), clock=clock.perf_counter)
    for _ in range(70):
        draft = controller.choose(round_context(), 15)
        assert not draft
        controller.observe(bought(draft, (), 1))
    assert len(dear.asked) == 2
    assert controller.calibration.ahead("model").first.tries > 1.9


@pytest.mark.parametrize(("says", "least", "most"), [(0, 0.0, 0.35), (20, 0.8, 1.0)])
def test_a_priced_drafter_is_asked_only_for_what_is_worth_more_than_what_is_in_hand(
    says: int, least: float, most: float
) -> None:
    """Beside a look-up that is always right it is left alone, but for probes; beside one that is always wrong it is
    asked."""
    lookup = book(*((says + n, 0.99) for n in range(7)))
    prices, clock = Prices([1.0, 1.1, 1.2, 1.3, *[9.0] * 12]), Clock()
    model = Saying(lambda _context, path: [Guess(len(path), 0.95)], "model", step_price=0.1, clock=clock)
    calibration = trusting("lookup", "model", "lookup+model")
    controller = Adaptive([lookup, model], prices, calibration, clock=clock.perf_counter)
    introduced(controller, 0, 1, 2, 9)
    asked = 0
    for n in range(100):
        model.asked.clear()
        draft = controller.choose(round_context(), 15)
        asked += n >= 50 and len(model.asked) > 0
        hits = [node for node, token in enumerate(draft.tokens) if token < 20]
        said = (0, 1, 2, 9)[: len(hits) + 1]
        controller.observe(bought(draft, hits, *said, seconds=prices.price(1 + len(draft))))
    assert draft.tokens == (0, 1, 2)
    assert least <= asked / 50 <= most


def test_look_ups_and_a_model_go_on_from_each_other() -> None:
    """The model's words lead the look-up to its place in the text, and where that ends the model takes over."""
    lookup = by_book("lookup", {(1, 2): [Guess(3, 0.99)], (1, 2, 3): [Guess(4, 0.99)]})
    model = by_book("model", {tuple(range(1, n)): [Guess(n, 0.95)] for n in range(1, 8)}, 0.05)
    prices, calibration = Prices([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, *[9.0] * 10]), trusting("lookup", "model")
    controller = Adaptive([lookup, model], prices, calibration, clock=Clock().perf_counter)
    introduced(controller, 1, 2, 3, 4)
    model.asked.clear()
    draft = controller.choose(round_context(), 15)
    assert draft.tokens == (1, 2, 3, 4, 5)
    assert draft.drafters == ("model", "model", "lookup", "lookup", "model")
    assert model.asked == [(), (1,), (1, 2, 3, 4)], "it does not pay to hear the same again"


def test_only_one_drafter_draws_in_a_round() -> None:
    """All that is drawn must be bought, and a chain has room for one draw at each place."""
    one = book((1, 0.3), (2, 0.3), name="one", step_price=0.01, q=True)
    two = book((5, 0.9), (6, 0.9), (7, 0.9), name="two", step_price=0.01, q=True)
    controller = Adaptive([one, two], Prices(FREE), clock=Clock().perf_counter)
    for _ in range(2):
        draft = controller.choose(round_context(rule="rejection"), 2)
        controller.observe(bought(draft, (0, 1), *draft.tokens, 9))
    for drafter in (one, two):
        drafter.asked.clear()
    draft = controller.choose(round_context(rule="rejection"), 2)
    assert draft.tokens == (1, 2), "though the second is the surer"
    assert two.asked == []


def test_rejection_buys_all_of_what_was_drawn() -> None:
    """Cutting it by what was drawn would bias the text: `Verifier.trims`. `match` may, and does."""
    prices = Prices([1.0, 1.3, 1.6, 1.9, *[9.0] * 12])
    for rule, n in (("match", 1), ("rejection", 2)):
        model = book((1, 0.9), (2, 0.1), (3, 0.9), name="model", step_price=0.01, q=rule == "rejection")
        controller = Adaptive([model], prices, trusting("model"), clock=Clock().perf_counter)
        controller.calibration.ahead("model").later = Rate(0.9, 1.0)
        draft = controller.choose(round_context(rule=rule), 1)
        controller.observe(bought(draft, (0,), 1, 9))
        assert len(controller.choose(round_context(rule=rule), 15)) == n


# --- what is learned


def test_each_node_moves_its_cell_once_a_round() -> None:
    """Though two drafters said it; and each drafter's own record is moved too."""
    one, two = book((1, 0.9), name="one", step_price=0.05), book((1, 0.9), name="two", step_price=0.3)
    controller = Adaptive([book((1, 0.3)), one, two], Prices([1.0, 1.05, 9.0]), clock=Clock().perf_counter)
    calibration = controller.calibration
    before = [calibration.ahead(name).first.value for name in ("one", "two")]
    draft = controller.choose(round_context(), 15)
    assert draft.drafters == ("lookup+one",), "the second is not needed any more"
    controller.observe(bought(draft, (0,), 1, 9))
    fresh = Calibration()
    fresh.learn([(fresh.cell("lookup+one", 0, AGREED, 0.9), True)])
    assert calibration.cell("lookup+one", 0, AGREED, 0.9).value == fresh.cell("lookup+one", 0, AGREED, 0.9).value
    after = [calibration.ahead(name).first.value for name in ("one", "two")]
    assert after[0] > before[0]
    assert after[1] == before[1]


def test_a_second_best_that_is_right_is_no_merit_of_the_first() -> None:
    """What is expected of a drafter before it is asked is expected of its likeliest guess."""
    model = by_book("model", {(): [Guess(1, 0.6), Guess(2, 0.6)]}, 0.01)
    controller = Adaptive([model], Prices(FREE), trees=True, clock=Clock().perf_counter)
    first = controller.calibration.ahead("model").first
    controller.observe(bought(controller.choose(round_context(), 15), (), 9))
    before = first.value
    draft = controller.choose(round_context(), 15)
    assert draft.tokens == (1, 2)
    controller.observe(bought(draft, (1,), 2, 9))
    assert first.value < before


@pytest.mark.parametrize("rule", RULES)
def test_point_masses_that_were_not_bought_are_judged_by_the_text(rule: str) -> None:
    """Under rejection too, where a look-up that missed once would else never be bought again, and so never judged."""
    controller = Adaptive([book((5, 0.5), (6, 0.9))], Prices(DEAR))
    for _ in range(20):
        draft = controller.choose(round_context(rule=rule), 15)
        assert not draft
        controller.observe(bought(draft, (), 7))
    cell, behind = (controller.calibration.cell("lookup", 0, ALONE, sure) for sure in (0.5, 0.9))
    assert cell.value < 0.2
    assert behind.rate.tries == 0, "behind a mistake nothing was tried"


@pytest.mark.parametrize("rule", RULES)
def test_a_look_up_that_missed_is_used_again_once_it_is_right(rule: str) -> None:
    """Misleading quotes, then a copy."""
    controller = Adaptive([book((5, 0.8), (6, 0.8), (7, 0.8))], Prices(Q8_0))
    lengths = []
    for n in range(120):
        draft = controller.choose(round_context(rule=rule), 15)
        truth = (5, 6, 7, 8) if n >= 40 else (9,)
        path = range(len(draft) if n >= 40 else 0)
        controller.observe(bought(draft, path, *truth[: len(path) + 1]))
        lengths.append(len(draft))
    assert sum(lengths[20:40]) == 0
    assert min(lengths[100:]) == 3


def test_draws_are_learned_as_they_are_judged() -> None:
    """By what was accepted, though the text was cut before it (a stop string) or says, in a correction, the very token
    that was refused."""
    controller = Adaptive(
        [book((5, 0.5), name="model", step_price=0.01, q=True)], Prices(FREE), clock=Clock().perf_counter
    )
    cell = controller.calibration.cell("model", 0, ALONE, 0.5)
    for path, said, hits in (((0,), (), 1.0), ((), (5,), 0.99)):
        draft = controller.choose(round_context(rule="rejection"), 15)
        assert draft
        controller.observe(bought(draft, path, *said))
        assert cell.rate.hits == pytest.approx(hits)


def test_a_plain_step_for_the_price_teaches_nothing_else() -> None:
    """No one was asked in that round: what was said in the round before is not judged again."""
    lookup, prices = book((5, 0.9)), Prices(FREE)
    controller = Adaptive([lookup], prices)
    for _ in range(64):
        draft = controller.choose(round_context(), 15)
        assert draft
        prices.observe(2, 0, 1.0)
        controller.observe(bought(draft, (0,), 5, 9))
    lookup.asked.clear()
    known = controller.calibration.kept()
    assert not controller.choose(round_context(), 15)
    assert lookup.asked == []
    controller.observe(bought(Draft(), (), 7))
    assert controller.calibration.kept() == known
    prices.observe(1, 0, 1.0)
    assert controller.choose(round_context(), 15)


def test_plain_steps_are_bought_until_their_price_is_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """All else is weighed against it. The widths' own prices are guessed meanwhile."""
    unsure = [1]
    monkeypatch.setattr(Prices, "unsure", lambda _prices, n: n in unsure)
    controller = Adaptive([book((5, 0.9))], Prices(FREE))
    assert not controller.choose(round_context(), 15)
    unsure[:] = [2]
    assert controller.choose(round_context(), 15)


@pytest.mark.parametrize("sure", [0.9, 0.1])
def test_wide_passes_believed_too_dear_are_tried_now_and_then(monkeypatch: pytest.MonkeyPatch, sure: float) -> None:
    """That they are cheaper shows nowhere else. What would not pay at a third of the price is not bought."""
    prices = Prices(Q8_0)
    controller = Adaptive([book((1, sure), (2, sure), (3, sure))], prices)

    def tried(rounds: int, curve: Sequence[float]) -> list[int]:
        found = []
        for n in range(rounds):
            draft = controller.choose(round_context(), 15)
            found += [n] if draft else []
            prices.observe(1, 0, 1.0)
            said = (*draft.tokens, 9) if draft else (1 if sure > 0.5 else 63,)
            controller.observe(bought(draft, range(len(draft)), *said, seconds=curve[len(draft)]))
        return found

    assert tried(10, Q8_0) == ([] if sure < 0.5 else [*range(10)])
    monkeypatch.setattr(Prices, "curve", lambda _prices, _context=None: DEAR)
    assert tried(64, Q8_0) == ([] if sure < 0.5 else [6, 22, 38, 54])
    confirmed = tried(1000, DEAR)
    assert confirmed == ([] if sure < 0.5 else [6, 38, 102, 230, 486, 998]), "the wait doubles where the price is right"


def test_prices_that_are_too_high_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice and four times too dear; of a drafter that is right 3 times in 4, nothing was ever bought."""
    right_prices = Run(monkeypatch, adaptive, right(0.75), tokens=600)
    for factor in (2.0, 4.0):
        believed = [1.0, *(factor * seconds for seconds in Q8_0[1:])]
        run = Run(monkeypatch, adaptive, right(0.75), tokens=600, believed=believed)
        late = run.rounds[200:]
        assert sum(len(round_.tokens) for round_ in late) / len(late) > 1.8
        assert run.rate > 0.9 * right_prices.rate


def test_exploring_costs_a_percent_where_prices_are_right() -> None:
    """Of guesses that are always wrong and always sure, at the prices of the Q8_0 machine."""
    controller = Adaptive([book((1, 0.9), (2, 0.9), (3, 0.9))], Prices(Q8_0))
    monotonous = []
    for _ in range(3000):
        draft = controller.choose(round_context(), 15)
        controller.observe(bought(draft, (), 63, seconds=Q8_0[len(draft)]))
        monotonous.append(Q8_0[len(draft)])
    assert sum(monotonous) < 3000 * 1.012


def test_the_surcharge_of_a_tree_is_followed() -> None:
    """By passes over trees alone; a tree that took no longer than a chain makes it fall."""
    controller = Adaptive([], Prices([1.0] * 16))
    assert controller.surcharge.seconds == pytest.approx(0.01)
    tree, chain = Draft((1, 2), (-1, -1), ("a", "a")), Draft.chain((1, 2), "a")
    for _ in range(100):
        controller.observe(bought(tree, (0,), 1, 9, seconds=1.5))
        controller.observe(bought(chain, (0,), 1, 9, seconds=7.5))
    assert controller.surcharge.seconds == pytest.approx(0.5, rel=0.02)
    controller.observe(bought(tree, (0,), 1, 9, seconds=60.0))
    assert controller.surcharge.seconds < 0.56, "one slow pass is no price"
    for _ in range(60):
        controller.observe(bought(tree, (0,), 1, 9, seconds=0.9))
    assert controller.surcharge.seconds == 0


def test_the_rate_is_what_rounds_earn_of_late_and_at_least_the_plain_one() -> None:
    controller, five = Adaptive([], Prices([0.5] * 16)), Draft.chain((1, 1, 1, 1, 1), "a")
    assert controller.rate(0.5) == 2.0
    for _ in range(300):
        controller.observe(bought(five, range(5), *five.tokens, 9, seconds=0.75, drafting=0.25))
    assert controller.rate(0.5) == pytest.approx(6.0)
    assert controller.rate(1.0) == pytest.approx(3.0), "a machine that is slower now is so for all"
    for _ in range(300):
        controller.observe(bought(Draft(), (), 1, seconds=100.0))
    assert controller.rate(0.5) == pytest.approx(2.0, rel=0.02)
    assert controller.rate(0.25) == pytest.approx(4.0, rel=0.02)


# --- fixed


def test_fixed_takes_the_first_drafter_that_has_any() -> None:
    silent, one, two = book(name="silent"), book((1, 0.1), (2, 0.1), (3, 0.1), name="one"), book((4, 0.9), name="two")
    draft = Fixed([silent, one, two], 2).choose(round_context(), 9)
    assert (draft.tokens, draft.drafters, draft.q, draft.is_chain) == ((1, 2), ("one", "one"), None, True)
    assert (silent.asked, two.asked) == ([()], [])
    assert Fixed([one], 2).choose(round_context(), 1).tokens == (1,)
    assert Fixed([one], 9).choose(round_context(), 9).tokens == (1, 2, 3)
    assert Fixed([one], 9).choose(round_context(is_eog=lambda token: token == 2), 9).tokens == (1, 2)
    assert Fixed([one], 0).choose(round_context(), 9) == Fixed([one], 2).choose(round_context(), 0) == Draft()
    drawn = Fixed([book((1, 0.1), (2, 0.1), q=True)], 9).choose(round_context(rule="rejection"), 9)
    assert drawn.q is not None
    assert [q.of(token) for q, token in zip(drawn.q, drawn.tokens, strict=True)] == [1.0, 1.0]
    with pytest.raises(OptionError, match="k is -1"):
        Fixed([], -1)


# --- whole runs


def right(rate: float, *, sure: float = 8.0, seed: int = 1) -> Rule:
    """A draft rule that is right with probability `rate` at each place, and equally sure always."""

    def rule(context: Sequence[int]) -> Floats:
        said = int(TARGET(context).argmax())
        lucky = float(uniform(seed, len(context), np.array([context[-1]]), SHARED)[0]) < rate
        row = np.zeros(VOCAB, dtype=np.float32)
        row[said if lucky else (said + 1) % VOCAB] = sure
        return row

    return rule


class Run:
    """A run of the engine on a simulated clock. `step` is what the drafter's guesses cost, `believed` what passes are
    thought to cost at first."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        control: Callable[[Drafter, Prices, Clock], Controller],
        rule: Rule,
        *,
        step: float = 0.1,
        curve: Sequence[float] = Q8_0,
        believed: Sequence[float] = (),
        tokens: int = 1000,
        verify: str = "match",
    ) -> None:
        clock = Clock()
        patch.setattr("edgespec.engine.time", clock)
        target = Priced(TARGET, VOCAB, clock, curve)
        prices = Prices(believed or curve)
        self.drafter = ModelDrafter(Priced(rule, VOCAB, clock, [step]), VOCAB, step)
        self.controller = control(self.drafter, prices, clock)
        engine = Engine(target, Bytes(), self.controller, verifier(verify), Interrupt(), prices)
        events = list(engine.generate(Request([1, 2, 3], max_tokens=tokens)))
        assert isinstance(events[-1], Finished)
        self.rounds = [event.round for event in events if isinstance(event, Text)]
        self.said = [token for round_ in self.rounds for token in round_.tokens]
        self.seconds = clock.now
        self.rate = tokens / clock.now

    @property
    def asked(self) -> list[int]:
        """The rounds in which a guess was paid for."""
        return [n for n, round_ in enumerate(self.rounds) if round_.draft_seconds > 0]


def adaptive(drafter: Drafter, prices: Prices, clock: Clock) -> Controller:
    return Adaptive([drafter], prices, clock=clock.perf_counter)


def with_trees(drafter: Drafter, prices: Prices, clock: Clock) -> Controller:
    return Adaptive([Lookup(), drafter], prices, trees=True, clock=clock.perf_counter)


@pytest.mark.parametrize("control", [adaptive, with_trees])
@pytest.mark.parametrize("step", [0.02, 0.1, 0.3, 0.8])
def test_an_always_wrong_drafter_costs_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch, step: float, control: Callable[[Drafter, Prices, Clock], Controller]
) -> None:
    """Two thousand tokens take two thousand plain steps, and one and a half per cent more at most."""
    for curve in (Q8_0, (1.0, 1.2, 1.2, 1.2, 1.4, 1.4, 1.5, 1.6, *[2.4] * 8)):
        assert Run(monkeypatch, control, right(0.0), step=step, curve=curve, tokens=2000).seconds < 2030


def test_a_free_drafter_that_is_always_wrong_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = FromRule(right(0.0), confidence=0.9)
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
    monkeypatch.setattr("edgespec.controller.budget.Budget.is_left", True)  # its pauses would hide who is asked
    run = Run(monkeypatch, adaptive, right(0.0), tokens=1500)
    waits = [b - a for a, b in pairwise(run.asked)]
    silent = [wait for wait in waits if wait > 1][1:]  # but for the first, at which the explorer asks
    assert len(run.rounds) == 1500
    assert len(silent) >= 6
    assert all(b in (2 * a - 1, 2 * a, 2 * a + 1, a) for a, b in pairwise(silent)), silent
    assert silent[-2:] == [65, 65], "at most 64 rounds are waited"
    probes = run.asked[-4:]
    assert all(run.rounds[n].draft_seconds == pytest.approx(0.1) for n in probes), "a probe is a single token"
    assert all(run.rounds[n].width == 1 for n in probes), "and is not bought"


def test_asking_in_vain_costs_one_percent_at_most_and_goes_on_where_the_text_repeats_itself() -> None:
    """Asking takes a twentieth of a step here and nothing pays. Then the drafter is sure, and is bought from soon."""
    confidence = 0.05
    free = Saying(lambda _context, path: [Guess(len(path), confidence)] if len(path) < 4 else [], "lookup")
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
    drafters: list[Drafter] = [Lookup(), FromRule(blend(target, other, 0.5)), *models]
    prices = Prices(curve)
    controller = Adaptive(drafters, prices, trees=trees, clock=clock.perf_counter)
    session = Priced(target, vocab, clock, curve)
    engine = Engine(session, Bytes(), controller, verifier("match"), Interrupt(), prices)
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=seed)):
        events = list(engine.generate(Request([1, 2, 3], sampling, 500)))
        rounds = [event.round for event in events if isinstance(event, Text)]
        assert [token for r in rounds for token in r.tokens] == plainly(target, [1, 2, 3], sampling, 500)
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
