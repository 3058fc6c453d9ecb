"""The figures of a generation, added up by hand."""

from __future__ import annotations

import pytest

from edgespec.stats import Tally
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
        tally.add(plain(), 0.13 + (i == 7), 0.0, 0.1)
    assert tally.stats().speedup == 1.0


def test_drafting_in_vain_is_no_part_of_plain_decoding() -> None:
    """Else a drafter that is asked and declined would make plain decoding look slow, and speculation good."""
    tally = Tally(prompt=1, cached=0)
    for _ in range(40):
        tally.add(Round(Draft(), (), (7,), 0.1, draft_seconds=0.1), 0.2, 0.1, 0.1)
    assert tally.stats().speedup == pytest.approx(0.5)


@pytest.mark.parametrize("stale", [1.0, 0.5, 2.0])
def test_drafted_tokens_count_as_plain_rounds_at_their_time(stale: float) -> None:
    """Plain rounds take 0.12 s, 0.02 of them outside the pass; the price of the pass may be `stale`."""
    tally = Tally(prompt=1, cached=0)
    for i in range(100):
        slower = 2.0 if i >= 50 else 1.0  # the machine changes its pace, and the price with it
        tally.add(Round(Draft(), (), (7,), 0.1 * slower), 0.1 * slower + 0.02, 0.0, 0.1 * slower * stale)
        round_ = Round(Draft.chain((1, 2), "model"), (0, 1), (1, 2, 3), 0.15 * slower, draft_seconds=0.05)
        tally.add(round_, 0.15 * slower + 0.07, 0.05, 0.1 * slower * stale)
    stats = tally.stats()
    took = 50 * (0.12 + 0.22 + 0.22 + 0.37)
    assert stats.seconds == pytest.approx(took)
    assert stats.speedup == pytest.approx(4 * 50 * (0.12 + 0.22) / took, rel=0.05)


def test_one_hiccup_of_a_plain_round_is_not_expected_of_the_others() -> None:
    """It was spent, by plain decoding too; but drafts did not avoid a hundred of it."""
    tally = Tally(prompt=1, cached=0)
    for inside in (0.1, 10.0):
        tally.add(plain(inside), 10.0, 0.0, 0.1)
    for _ in range(50):
        tally.add(Round(Draft.chain((1,), "model"), (0,), (1, 2), 0.1), 0.1, 0.0, 0.1)
    assert tally.stats().speedup == pytest.approx((20 + 100 * 0.1) / 25, rel=0.4)


def test_without_plain_rounds_the_price_says_what_one_takes() -> None:
    tally = Tally(prompt=1, cached=0)
    for _ in range(20):
        tally.add(Round(Draft.chain((1,), "model"), (0,), (1, 2), 0.15), 0.16, 0.0, 0.1)
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
