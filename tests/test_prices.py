"""Prices: measured, kept, recalled, corrected."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.prices import WIDTHS, Prices, cache_folder, keep, measure, recall
from edgespec.types import Floats

from .helpers import Clock, Priced

RULE = ngram_rule(8)
STAIRS = tuple(float(n) for n in (1, 3, 3, 3, 5, 5, 5, 5, 9, 9, 9, 9, 10, 10, 10, 10))


class SlowStart(Priced):
    """The first pass of every width takes a hundred times as long: an engine builds its graph."""

    def __init__(self, clock: Clock, context: int = 4096) -> None:
        super().__init__(RULE, 8, clock, STAIRS)
        self.context = context
        self.clock = clock
        self.starts: list[int] = []

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        if len(tokens) not in self.passes:
            self.clock.now += 100 * len(tokens)
        self.starts.append(len(self.tokens))
        return super().decode(tokens, tree)


def test_measuring_finds_the_staircase_after_a_warm_up() -> None:
    clock = Clock()
    session = SlowStart(clock)
    shares: list[float] = []
    assert measure(session, shares.append, budget=0, clock=clock.perf_counter) == list(STAIRS)
    assert [session.passes.count(n) for n in range(1, WIDTHS + 1)] == [3] * WIDTHS
    assert list(session.tokens) == []
    assert set(session.starts) == {64}, "every pass is measured at the same context length"
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.1
    assert shares[-1] == 1.0


def test_measuring_goes_on_while_there_is_time_and_takes_the_median() -> None:
    clock = Clock()
    session = SlowStart(clock)
    measure(session, budget=1e9, clock=clock.perf_counter)
    assert session.passes.count(1) == 24, "an end to it, however fast the passes"
    hiccups = iter([*[0.0] * 60, 500.0, *[0.0] * 10**6])
    session = SlowStart(clock)

    def late() -> float:
        clock.now += next(hiccups)
        return clock.now

    assert measure(session, budget=1e9, clock=late) == list(STAIRS)


def test_the_warm_up_does_not_count() -> None:
    """Not even as one of the passes that the median is taken of."""

    class Warming(ToySession):
        """Each width takes 9, 1, then 3 seconds."""

        def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
            clock.now += (9, 1, 3)[self.passes.count(len(tokens))]
            return super().decode(tokens, tree)

    clock = Clock()
    assert measure(Warming(RULE, 8), budget=0, clock=clock.perf_counter) == [2.0] * WIDTHS


@pytest.mark.parametrize("context", [1, 2, 3, 16, 17, 40, 64, 79])
def test_measuring_fits_any_context(context: int) -> None:
    session = SlowStart(Clock(), context)
    seconds = measure(session, budget=0, clock=Clock().perf_counter)
    assert len(seconds) == max(1, min(WIDTHS, context - 1))
    assert list(session.tokens) == []


def test_the_session_is_empty_after_an_interrupted_measurement() -> None:
    session = SlowStart(Clock())

    def give_up(share: float) -> None:
        if share > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(session, give_up)
    assert session.passes
    assert list(session.tokens) == []


def test_the_price_beyond_what_was_measured_rises_by_the_mean_slope() -> None:
    prices = Prices([1.0, 3.0, 2.0])
    assert [prices.price(n) for n in range(1, 6)] == [1.0, 3.0, 2.0, 2.5, 3.0]
    assert Prices([2.0, 1.0]).price(4) == 1.0, "never below the last"
    assert Prices([2.0]).price(5) == 2.0
    assert prices.plain == 1.0
    assert prices.seconds == (1.0, 3.0, 2.0)


def test_rounds_correct_the_price() -> None:
    prices = Prices([1.0] * 4)
    for _ in range(200):
        prices.observe(2, 3.0)
    assert prices.price(2) == pytest.approx(3.0, rel=0.01)


def test_one_hiccup_barely_moves_a_price() -> None:
    for seconds in (100.0, 0.0001):
        prices = Prices([1.0] * 4)
        prices.observe(1, seconds)
        assert all(0.95 < price < 1.05 for price in prices.seconds)


def test_widths_that_were_never_seen_move_along() -> None:
    """A longer context makes all of them dearer; a width known from passes of its own stays."""
    prices = Prices([1.0, 2.0, 3.0])
    for _ in range(20):
        prices.observe(2, 2.0)
    for _ in range(100):
        prices.observe(1, 2.0)
    assert prices.plain == pytest.approx(2.0, rel=0.01)
    assert prices.price(2) == 2.0
    assert prices.price(3) == pytest.approx(6.0, rel=0.01)


def test_a_width_beyond_the_measured_is_no_evidence() -> None:
    prices = Prices([1.0, 2.0])
    prices.observe(3, 50.0)
    assert prices.seconds == (1.0, 2.0)


def session(identity: str = "toy") -> ToySession:
    made = ToySession(RULE, 8)
    made.identity = identity
    return made


def only_file(folder: Path) -> Path:
    (found,) = (folder / "prices").iterdir()
    return found


def test_prices_are_kept_and_recalled(own_cache: Path) -> None:
    assert recall(session()) is None
    keep(session(), Prices(STAIRS))
    found = recall(session())
    assert found is not None
    assert found.seconds == STAIRS
    assert recall(session("another device")) is None
    assert own_cache == cache_folder()


@pytest.mark.parametrize(
    "change",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        "\x00\xff",
        '{"seconds": [1, 2]}',
        {"version": 0},
        {"version": 2},
        {"identity": "another"},
        {"seconds": []},
        {"seconds": [1.0, 0.0]},
        {"seconds": [1.0, -1.0]},
        {"seconds": [1.0, float("nan")]},
        {"seconds": [float("nan"), 1.0]},
        {"seconds": [1.0, float("inf")]},
        {"seconds": ["one"]},
        {"seconds": 3},
        {"seconds": None},
        {"seconds": [[1.0]]},
    ],
)
def test_a_cache_file_that_is_not_ours_is_ignored(own_cache: Path, change: str | dict[str, object]) -> None:
    keep(session(), Prices(STAIRS))
    file = only_file(own_cache)
    if isinstance(change, str):
        file.write_bytes(change.encode("latin-1"))
    else:
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert recall(session()) is None
    keep(session(), Prices(STAIRS))
    assert recall(session()) is not None


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the folder should be: true for root as well, whom no permission stops."""
    (tmp_path / "file").write_text("here")
    for folder in ("file", "file/below"):
        monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / folder))
        keep(session(), Prices(STAIRS))
        assert recall(session()) is None
    assert (tmp_path / "file").read_text() == "here"


def test_a_full_disk_leaves_no_litter(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("json.dump", full)
    keep(session(), Prices(STAIRS))
    assert list((own_cache / "prices").iterdir()) == []


def test_two_writers_never_leave_half_a_file(own_cache: Path) -> None:
    """Readers and writers at once: what is read is one curve or the other, whole."""
    curves = [tuple(float(n) for n in range(1, 1500)), tuple(float(n) for n in range(2, 3000))]
    keep(session(), Prices(curves[0]))
    done = threading.Event()

    def write(curve: Sequence[float]) -> None:
        while not done.is_set():
            keep(session(), Prices(curve))

    writers = [threading.Thread(target=write, args=[curve]) for curve in curves]
    for writer in writers:
        writer.start()
    try:
        seen = [recall(session()) for _ in range(60)]
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert {found.seconds if found else None for found in seen} <= set(curves)
    assert only_file(own_cache).suffix == ".json", "temporary files are left"


def test_the_cache_folder_is_the_user_s_unless_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGESPEC_CACHE")
    assert cache_folder().name == "edgespec"
    assert cache_folder().is_absolute()
    monkeypatch.setenv("EDGESPEC_CACHE", "")
    assert cache_folder().name == "edgespec"


def test_prices_converge_from_anywhere_and_stay_positive() -> None:
    random = np.random.default_rng(1)
    true = np.array(STAIRS)
    prices = Prices([5.0] * WIDTHS)
    for _ in range(6000):
        n = int(random.integers(1, WIDTHS + 1))
        prices.observe(n, float(true[n - 1] * random.lognormal(0, 0.1)))
    assert np.array(prices.seconds) == pytest.approx(true, rel=0.15)
