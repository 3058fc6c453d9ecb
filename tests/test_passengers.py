"""Passengers: in the same pass, with rows as if alone, never in the text or the cache, and bought where they pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt, Speculation, load
from edgespec.backends import Model, Session
from edgespec.backends.toy import Bytes, ToySession
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.controller.passenger_value import PassengerValue
from edgespec.drafters.checked import Checked
from edgespec.drafters.failsafe import Failsafe
from edgespec.drafters.lookahead import Lookahead
from edgespec.drafters.lookup import Lookup
from edgespec.engine import Engine, Event, Finished, Request, Text
from edgespec.errors import DrafterError
from edgespec.prices import Prices
from edgespec.sampling import Sampling
from edgespec.testing import EngineCase, TreeController
from edgespec.tools.check import check
from edgespec.types import Acceptance, Draft, Evaluated, Floats, Guess, Passengers, Round
from edgespec.verify import verifier
from edgespec.verify.match import Match

from .engine_runs import PROMPT, TARGET, VOCAB, WrongLookahead, engine, run
from .helpers import Clock, Priced, decode_plain, round_context

ROUNDING = 0.06  # of logits, see test_llama_trees


class Watched(WrongLookahead):
    """Often wrong, and it keeps what it is told of passes with its window."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.told: list[tuple[list[int], Evaluated]] = []
        self.text: list[int] = []

    def evaluated(self, what: Evaluated) -> None:
        if what.top is not None:
            self.told.append((self.text[: what.start], what))
        self.text[what.start :] = [what.tokens[node] for node in what.kept]
        super().evaluated(what)


def paths(what: Evaluated) -> list[list[int]]:
    """The tokens from the root to each node of a pass."""
    found: list[list[int]] = []
    for token, parent in zip(what.tokens, what.parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else ()), token])
    return found


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=2)], ids=["0", "0.8"])
@pytest.mark.parametrize("drafted", [0, 5])
def test_their_rows_are_those_of_their_tokens_alone(drafted: int, sampling: Sampling) -> None:
    drafter, target = Watched(), ToySession(TARGET, VOCAB)
    speaker = engine(target, TreeController([drafter], drafted))
    said, finished = run(speaker.generate(Request(PROMPT, sampling, 50)), target, PROMPT)
    assert said == decode_plain(TARGET, PROMPT, sampling, 50)
    assert finished.stats.passengers > 100
    assert finished.stats.drafted > finished.stats.accepted or not drafted
    for held, what in drafter.told:
        assert what.top is not None
        assert [int(TARGET([*held, *path]).argmax()) for path in paths(what)] == what.top.tokens[:, 0].tolist()


@pytest.fixture(params=["llama", "onnx", "openvino"])
def model(request: pytest.FixtureRequest) -> Model:
    fixtures = {"llama": "small_target", "onnx": "onnx_target", "openvino": "openvino_target"}
    found: Model = request.getfixturevalue(fixtures[request.param])
    return found


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=2)], ids=["0", "0.8"])
def test_in_real_engines_they_leave_no_trace(model: Model, sampling: Sampling) -> None:
    """The text is that of plain decoding, the cache that of the text, and each row that of its tokens alone."""
    case = EngineCase(model, ROUNDING if model.description.startswith("demo") else 0.5)
    prompt, drafter = case.text(20), Watched()
    session, plain = model.session(256), model.session(256)
    controller = TreeController([drafter], 4)

    def said(target: Session, controller: TreeController) -> list[int]:
        speaker = Engine(target, model.vocabulary, controller, verifier("match"), Interrupt())
        events = speaker.generate(Request(prompt, sampling, 24))
        return [token for event in events if isinstance(event, Text) for token in event.tokens]

    text = said(session, controller)
    assert text == said(plain, TreeController([], 0))
    assert any(len(what.tokens) > 7 for _, what in drafter.told)
    case.holds(session, [*prompt, *text[:-1]])
    for held, what in drafter.told[:6]:
        assert what.top is not None
        for node, path in enumerate(paths(what)):
            plain.rollback(0)
            plain.prefill(held)
            row = plain.decode(path)[-1]
            assert row.max() - row[what.top.tokens[node, 0]] <= case.rounding
    session.close()
    plain.close()


class Carries(Fixed):
    """Each round carries these passengers, and drafts nothing."""

    def __init__(self, passengers: Passengers) -> None:
        super().__init__([], 0)
        self.passengers = passengers

    def choose(self, round_context: object, limit: int) -> Draft:
        return Draft(passengers=self.passengers)


def narrow(**members: int) -> ToySession:
    session = ToySession(TARGET, VOCAB, context=40)
    for name, value in members.items():
        setattr(session, name, value)
    return session


WINDOW = Passengers((5, 6, 7), (-1, 0, -1))


@pytest.mark.parametrize(
    ("target", "widths"),
    [
        (narrow, {1, 4}),
        (lambda: narrow(widest=4, leaves=2), {1, 4}),
        (lambda: narrow(widest=3), {1}),
        (lambda: narrow(leaves=1), {1}),
        (lambda: ToySession(TARGET, VOCAB, 40, reach=8), {1}),
        (lambda: ToySession(TARGET, VOCAB, 40, replays=True), {1}),
    ],
    ids=["all", "just so", "narrow", "one leaf", "recurrent", "replays"],
)
def test_they_stay_behind_where_a_session_cannot_take_them(target: Callable[[], ToySession], widths: set[int]) -> None:
    session = target()
    said, finished = run(engine(session, Carries(WINDOW)).generate(Request(PROMPT)), session, PROMPT)
    assert said == decode_plain(TARGET, PROMPT, Sampling(), 33)
    assert finished.reason == "context"
    assert set(session.passes) == widths, "also near the end of the context"
    assert finished.stats.passengers == 3 * session.passes.count(4)


def test_they_stay_behind_where_tokens_are_owed() -> None:
    """Those would take a pass of their own before a tree."""

    class Owing(ToySession):
        owed = property(lambda _self: 1)

    session = Owing(TARGET, VOCAB, 40)
    *_, finished = engine(session, Carries(WINDOW)).generate(Request(PROMPT))
    assert isinstance(finished, Finished)
    assert (finished.stats.passengers, set(session.passes)) == (0, {2})


def test_no_verifier_sees_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    accept = Match.accept

    def noted(self: Match, draft: Draft, rows: Floats, *rest: Any) -> Acceptance:
        seen.append((len(draft), len(rows)))
        return accept(self, draft, rows, *rest)

    monkeypatch.setattr(Match, "accept", noted)
    *_, finished = engine(ToySession(TARGET, VOCAB), TreeController([Watched()], 5)).generate(
        Request(PROMPT, max_tokens=50)
    )
    assert isinstance(finished, Finished)
    assert finished.stats.passengers > 100
    assert all(rows == 1 + drafted for drafted, rows in seen)


def test_they_stay_behind_where_passes_are_exact(small_pair: dict[str, Path]) -> None:
    speculation = Speculation(("lookahead",), 2)
    for exact in (0, 8):
        with load(small_pair["target"], "none", device=Device(256, 1, 0, exact), speculation=speculation) as runtime:
            *_, finished = runtime.complete("Repeat one two three.", max_tokens=12)
            assert isinstance(finished, Finished)
            assert (finished.stats.passengers > 0) == (exact == 0)


# --- when they are bought


class Offers(Lookahead):
    """A drafter from outside, with passengers of its own."""

    def __init__(self, offered: object, most: object = 9) -> None:
        super().__init__()
        self.offered, self.most = offered, most

    @property
    def most_passengers(self) -> int:
        return self.most  # type: ignore[return-value]

    def passengers(self, most: int) -> Passengers:
        return self.offered  # type: ignore[return-value]


VOCAB_OF_LOOP = 251


def loop(context: Sequence[int]) -> Floats:
    """A text that repeats itself after 250 tokens; what follows depends on one."""
    row = np.zeros(VOCAB_OF_LOOP, np.float32)
    row[(context[-1] * 37 + 11) % VOCAB_OF_LOOP] = 9.0
    return row


def figures(
    drafter: Lookahead,
    curve: Sequence[float],
    clock: Clock,
    tokens: int = 1500,
    *,
    trees: bool = True,
    believed: Sequence[float] = (),
) -> tuple[Finished, float, list[Round]]:
    clock.now = 0.0
    target, prices = Priced(loop, VOCAB_OF_LOOP, clock, curve), Prices(believed or curve)
    controller = Adaptive([drafter], prices, trees=trees, clock=clock.perf_counter)
    speaker = Engine(target, Bytes(), controller, verifier("match"), Interrupt(), prices)
    events: list[Event] = list(speaker.generate(Request([1, 2, 3], max_tokens=tokens)))
    finished = events[-1]
    assert isinstance(finished, Finished)
    return finished, clock.now, [event.round for event in events if isinstance(event, Text)]


FLAT = [1.0, *[1.02] * 15]
STEEP = [1.0 + 0.3 * n for n in range(16)]


class Vain(Lookahead):
    """It has a window, and no use for it."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return ()


def test_they_are_bought_where_passes_are_flat_and_their_n_grams_come_true(clock: Clock) -> None:
    finished, seconds, _ = figures(Lookahead(4, 3), FLAT, clock)
    assert finished.stats.passengers > 1000
    assert finished.stats.accepted > 300
    assert seconds < 0.8 * 1500


def test_they_are_hardly_bought_where_passes_are_steep(clock: Clock) -> None:
    finished, seconds, _ = figures(Lookahead(4, 3), STEEP, clock)
    assert finished.stats.passengers < 400
    assert seconds < 1.04 * 1500


def test_they_are_never_much_slower_than_plain_decoding(clock: Clock) -> None:
    """Wide passes are twice as dear as believed: what they lost is seen, and stated."""
    finished, seconds, _ = figures(Vain(4, 3), [1.0, *[2.0] * 15], clock, believed=FLAT)
    assert finished.stats.passengers > 20
    assert 1500 < seconds < 1.01 * 1500 + 6, "a hundredth, and the credit of the beginning"
    assert finished.stats.speedup == pytest.approx(1500 / seconds, rel=1e-3)


def test_what_brings_nothing_is_tried_less_and_less(clock: Clock) -> None:
    finished, seconds, rounds = figures(Vain(4, 3), FLAT, clock, 6000)
    carried = [n for n, each in enumerate(rounds) if each.draft.passengers.tokens]
    assert finished.stats.drafted == 0
    assert seconds < 1.005 * 6000
    starts = [b for a, b in pairwise([-99, *carried]) if b - a > 20]
    waits = [b - a for a, b in pairwise(starts)]
    assert len(waits) >= 4
    assert all(later > 1.3 * sooner for sooner, later in pairwise(waits)), waits


def test_none_are_asked_for_where_there_are_no_trees(clock: Clock) -> None:
    finished, *_ = figures(Lookahead(4, 3), FLAT, clock, 500, trees=False)
    assert finished.stats.passengers == 0


@pytest.mark.parametrize(
    ("drafters", "path", "carries"),
    [
        (("lookahead",), (0,), True),
        (("lookup+lookahead",), (0,), False),
        (("lookup",), (0,), False),
        (("lookahead",), (), False),
        (("lookahead", "lookup"), (0, 1), True),
        (("lookup", "lookahead"), (0,), False),
        (("lookup", "lookahead"), (0, 1), True),
    ],
)
def test_what_they_bring_is_what_nobody_else_guessed(
    drafters: tuple[str, ...], path: tuple[int, ...], carries: bool
) -> None:
    """A trial in which one of two rounds has such a draft; after it a pass with them must bring a third of a token."""
    value, cost = PassengerValue(Offers(WINDOW)), [0.11 * n for n in range(9)]
    draft = Draft(tuple(range(len(drafters))), tuple(range(-1, len(drafters) - 1)), drafters)
    plain = Round(Draft(), (), (7,) * 60, 1.0)
    while not value.chosen(Draft(), cost, 0.0).tokens:
        value.observe(plain, cost)
    for n in range(40):
        ridden = replace(draft if n % 2 else Draft(), passengers=WINDOW)
        value.observe(Round(ridden, path if n % 2 else (), (7,), 1.0), cost)
    assert bool(value.chosen(Draft(), cost, 0.0).tokens) == carries


# --- drafters of others, and the runtime


@pytest.mark.parametrize(
    "offered",
    [
        ((1, 2), (-1,)),
        ((1, 2), (-1, 1)),
        ((1, 99), (-1, 0)),
        ((-1,), (-1,)),
        ((1, 2, 3), (-1, 0, 1)),
        5,
        ((1.5,), (-1,)),
    ],
)
def test_passengers_from_outside_are_checked(offered: object) -> None:
    drafter = Checked(Offers(offered), "outside", VOCAB)
    with pytest.raises(DrafterError, match="passengers"):
        drafter.passengers(2)
    safe = Failsafe(drafter)
    assert safe.passengers(2) == Passengers()
    assert "passengers" in safe.notice
    assert safe.most_passengers == 0


@pytest.mark.parametrize("most", [-1, 1.5, "many", 1000])
def test_a_number_of_passengers_from_outside_is_checked(most: object) -> None:
    with pytest.raises(DrafterError, match="most_passengers is"):
        _ = Checked(Offers((), most), "outside", VOCAB).most_passengers


def test_drafters_without_passengers_have_none() -> None:
    for drafter in (
        Lookup(),
        Failsafe(Lookup()),
        Checked(Lookup(), "lookup", VOCAB),
        Failsafe(Checked(Lookup(), "x", 9)),
    ):
        controller = Fixed([drafter], 3)
        assert controller.choose(round_context([1, 2, 1]), 9).passengers == Passengers()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=40, seed=3)], ids=["greedy", "sampled"])
def test_the_runtime_has_it_only_by_name(small_pair: dict[str, Path], sampling: Sampling) -> None:
    with load(small_pair["target"], small_pair["draft"], device=Device(512, threads=1)) as runtime:
        assert "lookahead" not in runtime.drafters
    speculation = Speculation(("lookahead",), 3)
    with load(small_pair["target"], "none", device=Device(512, threads=1), speculation=speculation) as runtime:
        assert "lookahead" in runtime.drafters
        prompts = [runtime.prompt([{"role": "user", "content": "one two three one two three one two"}])]
        (verdict,) = check(runtime, prompts, sampling, 48)
        assert verdict.divergence is None or verdict.divergence.near_tie
        assert verdict.drafted > verdict.accepted > 0
