"""The controller: which drafters it asks and which draft it buys in one round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.backends.toy import ToySession
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import Rate
from edgespec.controller.fixed import Fixed
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import OptionError
from edgespec.prices import Prices, RunningPrice
from edgespec.types import Draft, Guess

from .control_runs import DEAR, FREE, Q8_0, RULES, TARGET, VOCAB, book, bought, introduced
from .helpers import Clock, FunctionDrafter, RuleDrafter, round_context, table_drafter, trusting

# --- one purchase


@pytest.mark.parametrize("seed", range(30))
def test_the_purchase_is_the_best_of_all_prefixes_at_todays_worth_of_time(seed: int, worths: list[float]) -> None:
    """After some experience: the calibration is then no longer the confidence, nor the worth of time the plain one."""
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
    draft = controller.choose(round_context(), 15)
    rate, reach, expected = worths[-1], 1.0, 0.0
    assert rate > 1
    gains = [0.0]
    for n, confidence in enumerate(sure, 1):
        if reach <= 0.03:
            break  # nobody is asked any more
        reach *= controller.calibration.cell("lookup", 0, confidence).value
        expected += reach
        gains.append(expected - rate * (curve[n] - curve[0]))
    assert gains[len(draft)] == pytest.approx(max(gains)) or max(gains) < 0.05
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


def test_drafts_are_shorter_where_a_rejection_makes_tokens_be_computed_again() -> None:
    """The more so, the more are owed already; and none is wider than prices are known."""
    curve = [1 + 0.12 * n for n in range(16)]
    doubtful = book(*((n, 0.6) for n in range(9)))
    lengths = [
        len(Adaptive([doubtful], Prices(curve), replays=replays).choose(round_context()._replace(owed=owed), 15))
        for replays, owed in ((False, 0), (True, 0), (True, 4))
    ]
    assert lengths[0] > lengths[1] > lengths[2]
    sure = book(*((n, 0.999) for n in range(15)))
    for owed in (0, 3, 14, 15, 20):
        draft = Adaptive([sure], Prices(curve), trusting("lookup"), replays=True).choose(
            round_context()._replace(owed=owed), 15
        )
        assert len(draft) <= max(0, 15 - owed)
        assert draft or owed > 10


def test_a_draft_model_is_asked_less_where_a_rejection_makes_tokens_be_computed_again() -> None:
    curve = [1 + 0.2 * n for n in range(16)]
    asked = []
    for replays in (False, True):
        paid = book(*((n, 0.75) for n in range(9)), name="model", step_price=0.02)
        controller = Adaptive([paid], Prices(curve), trusting("model"), replays=replays, clock=Clock().perf_counter)
        controller.choose(round_context(), 15)
        asked.append(len(paid.asked))
    assert asked[0] > asked[1]


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
                [RuleDrafter(TARGET, confidence=0.99)], Prices([1.0] * widths), trusting("rule"), trees=trees
            )
            assert len(controller.choose(round_context(), limit)) == min(limit, widths - 1)
            model = ModelDrafter(ToySession(TARGET, VOCAB), VOCAB, step_price=0.01)
            controller = Adaptive([model], Prices([1.0] * widths), trees=trees, clock=Clock().perf_counter)
            for _ in range(3):
                draft = controller.choose(round_context(), limit)
                assert len(draft) <= min(limit, widths - 1)
                controller.observe(bought(draft, range(len(draft)), *draft.tokens, 1))


def test_trees_are_bought_where_they_can_be_verified_and_no_draw_is_judged() -> None:
    two = table_drafter("lookup", {(): [Guess(1, 0.6), Guess(2, 0.6)], (1,): [Guess(3, 0.6)], (2,): [Guess(4, 0.6)]})
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
    two = table_drafter("lookup", {(): [Guess(1, 0.6), Guess(2, 0.6)], (1,): [Guess(3, 0.6)], (2,): [Guess(4, 0.6)]})
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
    dear = FunctionDrafter(lambda _context, path: [] if path else [Guess(1, 0.9)], "model", step_price=0.9, clock=clock)
    controller = Adaptive([dear], Prices(DEAR), clock=clock.perf_counter)
    for _ in range(100):
        draft = controller.choose(round_context(), 15)
        assert not draft
        controller.observe(bought(draft, (), 1))
    assert len(dear.asked) == 2
    assert controller.calibration.ahead("model").first.tries > 1.9


def test_a_drafter_is_not_judged_by_what_it_reads_after_a_pause() -> None:
    """A probe that hits is worth its guess, however much text there was to read; real time is lost to the budget."""
    clock = Clock()

    def reading(_context: Sequence[int], path: Sequence[int]) -> list[Guess]:
        clock.now += 0.0 if path else 5.0
        return [Guess(1, 0.99)] if len(path) < 3 else []

    model = FunctionDrafter(reading, "model", step_price=0.01, clock=clock)
    controller = Adaptive([model], Prices([1.0] * 16), trusting("model"), clock=clock.perf_counter)
    controller._priced[0]._trials = 1
    controller.observe(bought(controller.choose(round_context([0] * 200), 15), (0, 1, 2), 1, 1, 1, 9))
    assert model.asked
    assert controller._priced[0].worth > 0


def reading_once(clock: Clock, seconds: float) -> FunctionDrafter:
    """A drafter that is right, and takes so long before its first guess."""

    def guess(_context: Sequence[int], path: Sequence[int]) -> list[Guess]:
        clock.now += 0.0 if path or len(drafter.asked) > 1 else seconds
        return [Guess(1, 0.99)] if len(path) < 3 else []

    drafter = FunctionDrafter(guess, "model", step_price=0.01, clock=clock)
    return drafter


def test_what_was_read_is_paid_once_in_the_rounds_after_it() -> None:
    clock = Clock()
    controller = Adaptive([reading_once(clock, 1.5)], Prices(DEAR), trusting("model"), clock=clock.perf_counter)
    controller._priced[0]._left_alone = 10**6  # due for a probe
    credit = controller._budget._left
    controller.observe(bought(controller.choose(round_context([0] * 500), 15), (), 1))
    for _ in range(200):
        controller.choose(round_context([0] * 500), 0)
        controller.observe(bought(Draft(), (), 1))
    lost = credit - controller._budget._left
    assert 1.0 < lost + 0.01 * 200 < 4.0


def test_what_is_worth_less_than_its_reading_is_not_asked() -> None:
    clock = Clock()
    model = reading_once(clock, 0.0)
    controller = Adaptive([model], Prices([1.0] * 16), trusting("model"), clock=clock.perf_counter)
    priced = controller._priced[0]
    for _ in range(50):
        priced.asked(2.0)
    for _ in range(5):
        priced.reading.observe(100, 100.0)  # a plain step a token
    controller.choose(round_context([0] * 10), 15)
    assert model.asked
    model.asked.clear()
    controller.choose(round_context([1] * 500), 15)
    assert not model.asked


def test_each_of_several_drafters_is_tried_before_one_of_them_is_left_alone() -> None:
    clock = Clock()
    several = [
        FunctionDrafter(lambda _c, path: [] if path else [Guess(1, 0.9)], name, step_price=0.9, clock=clock)
        for name in ("model", "eagle3")
    ]
    controller = Adaptive(several, Prices(DEAR), clock=clock.perf_counter)
    for _ in range(4):
        controller.observe(bought(controller.choose(round_context(), 15), (), 1))
    assert [len(drafter.asked) for drafter in several] == [4, 4]
    controller.observe(bought(controller.choose(round_context(), 15), (), 1))
    assert [len(drafter.asked) for drafter in several] == [4, 4]


@pytest.mark.parametrize(("says", "least", "most"), [(0, 0.0, 0.35), (20, 0.8, 1.0)])
def test_a_priced_drafter_is_asked_only_for_what_is_worth_more_than_what_is_in_hand(
    says: int, least: float, most: float
) -> None:
    """Beside a look-up that is always right it is left alone, but for probes; beside one that is always wrong it is
    asked."""
    lookup = book(*((says + n, 0.99) for n in range(7)))
    prices, clock = Prices([1.0, 1.1, 1.2, 1.3, *[9.0] * 12]), Clock()
    model = FunctionDrafter(lambda _context, path: [Guess(len(path), 0.95)], "model", step_price=0.1, clock=clock)
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
    lookup = table_drafter("lookup", {(1, 2): [Guess(3, 0.99)], (1, 2, 3): [Guess(4, 0.99)]})
    model = table_drafter("model", {tuple(range(1, n)): [Guess(n, 0.95)] for n in range(1, 8)}, 0.05)
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
