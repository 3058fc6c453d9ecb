"""The figures of a generation, added up by hand."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, stdev

import numpy as np
import pytest

from edgespec.stats import Tally
from edgespec.terminal.show import figures
from edgespec.types import Draft, Round


def plain(seconds: float = 0.1) -> Round:
    return Round(Draft(), (), (7,), seconds)


def drafted(name: str, n: int, accepted: int) -> Round:
    draft = Draft.chain(range(n), name)
    return Round(draft, tuple(range(accepted)), tuple(range(accepted + 1)), 0.3, draft_seconds=0.05)


def test_figures_add_up() -> None:
    tally = Tally(prompt=10, cached=4)
    tally.add(plain(), 0.11)
    tally.add(drafted("model", 4, 3), 0.4)
    tally.add(drafted("model", 2, 0), 0.4)
    tally.add(drafted("lookup", 3, 3), 0.4)
    stats = tally.stats()
    assert (stats.prompt, stats.cached, stats.tokens, stats.rounds) == (10, 4, 1 + 4 + 1 + 4, 4)
    assert (stats.drafted, stats.accepted) == (9, 6)
    assert stats.by_drafter == {"lookup": (3, 3), "model": (6, 3)}
    assert stats.k_histogram == {0: 1, 2: 1, 3: 1, 4: 1}
    assert stats.acceptance_rate == pytest.approx(6 / 9)
    assert stats.mean_accepted_length == pytest.approx(10 / 4)
    assert stats.engine_seconds == pytest.approx(0.1 + 3 * 0.35)
    assert stats.tokens_per_second == pytest.approx(10 / 1.31)


def test_tokens_count_for_who_guessed_them() -> None:
    """In a tree of several drafters, node by node; those that agree are counted as one."""
    tree = Draft((5, 6, 7, 8), (-1, -1, 1, 1), ("lookup", "lookup+model", "model", "lookup"))
    tally = Tally(prompt=1, cached=0)
    tally.add(Round(tree, (1, 2), (6, 7, 9), 0.3), 0.4)
    stats = tally.stats()
    assert stats.by_drafter == {"lookup": (2, 0), "lookup+model": (1, 1), "model": (1, 1)}
    assert (stats.drafted, stats.accepted, stats.k_histogram) == (4, 2, {4: 1})


def test_plain_decoding_is_exactly_as_fast_as_plain_decoding() -> None:
    """Its rate, over all rounds, was compared with the median of its rounds: `--k 0` reported 0.88x."""
    tally = Tally(prompt=1, cached=0)
    for i in range(40):
        tally.add(plain(), 0.13 + (i == 7), 0.0, 0.1, 0.1)
    assert tally.stats().speedup == 1.0


def test_drafting_in_vain_is_no_part_of_plain_decoding() -> None:
    """Else a drafter that is asked and declined would make plain decoding look slow, and speculation good."""
    tally = Tally(prompt=1, cached=0)
    for _ in range(40):
        tally.add(Round(Draft(), (), (7,), 0.1, draft_seconds=0.1), 0.2, 0.1, 0.1, 0.1)
    assert tally.stats().speedup == pytest.approx(0.5)


@pytest.mark.parametrize("stale", [1.0, 0.5, 2.0])
def test_drafted_tokens_count_as_plain_rounds_at_their_time(stale: float) -> None:
    """Plain rounds take 0.12 s, 0.02 of them outside the pass; the price of the pass may be `stale`."""
    tally = Tally(prompt=1, cached=0)
    for i in range(100):
        slower = 2.0 if i >= 50 else 1.0  # the machine changes its pace, and the price with it
        tally.add(Round(Draft(), (), (7,), 0.1 * slower), 0.1 * slower + 0.02, 0.0, *[0.1 * slower * stale] * 2)
        round_ = Round(Draft.chain((1, 2), "model"), (0, 1), (1, 2, 3), 0.15 * slower, draft_seconds=0.05)
        tally.add(round_, 0.15 * slower + 0.07, 0.05, 0.15 * slower * stale, 0.1 * slower * stale)
    stats = tally.stats()
    took = 50 * (0.12 + 0.22 + 0.22 + 0.37)
    assert stats.seconds == pytest.approx(took)
    assert stats.speedup == pytest.approx(4 * 50 * (0.12 + 0.22) / took, rel=0.05)


def test_one_hiccup_of_a_plain_round_is_not_expected_of_the_others() -> None:
    """It was spent, by plain decoding too; but drafts did not avoid a hundred of it."""
    tally = Tally(prompt=1, cached=0)
    for inside in (0.1, 10.0):
        tally.add(plain(inside), 10.0, 0.0, 0.1, 0.1)
    for _ in range(50):
        tally.add(Round(Draft.chain((1,), "model"), (0,), (1, 2), 0.1), 0.1, 0.0, 0.1, 0.1)
    assert tally.stats().speedup == pytest.approx((20 + 100 * 0.1) / 25, rel=0.4)


def stalls(rounds: int, passes: Callable[[float], float]) -> Tally:
    """Plain rounds of 0.1 s and drafts of one token with passes of 0.2 s, as `passes` make them, by turns."""
    tally = Tally(prompt=1, cached=0)
    for _ in range(rounds):
        tally.add(plain(took := passes(0.1)), took, 0.0, 0.1, 0.1)
        took = passes(0.2)
        tally.add(Round(Draft.chain((1,), "model"), (0,), (1, 2), took), took, 0.0, 0.2, 0.1)
    return tally


def test_stalls_count_in_full_for_plain_decoding_too() -> None:
    """Prices are medians. On a busy machine a tenth of the passes took thirty times theirs: the stalls of drafted
    rounds were spent, and those that plain decoding would have met were capped, so drafts looked too slow."""
    random = np.random.default_rng(7)
    shares = []
    for _ in range(40):
        stats = stalls(500, lambda price: price * (30 if random.random() < 0.1 else 1)).stats()
        assert stats.speedup is not None
        shares.append(stats.speedup)
    assert mean(shares) == pytest.approx(0.3 / 0.3, rel=0.03)


def test_the_error_of_a_speedup_follows_from_the_spread_of_the_passes() -> None:
    random = np.random.default_rng(7)
    even = stalls(60, lambda price: price * random.uniform(0.9, 1.1)).stats()
    uneven = [stalls(60, lambda price: price * random.exponential()).stats() for _ in range(200)]
    assert 0 < even.plain_error < 0.02
    speedups = [stats.speedup or 0.0 for stats in uneven]
    assert mean(stats.plain_error for stats in uneven) == pytest.approx(stdev(speedups), rel=0.4)
    tally = Tally(prompt=1, cached=0)
    for _ in range(40):
        tally.add(plain(took := random.exponential()), took, 0.0, 1.0, 1.0)
    assert tally.stats().plain_error == 0  # it is plain decoding


def test_without_plain_rounds_the_price_says_what_one_takes() -> None:
    tally = Tally(prompt=1, cached=0)
    for _ in range(20):
        tally.add(Round(Draft.chain((1,), "model"), (0,), (1, 2), 0.15), 0.16, 0.0, 0.15, 0.1)
    assert tally.stats().speedup == pytest.approx(2 * (0.1 + 0.005) / 0.16)


def test_without_prices_plain_rounds_say_it_if_they_are_enough() -> None:
    tally = Tally(prompt=1, cached=0)
    for plain_rounds, known in ((2, False), (1, True)):
        for _ in range(plain_rounds):
            tally.add(plain(), 0.1)
        for _ in range(30):
            tally.add(Round(Draft.chain((1,), "model"), (0,), (1, 2), 0.1), 0.1)
        assert (tally.stats().speedup is not None) == known
    assert tally.stats().speedup == pytest.approx(123 / 63)


def test_few_tokens_have_no_speedup() -> None:
    """9 tokens of the demo pair were reported as 0.40x."""
    tally = Tally(prompt=1, cached=0)
    for _ in range(29):
        tally.add(plain(), 0.1)
    assert tally.stats().speedup is None
    tally.add(plain(), 0.1)
    assert tally.stats().speedup == 1.0


def test_nothing_said_is_no_division_by_zero() -> None:
    stats = Tally(prompt=3, cached=0).stats()
    assert (stats.tokens_per_second, stats.mean_accepted_length, stats.acceptance_rate) == (0, 0, 0)
    assert stats.speedup is None


def test_acceptance_by_depth() -> None:
    """What comes after the first rejection was never tried; of a tree, what follows where the path ended was."""
    tally = Tally(prompt=1, cached=0)
    tally.add(plain(), 0.1)
    for n, accepted in ((3, 0), (3, 2), (2, 2), (1, 1)):
        tally.add(drafted("model", n, accepted), 0.1)
    assert tally.stats().by_depth == ((4, 3), (2, 2), (1, 0))
    tree = Draft((5, 6, 7, 8), (-1, -1, 1, 1), ("model",) * 4)
    tally.add(Round(tree, (1,), (6, 9), 0.3), 0.1)  # neither of its two children
    tally.add(Round(tree, (0,), (5, 9), 0.3), 0.1)  # which has no children
    assert tally.stats().by_depth == ((6, 5), (3, 2), (1, 0))


def test_without_drafts_there_is_no_depth() -> None:
    tally = Tally(prompt=1, cached=0)
    tally.add(plain(), 0.1)
    assert tally.stats().by_depth == ()


def test_a_rough_speedup_is_said_to_be_rough() -> None:
    random = np.random.default_rng(7)
    assert "roughly 1." in figures(stalls(30, lambda price: price * random.exponential() ** 2).stats()).splitlines()[0]
    assert "measured 1.00x plain decoding" in figures(stalls(30, lambda price: price).stats()).splitlines()[0]
