"""The controller: what it learns from rounds, and when it explores."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import Calibration
from edgespec.prices import Prices
from edgespec.types import Draft, Guess

from .control_runs import DEAR, FREE, Q8_0, RULES, Run, adaptive, book, bought, right
from .helpers import Clock, round_context, table_drafter

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
    fresh.learn([(fresh.cell("one", 0, 0.9), True)])
    assert calibration.cell("one", 0, 0.9).value == fresh.cell("one", 0, 0.9).value
    assert calibration.cell("lookup", 0, 0.3).rate.tries == 0, "what was expected of the other is not proved"
    after = [calibration.ahead(name).first.value for name in ("one", "two")]
    assert after[0] > before[0]
    assert after[1] == before[1]


def test_a_second_best_that_is_right_is_no_merit_of_the_first() -> None:
    """What is expected of a drafter before it is asked is expected of its likeliest guess."""
    model = table_drafter("model", {(): [Guess(1, 0.6), Guess(2, 0.6)]}, 0.01)
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
    cell, behind = (controller.calibration.cell("lookup", 0, sure) for sure in (0.5, 0.9))
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
    cell = controller.calibration.cell("model", 0, 0.5)
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
    known = controller.calibration.kept()["guesses"]
    assert not controller.choose(round_context(), 15)
    assert lookup.asked == []
    controller.observe(bought(Draft(), (), 7))
    assert controller.calibration.kept()["guesses"] == known
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


def test_a_second_is_worth_what_rounds_earn_at_the_pace_of_the_machine(worths: list[float]) -> None:
    """A machine that is slower now is so for all: rounds are recorded in plain steps of their time."""
    prices, five = Prices([0.5] * 16), Draft.chain((1, 1, 1, 1, 1), "a")
    controller = Adaptive([], prices)
    for _ in range(300):
        controller.choose(round_context(), 15)
        controller.observe(bought(five, range(5), *five.tokens, 9, seconds=0.75, drafting=0.25))
        prices.observe(1, 0, 0.5)
    assert worths[0] == 2.0
    assert worths[-1] == pytest.approx(6.0)
    for _ in range(60):
        prices.observe(1, 0, 1.0)
    controller.choose(round_context(), 15)
    assert worths[-1] == pytest.approx(3.0, rel=0.05)
