"""Prices: measured, kept, recalled."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from itertools import chain, cycle, islice
from pathlib import Path

import pytest

from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.prices import WIDTHS, Prices, keep, measure, measure_here, recall, refresh
from edgespec.storage.cache import cache_folder
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
    curve = measure(session, shares.append, budget=2e4, clock=clock.perf_counter)
    assert curve == list(STAIRS)
    assert not curve.between
    assert {session.passes.count(n) for n in range(1, WIDTHS + 1)} == {24}, "an end to it, however fast the passes"
    assert list(session.tokens) == []
    assert set(session.starts) == {64}, "every pass is measured at the same cache length"
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.1
    assert shares[-1] == 1.0


def test_without_time_the_steps_are_measured_and_the_rest_lies_between() -> None:
    clock = Clock()
    session = SlowStart(clock)
    curve = measure(session, budget=0, clock=clock.perf_counter)
    assert {n for n in range(1, WIDTHS + 1) if n in session.passes} == {1, 2, 3, 4, 8, 16}
    assert all(session.passes.count(n) == 3 for n in (1, 2, 3, 4, 8, 16))
    assert curve == [1, 3, 3, 3, 3.5, 4, 4.5, 5, *(5 + 5 * i / 8 for i in range(1, 9))]
    assert curve.between == set(range(1, WIDTHS + 1)) - {1, 2, 3, 4, 8, 16}, "and says which"


def test_what_there_is_time_for_is_measured_steps_first() -> None:
    """The vital widths take 3 (1 + 3 + 3 + 3 + 5 + 10) = 75 seconds; 5 and 9 cost 15 and 27 more."""
    clock = Clock()
    session = Priced(RULE, 8, clock, STAIRS)
    curve = measure(session, budget=75 + 50, clock=clock.perf_counter)
    assert set(session.passes) == {1, 2, 3, 4, 5, 8, 9, 16} == set(range(1, WIDTHS + 1)) - curve.between
    assert clock.now < 130, "the budget is kept"


def test_sweeps_go_up_and_down_and_take_the_median() -> None:
    """So a clock that slows down all the while makes no width dearer than another, and a hiccup none at all."""
    clock = Clock()
    session = Priced(RULE, 8, clock, STAIRS)
    measure(session, widest=4, budget=0, clock=clock.perf_counter)
    assert session.passes == [1, 2, 3, 4, 4, 3, 2, 1, 1, 2, 3, 4]
    hiccups = iter([*[0.0] * 60, 500.0, *[0.0] * 10**6])

    def late() -> float:
        clock.now += next(hiccups)
        return clock.now

    assert measure(SlowStart(clock), budget=1e9, clock=late) == list(STAIRS)


def test_the_warm_up_does_not_count() -> None:
    """Not even as one of the passes that the median is taken of."""

    class Warming(ToySession):
        """Each width takes 9, 1, then 3 seconds."""

        def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
            clock.now += (9, 1, 3)[self.passes.count(len(tokens))]
            return super().decode(tokens, tree)

    clock = Clock()
    assert measure(Warming(RULE, 8), budget=0, clock=clock.perf_counter) == [1.0] * WIDTHS, "of two the lower"


@pytest.mark.parametrize("context", [1, 2, 3, 16, 17, 40, 64, 79])
def test_measuring_fits_any_context(context: int) -> None:
    session = SlowStart(Clock(), context)
    seconds = measure(session, budget=0, clock=Clock().perf_counter)
    assert len(seconds) == max(1, min(WIDTHS, context - 1))
    assert list(session.tokens) == []


def test_no_pass_is_wider_than_the_session_takes() -> None:
    session = SlowStart(Clock())
    session.widest = 4
    assert len(measure(session, budget=1e9, clock=session.clock.perf_counter)) == 4
    assert max(session.passes) == 4


def test_measuring_here_keeps_what_the_session_holds() -> None:
    clock = Clock()
    session = SlowStart(clock, 220)
    session.prefill([1, 2] * 100)
    assert len(measure_here(session, widest=32, budget=0, clock=clock.perf_counter)) == 20, "what room there is"
    assert list(session.tokens) == [1, 2] * 100
    assert set(session.starts) == {200}


class Read(Priced):
    """Keeps the tokens of all passes."""

    def __init__(self, vocab: int = 250) -> None:
        self.clock = Clock()
        super().__init__(ngram_rule(vocab), vocab, self.clock, STAIRS)
        self.read: list[list[int]] = []

    def prefill(self, tokens: Sequence[int]) -> None:
        self.read.append([*tokens])
        super().prefill(tokens)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        self.read.append([*tokens])
        return super().decode(tokens, tree)


def test_each_pass_takes_the_next_tokens_of_the_text() -> None:
    """A mixture of experts loads more of them for unlike tokens, and fewest for a repeated one."""
    text = [3 * n % 250 for n in range(97)]
    session = Read()
    measure(session, text=[*text, 250, -1], budget=0, clock=Clock().perf_counter)
    passes = session.read[1:]
    read = list(chain(*session.read))
    assert len(session.read[0]) == 64
    assert read == list(islice(cycle(text), len(read))), "no token that the model does not have"
    assert len({tuple(each) for each in passes if len(each) == 4}) == 24, "another stretch in each sweep"
    session = Read()
    refresh(session, Prices(STAIRS), session.clock.perf_counter, text=text)
    assert session.read == [[token] for token in text[:3]]


def test_without_a_text_the_tokens_count_up() -> None:
    session = Read(8)
    measure(session, widest=2, budget=0, clock=Clock().perf_counter)
    assert session.read[0][:8] == [1, 2, 3, 4, 5, 6, 1, 2]
    assert list(chain(*session.read[1:]))[:9] == [1, 2, 3, 4, 5, 6, 1, 2, 3]


def test_the_session_is_empty_after_an_interrupted_measurement() -> None:
    session = SlowStart(Clock())

    def give_up(share: float) -> None:
        if share > 0.2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(session, give_up)
    assert session.passes
    assert list(session.tokens) == []


def test_refreshing_takes_three_plain_steps_and_scales() -> None:
    clock = Clock()
    session = Priced(RULE, 8, clock, [2.2])
    prices = Prices(STAIRS)
    refresh(session, prices, clock.perf_counter)
    assert session.passes == [1, 1, 1]
    assert list(session.tokens) == []
    assert list(prices.curve()) == pytest.approx([2.2 * s for s in STAIRS])


@pytest.mark.parametrize(("slowdown", "scaled"), [(4.0, 2.2), (1.5, 1.5), (1.0, 1.0)])
def test_refreshing_scales_no_further_than_the_slowdown_given(slowdown: float, scaled: float) -> None:
    clock = Clock()
    prices = Prices(STAIRS)
    refresh(Priced(RULE, 8, clock, [2.2]), prices, clock.perf_counter, slowdown=slowdown)
    assert list(prices.curve()) == pytest.approx([scaled * s for s in STAIRS])
    assert prices.slowdown == pytest.approx(scaled)


def test_a_faster_machine_slows_nothing_down() -> None:
    clock = Clock()
    prices = Prices(STAIRS)
    refresh(Priced(RULE, 8, clock, [0.5]), prices, clock.perf_counter, slowdown=1.0)
    assert list(prices.curve()) == pytest.approx([0.5 * s for s in STAIRS])
    assert prices.slowdown == 1.0


def session(identity: str = "toy") -> ToySession:
    made = ToySession(RULE, 8)
    made.identity = identity
    return made


def only_file(folder: Path) -> Path:
    (found,) = (folder / "prices").iterdir()
    return found


def test_prices_are_kept_and_recalled(own_cache: Path) -> None:
    assert recall(session()) is None
    prices = Prices(STAIRS)
    prices.switching = 0.25
    keep(session(), prices)
    found = recall(session())
    assert found is not None
    assert found.rows() == {64: STAIRS}
    assert found.switching == 0.25
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
        "[" * 100_000,
        '{"rows": {"64": [1, 2]}}',
        {"version": 0},
        {"version": 1},
        {"version": 2},
        {"version": 3},  # may have been measured beside busy programs
        {"version": 4},  # measured with tokens 1, 2, 3, ...
        {"version": 5},  # measured between passes of other widths
        {"version": 6},  # fell from run to run
        {"version": 8},
        {"identity": "another"},
        {"rows": []},
        {"rows": {}},
        {"rows": 3},
        {"rows": None},
        {"rows": {"64": []}},
        {"rows": {"x": STAIRS}},
        {"rows": {"-1": STAIRS}},
        {"rows": {"64": 3}},
        {"rows": {"64": {"1": 3}}},
        {"rows": {"64": [*STAIRS[:-1], 0.0]}},
        {"rows": {"64": [*STAIRS[:-1], -1.0]}},
        {"rows": {"64": [*STAIRS[:-1], float("nan")]}},
        {"rows": {"64": [*STAIRS[:-1], float("inf")]}},
        {"rows": {"64": [*STAIRS[:-1], 10**400]}},
        {"rows": {"64": [*STAIRS[:-1], 1e300]}},
        {"rows": {"64": [5e-324] * len(STAIRS)}},
        {"rows": {"64": [True] * len(STAIRS)}},
        {"rows": {"64": STAIRS, "1" + "0" * 400: STAIRS}},
        {"rows": {"64": STAIRS, "1" + "0" * 5000: STAIRS}},
        {"rows": {"64": [*STAIRS[:-1], "one"]}},
        {"rows": {"64": [*STAIRS[:-1], [1.0]]}},
        {"rows": {"64": [*STAIRS[:-1], None]}},
        {"rows": {"64": [None, *STAIRS[1:]]}},
        {"rows": {"512": [1.0, *[None] * 14, 9.0]}},
        {"rows": {"64": STAIRS[:-1]}},
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


@pytest.mark.parametrize("kept", [None, "soon", -1.0, True, [1.0], 1e300])
def test_a_price_of_a_change_that_makes_no_sense_is_none(own_cache: Path, kept: object) -> None:
    keep(session(), Prices(STAIRS))
    file = only_file(own_cache)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"switching": kept}))
    found = recall(session())
    assert found is not None
    assert found.switching == 0.0


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

    monkeypatch.setattr("edgespec.storage.cache.os.fdopen", full)
    keep(session(), Prices(STAIRS))
    assert list((own_cache / "prices").iterdir()) == []


def test_two_writers_never_leave_half_a_file(own_cache: Path) -> None:
    """Readers and writers at once: what is read is one curve or the other, whole."""
    curves = [tuple(float(n) for n in range(1, 500)), tuple(float(n) for n in range(2, 501))]
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
    assert {found.rows()[64] if found else None for found in seen} <= set(curves)
    assert only_file(own_cache).suffix == ".json", "temporary files are left"


def test_the_cache_folder_is_the_user_s_unless_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGESPEC_CACHE")
    assert cache_folder().name == "edgespec"
    assert cache_folder().is_absolute()
    monkeypatch.setenv("EDGESPEC_CACHE", "")
    assert cache_folder().name == "edgespec"


def test_what_cannot_be_prices_is_neither_kept_nor_recalled(own_cache: Path) -> None:
    """A process that stood still for a minute in the middle of a pass, say."""
    session = ToySession(ngram_rule(5), 64)
    good, bad = [1.0, 1.2, 1.5] + [2.0] * (WIDTHS - 3), [1.0, 1e-6, 1.5] + [2.0] * (WIDTHS - 3)
    keep(session, Prices(bad))
    assert recall(session) is None
    keep(session, Prices(good))
    keep(session, Prices(bad))
    recalled = recall(session)
    assert recalled is not None
    assert list(recalled.curve()) == good
    (file,) = (cache_folder() / "prices").iterdir()
    file.write_text(file.read_text().replace("1.2", "0.0001"))
    assert recall(session) is None


def test_what_rounds_taught_is_kept_and_recalled(own_cache: Path) -> None:
    """Longer caches too, and with them what the cache costs beyond."""
    prices = Prices(STAIRS)
    for _ in range(20):
        prices.observe(1, 2048, 2.0)
        prices.observe(4, 2048, 6.0)
    keep(session(), prices)
    found = recall(session())
    assert found is not None
    assert set(found.rows()) == {64, 2048}
    assert (found.price(1, 2048), found.price(4, 2048)) == pytest.approx((2.0, 6.0), rel=0.01)
    assert found.rows()[2048][7] is None, "nothing is said of widths that no pass showed"
    for n in (1, 4, 8, 16):
        assert found.price(n, 3000) == pytest.approx(prices.price(n, 3000))
        assert found.price(n, 3000) > found.price(n, 64)


def test_a_glimpse_is_not_kept(own_cache: Path) -> None:
    prices = Prices(STAIRS)
    prices.observe(4, 2048, 9.0)
    keep(session(), prices)
    found = recall(session())
    assert found is not None
    assert set(found.rows()) == {64}


HOLED = [s if n in (1, 2, 3, 4, 8, 16) else None for n, s in enumerate(STAIRS, 1)]


def test_widths_that_were_not_measured_are_learned_from_the_first_passes() -> None:
    """One above both its neighbours is no drift of the machine, and the lines beside it follow."""
    prices = Prices(HOLED)
    assert prices.curve()[3:8] == pytest.approx([3, 3.5, 4, 4.5, 5])
    for _ in range(3):
        prices.observe(6, 64, 8.0)
    assert prices.curve()[3:8] == pytest.approx([3, 5.5, 8, 6.5, 5])
    assert not prices.unsure(1)
    assert list(prices.curve()) == list(prices.calm(64))
    assert prices.curve()[8:15] == pytest.approx([5 + 5 * i / 8 for i in range(1, 8)]), "others stay"


def test_longer_caches_tell_of_widths_that_were_not_measured() -> None:
    prices = Prices(HOLED)
    for _ in range(20):
        prices.observe(1, 2048, 2.0)
        prices.observe(4, 2048, 5.0)
        prices.observe(6, 2048, 11.0)
    assert prices.price(6, 2048) == pytest.approx(11.0, rel=0.01)
    surcharge = 2.0 * 3.5 / 2.5  # what 4 tokens pay, and 6 for their share
    assert prices.price(6, 64) == pytest.approx(11.0 - surcharge, rel=0.02)
    assert prices.price(4, 64) == 3.0
    alone = Prices(HOLED)
    for _ in range(20):
        alone.observe(6, 2048, 11.0)
    assert alone.price(8, 2048) == 5.0, "the cache is no dearer for it"


def test_widths_that_were_not_measured_are_not_kept_until_passes_taught_them(own_cache: Path) -> None:
    keep(session(), Prices(HOLED))
    prices = recall(session())
    assert prices is not None
    assert list(prices.rows()[64]) == HOLED
    prices.observe(6, 64, 8.0)
    assert list(prices.rows()[64]) == HOLED, "a glimpse"
    for _ in range(2):
        prices.observe(6, 64, 8.0)
    keep(session(), prices)
    found = recall(session())
    assert found is not None
    assert list(found.rows()[64]) == [*HOLED[:5], pytest.approx(8.0), *HOLED[6:]]


def test_company_is_not_kept(own_cache: Path) -> None:
    """What a pass costs beside a plain step is kept, and not the pace of the machine."""
    for factor in (3.0, 1 / 3):
        prices = Prices(STAIRS)
        for n in (1, 4, 5, 8) * 20:
            prices.observe(n, 64, factor * STAIRS[n - 1])
        assert [prices.price(n) for n in (1, 4, 8)] == pytest.approx([factor * STAIRS[n - 1] for n in (1, 4, 8)])
        keep(session(), prices)
        found = recall(session())
        assert found is not None
        assert found.curve() == pytest.approx(STAIRS)


def test_what_another_process_kept_is_not_lost(own_cache: Path) -> None:
    keep(session(), Prices.of({64: [*STAIRS, 12.0, 13.0], 1024: [*STAIRS, 14.0, 15.0]}))
    keep(session(), Prices.of({64: [2 * s for s in STAIRS], 2048: [3.0, None, 4.0]}))
    found = recall(session())
    assert found is not None
    assert found.rows() == {
        64: (*(2 * s for s in STAIRS), 12.0, 13.0),
        1024: (*STAIRS, 14.0, 15.0),
        2048: (3.0, None, 4.0, *[None] * 15),
    }


def test_prices_measured_in_a_smaller_session_are_measured_anew(own_cache: Path) -> None:
    keep(session(), Prices(STAIRS[:7]))
    assert recall(session()) is None
    small = session()
    small.context = 8
    assert recall(small) is not None
    narrow = session()
    narrow.widest = 4
    found = recall(narrow)
    assert found is not None
    assert found.widest == 4


def test_a_few_stalls_are_no_price_of_a_plain_step() -> None:
    """Milliseconds of passes by width, as recorded beside two busy programs."""
    prices = Prices([32.0, 33.0, 36.0, 40.0])
    for n, seconds in (
        *((4, 121), (4, 106), (3, 148), (2, 156), (1, 91), (1, 1392), (1, 1431), (4, 1435), (4, 81), (4, 102)),
        *((4, 113), (4, 105), (4, 116), (4, 88), (4, 105), (4, 102), (4, 96), (4, 140), (4, 102)),
    ):
        prices.observe(n, 100, float(seconds))
    assert 60 < prices.plain() < 150
    assert prices.plain() <= 1.3 * prices.price(4)


def test_plain_steps_that_alone_were_slow_are_refuted_by_two_plain_steps() -> None:
    """Wider passes between them are as fast as ever."""
    prices = Prices([32.0, 33.0, 36.0, 40.0])
    for n, seconds in ((4, 40), (1, 1392), (4, 41), (1, 1431), (4, 39), (1, 1400), (4, 40)):
        prices.observe(n, 100, float(seconds))
    for seconds in (33, 31):
        assert prices.price(4) == pytest.approx(40, rel=0.1)
        prices.observe(1, 100, float(seconds))
    assert prices.plain() == pytest.approx(32, rel=0.1)


def test_stalls_that_come_and_go_do_not_make_wider_passes_ever_dearer() -> None:
    """Wider passes follow plain steps upwards; where none is bought, nothing else brings them down."""
    prices = Prices([1.0, 1.5, 1.8, 1.8])
    for _ in range(300):
        for seconds in (50.0, 60.0, 40.0, 45.0, 1.0, 1.1, 0.9, 1.0, 1.0, 1.1):
            prices.observe(1, 100, seconds)
    assert prices.plain() == pytest.approx(1.0, rel=0.3)
    assert prices.price(4) < 20
