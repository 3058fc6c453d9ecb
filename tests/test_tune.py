"""Tuning: the arithmetic against brute force, measuring on a clock of its own, and the command."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from edgespec.backends import Device, Interrupt
from edgespec.backends.toy import ToyModel, ToySession, ngram_rule
from edgespec.errors import Interrupted, ModelFileError, OptionError, VocabularyMismatch
from edgespec.prices import recall, restless
from edgespec.prices.draft_length import Best, best, break_even, ceiling, committed, speedup
from edgespec.runtime.loading import assemble
from edgespec.terminal.tune import TuneReport, gains, meaning, prices
from edgespec.tools.tuning import (
    WIDEST,
    Measured,
    OpenedPair,
    cache_lengths,
    fastest,
    opener,
    plausible,
    thread_counts,
    tune,
)
from edgespec.types import Floats

from . import checkpoints
from .commandline import refused, run, unix
from .helpers import Clock, Priced
from .small_pair import SMALL_PAIR
from .terminals import spawn

pexpect = pytest.importorskip("pexpect", reason="pseudo-terminals need a Unix")
RULE = ngram_rule(8)
Q8_0 = (1.0, 1.5, 1.8, 1.8, 2.8, 3.0, 3.0, 2.9, 3.6, 3.8, 4.0, 4.1, 4.6, 4.8, 5.0, 5.2)
DEAR = tuple(float(n) for n in range(1, 17))


def simulated(curve: Sequence[float], step: float, acceptance: float, k: int) -> float:
    """The speedup of rounds that are played: tokens drafted, tried one by one, thrown away after the first wrong."""
    random = np.random.default_rng(7)
    tokens = seconds = 0.0
    for _ in range(20_000):
        seconds += k * step + curve[k]
        tokens += 1
        for _ in range(k):
            if random.random() >= acceptance:
                break
            tokens += 1
    return tokens / seconds * curve[0]


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("step", [0.0, 0.2])
def test_speedup_is_what_rounds_that_are_played_give(acceptance: float, step: float) -> None:
    scaled = [0.3 * s for s in Q8_0]
    for k in (0, 1, 3, 7, 15):
        assert speedup(scaled, 0.3 * step, acceptance, k) == pytest.approx(
            simulated(Q8_0, step, acceptance, k), rel=0.02
        )
    assert speedup(Q8_0, step, acceptance, 0) == 1.0


@pytest.mark.parametrize("acceptance", [0.2, 0.6, 0.9])
def test_committed_is_the_closed_form(acceptance: float) -> None:
    assert committed(acceptance, 5) == pytest.approx((1 - acceptance**6) / (1 - acceptance))
    assert committed(1.0, 5) == 6
    assert committed(0.0, 5) == 1


def test_acceptance_may_differ_by_depth() -> None:
    """What is deeper than is known is like the deepest that is."""
    assert committed((0.5, 0.8), 3) == pytest.approx(1 + 0.5 + 0.5 * 0.8 + 0.5 * 0.8 * 0.8)
    assert committed((0.7,), 4) == pytest.approx(committed(0.7, 4))
    curve = [1.0, 1.1, 1.2, 1.3]
    assert best(curve, 0.0, (0.9, 0.0)).k == 1
    assert best(curve, 0.0, (0.5, 0.95)).k == 3


def test_the_best_length_stands_before_a_step_of_the_staircase() -> None:
    assert best(Q8_0, 0.0, 0.7).k == 3
    assert best(Q8_0, 0.05, 0.95).k == 7
    assert best(Q8_0, 0.0, 0.99).k == 15
    assert best(Q8_0, 0.0, 0.0) == Best(0, 1.0)
    assert best([1.0, 2.0, 3.0], 0.0, 1.0) == Best(0, 1.0), "the shortest of equals"
    assert best([1.0], 0.1, 0.9) == Best(0, 1.0)


def test_the_ceiling_and_the_least_acceptance_that_pays() -> None:
    assert ceiling(Q8_0, 0.0) == Best(15, 16 / 5.2)
    assert ceiling(DEAR, 0.1) == Best(0, 1.0)
    assert break_even(DEAR, 0.0) is None
    least = break_even(Q8_0, 0.1)
    assert least is not None
    assert best(Q8_0, 0.1, least).k > 0
    assert best(Q8_0, 0.1, least - 0.01).k == 0


def test_a_wider_pass_that_takes_half_of_a_narrower_one_is_noise() -> None:
    assert not restless(Q8_0)
    assert not restless([1.0])
    assert restless([1.0, 5.0, 2.0])
    assert restless([10.0, 2.0, 12.0])


def test_a_wider_pass_that_takes_much_less_than_a_plain_step_is_noise() -> None:
    """Such a curve was kept: the plain step had been timed beside other programs."""
    assert restless([1.0, 0.65, 0.72, 0.7, 0.7, 0.76, 0.81, 0.82])
    assert restless([1.0, None, 0.79])
    assert not restless([1.0, 0.9, 0.95, 1.2])
    assert not restless([None, 0.65, 0.72])


def test_a_wide_pass_that_takes_more_than_as_many_plain_steps_is_noise() -> None:
    """A first start beside two busy programs once kept such prices."""
    assert restless([1.0, 3.1, 3.2])
    assert restless([1.0, None, 9.0, 9.0, 9.0])
    assert not restless([1.0, 2.2, 3.2, 4.5])
    assert not restless([None, 3.0, 9.0])


def test_thread_counts_and_cache_lengths_worth_measuring() -> None:
    assert [thread_counts(n) for n in (1, 2, 4, 6, 8)] == [[1], [1, 2], [1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 4, 6, 8]]
    assert cache_lengths(64) == []
    assert cache_lengths(256) == [224]
    assert cache_lengths(1056) == [1024]
    assert cache_lengths(2048) == [1024]
    assert cache_lengths(4096) == [1024, 4064]
    assert cache_lengths(32768) == [1024, 4096, 16384]
    assert cache_lengths(33000 + WIDEST) == [1024, 4096, 16384, 33000]


def test_the_fastest_is_by_tokens_and_not_by_plain_steps() -> None:
    """Two threads take plain steps sooner, four check drafts sooner; of equals the fewer threads are enough."""
    two = Measured(2, {64: [1.0, 2.0, 3.0, 4.0]})
    four = Measured(4, {64: [1.1, 1.2, 1.3, 1.4]})
    assert fastest([two, four]) is four
    eight = Measured(8, {64: [1.095, 1.195, 1.295, 1.395]})
    assert fastest([two, eight, four]) is four
    assert fastest([two, Measured(4, four.rows, steps=(3.0,))]) is two, "a draft that is too dear is not used"


class Shop:
    """Toy sessions by thread count. A pass takes longer with a longer cache; so does filling it."""

    def __init__(self, speeds: dict[int, float], *, draft: bool = False, context: int = 4096) -> None:
        self.clock = Clock()
        self.open = 0
        self.sessions: list[Slow] = []
        self.fail_after: int | None = None
        self.identity: str | None = None
        self._speeds, self._draft, self._context = speeds, draft, context

    @contextmanager
    def __call__(self, threads: int) -> Iterator[OpenedPair]:
        self.open += 1
        target = Slow(self, "target", threads, [s / self._speeds[threads] for s in (*Q8_0, *[6.0] * 16)], self._context)
        drafts = [Slow(self, "draft", threads, [0.1] * 32, self._context)] if self._draft else []
        self.sessions.append(target)
        try:
            yield OpenedPair(target, drafts)
        finally:
            self.open -= 1


class Slow(Priced):
    def __init__(self, shop: Shop, name: str, threads: int, seconds: Sequence[float], context: int) -> None:
        super().__init__(RULE, 8, shop.clock, [1e-3 * s for s in seconds])
        self.context = context
        self.identity = shop.identity or f"{name}, {threads} threads"
        self.shop = shop

    def prefill(self, tokens: Sequence[int]) -> None:
        self.shop.clock.now += 1e-3 * len(tokens)
        super().prefill(tokens)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        if self.shop.fail_after is not None and self.shop.clock.now > self.shop.fail_after:
            raise Interrupted
        self.shop.clock.now += self._prices[len(tokens) - 1] + 1e-6 * len(self.tokens)
        self._held.extend(tokens)  # what it would say is no matter
        return np.zeros((len(tokens), 8), np.float32)


def test_tuning_compares_threads_and_measures_the_best_at_longer_caches(own_cache: Path) -> None:
    shop = Shop({1: 1.0, 2: 1.8, 4: 1.2}, draft=True)
    told: list[tuple[str, float]] = []
    found = list(
        tune(shop, [1, 2, 4], on_progress=lambda what, share: told.append((what, share)), clock=shop.clock.perf_counter)
    )
    assert [(each.threads, sorted(each.rows)) for each in found] == [
        (1, [64]),
        (2, [64]),
        (4, [64]),
        (2, [64, 1024]),
        (2, [64, 1024, 4064]),
    ]
    assert [s * 1.8 for s in found[-1].curve[:16]] == pytest.approx([1e-3 * s + 1.8 * 64e-6 for s in Q8_0])
    assert found[-1].rows[4064][3] == pytest.approx(1e-3 + 4064e-6)
    assert len(found[-1].curve) == WIDEST
    assert found[-1].between == {64: set(), 1024: set(), 4064: set()}
    assert found[-1].step == pytest.approx(0.1e-3 + 64e-6)
    assert shop.open == 0
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert {what for what, _ in told} >= {"measuring with 1 thread", "measuring with 1024 tokens before"}


def test_the_next_load_finds_what_was_measured(own_cache: Path) -> None:
    shop = Shop({1: 1.0, 2: 1.8}, draft=True)
    *_, last = tune(shop, [1, 2], clock=shop.clock.perf_counter)
    for threads, rows in ((1, {64}), (2, {64, 1024, 4064})):
        with shop(threads) as (target, (draft,), _):
            kept = recall(target)
            assert kept is not None
            assert kept.rows().keys() == rows
            assert kept.widest == WIDEST
            assert threads == 1 or kept.rows()[4064] == pytest.approx(last.rows[4064])
            assert recall(draft) is not None


def test_the_next_load_does_not_measure(own_cache: Path) -> None:
    shop = Shop({1: 1.0})
    shop.identity = ToySession.identity
    list(tune(shop, [1], clock=shop.clock.perf_counter))
    told: list[str] = []
    with assemble(ToyModel(), on_progress=lambda what, _share: told.append(what)) as runtime:
        assert runtime.prices.widest == WIDEST
        assert runtime.prices.rows().keys() == {64, 1024, 4064}
    assert not told


def test_the_budget_is_kept(own_cache: Path) -> None:
    """Filling a cache of 4064 takes 4 seconds here: where there is no time for it, it is left."""
    for budget, lengths in ((60.0, [64, 1024, 4064]), (6.0, [64, 1024]), (1.0, [64])):
        shop = Shop({1: 1.0, 2: 1.8})
        *_, last = tune(shop, [1, 2], budget=budget, clock=shop.clock.perf_counter)
        assert sorted(last.rows) == lengths
        assert shop.clock.now < 1.1 * budget + 1


def test_widths_that_there_was_no_time_for_are_told(own_cache: Path) -> None:
    shop = Shop({1: 1.0}, context=2048)
    *_, last = tune(shop, [1], budget=1.0, clock=shop.clock.perf_counter)
    timed = {n for n in range(1, WIDEST + 1) if n not in last.between[64]}
    assert {1, 2, 3, 4, 8, 16, 32} < timed < set(range(1, WIDEST + 1))


def test_leaving_early_loses_nothing_and_closes_everything(own_cache: Path) -> None:
    shop = Shop({1: 1.0, 2: 1.8})
    shop.fail_after = 4
    measuring = tune(shop, [1, 2], clock=shop.clock.perf_counter)
    assert next(measuring).threads == 1
    with pytest.raises(Interrupted):
        next(measuring)
    assert shop.open == 0
    shop.fail_after = None
    with shop(1) as (one, *_), shop(2) as (two, *_):
        assert recall(one) is not None
        assert recall(two) is None


def test_what_a_busy_machine_spoilt_is_not_kept(own_cache: Path) -> None:
    shop = Shop({1: 1.0})

    class Busy(Slow):
        def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
            shop.clock.now += 1.0 if len(tokens) == 3 else 0.0
            return super().decode(tokens, tree)

    @contextmanager
    def opened(threads: int) -> Iterator[OpenedPair]:
        yield OpenedPair(Busy(shop, "busy", threads, [1.0] * 32, 128))

    (found,) = tune(opened, [1], clock=shop.clock.perf_counter)
    assert restless(found.curve)
    with opened(1) as (session, *_):
        assert recall(session) is None


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_a_budget_that_is_none_is_refused_before_anything_is_opened(budget: float) -> None:
    shop = Shop({1: 1.0})
    with pytest.raises(OptionError, match="budget is"):
        tune(shop, [1], budget=budget)
    assert not shop.sessions


def test_the_opener_opens_with_the_threads_asked_for(small_pair: dict[str, Path], tmp_path: Path) -> None:
    opened = opener(small_pair["target"], {small_pair["draft"]: Device(context=128)}, Device(context=128), Interrupt())
    with opened(1) as (session, (draft,), text):
        assert session.identity.endswith("threads=1")
        assert session.context == 128
        assert len(text) > 300
        assert draft.identity.endswith("threads=1")
    with opener(small_pair["target"], {}, Device(context=128), Interrupt())(2) as (session, drafts, _):
        assert session.identity.endswith("threads=2")
        assert not drafts
    with pytest.raises(ModelFileError), opener(tmp_path / "none.gguf", {}, Device(), Interrupt())(1):
        pass


# What it says


def found(curve: Sequence[float], step: float | None = None, threads: int = 2) -> Measured:
    return Measured(threads, {64: [1e-2 * s for s in curve]}, () if step is None else (1e-2 * step,))


def test_it_says_what_a_draft_gives_and_what_is_the_most() -> None:
    said = meaning(found(Q8_0, 0.1))
    assert "verifies 4 tokens for the price of 1.8 plain steps" in said
    assert "0.10 of a plain step" in said
    gain = speedup(Q8_0, 0.1, 0.7, 3)
    assert f"acceptance rate of 70% gives {gain:.2f}x, at K = 3" in said
    least = break_even(Q8_0, 0.1)
    assert f"above an acceptance rate of {least:.0%}" in said
    assert f"{16 / 6.7:.2f}x, at K = 15" in said
    assert "slow" not in said
    assert "slow for this target" in meaning(found(Q8_0, 0.3))
    assert "draft model" not in meaning(found(Q8_0))


def test_it_says_so_where_speculation_cannot_pay() -> None:
    for measured in (found(DEAR), found(Q8_0, 2.0), found([1.0])):
        said = meaning(measured)
        assert "cannot pay here" in said
        assert "Drafts pay" not in said
    said = meaning(found((1.0, 1.9, 2.8, 3.0)))
    assert "cannot pay" not in said
    assert "rate of 70%" not in said, "at so dear a price that is not often enough"


def test_the_tables_hold_the_figures() -> None:
    both = Measured(2, {64: [0.01, 0.02, 0.05], 1024: [0.03, 0.04]}, (0.001,))
    table = prices(both).splitlines()
    assert "after 64" in table[1]
    assert "after 1024" in table[1]
    assert table[2].split()[:4] == ["1", "10.00", "30.00", "1.00"]
    assert table[4].split()[:3] == ["3", "50.00", "5.00"]
    bars = [line.count("█") + line.count("#") for line in table[2:]]
    assert bars == sorted(bars)
    assert bars[-1] == 24
    lines = gains(found(Q8_0, 0.1)).splitlines()
    row = next(line for line in lines if line.strip().startswith("70%")).split()
    assert row[1:4] == [f"{speedup(Q8_0, 0.1, 0.7, k):.2f}" for k in (1, 2, 3)]
    assert f"{best(Q8_0, 0.0, 0.7).speedup:.2f} at K = 3" in lines[4], "what look-ups would give beside it"
    assert gains(found([1.0])) == ""


def test_what_was_not_timed_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {64: [0.01, 0.02, 0.04], 1024: [0.03, 0.04, 0.05]}
    some = Measured(2, rows, between={64: {2}, 1024: {2, 3}})
    for encoding, bars in (("utf-8", "█░█"), ("ascii", "#-#")):
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        *lines, why = prices(some).splitlines()[2:]
        assert [line.split()[:3] for line in lines] == [
            ["1", "10.00", "30.00"],
            ["2", "~20.00", "~40.00"],
            ["3", "40.00", "~50.00"],
        ]
        assert [set(line.split()[-1]) for line in lines] == [{bar} for bar in bars]
        assert len({line.index(".") for line in lines}) == 1, "figures stay below each other"
        assert why.startswith(f"~ and {bars[1]}: interpolated")
    findings = TuneReport(default=2)
    findings.add(some)
    assert json.loads(findings.as_json())["measured"][0]["interpolated"] == {"64": [2], "1024": [2, 3]}
    for nothing in ({}, {64: (), 1024: ()}):
        table = prices(Measured(2, rows, between=nothing))
        assert "~" not in table
        assert "interpolated" not in table


def test_another_thread_count_than_the_default_is_recommended() -> None:
    findings = TuneReport(default=4)
    findings.add(found(Q8_0, threads=2))
    assert "--threads" not in findings.text(), "with one there is nothing to compare"
    findings.add(found([2 * s for s in Q8_0], threads=4))
    assert "Best: 2. The default here is 4, so add --threads 2." in findings.text()
    findings.add(found([0.5 * s for s in Q8_0], threads=4))
    assert "Best: 4, which is the default here." in findings.text()


def test_figures_that_are_no_good_are_not_interpreted() -> None:
    """A plain pass that was measured too dear, or too cheap, would promise or refuse anything."""
    for curve in ((5.0, 1.0, 1.0), (1.0, 0.6, 2.0), (1.0, 5.0, 6.0), (1e-4, 1.0, 1.1)):
        findings = TuneReport(default=2)
        findings.add(found(curve))
        assert "implausible" in findings.text()
        for word in ("verifies", "Speedup over", "x plain", "Best"):
            assert word not in findings.text()
        told = json.loads(findings.as_json())
        assert told["implausible"] is True
        assert [told[name] for name in ("best", "ceiling", "break_even")] == [None] * 3
        assert told["threads"]["best"] is None


def test_prices_that_can_be_true() -> None:
    for curve in (Q8_0, DEAR, (1.0,), (1.0, 2.3), (1.0, 0.9, 0.95)):
        assert plausible(curve)
    for curve in ((), (0.0, 1.0), (-1.0, 1.0), (1.0, float("inf")), (1.0, float("nan")), (1.0, 4.1), (1.0, 1.0, 0.4)):
        assert not plausible(curve)


def test_no_draft_gives_more_than_its_tokens() -> None:
    """Where a wider pass seems a little cheaper than a plain one."""
    curve = (1.0, 0.8, 0.75)
    assert [speedup(curve, 0.0, 1.0, k) for k in range(3)] == [1.0, 2.0, 3.0]
    assert "verifies 3 tokens for the price of 1.0 plain steps" in meaning(found(curve))


# The command


def test_tune_measures_the_demo(own_cache: Path) -> None:
    done = run("tune", "--budget", "1", "--ctx", "256", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (measured,) = told["measured"]
    assert measured["threads"] == 1
    assert told["threads"]["best"] == (None if told["implausible"] else 1)
    assert all(len(row) == WIDEST and min(row) > 0 for row in measured["prices"].values())
    assert measured["step"] > 0
    assert told["implausible"] or set(told["best"]) == {"0.5", "0.6", "0.7", "0.8", "0.9"}
    text = run("tune", "--budget", "1", "--ctx", "128", "--threads", "1", "--draft", "none")
    assert text.returncode == 0, text.stderr
    assert "What a pass takes with 1 thread, in milliseconds" in text.stdout
    assert "tokens/s" in text.stdout or "implausible" in text.stdout  # beside other programs


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.gguf"], "no model at missing.gguf"),
        (["--draft", "missing.gguf"], "no model at missing.gguf"),
        (["--budget", "0"], "budget is 0.0; it must be from 1 to 86400 seconds"),
        (["--budget", "nan"], "budget is nan"),
        (["--budget", "soon"], "budget"),
        (["--threads", "100000"], "threads is 100000"),
        (["--threads", "-1"], "threads is -1"),
        (["--ctx", "-5"], "context is -5"),
        (["--k", "3"], "No such option"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], says: str) -> None:
    assert says in refused(run("tune", *arguments))


def test_a_draft_that_does_not_fit_is_left_out_if_found_and_refused_if_named(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    assert run("convert", source, "--out", tmp_path / "draft.gguf").returncode == 0
    (tmp_path / "m.gguf").symlink_to(SMALL_PAIR.target)
    options = ("--budget", "1", "--ctx", "100", "--threads", "1", "--json")
    done = run("tune", tmp_path / "m.gguf", *options)
    assert done.returncode == 0
    assert "left out: target and draft have different vocabularies" in done.stderr
    assert json.loads(done.stdout)["measured"][0]["step"] is None
    named = run("tune", tmp_path / "m.gguf", "--draft", tmp_path / "draft.gguf", *options)
    assert VocabularyMismatch.__name__ not in named.stderr
    assert "different vocabularies" in refused(named)


@unix
def test_ctrl_c_closes_everything_and_leaves(tmp_path: Path) -> None:
    child = spawn(tmp_path, "tune", "--budget", "600", "--threads", "1", EDGESPEC_CACHE=str(tmp_path / "cache"))
    child.expect("measuring with")
    child.sendintr()
    child.expect("Error: interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
