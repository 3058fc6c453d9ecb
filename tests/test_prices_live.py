"""Prices that stay true: rounds on a simulated machine with noise, hiccups and company."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgespec.prices import WIDTHS, Prices

#: llama.cpp's Q8_0: t(n)/t(1) for n = 1..16.
Q8_0 = (1.0, 1.5, 1.8, 1.8, 2.8, 3.0, 3.0, 2.9, 3.6, 3.8, 4.0, 4.1, 4.6, 4.8, 5.0, 5.2)

Curve = Sequence[float]
#: The true curve in a round.
Truth = Callable[[int], Curve]
#: The width bought in a round, at the prices believed.
Buyer = Callable[[int, Prices], int]


def times(factor: float, since: int = 200, until: int = 10**9) -> Truth:
    return lambda round_: [factor * s if since <= round_ < until else s for s in Q8_0]


def only_wide(factor: float, since: int = 200, until: int = 10**9) -> Truth:
    """From 5 tokens on."""
    return lambda round_: [s * (factor if n >= 5 and since <= round_ < until else 1) for n, s in enumerate(Q8_0, 1)]


def throttled(rate: float, since: int = 200, rounds: int = 110) -> Truth:
    return lambda round_: [s * (1 + rate) ** min(max(0, round_ - since), rounds) for s in Q8_0]


def one_width(round_: int, _prices: Prices) -> int:
    """Five tokens, and a plain step every 64 rounds."""
    return 1 if round_ % 64 == 63 else 5


def mixed(round_: int, _prices: Prices) -> int:
    return 1 if round_ % 64 == 63 else (3, 5, 8, 4, 6, 3, 4)[(round_ * 5 + round_ // 7) % 7]


def best(acceptance: float = 0.75, step: float = 0.08) -> Buyer:
    """The width that pays best at the prices believed, and a plain step every 64 rounds."""

    def buy(round_: int, prices: Prices) -> int:
        return 1 if round_ % 64 == 63 else best_width(prices.curve(), acceptance, step)

    return buy


def rate(curve: Curve, width: int, acceptance: float = 0.75, step: float = 0.08) -> float:
    """Tokens per second; a draft step takes the share `step` of a plain one."""
    tokens = sum(acceptance**i for i in range(width))
    return tokens / (curve[width - 1] + step * (width - 1) * curve[0])


def best_width(curve: Curve, acceptance: float = 0.75, step: float = 0.08) -> int:
    return max(range(1, WIDTHS + 1), key=lambda n: rate(curve, n, acceptance, step))


class MachineOptions:
    """Rounds on a machine whose passes vary by 10% (lognormal), one in fifty of them 20 times too slow."""

    def __init__(self, buy: Buyer, truth: Truth, believed: Curve = Q8_0, *, seed: int = 0, noise: float = 0.1) -> None:
        self.prices = Prices(believed)
        self.bought: list[int] = []
        self.tokens = self.seconds = 0.0
        self._buy, self._truth, self._noise = buy, truth, noise
        self._random = np.random.default_rng(seed)

    def run(self, until: int, hiccups: float = 0.02) -> MachineOptions:
        for round_ in range(len(self.bought), until):
            n = self._buy(round_, self.prices)
            exact = self._truth(round_)[n - 1]
            slow = 20 if self._random.random() < hiccups else 1
            self.prices.observe(n, 100, exact * slow * float(self._random.lognormal(0, self._noise)))
            self.bought.append(n)
            self.seconds += exact + 0.08 * (n - 1) * self._truth(round_)[0]
            self.tokens += sum(0.75**i for i in range(n))
        return self

    def error(self, n: int) -> float:
        """The price over the true one."""
        return self.prices.price(n) / self._truth(len(self.bought) - 1)[n - 1]


SEEDS = range(3)


def calm(prices: Prices, context: int) -> bool:
    """Whether the machine has the pace at which it was measured, as far as the rounds tell."""
    return list(prices.curve(context)) == list(prices.calm(context))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("buy", [one_width, mixed, best()])
def test_on_a_calm_machine_noise_and_hiccups_move_little(buy: Buyer, seed: int) -> None:
    """All widths, those never bought too, for three thousand rounds."""
    machine = MachineOptions(buy, times(1.0), seed=seed)
    for until in range(100, 3001, 100):
        machine.run(until)
        assert all(0.8 < machine.error(n) < 1.25 for n in range(1, WIDTHS + 1)), until
        assert calm(machine.prices, 100), until


@pytest.mark.parametrize("hiccup", [100.0, 0.001])
@pytest.mark.parametrize("n", [1, 5])
def test_one_hiccup_is_no_news(n: int, hiccup: float) -> None:
    prices = Prices(Q8_0)
    prices.observe(n, 100, hiccup * Q8_0[n - 1])
    assert list(prices.curve()) == list(Q8_0)
    for _ in range(20):
        prices.observe(n, 100, Q8_0[n - 1])
    assert all(0.94 < price / true < 1.07 for price, true in zip(prices.curve(), Q8_0, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [1.5, 3.0, 30.0, 1 / 3])
def test_a_drift_is_followed_within_eight_rounds(factor: float, seed: int) -> None:
    """Of widths not bought since, too; the price of a plain step is said to be a guess."""
    machine = MachineOptions(one_width, times(factor), seed=seed).run(200)
    machine.run(208, hiccups=0)
    assert 0.85 < machine.error(5) < 1.2
    assert 0.8 < machine.error(8) < 1.25
    assert machine.prices.unsure(1)
    assert not machine.prices.unsure(5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [1.5, 3.0, 30.0])
def test_the_plain_step_follows_upwards_once_two_plain_steps_say_so(factor: float, seed: int) -> None:
    machine = MachineOptions(one_width, times(factor), seed=seed).run(210, hiccups=0)
    assert machine.error(1) == pytest.approx(1 / factor, rel=0.15), "not dearer because drafts are"
    errors = []
    for _ in range(3):
        machine.prices.observe(1, 100, factor)
        errors.append(machine.error(1))
    assert errors == pytest.approx([1 / factor, 1, 1], rel=0.15)
    assert not machine.prices.unsure(1)


def test_the_plain_step_follows_downwards_at_once() -> None:
    """It is rather too cheap than too dear: then plain steps are taken, and they tell."""
    machine = MachineOptions(one_width, times(0.3)).run(210, hiccups=0)
    assert 0.8 < machine.error(1) < 1.2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [0.3, 1.5, 3.0, 30.0])
def test_both_are_right_after_three_plain_steps_in_200_rounds(factor: float, seed: int) -> None:
    """With one width observed, and a plain step every 64 rounds."""
    machine = MachineOptions(one_width, times(factor), seed=seed).run(420)
    assert 0.75 < machine.error(1) < 1.3
    assert 0.85 < machine.error(5) < 1.2


@pytest.mark.parametrize("seed", SEEDS)
def test_where_only_wide_passes_get_dearer_the_plain_step_does_not(seed: int) -> None:
    for buy in (one_width, mixed):
        machine = MachineOptions(buy, only_wide(2.0), seed=seed)
        for until in range(200, 500, 4):
            machine.run(until)
            assert 0.75 < machine.error(1) < 1.3, until
        assert 0.85 < machine.error(5) < 1.2
        if buy is mixed:
            assert all(0.8 < machine.error(n) < 1.25 for n in (3, 4, 5, 6, 8))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rate_", [0.01, 0.003, -0.005])
def test_a_slow_throttle_is_followed(rate_: float, seed: int) -> None:
    machine = MachineOptions(best(), throttled(rate_), seed=seed)
    for until in range(200, 700, 10):
        machine.run(until)
        assert 0.6 < machine.error(machine.bought[-1]) < 1.4
        assert machine.error(1) < 1.4, "not the plain step above all"
    assert 0.7 < machine.error(1) < 1.3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("truth", "changes"),
    [
        (times(3.0, 200, 500), (200, 500)),
        (times(30.0, 200, 500), (200, 500)),
        (only_wide(4.0, 200, 500), (200,)),  # who buys no wide pass cannot know that they are cheap again
    ],
)
def test_company_comes_and_goes(truth: Truth, changes: Sequence[int], seed: int) -> None:
    """Within 20 rounds of each change the width bought earns what the right one would, or nearly."""
    machine = MachineOptions(best(), truth, seed=seed)
    for change in changes:
        machine.run(change + 20)
        curve = truth(change)
        chosen, right = best_width(machine.prices.curve()), best_width(curve)
        assert rate(curve, chosen) >= 0.9 * rate(curve, right)
    machine.run(900)
    assert all(0.75 < machine.error(n) < 1.35 for n in (1, machine.bought[-1]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("truth", [times(3.0), times(30.0), only_wide(6.0), throttled(0.01)])
def test_it_is_never_much_slower_than_plain_decoding(truth: Truth, seed: int) -> None:
    machine = MachineOptions(best(), truth, seed=seed)
    machine.run(200)
    machine.tokens = machine.seconds = 0.0
    machine.run(500)
    plain = sum(truth(r)[0] for r in range(200, 500)) / 300
    assert machine.seconds <= 1.05 * machine.tokens * plain


def test_what_company_left_behind_is_forgotten() -> None:
    """Passes went 30 times slower and only plain steps were taken; when they recover, so does the rest."""
    prices = Prices(Q8_0)
    for n in (5,) * 8 + (1,) * 40:
        prices.observe(n, 100, 30 * Q8_0[n - 1])
    assert prices.price(8) == pytest.approx(30 * Q8_0[7])
    for _ in range(4):
        prices.observe(1, 100, 1.0)
    assert list(prices.curve()) == pytest.approx(list(Q8_0))
    assert prices.unsure(5), "though it is a guess"


def test_a_faster_machine_than_was_measured_is_believed() -> None:
    """The table was measured under load."""
    machine = MachineOptions(mixed, times(0.4), seed=2).run(420)
    assert all(0.8 < machine.error(n) < 1.25 for n in range(1, WIDTHS + 1))
    assert calm(machine.prices, 100)


def test_wrong_prices_of_one_width_are_found_without_a_drift() -> None:
    believed = [*Q8_0]
    believed[4] *= 2
    machine = MachineOptions(mixed, times(1.0), believed).run(120)
    assert 0.85 < machine.error(5) < 1.15
    assert calm(machine.prices, 100)


@pytest.mark.parametrize("seed", SEEDS)
def test_prices_converge_from_anywhere(seed: int) -> None:
    machine = MachineOptions(lambda r, _p: 1 + (7 * r) % WIDTHS, times(1.0), [5.0] * WIDTHS, seed=seed).run(1500)
    assert all(0.8 < machine.error(n) < 1.25 for n in range(1, WIDTHS + 1))


def attention(n: int, context: int) -> float:
    return Q8_0[n - 1] + context / 4000 * (1 + 0.7 * (n - 1))


def test_a_longer_cache_is_learned_and_a_short_one_not_forgotten() -> None:
    """Four chats of 3600 tokens: what the cache costs is learned once, and widths never bought are priced with it."""
    random = np.random.default_rng(3)
    prices = Prices([attention(n, 64) for n in range(1, WIDTHS + 1)])
    for chat in range(4):
        for round_ in range(1200):
            context = 100 + 3 * round_
            n = best()(round_, prices)
            prices.observe(n, context, attention(n, context) * float(random.lognormal(0, 0.1)))
            if chat and round_ % 50 == 49:
                errors = [prices.price(n, context) / attention(n, context) for n in (1, 3, 4, 5, 8)]
                assert all(0.8 < error < 1.25 for error in errors), (chat, context)
                assert calm(prices, context), "a longer cache is no drift"
    assert prices.price(1, 100) == pytest.approx(attention(1, 100), rel=0.1)
    assert prices.price(1, 3600) == pytest.approx(attention(1, 3600), rel=0.15)
    assert prices.price(8, 3600) == pytest.approx(attention(8, 3600), rel=0.15)


def test_between_rows_the_price_is_on_a_straight_line_without_a_jump() -> None:
    prices = Prices.of({100: [1.0, 2.0], 1000: [2.0, 4.0], 2000: [4.0, 5.0]})
    assert [prices.price(1, c) for c in (0, 100, 550, 1000, 1500, 2000, 3000)] == [1, 1, 1.5, 2, 3, 4, 6]
    assert [prices.price(2, c) for c in (0, 100, 550, 1000, 1500, 2000, 3000)] == [2, 2, 3, 4, 4.5, 5, 6]
    for _ in range(30):
        prices.observe(1, 1300, 3.0)
    steps = [prices.plain(c + 1) / prices.plain(c) for c in range(9000)]
    assert max(steps) < 1.01
    assert min(steps) >= 1


def test_a_row_that_falls_does_not_go_on_falling() -> None:
    assert Prices.of({100: [3.0], 200: [2.0]}).plain(10**6) == 2.0


def test_the_surcharge_of_a_cache_is_learned_for_all_widths_but_plain_steps_by_themselves() -> None:
    prices = Prices([1.0] * 4)
    for _ in range(30):
        prices.observe(3, 2048, 3.0)
    assert prices.price(3, 2048) == pytest.approx(3.0)
    assert prices.price(2, 2048) == pytest.approx(2.5, rel=0.01), "half as much again as a plain step's"
    assert prices.price(4, 2048) == pytest.approx(3.5, rel=0.01)
    assert prices.price(3, 4032) == pytest.approx(5.0, rel=0.01)
    assert prices.plain(2048) == 1.0
    assert prices.price(3, 64) == 1.0


def test_the_price_beyond_what_was_measured_rises_by_the_mean_slope() -> None:
    prices = Prices([1.0, 3.0, 2.0])
    assert [prices.price(n) for n in range(1, 6)] == [1.0, 3.0, 2.0, 2.5, 3.0]
    assert prices.widest == 3
    assert Prices([2.0, 1.0]).price(4) == 1.0, "never below the last"
    assert Prices([2.0]).price(5) == 2.0
    assert prices.plain() == 1.0


def test_what_is_no_evidence_is_ignored() -> None:
    prices = Prices([1.0, 2.0])
    for n, seconds in ((3, 50.0), (0, 1.0), (1, 0.0), (1, -1.0), (1, math.nan), (1, math.inf)) * 9:
        prices.observe(n, 10, seconds)
    assert list(prices.curve(10)) == [1.0, 2.0]
    assert not prices.changed
    prices.observe(1, 10, 1.0)
    assert prices.changed


def test_slow_first_plain_steps_are_timed_again_once_wider_passes_are_not_slow() -> None:
    """The first passes of an answer find cold caches. Plain steps taken for dear make every draft look worth it."""
    prices = Prices(Q8_0)
    for seconds in (2.2, 2.0, 1.5):
        prices.observe(1, 100, seconds)
    assert prices.plain() == pytest.approx(2.0)
    assert not prices.unsure(1)
    for _ in range(2):
        prices.observe(2, 100, Q8_0[1])
    assert prices.unsure(1)
    for _ in range(2):
        prices.observe(1, 100, 1.0)
    assert prices.plain() == pytest.approx(1.0)
    assert not prices.unsure(1)


def test_slow_plain_steps_that_are_slow_again_stay_dear() -> None:
    prices = Prices(Q8_0)
    for _ in range(3):
        prices.observe(1, 100, 1.4)
    for _ in range(2):
        prices.observe(2, 100, Q8_0[1])
    assert prices.unsure(1)
    for _ in range(2):
        prices.observe(1, 100, 1.4)
    assert prices.plain() == pytest.approx(1.4)
    assert not prices.unsure(1)


def test_prices_say_what_they_do_not_know() -> None:
    prices = Prices(Q8_0)
    assert not any(prices.unsure(n) for n in range(1, WIDTHS + 1))
    for round_ in range(1, 7):
        prices.observe(5, 64, 9.0)
        assert prices.unsure(1) == (round_ >= 4)
    assert (prices.unseen(5), prices.unseen(4)) == (0, 6)
    assert [prices.unsure(n) for n in (1, 4, 5)] == [True, False, False], "wider passes have one pace"
    for _ in range(2):
        prices.observe(1, 64, 3.0)
    assert not prices.unsure(1)


@pytest.mark.parametrize("factor", [0.3, 0.9, 1.1, 3.0])
def test_rescaling_is_today_s_machine_and_not_what_is_kept(factor: float) -> None:
    prices = Prices(Q8_0)
    prices.rescale(factor)
    assert list(prices.curve()) == pytest.approx([factor * s for s in Q8_0])
    assert list(prices.rows()[64]) == pytest.approx(Q8_0)
    assert prices.unsure(4)
    assert prices.unsure(1) == (factor in {0.3, 3.0})


@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_one_cheap_pass_corrects_all_widths_not_yet_seen(factor: float) -> None:
    """Of prices measured too dear nothing else would be bought, so nothing else would correct them."""
    prices = Prices([1.0, *(factor * seconds for seconds in Q8_0[1:])])
    prices.observe(4, 100, Q8_0[3])
    assert list(prices.curve()) == pytest.approx(list(Q8_0))


def test_longer_caches_follow_what_shorter_ones_taught() -> None:
    prices = Prices([1.0, *(2 * seconds for seconds in Q8_0[1:])])
    prices.observe(4, 100, Q8_0[3])
    prices.observe(1, 1000, 1.0)
    assert prices.price(8, 1000) == pytest.approx(Q8_0[7])


@pytest.mark.parametrize(("n", "seconds"), [(4, 1.4), (4, 0.3), (1, 0.5)])
def test_only_a_wide_pass_that_is_much_cheaper_and_possible_is_news(n: int, seconds: float) -> None:
    """By noise it may be a little cheaper; cheaper than a plain step it cannot be."""
    prices = Prices(Q8_0)
    prices.observe(n, 100, seconds)
    assert list(prices.curve()) == list(Q8_0)


def test_a_width_that_was_seen_is_corrected_by_several_passes_only() -> None:
    prices = Prices(Q8_0)
    prices.observe(4, 100, Q8_0[3])
    prices.observe(4, 100, 1.0)
    assert list(prices.curve()) == list(Q8_0)
    prices.observe(8, 100, 1.2)
    assert prices.price(4) == Q8_0[3]
    assert prices.price(8) == pytest.approx(1.2)


@pytest.mark.parametrize("before", [(), (1.6,), (3.5,)])
@pytest.mark.parametrize("after", [(1.0, 1.0, 1.0), (1.0, 2.5, 1.0)])
def test_wide_passes_made_before_a_spell_ended_do_not_stay_dear(
    before: Sequence[float], after: Sequence[float]
) -> None:
    """Of three plain steps two are fast and show that a slow spell has ended; the first may be the last one in it. A
    wide pass after that one, which alone proves nothing, was made after the spell."""
    prices = Prices(Q8_0)
    for n in (1, 1, 1, 4, 8):
        prices.observe(n, 100, 1.6 * Q8_0[n - 1])
    for seconds in before:
        prices.observe(1, 100, seconds)
    prices.observe(16, 100, 1.6 * Q8_0[15])
    prices.observe(16, 100, Q8_0[15])
    assert prices.price(8) == pytest.approx(1.6 * Q8_0[7], rel=0.05)
    for seconds in after:
        prices.observe(1, 100, seconds)
    assert prices.curve() == pytest.approx(Q8_0, rel=0.05)


def test_a_pass_that_takes_another_time_puts_its_price_in_doubt() -> None:
    prices = Prices(Q8_0)
    assert not prices.doubted(1)
    for seconds, doubted in ((1.1, False), (1.6, True), (1.0, False), (0.7, True)):
        prices.observe(1, 100, seconds)
        assert prices.doubted(1) == doubted
        assert not prices.doubted(4)
    prices.observe(4, 100, 2 * Q8_0[3])
    assert prices.doubted(4)
