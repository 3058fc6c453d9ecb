"""The pace that wide passes showed, and what it says of narrower ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from edgespec.prices import Prices

#: llama.cpp's Q4_0 of a target of one billion parameters, measured: t(n)/t(1) for n = 1..16.
Q4_0 = (1.0, 1.5, 2.0, 1.4, 1.8, 2.3, 2.4, 2.5, 2.8, 3.3, 3.9, 3.4, 4.1, 4.5, 5.0, 4.4)
#: OpenVINO's int8 of one of 395 million.
FLAT = (1.0, 1.06, 1.12, 1.1, 1.17, 1.19, 1.53, 1.25)
DEARER = 1.5


def taught(passes: Iterable[tuple[int, float]]) -> Prices:
    """Prices after passes of so many tokens that took so many times what was measured."""
    prices = Prices(Q4_0)
    for width, factor in passes:
        prices.observe(width, 60, factor * Q4_0[width - 1])
    return prices


def factors(prices: Prices, measured: Sequence[float] = Q4_0) -> Sequence[float]:
    return [price / true for price, true in zip(prices.curve(60), measured, strict=True)]


def test_wide_passes_that_got_dearer_say_little_of_narrow_ones() -> None:
    """Drafts of 8 to 15 tokens took longer than measured. Drafts of 3 were taken to do so, too, and not bought."""
    found = factors(taught([(16, DEARER), (12, DEARER), (9, DEARER), (16, DEARER)]))
    assert found[8:] == pytest.approx([DEARER] * 8), "as wide, and wider"
    assert found[:9] == pytest.approx([DEARER ** (n / 8) for n in range(9)]), "between that and a plain step"


def test_a_narrow_pass_as_dear_as_expected_changes_nothing() -> None:
    before = [(16, DEARER)] * 4
    prices = taught([*before, *[(4, 1.0)] * 8])
    assert factors(prices) == pytest.approx(factors(taught(before)))
    prices.observe(16, 60, DEARER * Q4_0[15])
    assert prices.price(16, 60) == pytest.approx(DEARER * Q4_0[15])


def test_two_narrow_passes_show_that_they_are_as_dear() -> None:
    """One may be a hiccup."""
    before = [(16, DEARER)] * 4
    one, two = (taught([*before, *[(4, DEARER)] * n]) for n in (1, 2))
    assert factors(one)[3] == pytest.approx(DEARER ** (3 / 15))
    assert factors(two)[3:] == pytest.approx([DEARER] * 13)


def test_hiccups_of_narrow_passes_that_others_contradict_are_none() -> None:
    """In lists passes over 4 tokens take 30 ms. After two hiccups all were taken to cost 47 for 372 tokens, and few
    were made, for only those that took longer than expected were remembered."""
    passes = [(16, DEARER)] * 4
    for _ in range(3):
        passes += [(4, DEARER), *[(4, 1.0)] * 5, (16, DEARER)]
    assert factors(taught(passes)) == pytest.approx([DEARER ** (n / 15) for n in range(16)])


def test_narrow_passes_between_them_hide_no_change_of_wider_ones() -> None:
    passes = [*[(16, DEARER)] * 4, *[(16, 1.0), (4, 1.0)] * 4]
    assert factors(taught(passes)) == pytest.approx([1.0] * 16)


def test_narrow_passes_alone_speak_for_all_wider_ones() -> None:
    assert factors(taught([(2, DEARER)] * 4))[1:] == pytest.approx([DEARER] * 15)


def test_what_is_assumed_since_plain_steps_changed_holds_for_all_widths() -> None:
    prices = taught([*[(16, DEARER)] * 4, *[(1, 1.0)] * 3, *[(1, 3.0)] * 3])
    assert len({round(factor, 6) for factor in factors(prices)[1:]}) == 1
    for _ in range(2):
        prices.observe(12, 60, 9.0 * Q4_0[11])
    assert factors(prices)[11:] == pytest.approx([9.0] * 5)
    assert factors(prices)[3] == pytest.approx(3.0 * 3 ** (3 / 11))


def test_a_machine_that_computes_faster_is_believed_as_far_as_passes_show_it() -> None:
    found = factors(taught([*[(16, 0.75)] * 4, *[(1, 1.0)] * 3]))
    assert found == pytest.approx([0.75 ** (n / 15) for n in range(16)])


def test_once_wide_passes_are_as_measured_again_narrow_ones_teach_their_own_price() -> None:
    found = factors(taught([*[(16, DEARER)] * 4, *[(16, 1.0)] * 4, *[(4, 1.15)] * 40]))
    assert found[3] == pytest.approx(1.1, abs=0.02), "slow corrections add up to a tenth"
    assert found[15] == pytest.approx(1.0, abs=0.03)


def seen(prices: Prices, widths: Iterable[int], times: float, measured: Sequence[float]) -> Prices:
    """After passes over these numbers of tokens that took so many times what was measured."""
    for width in widths:
        prices.observe(width, 60, times * measured[width - 1])
    return prices


def test_plain_steps_between_wide_passes_are_no_dearer_than_these() -> None:
    """In rewritten texts three such steps took 46, 46 and 37 ms, wide passes before and after them what was measured.

    A plain step was then taken to cost 46 ms for 100 rounds in which passes over 2 to 5 tokens took 28 to 50.
    """
    prices = Prices(FLAT)
    for _ in range(3):
        seen(prices, [8, 4, 8, 4, 5], 1.0, FLAT)
        seen(prices, [1], 1.5, FLAT)
    assert prices.plain(60) == pytest.approx(min(FLAT[1:]), rel=0.01)
    assert prices.price(1, 60) == prices.curve(60)[0] == prices.plain(60)


def test_plain_steps_are_as_dear_as_they_are_where_wide_passes_are_dearer_too() -> None:
    prices = Prices(FLAT)
    for _ in range(4):
        seen(prices, [8, 4, 1], 1.5, FLAT)
    assert factors(prices, FLAT) == pytest.approx([1.5] * 8)


def test_where_a_wide_pass_was_measured_to_be_the_cheaper_one_it_stays_so() -> None:
    measured = (1.0, 0.9, 1.2, 1.4)
    prices = Prices(measured)
    for _ in range(3):
        seen(prices, [4, 2, 4, 2], 1.0, measured)
        seen(prices, [1], 1.5, measured)
    assert prices.plain(60) == pytest.approx(1.0)
