"""When a drafter with a price is asked again, and what its steps cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from edgespec.controller.calibration import Ahead
from edgespec.controller.draft_tree import Trial
from edgespec.controller.priced_drafter import PricedDrafter
from edgespec.types import Guess, Round
from edgespec.verify import RoundContext

from .helpers import round_context, table_drafter

HIT, MISS = Trial("model", 0, 0, 0, hit=True), Trial("model", 0, 0, 0, hit=False)


def priced_drafter(step: float = 0.1, clock: Callable[[], float] = lambda: 0.0, others: int = 0) -> PricedDrafter:
    return PricedDrafter(table_drafter("model", {}, step), Ahead(), clock, others)


def rounds_until_due(priced: PricedDrafter, plain: float = 1.0, reading: float = 0.0) -> int:
    for n in range(1000):
        if priced.due(plain, reading):
            return n
        priced.observe(())
    raise AssertionError("never due")


def test_the_worth_is_what_asking_brought_of_late() -> None:
    """A drafter not yet known must bring something a few times before it is believed to."""
    priced = priced_drafter()
    assert priced.worth == 0
    priced.asked(1.0)
    assert 0 < priced.worth < 0.3
    for _ in range(100):
        priced.asked(1.0)
    assert priced.worth == pytest.approx(1.0, abs=0.01)
    for _ in range(30):
        priced.asked(-0.2)
    assert priced.worth < 0


def test_patience_doubles_with_every_miss_to_a_limit_and_ends_with_a_hit() -> None:
    priced = priced_drafter(0.05)
    waits = []
    for _ in range(8):
        priced.asked(0.0)
        priced.observe([MISS])
        waits.append(rounds_until_due(priced))
    assert waits == [4, 8, 16, 32, 64, 64, 64, 64]
    priced.asked(0.0)
    priced.observe([HIT])
    assert rounds_until_due(priced) <= 4
    priced.asked(0.0)
    priced.observe([])  # it was asked, but the text ended before its word was tried
    assert rounds_until_due(priced) <= 4


def test_probes_take_two_per_cent_of_the_time_at_most() -> None:
    """Even of a drafter that is right each time it is probed and still does not pay."""
    for step, plain in ((0.1, 1.0), (0.9, 1.0), (0.1, 0.05)):
        priced = priced_drafter(step)
        priced.asked(0.0)
        priced.observe([HIT])
        wait = rounds_until_due(priced, plain)
        assert step / ((wait + 1) * plain) <= 0.02
        assert step / (wait * plain) > 0.013


def test_the_first_guess_of_a_round_and_those_after_it_have_prices_of_their_own() -> None:
    """The first finds cold caches, and reads what was committed since the drafter was asked last."""
    times = iter([t for n in range(3) for t in (n, n + 0.5, n + 0.7, n + 0.8)])
    priced = priced_drafter(0.2, lambda: next(times))
    for _ in range(3):
        priced.begin(round_context())
        for path in ((), (1,)):
            priced.guess(path, 1)
        assert priced.guesses == 2
        assert priced.seconds == pytest.approx(0.6)
    assert priced.first.seconds == pytest.approx(0.5)
    assert priced.later.seconds == pytest.approx(0.1)


def test_one_catch_up_is_no_price_of_a_guess() -> None:
    """The first question after a long prompt takes as long as reading it."""
    times = iter([0.0, 60.0])
    priced = priced_drafter(0.1, lambda: next(times))
    priced.begin(round_context())
    priced.guess((), 1)
    assert priced.first.seconds == priced.later.seconds == 0.1


def test_the_first_guess_of_a_round_is_expected_apart_from_those_that_follow() -> None:
    priced = priced_drafter()
    first, later = priced.ahead.first.value, priced.ahead.later.value
    for _ in range(30):
        priced.observe([HIT])
    assert priced.ahead.first.value > first
    assert priced.ahead.later.value == later
    for _ in range(30):
        priced.observe([HIT, Trial("model", 0, 1, 0, hit=True), Trial("model", 0, 2, 0, hit=False)])
    assert priced.ahead.first.value > 0.9
    assert priced.ahead.later.value == pytest.approx(0.5, abs=0.1)


def test_drafters_share_the_time_for_probes() -> None:
    alone = PricedDrafter(table_drafter("model", {}, 0.5), Ahead(), lambda: 0.0)
    one_of_three = PricedDrafter(table_drafter("model", {}, 0.5), Ahead(), lambda: 0.0, 2)
    assert rounds_until_due(one_of_three) == pytest.approx(3 * rounds_until_due(alone), abs=3)


def test_what_is_read_after_a_pause_is_no_price_of_asking() -> None:
    """It would not be read in a round after one that asked."""
    times = iter([0.0, 0.2, 10.0, 15.0])
    priced = priced_drafter(0.2, lambda: next(times))
    for tokens, taken in ((5, 0.2), (105, 5.0)):
        priced.begin(round_context([0] * tokens))
        priced.guess((), 1)
        assert priced.seconds == pytest.approx(taken)
        assert priced.steady_seconds == pytest.approx(0.2)
    assert priced.first.seconds == pytest.approx(0.2)


def test_a_drafter_begins_with_its_first_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a free drafter has what is needed, none is made, and nothing should be read for it."""
    drafter = table_drafter("model", {}, 0.2)
    begun = list[RoundContext]()
    monkeypatch.setattr(drafter, "begin", begun.append)
    priced = PricedDrafter(drafter, Ahead(), lambda: 0.0)
    priced.begin(round_context([0] * 100))
    assert not begun
    assert priced.reading.tokens([0] * 100) == 100
    context = round_context([0] * 100)
    priced.begin(context)
    priced.guess((), 1)
    priced.guess((7,), 1)
    assert begun == [context]
    assert priced.reading.tokens(context.tokens) == 0


def test_another_prompt_is_read_though_the_drafter_was_asked_in_the_last_round() -> None:
    times = iter([0.0, 0.2, 10.0, 15.0])
    priced = priced_drafter(0.2, lambda: next(times))
    for context in ([0] * 5, [1] * 40):
        priced.forget_round()
        priced.begin(round_context(context))
        priced.guess((), 1)
        priced.asked(0.0)
        priced.observe(())
    assert priced.first.seconds == pytest.approx(0.2)
    assert priced.steady_seconds == pytest.approx(0.2)


def test_probes_that_read_much_are_rarer() -> None:
    priced = priced_drafter(0.2)
    priced.asked(0.0)
    priced.observe([HIT])
    assert rounds_until_due(priced) <= 10
    priced.asked(0.0)
    priced.observe([HIT])
    assert rounds_until_due(priced, reading=5.0) > 100


@pytest.mark.parametrize(("others", "times"), [(0, 0), (1, 4), (2, 4)])
def test_each_of_several_is_asked_a_few_times_at_first(others: int, times: int) -> None:
    priced = priced_drafter(others=others)
    asked = 0
    while priced.is_new:
        priced.asked(-1.0)
        asked += 1
    assert asked == times


class Reader:
    """A draft model for which a token that it reads takes half a guess, and which holds its own guesses."""

    name = "model"
    step_price = 0.2

    def __init__(self, *, holds: bool = True) -> None:
        self.now = 0.0
        self.read = 0
        self._holds = holds
        self._context: Sequence[int] = ()

    def clock(self) -> float:
        return self.now

    def held(self, context: Sequence[int]) -> int | None:
        del context
        return self.read if self._holds else None

    def begin(self, round_context: RoundContext) -> None:
        self._context = round_context.tokens

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        del most
        text = len(self._context) + len(path)
        self.now += 0.2 + 0.1 * (text - self.read - 1)
        self.read = text
        return [Guess(5, 0.9)]

    def observe(self, round: Round) -> None:  # noqa: A002
        """It learns nothing."""

    def close(self) -> None:
        """It holds nothing else."""


def _round(priced: PricedDrafter, context: list[int], guesses: int, committed: int, *, right: int = 0) -> float:
    """What the first guess was expected to take, in a round with so many guesses and tokens; `right` of the guesses are
    among these."""
    priced.forget_round()
    priced.expect(context)
    expected = priced.price(0, 1)
    priced.begin(round_context(context))
    for n in range(guesses):
        priced.guess((5,) * n, 1)
    priced.observe([Trial("model", 0, n, n, hit=n < right) for n in range(min(guesses, right + 1))])
    context.extend([5] * committed)
    return expected


def test_a_first_guess_is_as_dear_as_what_it_has_to_read() -> None:
    """A copy committed many tokens at a time, and the first guess after it was dear. Those after single tokens are not:
    taken for dear, they were not asked for, and nothing corrected that."""
    reader, context = Reader(), [1] * 8
    priced = PricedDrafter(reader, Ahead(), reader.clock)
    for _ in range(6):
        _round(priced, context, guesses=1, committed=1)
    assert _round(priced, context, guesses=1, committed=13) == pytest.approx(0.2)
    for _ in range(6):
        dear = _round(priced, context, guesses=1, committed=13)
    assert dear == pytest.approx(0.2 + 12 * 0.1)
    _round(priced, context, guesses=1, committed=1)
    assert _round(priced, context, guesses=1, committed=1) == pytest.approx(0.2)
    assert priced.first.seconds == pytest.approx(0.2)


@pytest.mark.parametrize("holds", [True, False])
def test_its_own_guesses_are_not_read_again_by_a_drafter_that_holds_them(holds: bool) -> None:
    """Of five guesses that are right the last one was never read, nor was the token after it."""
    reader, context = Reader(holds=holds), [1] * 8
    priced = PricedDrafter(reader, Ahead(), reader.clock)
    for _ in range(10):
        after_others = _round(priced, context, guesses=5, committed=6, right=5)
        reader.read -= 0 if holds else 4
        after_its_own = _round(priced, context, guesses=1, committed=6)
    assert after_others == pytest.approx(0.2 + 5 * 0.1, abs=0.02)
    assert after_its_own == pytest.approx(0.2 + (1 if holds else 5) * 0.1, abs=0.02)


def test_a_probe_waits_for_what_it_has_to_read() -> None:
    reader, context = Reader(), [1] * 8
    priced = PricedDrafter(reader, Ahead(), reader.clock)
    for _ in range(6):
        _round(priced, context, guesses=1, committed=13)
    waits = []
    for committed in (1, 13):
        priced.asked(0.0)
        priced.observe([HIT])
        context.extend([5] * committed)
        priced.expect(context)
        waits.append(rounds_until_due(priced, 1.0))
    assert waits[0] < waits[1]
