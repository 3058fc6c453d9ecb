"""What was learned of drafters is kept between runs, and counts for a little there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Interrupt, Sampling, Speculation, assemble
from edgespec.backends.toy import Bytes, Rule, ToyModel, ToySession, blend, ngram_rule
from edgespec.controller.calibration import Calibration
from edgespec.controller.priced_drafter import PricedDrafter
from edgespec.controller.reading import Reading
from edgespec.runtime.learned import Learned
from edgespec.storage.cache import Shelf

from .control_runs import book
from .helpers import ignore_machine_times

RULE = ngram_rule(Bytes.size, seed=5)
SURE = (0.05, 0.3, 0.6, 0.9, 0.99)


def taught(tries: int, seed: int = 1) -> Calibration:
    """A calibration after some tries of guesses of every kind, right as often as they say or less."""
    random = np.random.default_rng(seed)
    calibration = Calibration()
    for _ in range(tries):
        for name in ("lookup", "model", "lookup+model"):
            for confidence in SURE:
                calibration.learn([(calibration.cell(name, 0, confidence), random.random() < 0.8 * confidence)])
            calibration.ahead(name).first.add(random.random() < 0.6)
            calibration.ahead(name).later.add(random.random() < 0.9)
    return calibration


NAMES = ("lookup", "model", "lookup+model", "another")


def guesses(calibration: Calibration) -> list[float]:
    """The chances of guesses that were taught and of others."""
    return [calibration.cell(name, 0, confidence).value for name in NAMES for confidence in (*SURE, 0.5)]


def ahead(calibration: Calibration) -> list[float]:
    """Those of guesses not yet made."""
    drafters = [calibration.ahead(name) for name in NAMES]
    return [rate.value for each in drafters for rate in (each.first, each.later)]


def values(calibration: Calibration) -> list[float]:
    """All that is usual: a mood passes with its text."""
    return guesses(calibration) + ahead(calibration)


def again(calibration: Calibration) -> Calibration:
    """As the next run finds it."""
    return Calibration.of(json.loads(json.dumps(calibration.kept())))


def test_a_second_run_begins_with_what_the_first_learned() -> None:
    first = taught(20)
    assert guesses(again(first)) == pytest.approx(guesses(first), abs=1e-3)
    assert ahead(again(first)) == pytest.approx(ahead(first), abs=0.05)
    assert values(first) != pytest.approx(values(Calibration()), abs=0.05), "or nothing was tried"
    for name, share in first.summary().items():
        assert again(first).summary()[name].right == pytest.approx(share.right, abs=1e-3)


def test_in_how_many_rounds_a_drafter_is_asked_after_it_has_read_is_known_to_the_next_run() -> None:
    """A reading seemed to be for sixteen rounds at first in each run, whatever the runs before had seen."""
    first = Calibration()
    reading = Reading(0.01, ahead=first.ahead("model"))
    for text in range(12):
        reading.read([text] * 100)
        reading.read([text] * 100)  # and in one round after it
    assert reading.share(1.0) == pytest.approx(1 / 2, rel=0.2)
    assert Reading(0.01, ahead=again(first).ahead("model")).share(1.0) == pytest.approx(reading.share(1.0), rel=0.01)
    assert Reading(0.01).share(1.0) == 1 / 16


def test_a_drafter_that_reads_teaches_that_to_its_calibration() -> None:
    ahead = Calibration().ahead("model")
    reading = PricedDrafter(book(name="model", step_price=0.1), ahead, lambda: 0.0).reading
    for text in range(3):
        reading.read([text] * 100)
    assert ahead.rounds < 12


def test_it_counts_for_thirty_tries_at_most() -> None:
    """The next text may be another: after as many tries that say otherwise, they decide. Of guesses not yet made it
    counts for four."""
    first = Calibration()
    for _ in range(1000):
        first.learn([(first.cell("model", 0, 0.9), True)])
        first.ahead("model").first.add(True)
        first.ahead("model").later.add(True)
    second = again(first)
    for calibration, rate in ((first, 97.0), (second, 30.0)):
        assert calibration.cell("model", 0, 0.9).rate.tries == pytest.approx(rate, rel=0.05)
    assert second.ahead("model").first.tries == second.ahead("model").later.tries == pytest.approx(4)
    assert second.cell("model", 0, 0.9).value == pytest.approx(1.0, abs=0.03)
    for calibration in (first, second):
        for _ in range(40):
            calibration.learn([(calibration.cell("model", 0, 0.9), False)])
    assert second.cell("model", 0, 0.9).value < 0.4
    assert first.cell("model", 0, 0.9).value > 0.55
    few = taught(20)
    assert again(few).cell("model", 0, 0.9).rate.tries == pytest.approx(
        few.cell("model", 0, 0.9).rate.tries, abs=1e-3
    ), "fewer count for what they are"


def test_a_third_run_knows_what_the_second_did() -> None:
    """Nothing is lost, nor gained, by looking at it."""
    second = again(taught(300))
    assert values(again(second)) == pytest.approx(values(second), abs=1e-3)


def first_guesses(kept: dict[str, Any]) -> Any:
    return kept["guesses"][0]


NO_COUNTS: tuple[Any, ...] = (float("nan"), float("inf"), -float("inf"), -1.0, "3", None, [], 10**400)
NO_NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), "x", None, [])


@pytest.mark.parametrize(
    ("place", "bad"),
    [
        *((place, bad) for place in ("promised", "trusted", "hits", "tries", "ahead") for bad in NO_COUNTS),
        *((place, bad) for place in ("rank",) for bad in NO_NUMBERS),
    ],
)
def test_counts_that_make_no_sense_are_ignored(place: str, bad: Any) -> None:
    """With all else: who wrote them is not to be trusted."""
    kept: dict[str, Any] = json.loads(json.dumps(taught(5).kept()))
    guesses = first_guesses(kept)
    trust, cell = guesses[2][0], guesses[2][3]
    targets: dict[str, tuple[list[Any], int]] = {
        "promised": (trust, 1),
        "trusted": (trust, 0),
        "hits": (cell, 0),
        "tries": (cell, 1),
        "ahead": (kept["ahead"]["model"][0], 0),
        "rank": (guesses, 1),
    }
    holder, index = targets[place]
    holder[index] = bad
    calibration = Calibration.of(kept)
    assert values(calibration) == values(Calibration())
    assert calibration.summary() == {}


def test_more_hits_than_tries_are_ignored() -> None:
    kept: dict[str, Any] = json.loads(json.dumps(taught(5).kept()))
    first_guesses(kept)[2][1] = [5.0, 4.0]
    assert values(Calibration.of(kept)) == values(Calibration())


@pytest.mark.parametrize(
    "change",
    [
        {"guesses": 3},
        {"guesses": {"lookup": 1}},
        {"guesses": [3]},
        {"guesses": [["lookup", 0]]},
        {"guesses": [["lookup", 0, [[1, 1]]]]},
        {"guesses": [["lookup", 0, [[1, 1, 1], *[[0, 0]] * 10]]]},
        {"guesses": [["lookup", 0, [[1, 1], *[[0, 0]] * 11]]]},
        {"guesses": [["lookup", 0, [[1, 0], *[[0, 0]] * 10]]]},
        {"guesses": None},
        {"ahead": []},
        {"ahead": {"model": []}},
        {"ahead": {"model": [[1, 1]]}},
        {"ahead": {"model": [[1, 1], [1, 1]]}},
        {"ahead": {"model": [[1, 1, []], [1, 1, []], [], []]}},
        {"ahead": {"model": [[1, 1, []], [1, 1, []], [0.5], []]}},
        {"ahead": {"model": [[1, 1, []], [1, 1, []], [float("nan")], []]}},
        {"ahead": {"model": [[1, 1, []], [1, 1, []], [float("inf")], []]}},
        {"ahead": {"model": [[1, 1, []], [1, 1, []], ["16"], []]}},
        {"ahead": {"model": None}},
        {"ahead": 5},
        {"gained": "much"},
        {"gained": None},
        {"gained": float("nan")},
        {"gained": float("inf")},
    ],
)
def test_what_is_broken_is_ignored(change: dict[str, Any]) -> None:
    assert values(Calibration.of(taught(5).kept() | change)) == values(Calibration())


def test_it_is_kept_for_a_pair_and_a_verifier(own_cache: Path) -> None:
    learned = Learned("pair")
    assert learned.calibration("match") is learned.calibration("match")
    fresh = values(Calibration())
    assert values(learned.calibration("match")) == fresh
    learned.calibration("rejection").learn([(learned.calibration("rejection").cell("model", 0, 0.9), False)])
    learned.calibration("match").learn([(learned.calibration("match").cell("model", 0, 0.3), True)])
    learned.keep()
    after = [Learned("pair").calibration(name) for name in ("match", "rejection", "block")]
    places = (0.9, 0.3)
    tries = [[each.cell("model", 0, place).rate.tries for place in places] for each in after]
    assert tries == [[0, 1], [1, 0], [0, 0]]
    assert values(Learned("another pair").calibration("match")) == fresh


def test_what_did_not_change_is_not_written(own_cache: Path) -> None:
    """Another process may have learned meanwhile."""
    teacher = Learned("pair")
    teacher.calibration("match").learn([(teacher.calibration("match").cell("model", 0, 0.9), True)])
    idle = Learned("pair")
    idle.calibration("match")
    teacher.keep()
    idle.keep()
    assert Learned("pair").calibration("match").summary() == {"model": (1.0, 1.0)}


def test_a_cache_that_is_not_to_be_had_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("here")
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path / "file"))
    learned = Learned("pair")
    learned.calibration("match").learn([(learned.calibration("match").cell("model", 0, 0.9), True)])
    learned.keep()
    assert Learned("pair").calibration("match").summary() == {}


class Named(ToyModel):
    """A toy whose weights have a name; its sessions' prices have the number of threads in theirs."""

    def __init__(self, rule: Rule, weights: str = "named", threads: int = 1) -> None:
        super().__init__(rule)
        self.weights = weights
        self._threads = threads

    def session(self, context: int, interrupt: Interrupt | None = None) -> ToySession:
        session = super().session(context, interrupt)
        session.identity = f"shapes, {self._threads} threads"
        return session


def test_a_runtime_keeps_it_when_it_is_closed(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a later one begins with it: by verifier, for this pair alone."""
    ignore_machine_times(monkeypatch)

    def acceptance(verifier: str = "match", *, say: int = 0, draft: bool = True) -> dict[str, float]:
        second = Named(blend(RULE, ngram_rule(Bytes.size, seed=6), 0.4)) if draft else None
        with assemble(Named(RULE), second, speculation=Speculation(verifier=verifier)) as runtime:
            for seed in range(say):
                list(runtime.complete("abc" * 5, Sampling(1.0, seed=seed), max_tokens=100))
            return {name: share.right for name, share in runtime.acceptance.items()}

    assert acceptance() == {}
    learned = acceptance(say=3)
    assert set(learned) >= {"lookup", "model"}
    assert {name: pytest.approx(rate, abs=0.02) for name, rate in acceptance().items()} == learned
    assert acceptance("rejection") == {}
    assert acceptance(draft=False) == {}
    assert acceptance("rejection", say=1) != learned
    assert set(acceptance()) == set(learned), "one does not write over the other"


def test_plain_decoding_learns_nothing(own_cache: Path) -> None:
    with assemble(Named(RULE), speculation=Speculation(k=0)) as runtime:
        list(runtime.complete("abc" * 5, max_tokens=20))
    assert not (own_cache / "drafters").exists()
    assert Shelf("drafters", "named|match", 2).read() == {}


def test_it_belongs_to_the_weights_and_not_to_the_machine(own_cache: Path) -> None:
    """Prices are the same for two fine-tunes, and others with more threads; how often a draft is right is not."""

    def acceptance(*weights: str, threads: int = 1, say: int = 0) -> set[str]:
        draft = blend(RULE, ngram_rule(Bytes.size, seed=6), 0.4)
        models = [Named(rule, name, threads) for rule, name in zip((RULE, draft), weights, strict=True)]
        with assemble(*models) as runtime:
            for seed in range(say):
                list(runtime.complete("abc" * 5, Sampling(1.0, seed=seed), max_tokens=100))
            return set(runtime.acceptance)

    learned = acceptance("one", "draft", say=3)
    assert learned
    assert acceptance("one", "draft", threads=8) == learned
    assert acceptance("another tune", "draft") == set()
    assert acceptance("one", "another tune") == set()
    acceptance("", "draft", say=3)
    assert acceptance("", "draft") == set(), "without a name nothing is kept"


def test_what_was_kept_by_prices_is_not_found(own_cache: Path) -> None:
    """As it was before models named their weights."""
    Shelf("drafters", "shapes, 1 threads|match", 3).write(taught(20).kept())
    with assemble(Named(RULE)) as runtime:
        assert runtime.acceptance == {}
