"""Engines that record passes: a pass of another width than those before has another price than later ones in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgespec.backends import Interrupt
from edgespec.backends.toy import ngram_rule
from edgespec.bench.replay import ReplaySession
from edgespec.controller.adaptive import Adaptive
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Request, Text
from edgespec.prices import Prices, measure, refresh
from edgespec.types import Draft, Floats, Round
from edgespec.verify import RoundContext, verifier

from .control_runs import book, bought
from .engine_runs import SPOKEN
from .helpers import Clock, Priced, round_context, trusting

VOCAB, PROMPT = SPOKEN.size, [3, 4, 5]
RULE = ngram_rule(VOCAB)
FIRST, SECOND, LATER, WIDE = 4.0, 6.0, 3.0, 5.0


class Recording(Priced):
    """Passes have three prices, by their place in a row of their width; wider ones, and the first one ever of a width
    or of a prefill, take more."""

    settling = 2

    def __init__(self, clock: Clock) -> None:
        super().__init__(RULE, VOCAB, clock, [0.0])
        self.clock, self._row = clock, 0

    def prefill(self, tokens: Sequence[int]) -> None:
        self.clock.now += 0 if 0 in self.passes else 10.0
        self.passes.append(0)
        super().prefill(tokens)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        n = len(tokens)
        self.clock.now += 0 if n in self.passes else 10.0
        self._row = self._row + 1 if self.passes and self.passes[-1] == n else 1
        self.clock.now += (FIRST, SECOND, LATER)[min(self._row, 3) - 1] + (WIDE - LATER if n > 1 else 0.0)
        return super().decode(tokens, tree)


def test_passes_are_measured_in_a_row_of_their_width() -> None:
    clock = Clock()
    curve = measure(Recording(clock), clock=clock.perf_counter)
    assert curve[0] == LATER
    assert set(curve[1:]) == {WIDE}
    assert curve.switching == FIRST - LATER


def test_refreshing_warms_every_width_and_skips_what_has_not_settled() -> None:
    clock = Clock()
    session, prices = Recording(clock), Prices([LATER, WIDE, WIDE])
    refresh(session, prices, clock.perf_counter)
    assert list(prices.curve()) == [LATER, WIDE, WIDE]
    assert {0, 1, 2, 3} <= set(session.passes)
    assert list(session.tokens) == []


def test_a_short_session_is_warmed_as_far_as_it_goes() -> None:
    clock = Clock()
    session, prices = Recording(clock), Prices([LATER, *15 * [WIDE]])
    session.context = 6
    refresh(session, prices, clock.perf_counter)
    assert max(session.passes) == 6


@pytest.mark.parametrize("use", [measure, lambda session, **_: refresh(session, Prices([LATER, WIDE, WIDE]))])
def test_no_timed_pass_computes_what_is_owed(use: Callable[..., object]) -> None:
    """A session that computes again what stays of a pass when a part of it is dropped."""
    session = Owing(Clock())
    use(session, widest=3)
    assert not session.owing


class Owing(Recording):
    """Owes a token after every rollback, until it prefills."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.debt, self.owing = 0, list[int]()

    @property
    def owed(self) -> int:
        return self.debt

    def prefill(self, tokens: Sequence[int]) -> None:
        super().prefill(tokens)
        self.debt = 0

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        if self.debt:
            self.owing.append(len(tokens))
        return super().decode(tokens, tree)

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        super().rollback(length, keep)
        self.debt = int(length > 0)


def test_a_replayed_session_settles_like_its_own() -> None:
    assert ReplaySession(Recording(Clock())).settling == 2


class Drafts:
    """Drafts two wrong tokens in given rounds."""

    drafters = ()

    def __init__(self, rounds: set[int]) -> None:
        self._wanted, self.seen = rounds, list[Round]()

    def choose(self, _context: RoundContext, limit: int) -> Draft:
        wanted = len(self.seen) in self._wanted and limit >= 2
        return Draft.chain((6, 6), "x") if wanted else Draft()

    def observe(self, round: Round) -> None:  # noqa: A002
        self.seen.append(round)


def test_rounds_say_whether_their_price_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    session, controller = Recording(Clock()), Drafts({2})
    observed = list[tuple[int, float]]()
    monkeypatch.setattr(Prices, "observe", lambda _self, n, _held, seconds: observed.append((n, seconds)))
    engine = Engine(session, SPOKEN, controller, verifier("match"), Interrupt(), Prices([1.0, 1.0, 1.0]))
    said = [event for event in engine.generate(Request(PROMPT, max_tokens=8)) if isinstance(event, Text)]
    settled = [each.settled for each in controller.seen]
    assert settled[:6] == [True, True, False, False, False, True], "what follows a prompt is as for plain decoding"
    assert [n for n, _ in observed] == [1] * (len(said) - 5), "the first two after a prompt or a draft are left out"


@pytest.mark.parametrize(("settled", "credit"), [(True, 4.0), (False, 2.5)])
def test_plain_steps_just_after_a_draft_are_paid_by_speculation(settled: bool, credit: float) -> None:
    controller = Adaptive([Lookup()], Prices([2.0, 3.0]))
    before = controller._budget._left
    controller.observe(replace(Round(Draft(), (), (7,), 5.0, held=9), settled=settled))
    share = 0.01 * (1.0 if settled else 2.5)
    assert before == 4.0
    assert controller._budget._left == pytest.approx(credit + share)


@pytest.mark.parametrize(("switching", "drafts"), [(0.0, True), (0.5, True), (2.0, False)])
def test_a_pass_of_another_width_is_dearer(switching: float, drafts: bool) -> None:
    """Two likely guesses for a pass that costs half a plain step more than one."""
    prices = Prices([2.0, 2.5, 3.0])
    prices.switching = switching
    controller = Adaptive([book((7, 0.9), (8, 0.9))], prices, trusting("book"))
    assert len(controller.choose(round_context(), 2)) == (2 if drafts else 0)
    controller.observe(bought(Draft.chain((7, 8), "book"), (0, 1), 7, 8, 9, seconds=6.0))
    assert len(controller.choose(round_context(), 2)) == 2, "the last pass had this width"


def test_a_width_is_settled_after_passes_in_a_row() -> None:
    """Until then the second pass of a width is dearer, too: on a card it takes more than the first."""
    prices = Prices([2.0, 2.5, 3.0])
    prices.switching = 1.0
    controller = Adaptive([], prices, settling=2)

    def after(width: int) -> list[float]:
        tokens = tuple(range(7, 7 + width))
        draft = Draft.chain(tokens[:-1], "book")
        controller.observe(bought(draft, tuple(range(width - 1)), *tokens, seconds=prices.price(width)))
        return list(controller._from_last_width(prices.curve(0), 0))

    assert list(controller._from_last_width(prices.curve(0), 0)) == [2.0, 3.5, 4.0]
    assert after(3) == [3.0, 3.5, 4.0]
    assert after(3) == [3.0, 3.5, 3.0]
    assert after(3) == [3.0, 3.5, 3.0]
    assert after(1) == [3.0, 3.5, 4.0]
    assert after(1) == [2.0, 3.5, 4.0]


def test_an_engine_without_recorded_passes_has_no_price_of_a_change() -> None:
    clock = Clock()
    assert measure(Priced(RULE, VOCAB, clock, [3.0, 5.0]), clock=clock.perf_counter).switching == 0.0


@pytest.mark.parametrize("settling", [0, 2])
def test_a_draft_model_that_must_settle_reads_a_few_tokens_one_by_one(settling: int) -> None:
    """What it guesses is the same; only the widths of its passes differ."""
    session = Recording(Clock())
    session.settling = settling
    drafter = ModelDrafter(session, VOCAB, 0.1)
    text = [*PROMPT]
    for more in (0, 1, 2, 3, 4, 5):
        text += [(7 * n) % VOCAB for n in range(more)]
        drafter.begin(round_context(text))
        before = len(session.passes)
        path: list[int] = []
        for _ in range(3):
            (guess,) = drafter.guess(path, 1)
            assert guess.token == int(np.argmax(RULE([*text, *path])))
            path.append(guess.token)
        widths = [n for n in session.passes[before:] if n]
        if more > 3 or not settling:
            assert widths[1:] == [1, 1]
        else:
            assert set(widths) == {1}
            assert len(widths) >= 3
