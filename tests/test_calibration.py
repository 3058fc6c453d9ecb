"""What is learned of guesses, against known rates."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.calibration import AGAINST, AGREED, ALONE, Ahead, Calibration, Cell


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.85])
def test_a_cell_converges_to_a_known_rate(rate: float) -> None:
    """Whatever the drafter believes of itself: .9 here."""
    random = np.random.default_rng(1)
    calibration = Calibration()
    cells = [calibration.cell("d", 0, ALONE, 0.9), calibration.ahead("d").first, calibration.ahead("d").later]
    seen = []
    for n in range(800):
        for cell in cells:
            cell.add(random.random() < rate)
        if n > 100:
            seen.append([cell.value for cell in cells])
    assert np.mean(seen, axis=0) == pytest.approx([rate] * 3, abs=0.05)


def test_a_cell_follows_a_change() -> None:
    for cell in (Calibration().cell("d", 0, ALONE, 0.9), Ahead(0.7).first, Ahead(0.7).later):
        for _ in range(500):
            cell.add(True)
        assert cell.value > 0.95
        for _ in range(150):
            cell.add(False)
        assert cell.value < 0.3


def test_a_cell_is_what_it_was_told_until_it_knows_better() -> None:
    """The prior weighs as much as so many tries."""
    cell = Cell(0.8, 3.0, 1.0)
    assert cell.value == 0.8
    cell.add(False)
    assert cell.value == pytest.approx((0.8 * 3 + 0) / 4)
    cell.add(True)
    assert cell.value == pytest.approx((0.8 * 3 + 1) / 5)


def test_a_cell_forgets() -> None:
    cell = Cell(0.5, 1.0, 0.5)
    for hit in (True, False, True):
        cell.add(hit)
    assert cell.value == pytest.approx((1 + 0.25 + 0.5 * 1) / (1 + 0.5 + 0.25 + 1))


def test_a_chance_is_never_above_one_nor_at_nought() -> None:
    """A child likelier than its parent would break the purchase; what can never be hoped for can never be learned."""
    for confidence in (0.0, 0.5, 1.0):
        for relation in (ALONE, AGREED, AGAINST):
            for hit in (True, False):
                cell = Calibration().cell("d", 0, relation, confidence)
                for _ in range(2000):
                    assert 0 < cell.value < 1
                    cell.add(hit)


def test_cells_are_kept_apart() -> None:
    """By drafter, rank, relation and confidence; alike in all of them is the same cell."""
    calibration = Calibration()
    features = [
        (name, rank, relation, confidence)
        for name in ("one", "two", "one+two")
        for rank in (0, 1)
        for relation in (ALONE, AGREED, AGAINST)
        for confidence in (0.0, 0.3, 0.5, 0.75, 0.9, 0.99)
    ]
    cells = [calibration.cell(*feature) for feature in features]
    assert len({id(cell) for cell in cells}) == len(features)
    assert all(calibration.cell(*feature) is cell for feature, cell in zip(features, cells, strict=True))
    assert calibration.cell("one", 0, ALONE, 0.76) is calibration.cell("one", 0, ALONE, 0.75)
    assert calibration.ahead("one") is calibration.ahead("one")
    assert calibration.ahead("one") is not calibration.ahead("two")


def test_a_drafter_is_taken_at_its_word_and_at_more_where_another_agrees() -> None:
    calibration = Calibration()
    for confidence in np.linspace(0, 1, 21).tolist():
        alone, agreed, against = (calibration.cell("d", 0, relation, confidence).value for relation in range(3))
        assert alone == pytest.approx(confidence, abs=0.08)
        assert against < alone < agreed
    assert Calibration(optimism=0.4).ahead("d").first.value == pytest.approx(0.4)
