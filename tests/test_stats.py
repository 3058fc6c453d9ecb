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
    stats = tally.stats(plain_seconds=0.1)
    assert (stats.prompt, stats.cached, stats.tokens, stats.rounds) == (10, 4, 1 + 4 + 1 + 4, 4)
    assert (stats.drafted, stats.accepted) == (9, 6)
    assert stats.by_drafter == {"lookup": (3, 3), "model": (6, 3)}
    assert stats.k_histogram == {0: 1, 2: 1, 3: 1, 4: 1}
    assert stats.acceptance_rate == pytest.approx(6 / 9)
    assert stats.mean_accepted_length == pytest.approx(10 / 4)
    assert stats.engine_seconds == pytest.approx(0.1 + 3 * 0.35)
    assert stats.tokens_per_second == pytest.approx(10 / 1.31)
    assert stats.plain_tokens_per_second == pytest.approx(10)
    assert stats.speedup == pytest.approx(10 / 1.31 / 10)


def test_tokens_count_for_who_guessed_them() -> None:
    """In a tree of several drafters, node by node; those that agree are counted as one."""
    tree = Draft((5, 6, 7, 8), (-1, -1, 1, 1), ("lookup", "lookup+model", "model", "lookup"))
    tally = Tally(prompt=1, cached=0)
    tally.add(Round(tree, (1, 2), (6, 7, 9), 0.3), 0.4)
    stats = tally.stats(None)
    assert stats.by_drafter == {"lookup": (2, 0), "lookup+model": (1, 1), "model": (1, 1)}
    assert (stats.drafted, stats.accepted, stats.k_histogram) == (4, 2, {4: 1})


def test_the_plain_price_is_the_live_one_where_there_is_one() -> None:
    """Plain decoding was once reported as 1.16 times plain decoding: the price it was held against was an old one."""
    tally = Tally(prompt=1, cached=0)
    for seconds in (0.2, 0.2, 0.2, 0.2, 0.2):
        tally.add(plain(), seconds)
    assert tally.stats(plain_seconds=0.1).speedup == pytest.approx(1)
    assert tally.stats(None).speedup == pytest.approx(1)


def test_drafting_in_vain_is_no_part_of_the_plain_price() -> None:
    """Else a drafter that is asked and declined would make plain decoding look slow, and speculation good."""
    tally = Tally(prompt=1, cached=0)
    for _ in range(5):
        tally.add(Round(Draft(), (), (7,), 0.1, draft_seconds=0.1), 0.2)
    assert tally.stats(None).speedup == pytest.approx(0.5)


def test_nothing_said_is_no_division_by_zero() -> None:
    stats = Tally(prompt=3, cached=0).stats(None)
    assert (stats.tokens_per_second, stats.mean_accepted_length, stats.acceptance_rate) == (0, 0, 0)
    assert stats.speedup is None


def test_acceptance_by_depth() -> None:
    """What comes after the first rejection was never tried; of a tree, what follows where the path ended was."""
    tally = Tally(prompt=1, cached=0)
    tally.add(plain(), 0.1)
    for n, accepted in ((3, 0), (3, 2), (2, 2), (1, 1)):
        tally.add(drafted("model", n, accepted), 0.1)
    assert tally.stats(None).by_depth == ((4, 3), (2, 2), (1, 0))
    tree = Draft((5, 6, 7, 8), (-1, -1, 1, 1), ("model",) * 4)
    tally.add(Round(tree, (1,), (6, 9), 0.3), 0.1)  # neither of its two children
    tally.add(Round(tree, (0,), (5, 9), 0.3), 0.1)  # which has no children
    assert tally.stats(None).by_depth == ((6, 5), (3, 2), (1, 0))


def test_without_drafts_there_is_no_depth() -> None:
    tally = Tally(prompt=1, cached=0)
    tally.add(plain(), 0.1)
    assert tally.stats(None).by_depth == ()
