"""What is learned of guesses, against known rates."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.controller.calibration import Calibration, Rate


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.85])
def test_a_cell_converges_to_a_known_rate(rate: float) -> None:
    """Whatever the drafter believes of itself: .9 here."""
    random = np.random.default_rng(1)
    calibration = Calibration()
    ahead = calibration.ahead("d")
    seen = []
    for n in range(800):
        calibration.learn([(calibration.cell("d", 0, 0.9), random.random() < rate)])
        for learner in (ahead.first, ahead.later):
            learner.add(random.random() < rate)
        if n > 100:
            seen.append([calibration.cell("d", 0, 0.9).value, ahead.first.value, ahead.later.value])
    assert np.mean(seen, axis=0) == pytest.approx([rate] * 3, abs=0.05)


def test_a_cell_follows_a_change() -> None:
    calibration = Calibration()
    ahead = calibration.ahead("d")

    def values() -> list[float]:
        return [calibration.cell("d", 0, 0.9).value, ahead.first.value, ahead.later.value]

    for hit, n in ((True, 500), (False, 150)):
        for _ in range(n):
            calibration.learn([(calibration.cell("d", 0, 0.9), hit)])
            for learner in (ahead.first, ahead.later):
                learner.add(hit)
        assert min(values()) > 0.95 if hit else max(values()) < 0.3


def test_a_rate_is_what_it_was_told_until_it_knows_better() -> None:
    """The prior weighs as much as one try."""
    rate = Rate(0.8, 1.0)
    assert rate.value == pytest.approx(0.8)
    rate.add(False)
    assert rate.value == pytest.approx(0.8 / 2)
    rate.add(True)
    assert rate.value == pytest.approx((0.8 + 1) / 3)


def test_a_rate_forgets() -> None:
    rate = Rate(0.5, 0.5)
    for hit in (True, False, True):
        rate.add(hit)
    assert rate.value == pytest.approx((1 + 0.25 + 0.5) / (1 + 0.5 + 0.25 + 1))


def test_a_drafter_is_seen_through_before_every_cell_has_found_out() -> None:
    """It promises .9 and keeps a third of that: then its guesses of other confidence are worth as little. A drafter
    that keeps more than it promises is believed more; other drafters and ranks are nobody's business."""
    for hits, low, high in ((0.3, 0.1, 0.3), (1.0, 0.6, 0.75)):
        calibration = Calibration()
        apart = [("d", 1), ("e", 0)]
        before = [calibration.cell(*place, 0.6).value for place in apart]
        for n in range(100):
            calibration.learn([(calibration.cell("d", 0, 0.9), n % 10 < 10 * hits)])
        assert low < calibration.cell("d", 0, 0.6).value < high
        assert [calibration.cell(*place, 0.6).value for place in apart] == before


def test_the_value_of_a_cell_is_as_of_when_it_was_asked_for() -> None:
    calibration = Calibration()
    cell = calibration.cell("d", 0, 0.9)
    before = cell.value
    calibration.learn([(cell, False)])
    assert cell.value == before, "a round's candidates are weighed by one state of knowledge"
    assert calibration.cell("d", 0, 0.9) is cell
    assert cell.value < before


def test_a_chance_is_never_above_one_nor_at_nought() -> None:
    """A child likelier than its parent would break the purchase; what can never be hoped for can never be learned."""
    for confidence in (0.0, 0.5, 1.0):
        for hit in (True, False):
            calibration = Calibration()
            for _ in range(2000):
                cell = calibration.cell("d", 0, confidence)
                assert 0 < cell.value < 1
                calibration.learn([(cell, hit)])


def test_cells_are_kept_apart() -> None:
    """By drafter, rank and confidence; alike in all of them is the same cell."""
    calibration = Calibration()
    features = [
        (name, rank, confidence)
        for name in ("one", "two", "one+two")
        for rank in (0, 1)
        for confidence in (0.0, 0.3, 0.5, 0.75, 0.9, 0.99)
    ]
    cells = [calibration.cell(*feature) for feature in features]
    assert len({id(cell) for cell in cells}) == len(features)
    assert all(calibration.cell(*feature) is cell for feature, cell in zip(features, cells, strict=True))
    assert calibration.cell("one", 0, 0.76) is calibration.cell("one", 0, 0.75)
    assert calibration.ahead("one") is calibration.ahead("one")
    assert calibration.ahead("one") is not calibration.ahead("two")


def test_a_drafter_not_yet_known_is_half_believed() -> None:
    calibration = Calibration()
    for confidence in np.linspace(0, 1, 21).tolist():
        assert calibration.cell("d", 0, confidence).value == pytest.approx(0.7 * confidence, abs=0.06)
    assert calibration.ahead("d").first.value == pytest.approx(0.7)
    assert calibration.ahead("d").later.value == pytest.approx(0.7)


def test_a_summary_counts_likeliest_guesses_by_drafter() -> None:
    """Of every confidence together; the latest count most, guesses of other rank not at all."""
    calibration = Calibration()
    assert calibration.summary() == {}
    guesses = [
        ("d", 0, 0.9, True),
        ("d", 0, 0.3, False),
        ("d", 0, 0.9, True),
        ("d", 1, 0.9, False),
        ("e", 1, 0.9, True),
    ]
    for drafter, rank, confidence, hit in guesses:
        calibration.learn([(calibration.cell(drafter, rank, confidence), hit)])
    assert calibration.summary() == {"d": pytest.approx((1.99 / 2.99, 2.99))}
