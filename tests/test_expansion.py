"""Which guess is paid for next, and when to stop: the tree of one round as it grows.

A second is worth a token here, so prices are in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import pytest

from edgespec.controller.calibration import Ahead, Calibration, Rate
from edgespec.controller.draft_tree import DraftTree
from edgespec.controller.expansion import Expansion, Passes
from edgespec.controller.priced_drafter import PricedDrafter
from edgespec.drafters import Drafter
from edgespec.types import Distribution, Guess, Round
from edgespec.verify import RoundContext

from .helpers import FunctionDrafter, never, round_context, table_drafter, trusting

#: Wide passes for next to nothing.
CHEAP = (0.0, *[0.01] * 15)
RULES = ("match", "rejection")
LOOK = 0.03  # seconds of the free drafters at one place


def growing(
    *free: Drafter,
    cost: Sequence[float] = CHEAP,
    rule: str = "match",
    trees: float | None = None,
    is_eog: Callable[[int], bool] = never,
    calibration: Calibration | None = None,
    plain: float = 1.0,
    look: float = LOOK,
) -> Expansion:
    """A second is worth a token; `cost` is what passes take beyond a plain step."""
    place = round_context(rule=rule, is_eog=is_eog)
    for drafter in free:
        drafter.begin(place)
    curve = [plain + seconds for seconds in cost]
    return Expansion(DraftTree(calibration or believing()), place, free, look, Passes(curve, trees), 1.0)


def priced(drafter: Drafter, step: float, ahead: Ahead | None = None) -> PricedDrafter:
    """A drafter whose guesses take `step` seconds each."""
    now = [0.0]

    class Slow:
        name, step_price = drafter.name, step

        def begin(self, round_context: RoundContext) -> None:
            drafter.begin(round_context)

        def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
            now[0] += step
            return drafter.guess(path, most)

        def observe(self, round: Round) -> None:  # noqa: A002
            drafter.observe(round)

        def close(self) -> None:
            drafter.close()

    return PricedDrafter(Slow(), ahead or Ahead(), lambda: now[0])


def drafted(expansion: Expansion, drafter: Drafter, step: float, ahead: Ahead, *, ask: bool = False) -> int:
    """How many guesses were paid for."""
    asked = priced(drafter, step, ahead)
    expansion.draft(asked, ask=ask)
    return asked.guesses


def believing() -> Calibration:
    return trusting("lookup", "model", "lookup+model", "good", "poor")


def expecting(first: float, later: float | None = None) -> Ahead:
    ahead = Ahead()
    ahead.first, ahead.later = Rate(first, 1.0), Rate(first if later is None else later, 1.0)
    return ahead


def drawn(token: int, confidence: float) -> Guess:
    """One of two tokens, drawn."""
    return Guess(token, confidence, Distribution(np.array([token, token + 1]), np.array([0.5, 0.5])))


def saying(*confidences: float, name: str = "model", q: bool = False) -> FunctionDrafter:
    """A drafter that says 10, 11, 12 ... along its own path, as sure as is said."""
    make = drawn if q else Guess
    book = {tuple(range(10, 10 + n)): [make(10 + n, sure)] for n, sure in enumerate(confidences)}
    return table_drafter(name, book, 0.1)


# --- the horizon


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_pays_at_width_4_only_is_drafted_through_the_dear_widths(rule: str) -> None:
    """Looking one token ahead stops at width 2, which alone does not pay."""
    expansion = growing(cost=(0.0, 1.5, 1.5, 0.1, *[8.0] * 12), rule=rule)
    drafter = saying(*[0.85] * 9, q=rule == "rejection")
    assert drafted(expansion, drafter, 0.05, expecting(0.8)) == 3
    assert expansion.bought() == [0, 1, 2]
    assert drafter.asked == [(), (10,), (10, 11)]


def steps_by_hand(values: Sequence[float], ahead: Ahead, cost: Sequence[float], paid: float, *, trims: bool) -> int:
    """Before each token: is any longer draft worth more than the best there is, by what is known before it is drawn?"""
    reach, total, hand = 1.0, 0.0, 0.0
    for n, value in enumerate(values[: len(cost) - 1]):
        longer = []
        for m in range(1, len(cost) - n):
            chances = [(ahead.later if n + j else ahead.first).value for j in range(m)]
            expected = total + sum(reach * prod(chances[: j + 1]) for j in range(m))
            longer.append(expected - cost[n + m] - m * paid)
        if max(longer) <= hand:
            return n
        reach *= value
        total += reach
        here = total - cost[n + 1]
        hand = max(hand, here) if trims else here
    return min(len(values), len(cost) - 1)


@pytest.mark.parametrize("rule", RULES)
def test_drafting_goes_on_just_as_long_as_some_longer_draft_can_pay(rule: str) -> None:
    """Random curves that rise and fall, random confidences, against all horizons by hand. Under rejection what was
    drawn is bought: a shorter draft is no longer to be had."""
    random = np.random.default_rng(3)
    counts = [0] * 8
    for _ in range(400):
        cost = [0.0, *np.maximum(random.normal(0.4, 0.5, 6).cumsum() * random.uniform(0.3, 1.5), 0.01).tolist()]
        sure = random.choice((0.72, 0.85, 0.9, 0.95, 0.99), 7).tolist()
        ahead, paid = expecting(*random.uniform(0.7, 0.98, 2).tolist()), float(random.uniform(0, 0.3))
        calibration = believing()
        values = [calibration.cell("model", 0, confidence).value for confidence in sure]
        drafter = saying(*sure, q=rule == "rejection")
        expansion = growing(cost=cost, rule=rule, calibration=calibration)
        steps = drafted(expansion, drafter, paid, ahead)
        assert steps == len(drafter.asked) == steps_by_hand(values, ahead, cost, paid, trims=rule == "match")
        counts[steps] += 1
    assert counts[0] > 20
    assert sum(n > 10 for n in counts[1:7]) >= 4, counts


@pytest.mark.parametrize("rule", RULES)
def test_no_step_is_paid_that_cannot_pay(rule: str) -> None:
    drafter = saying(*[0.9] * 9, q=rule == "rejection")
    assert drafted(growing(rule=rule), drafter, 0.95, expecting(0.9, 0.1)) == 0, "dearer than it is worth"
    assert drafted(growing(rule=rule, cost=[float(n) for n in range(16)]), drafter, 0.0, expecting(0.9)) == 0
    assert drafted(growing(rule=rule), drafter, 0.0, expecting(0.005)) == 0, "hardly ever right"
    assert drafter.asked == []
    assert drafted(growing(rule=rule), drafter, 0.95, expecting(0.97, 0.1)) == 1, "just cheap enough"


@pytest.mark.parametrize(("sure", "steps"), [(0.99, 4), (0.05, 1)])
def test_a_drafter_that_is_asked_whatever_is_expected_says_how_sure_it_is_and_that_decides(
    sure: float, steps: int
) -> None:
    """The first step alone is for nothing."""
    drafter = saying(*[sure] * 4)
    little = expecting(0.3, 0.9)
    assert drafted(growing(cost=[0.3 * n for n in range(5)]), drafter, 0.05, little) == 0
    expansion = growing(cost=[0.3 * n for n in range(5)])
    assert drafted(expansion, drafter, 0.05, little, ask=True) == steps
    assert len(expansion.bought()) == (4 if steps == 4 else 0)


def test_nobody_is_asked_over_a_look_up_that_leaves_nothing_to_gain() -> None:
    lookup = table_drafter("lookup", {(): [Guess(5, 0.99)]})
    model = saying(0.99)
    expansion = growing(lookup, cost=(0.0, 0.1))
    expansion.ask_free()
    assert drafted(expansion, model, 0.05, expecting(0.9), ask=True) == 0


@pytest.mark.parametrize("rule", RULES)
def test_a_prospect_is_what_the_first_step_is_weighed_by(rule: str) -> None:
    """Positive just where a first step would be taken with nothing in hand."""
    random = np.random.default_rng(4)
    signs = set()
    for _ in range(200):
        cost = [0.0, *np.maximum(random.normal(0.4, 0.5, 6).cumsum(), 0.01).tolist()]
        ahead, paid = expecting(*random.uniform(0.3, 0.98, 2).tolist()), float(random.uniform(0, 0.5))
        expansion = growing(cost=cost, rule=rule)
        prospect = expansion.prospect(priced(saying(0.9), paid, ahead))
        assert (prospect > 0) == (drafted(expansion, saying(0.9, q=rule == "rejection"), paid, ahead) > 0)
        signs.add(prospect > 0)
    assert signs == {True, False}


@pytest.mark.parametrize(("errors", "guesses"), [(1.0, 1), (0.5, 7)])
def test_a_probe_that_expects_fewer_errors_makes_a_draft_that_pays_if_it_is_right(errors: float, guesses: int) -> None:
    """Nothing but seven tokens in a pass can pay here."""
    model = priced(saying(*[0.9] * 7), 0.03, expecting(0.9, 0.6))
    expansion = growing(cost=[0.0, *[2.7] * 7])
    model.begin(round_context())
    expansion.draft(model, ask=True, errors=errors)
    assert model.guesses == guesses
    assert len(expansion.bought()) == (7 if guesses == 7 else 0)


def test_doubt_stops_a_draft_and_confidence_does_not() -> None:
    cost = [0.3 * n for n in range(16)]
    assert drafted(growing(cost=cost), saying(*[0.99] * 20), 0.05, expecting(0.9)) == 15
    assert drafted(growing(cost=cost), saying(0.99, 0.99, 0.05, *[0.99] * 9), 0.05, expecting(0.9)) == 3


@pytest.mark.parametrize("rule", RULES)
def test_nothing_is_drafted_beyond_the_prices_nor_the_end_of_the_text(rule: str) -> None:
    for cost, n in (((0.0,), 0), ((0.0, 0.01), 1), (CHEAP[:5], 4)):
        expansion = growing(cost=cost, rule=rule)
        assert drafted(expansion, saying(*[0.99] * 20, q=rule == "rejection"), 0.0, expecting(0.9)) == n
        assert len(expansion.bought()) == n
    expansion = growing(rule=rule, is_eog=lambda token: token == 12)
    assert drafted(expansion, saying(*[0.99] * 20, q=rule == "rejection"), 0.0, expecting(0.9)) == 3
    expansion = growing(rule=rule)
    assert drafted(expansion, saying(0.99, 0.99), 0.0, expecting(0.9)) == 3, (
        "that it has nothing to say costs a step too"
    )
    assert expansion.bought() == [0, 1]


# --- several drafters


def test_a_free_drafter_that_is_sure_saves_the_steps() -> None:
    """The model is asked where the look-up has nothing, or doubts."""
    lookup = table_drafter("lookup", {(): [Guess(10, 0.99)], (10,): [Guess(11, 0.99)], (10, 11): [Guess(12, 0.3)]})
    model = saying(*[0.95] * 4)
    expansion = growing(lookup, cost=[0.2 * n for n in range(5)])
    expansion.ask_free()
    assert drafted(expansion, model, 0.1, expecting(0.9)) == 2
    assert model.asked == [(10, 11), (10, 11, 12)]
    draft = expansion.tree.draft(expansion.bought())
    assert draft.tokens == (10, 11, 12, 13)
    assert draft.drafters == ("lookup", "lookup", "lookup+model", "model")


def test_a_model_goes_on_from_a_look_up_and_not_over_its_words() -> None:
    lookup = table_drafter("lookup", {(): [Guess(5, 0.99)], (5,): [Guess(6, 0.99)]})
    model = table_drafter("model", {(5, 6): [Guess(7, 0.95)], (5, 6, 7): [Guess(8, 0.95)], (): [Guess(1, 0.95)]}, 0.1)
    expansion = growing(lookup)
    expansion.ask_free()
    drafted(expansion, model, 0.05, expecting(0.9))
    draft = expansion.tree.draft(expansion.bought())
    assert draft.tokens == (5, 6, 7, 8)
    assert draft.drafters == ("lookup", "lookup", "model", "model")
    assert () not in model.asked


@pytest.mark.parametrize("rule", RULES)
def test_a_look_up_goes_on_from_a_model(rule: str) -> None:
    """Asked at once where the model said something new: its words save the steps that follow."""
    lookup = table_drafter("lookup", {(10,): [Guess(5, 0.99)], (10, 5): [Guess(6, 0.99)], (10, 5, 6): [Guess(7, 0.99)]})
    model = saying(0.9, 0.9, 0.9, q=rule == "rejection")
    expansion = growing(lookup, rule=rule)
    expansion.ask_free()
    assert expansion.tree.tokens == []
    drafted(expansion, model, 0.05, expecting(0.9))
    draft = expansion.tree.draft(expansion.bought())
    assert draft.tokens == (10, 5, 6, 7)
    assert draft.drafters == ("model", "lookup", "lookup", "lookup")
    assert (10,) not in model.asked
    assert (draft.q is not None) == (rule == "rejection")


def test_a_doubtful_word_is_checked_for_what_it_opens_the_way_to() -> None:
    """The model is a little better here than the look-up: not worth a step by itself, but for all that may follow."""
    for later, asked in ((0.95, [()]), (0.05, [])):
        model = table_drafter("model", {(): [Guess(9, 0.9)]}, 0.1)
        lookup = table_drafter("lookup", {(): [Guess(5, 0.75)]})
        expansion = growing(lookup, cost=[0.1 * n for n in range(9)])
        expansion.ask_free()
        drafted(expansion, model, 0.2, expecting(0.9, later))
        assert model.asked[:1] == asked


def test_what_is_in_hand_must_be_beaten() -> None:
    """A look-up's draft that fills what pays leaves nothing to gain."""
    lookup = table_drafter("lookup", {tuple(range(n)): [Guess(n, 0.97)] for n in range(9)})
    model = saying(*[0.9] * 5)
    expansion = growing(lookup, cost=(0.0, 0.1, 0.2, 0.3, *[9.0] * 12))
    expansion.ask_free()
    assert drafted(expansion, model, 0.05, expecting(0.95)) == 0
    assert expansion.bought() == [0, 1, 2]


def test_the_better_of_two_free_drafts_is_bought() -> None:
    poor = table_drafter("poor", {(): [Guess(1, 0.3)], (1,): [Guess(2, 0.3)]})
    good = table_drafter("good", {(): [Guess(5, 0.9)]})
    for order in ((poor, good), (good, poor)):
        expansion = growing(*order, cost=(0.0, 0.1, 0.2, 0.3))
        expansion.ask_free()
        assert expansion.tree.draft(expansion.bought()).drafters == ("good",)


# --- looking around


def fan(name: str = "lookup", sure: float = 0.6) -> FunctionDrafter:
    """Always two guesses, by the path."""
    return FunctionDrafter(lambda _context, path: [Guess(1, sure), Guess(2, sure / 2)], name)


def test_looking_around_asks_the_likeliest_places_first_and_each_once() -> None:
    book = {(): [Guess(1, 0.9), Guess(2, 0.5)], (1,): [Guess(3, 0.3)], (2,): [Guess(4, 0.9)], (2, 4): [Guess(5, 0.9)]}
    lookup = table_drafter("lookup", book)
    expansion = growing(lookup, trees=0.0)
    expansion.ask_free()
    # Reach by the priors of their confidences: .91; .475 and its children .43, .39; then .91 * .325.
    assert lookup.asked == [(), (1,), (2,), (2, 4), (2, 4, 5), (1, 3)]


def test_looking_around_ends_with_enough_candidates_and_with_faint_hopes() -> None:
    lookup = fan()
    expansion = growing(lookup, trees=0.0)
    expansion.ask_free()
    assert 64 <= len(expansion.tree) <= 65
    assert len(set(lookup.asked)) == len(lookup.asked)
    lookup = fan(sure=0.3)
    expansion = growing(lookup, trees=0.0)
    expansion.ask_free()
    reach = expansion.tree.reach()
    asked = [chance for node, chance in enumerate(reach) if tuple(expansion.tree.path(node)) in lookup.asked]
    unasked = [chance for node, chance in enumerate(reach) if tuple(expansion.tree.path(node)) not in lookup.asked]
    assert len(expansion.tree) < 64
    assert asked
    assert min(asked) > LOOK >= max(unasked)


def test_siblings_of_one_drafter_leave_room_for_the_chain_of_another() -> None:
    """A copy of 31 tokens ended after 16 where a second drafter had two guesses at each of them."""
    copying = table_drafter("good", {tuple(range(10, 10 + n)): [Guess(10 + n, 0.99)] for n in range(40)})
    expansion = growing(copying, fan("poor"), trees=0.0, cost=[0.01 * n for n in range(32)])
    expansion.ask_free()
    assert max(expansion.tree.depths) >= 30


@pytest.mark.parametrize("seed", range(40))
def test_no_chain_that_pays_is_missed_because_a_look_up_was_not_asked_further(seed: int) -> None:
    """At any staircase of prices the chain bought is the one that asking to the last place would have bought."""
    random = np.random.default_rng(seed)
    sure = [float(c) for c in random.uniform(0.1, 0.99, 15)]
    cost = (0.0, *np.cumsum(random.choice([0.0, 0.05, 0.4, 0.9], 15)))
    book = {tuple(range(n)): [Guess(n, sure[n])] for n in range(15)}
    expansion = growing(table_drafter("lookup", book), cost=cost, look=0.0)
    expansion.ask_free()
    everything = growing(table_drafter("lookup", book), cost=cost, look=-1.0)
    everything.ask_free()
    assert len(everything.tree) == 15
    assert expansion.bought() == everything.bought()


def test_a_slow_look_up_is_asked_less() -> None:
    """Where it takes as long as a token is worth it is asked once."""
    asked = []
    for look in (0.0, 0.7, 1.0):
        lookup = table_drafter("lookup", {tuple(range(n)): [Guess(n, 0.9)] for n in range(15)})
        growing(lookup, look=look).ask_free()
        asked.append(len(lookup.asked))
    assert asked[0] > 10
    assert 1 < asked[1] < asked[0]
    assert asked[2] == 1


def test_nobody_is_asked_to_go_on_from_what_was_never_right() -> None:
    calibration = Calibration()
    for _ in range(300):
        calibration.learn([(calibration.cell("lookup", 0, 0.9), False)])
    lookup = table_drafter("lookup", {(): [Guess(1, 0.9)], (1,): [Guess(2, 0.9)]})
    growing(lookup, calibration=calibration).ask_free()
    assert lookup.asked == [()]


def test_looking_around_goes_no_deeper_than_can_be_bought_and_not_past_the_end() -> None:
    for depth in range(4):
        lookup = FunctionDrafter(lambda _context, _path: [Guess(1, 0.99)], "lookup")
        expansion = growing(lookup, cost=CHEAP[: depth + 1])
        expansion.ask_free()
        assert max(map(len, lookup.asked)) == max(depth - 1, 0)
        assert len(expansion.bought()) == depth
    lookup = FunctionDrafter(lambda _context, path: [Guess(len(path), 0.99)], "lookup")
    expansion = growing(lookup, is_eog=lambda token: token == 2)
    expansion.ask_free()
    assert expansion.tree.tokens == [0, 1, 2]


@pytest.mark.parametrize(("rule", "trees", "most"), [("match", None, 1), ("match", 0.0, 2), ("rejection", 0.0, 1)])
def test_alternatives_are_asked_for_where_trees_can_be_bought(rule: str, trees: float | None, most: int) -> None:
    lookup, model = fan(), fan("model")
    expansion = growing(lookup, rule=rule, trees=trees)
    expansion.ask_free()
    assert len(expansion.tree.children(-1)) == most
    expansion = growing(rule=rule, trees=trees)
    drafted(expansion, model, 0.0, expecting(0.9))
    assert len(expansion.tree.children(-1)) == most


def test_a_tree_is_bought_where_it_gains_more_than_it_costs() -> None:
    """And a little more than that: a tree moves the last bits of what comes after it."""
    two = table_drafter("lookup", {(): [Guess(1, 0.5), Guess(2, 0.5)]})
    for trees, tokens in ((None, (1,)), (0.0, (1, 2)), (0.3, (1, 2)), (0.33, (1, 2)), (0.4, (1,)), (0.5, (1,))):
        expansion = growing(two, cost=(0.0, 0.01, 0.02), trees=trees)
        expansion.ask_free()
        assert expansion.tree.draft(expansion.bought()).tokens == tokens
        chance = expansion.tree.cells[0].value
        assert expansion.gain() == pytest.approx(
            2 * chance - 0.02 - trees - 0.1 if trees is not None and len(tokens) == 2 else chance - 0.01
        )


# --- what time is worth


def test_an_offer_is_what_the_best_chain_of_the_tree_is_expected_to_bring_in_a_plain_step() -> None:
    """Against all chains by hand; it does not depend on what time is worth, and is 1 where there is no draft."""
    random = np.random.default_rng(5)
    better = 0
    for _ in range(100):
        cost = [0.0, *random.uniform(0.0, 4.0, 6).cumsum().tolist()]
        book = {tuple(range(n)): [Guess(n, float(random.uniform(0.5, 0.99)))] for n in range(9)}
        expansion = growing(table_drafter("lookup", book), cost=cost, plain=2.0, look=-1.0)
        assert expansion.offer(2.0) == 1.0
        expansion.ask_free()
        reach = expansion.tree.reach()
        known = min(len(reach), len(cost) - 1)
        by_hand = [(1 + sum(reach[:n])) * 2.0 / (2.0 + cost[n]) for n in range(known + 1)]
        assert expansion.offer(2.0) == pytest.approx(max(by_hand))
        expansion.value_time(7.0)
        assert expansion.offer(2.0) == pytest.approx(max(by_hand))
        assert expansion.offer(1.0) == pytest.approx(max(by_hand) / 2), (
            "a pass that computes what is owed is no plain step"
        )
        better += max(by_hand) > 1
    assert 10 < better < 100


def test_drafts_are_shorter_and_a_model_is_asked_less_where_time_is_worth_more() -> None:
    lookup = table_drafter("lookup", {tuple(range(10, 10 + n)): [Guess(10 + n, 0.9)] for n in range(9)})
    lengths, asked = [], []
    for rate in (0.5, 1.0, 2.0, 4.0):
        expansion = growing(lookup, cost=[0.2 * n for n in range(10)])
        expansion.ask_free()
        expansion.value_time(rate)
        lengths.append(len(expansion.bought()))
        model = saying(*[0.97] * 9)
        expansion = growing(cost=[0.2 * n for n in range(10)])
        expansion.value_time(rate)
        asked.append(drafted(expansion, model, 0.03, expecting(0.9)))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]
    assert asked == sorted(asked, reverse=True)
    assert asked[0] > asked[-1]


# --- under rejection


def test_all_that_was_drawn_is_bought_whatever_it_is() -> None:
    """Leaving out a drawn token because of what it is, or of what follows it, would bias the text."""
    cost = (0.0, 0.3, 0.6, 0.9, 1.2)
    expansion = growing(cost=cost, rule="rejection")
    assert drafted(expansion, saying(0.99, 0.05, q=True), 0.0, expecting(0.9)) == 2
    assert expansion.bought() == [0, 1], "the second alone does not pay"
    expansion = growing(cost=cost)
    assert drafted(expansion, saying(0.99, 0.05), 0.0, expecting(0.9)) == 2
    assert expansion.bought() == [0], "match may leave it, and does"


def test_the_stop_does_not_depend_on_the_token_drawn() -> None:
    """Whatever is drawn, as long as it is drawn as surely: the same number of steps, and all of them bought."""
    random = np.random.default_rng(8)
    for sure in ((0.9, 0.8, 0.3, 0.9), (0.5, 0.5, 0.5), (0.99, 0.1)):
        lengths = set()
        for _ in range(20):
            words = random.integers(0, 50, len(sure)).tolist()
            book = {tuple(words[:n]): [drawn(words[n], confidence)] for n, confidence in enumerate(sure)}
            expansion = growing(cost=[0.25 * n for n in range(9)], rule="rejection")
            steps = drafted(expansion, table_drafter("model", book, 0.1), 0.05, expecting(0.8))
            assert expansion.tree.draft(expansion.bought()).tokens == tuple(words[: len(expansion.bought())])
            lengths.add((steps, len(expansion.bought())))
        assert len(lengths) == 1


def test_a_drawn_token_is_gone_on_from_though_another_is_likelier() -> None:
    """And the look-up's word beside it, which was not drawn, is not bought: only chains are judged by q."""
    lookup = table_drafter("lookup", {(): [Guess(5, 0.6)], (5,): [Guess(6, 0.9)]})
    model = saying(0.3, 0.9, q=True)
    expansion = growing(lookup, rule="rejection")
    expansion.ask_free()
    drafted(expansion, model, 0.0, expecting(0.9))
    draft = expansion.tree.draft(expansion.bought())
    assert draft.tokens[:2] == (10, 11)
    assert draft.is_chain


def test_once_drawn_a_draft_is_weighed_by_itself() -> None:
    """The look-up's draft was worth more than what is left now, but is no longer to be had: one token of the model's,
    bought anyway, is no reason to stop."""
    lookup = table_drafter("lookup", {(): [Guess(5, 0.72)], (5,): [Guess(6, 0.95)]})
    model = saying(0.5, 0.97, 0.97, q=True)
    expansion = growing(lookup, cost=(0.0, 0.1, 0.2, 0.3), rule="rejection")
    expansion.ask_free()
    assert expansion.gain() > 1
    assert drafted(expansion, model, 0.01, expecting(0.9)) == 3
    assert expansion.bought() == expansion.tree.line(4)


def test_look_ups_lengthen_what_was_drawn_as_far_as_that_pays() -> None:
    """By the difference to what was drawn, and not to the last length that paid."""
    book = {(10,): [Guess(5, 0.7)], (10, 5): [Guess(6, 0.99)], (10, 5, 6): [Guess(7, 0.99)]}
    for cost, length in (
        ((0.0, 1.0, 1.1, 1.2, 1.3), 4),
        ((0.0, 1.0, 1.5, 2.2, 9.0), 2),
        ((0.0, 1.0, 2.2, 2.3, 2.4), 4),
        ((0.0, 1.0, 9.0, 9.0, 9.0), 1),
    ):
        expansion = growing(table_drafter("lookup", book), cost=cost, rule="rejection")
        expansion.probe(priced(saying(0.9, q=True), 0.0))
        expansion.ask_free()
        assert len(expansion.bought()) == length, cost


def test_nothing_drawn_by_a_free_drafter_is_weighed() -> None:
    """All of it would have to be bought; under match it is a guess like any other."""
    for rule, n in (("rejection", 0), ("match", 2)):
        expansion = growing(saying(0.9, 0.9, q=True), rule=rule)
        expansion.ask_free()
        assert len(expansion.tree) == n


# --- whatever it is worth


@pytest.mark.parametrize("rule", RULES)
def test_a_probe_is_one_guess(rule: str) -> None:
    q = rule == "rejection"
    expansion = growing(rule=rule, cost=[9.0 * n for n in range(9)])
    probed = priced(saying(*[0.1] * 9, q=q), 0.0)
    expansion.probe(probed)
    assert (probed.guesses, len(expansion.tree)) == (1, 1)
    assert len(expansion.bought()) == q, "what was drawn is bought even if it was only a probe"
    silent = priced(saying(), 0.0)
    expansion = growing(rule=rule)
    expansion.probe(silent)
    assert (silent.guesses, expansion.bought()) == (1, [])
