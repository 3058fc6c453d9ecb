"""Shadow drafts: a drafter without credit drafts, and the text tells what the draft would have brought."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from edgespec.backends import Interrupt
from edgespec.backends.toy import Bytes
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.budget import Budget
from edgespec.controller.calibration import Calibration
from edgespec.controller.draft_tree import DraftTree
from edgespec.controller.priced_drafter import PricedDrafter
from edgespec.controller.shadow import Shadow, ShadowDraft
from edgespec.drafters import Drafter
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Request, Text
from edgespec.prices import Prices
from edgespec.sampling import Sampling
from edgespec.types import Guess
from edgespec.verify import VERIFIERS, verifier

from .control_runs import TARGET, VOCAB, Run, book, right
from .helpers import Clock, Priced, round_context, trusting

#: llama.cpp, Q8_0, 395M on two cores of an EPYC: no draft of one token can pay.
STEEP = (1.0, 2.4, 2.9, 3.4, 4.4, 4.8, 5.2, 3.7, 5.0, 5.4, 5.0, 4.7, 5.7, 6.0, 6.7, 4.9)


def owing(steps: float) -> Callable[[Drafter, Prices, Clock], Controller]:
    """A controller whose draft model has lost so many plain steps before."""

    def control(drafter: Drafter, prices: Prices, clock: Clock) -> Controller:
        controller = Adaptive([drafter], prices, clock=clock.perf_counter)
        controller._budget.observe(1, 1.0 + steps, asked=True)
        return controller

    return control


def paused(steps: float) -> Callable[[Drafter, Prices, Clock], Controller]:
    """A controller that may not speculate at all until so many plain steps are refilled."""

    def control(drafter: Drafter, prices: Prices, clock: Clock) -> Controller:
        controller = Adaptive([drafter], prices, clock=clock.perf_counter)
        controller._budget.observe(1, 1.0 + steps + 4.0)
        return controller

    return control


@pytest.mark.parametrize("control", [owing(60.0), paused(60.0)])
def test_a_drafter_that_pays_is_asked_again_long_before_its_losses_are_paid_off(
    monkeypatch: pytest.MonkeyPatch, control: Callable[[Drafter, Prices, Clock], Controller]
) -> None:
    """60 plain steps are more than 1% of 1,000 of them refills."""
    run = Run(monkeypatch, control, right(0.95), step=0.03, curve=STEEP)
    assert run.rate > 1.3
    monkeypatch.setattr(Shadow, "is_due", lambda *_arguments: False)
    assert Run(monkeypatch, control, right(0.95), step=0.03, curve=STEEP).rate == pytest.approx(1.0)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_drafter_that_does_not_pay_is_not_and_takes_half_a_hundredth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    run = Run(monkeypatch, owing(60.0), right(rate), step=0.03, curve=STEEP)
    assert not any(round_.draft for round_ in run.rounds)
    drafting = sum(round_.draft_seconds for round_ in run.rounds)
    assert 0.004 * run.seconds < drafting < 0.005 * run.seconds + 16 * 0.03


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.8])
def test_no_more_is_lost_than_two_hundredths_of_the_time(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    run = Run(monkeypatch, owing(0.0), right(rate), step=0.1, curve=STEEP, tokens=3000)
    assert run.rate > 0.98


def mistaken(drafter: Drafter, prices: Prices, clock: Clock) -> Controller:
    """A controller that has seen three later guesses of five go wrong."""
    controller = Adaptive([drafter], prices, clock=clock.perf_counter)
    for n in range(100):
        controller.calibration.ahead(drafter.name).later.add(n % 5 < 2)
    return controller


def test_probes_find_a_drafter_that_pays_where_it_was_taken_to_be_wrong_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafts of one token, which nothing but a longer one would correct, were all that was made."""
    monkeypatch.setattr(Shadow, "is_due", lambda *_arguments: False)
    assert Run(monkeypatch, mistaken, right(0.9), step=0.03, curve=STEEP).rate > 1.3
    monkeypatch.setattr("edgespec.controller.adaptive.PROBE_ERRORS", 1.0)
    assert Run(monkeypatch, mistaken, right(0.9), step=0.03, curve=STEEP).rate < 1.05


def test_shadow_drafts_find_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(drafter: Drafter, prices: Prices, clock: Clock) -> Controller:
        controller = owing(60.0)(drafter, prices, clock)
        assert isinstance(controller, Adaptive)
        for n in range(100):
            controller.calibration.ahead(drafter.name).later.add(n % 5 < 2)
        return controller

    assert Run(monkeypatch, lost, right(0.95), step=0.03, curve=STEEP).rate > 1.3
    monkeypatch.setattr("edgespec.controller.shadow.PROBE_ERRORS", 1.0)
    assert Run(monkeypatch, lost, right(0.95), step=0.03, curve=STEEP).rate < 1.05


@pytest.mark.parametrize("rule", VERIFIERS)
@pytest.mark.parametrize("rate", [0.5, 0.95])
def test_the_text_is_that_of_plain_decoding(monkeypatch: pytest.MonkeyPatch, rule: str, rate: float) -> None:
    """No draft is verified, so not even the random numbers of a round may differ."""
    monkeypatch.setattr(Budget, "is_left_for_priced", False)
    clock = Clock()
    monkeypatch.setattr("edgespec.engine.time", clock)

    def text(drafters: Sequence[Drafter]) -> list[int]:
        prices = Prices(STEEP)
        controller = Adaptive(drafters, prices, clock=clock.perf_counter)
        target = Priced(TARGET, VOCAB, clock, STEEP)
        engine = Engine(target, Bytes(), controller, verifier(rule), Interrupt(), prices)
        events = engine.generate(Request([1, 2, 3], max_tokens=300, sampling=Sampling(temperature=1.0, seed=5)))
        return [token for event in events if isinstance(event, Text) for token in event.round.tokens]

    drafter = ModelDrafter(Priced(right(rate), VOCAB, clock, [0.03]), VOCAB, 0.03)
    compared: list[ShadowDraft] = []
    monkeypatch.setattr(Shadow, "_learn", lambda _shadow, draft: compared.append(draft))
    assert text([drafter]) == text([])
    assert len(compared) > 5


# --- what a draft brought


@pytest.mark.parametrize(
    ("said", "accepted"),
    [((), None), ((1,), None), ((2,), 0), ((1, 2), 2), ((1, 3), None), ((1, 3, 4), 3), ((1, 3, 5), 2), ((1, 7), 1)],
)
def test_as_many_tokens_are_accepted_as_the_text_agrees_with(said: tuple[int, ...], accepted: int | None) -> None:
    """1 and below it 2 or 3, and 4 below that; 7 was guessed, and would not have been verified."""
    tree = DraftTree(Calibration())
    first = tree.add(-1, "model", [Guess(1, 0.9)])[0]
    second, third, seventh = tree.add(first, "model", [Guess(2, 0.5), Guess(3, 0.4), Guess(7, 0.1)])
    fourth = tree.add(third, "model", [Guess(4, 0.9)])[0]
    assert seventh == 3
    context = [9, 9]
    draft = ShadowDraft(context, 2, tree, [first, second, third, fourth], 3.0)
    context.extend(said)
    assert draft.accepted() == accepted


def shadow_of(*tokens: int, cost: float = 3.0) -> tuple[Shadow, list[int]]:
    """A shadow with a draft of `tokens`, and the context that it waits for."""
    calibration, context = Calibration(), [9]
    priced = PricedDrafter(book(name="model", step_price=0.1), calibration.ahead("model"), lambda: 0.0)
    tree, nodes = DraftTree(calibration), list[int]()
    for token in tokens:
        nodes += tree.add(nodes[-1] if nodes else -1, "model", [Guess(token, 0.5)])
    shadow = Shadow(priced, calibration, lambda: 0.0)
    shadow._draft = ShadowDraft(context, 1, tree, nodes, cost)
    return shadow, context


def test_later_guesses_teach_as_verified_ones_do() -> None:
    """The first one was compared with what its own round committed."""
    shadow, context = shadow_of(1, 2, 3)
    first, later = shadow._priced.ahead.first, shadow._priced.ahead.later
    before = first.tries, later.tries, later.value
    context.extend((1, 2, 4))
    shadow.compare(context)
    assert first.tries == before[0]
    assert later.tries == pytest.approx(before[1] + 2, abs=0.2)
    assert later.value < before[2], "one of two was right"


def test_a_draft_of_another_answer_says_nothing() -> None:
    shadow, context = shadow_of(1, 2, 3, cost=-10.0)
    before = shadow._priced.ahead.later.tries
    assert not shadow.compare([*context, 1, 2, 3])
    context.extend((1, 2, 3))
    assert not shadow.compare(context)
    assert shadow._priced.ahead.later.tries == before


@pytest.mark.parametrize(("cost", "shown"), [(2.9, True), (3.1, False)])
def test_four_plain_steps_show_that_a_drafter_pays(cost: float, shown: bool) -> None:
    shadow, context = shadow_of(*range(1, 8), cost=cost)
    context.extend(range(1, 8))
    assert shadow.compare(context) == shown
    assert not shadow.compare(context), "once"
    again = shadow_of(1, cost=0.1)[0]._draft
    assert again is not None
    shadow._draft = again._replace(context=[9, 1])
    assert shadow.compare(shadow._draft.context) == (not shown), "from nothing, once it was shown"


def test_losses_before_a_text_in_which_it_pays_do_not_count() -> None:
    shadow, context = shadow_of(1, cost=30.0)
    context.append(2)
    assert not shadow.compare(context)
    shadow._draft, text = shadow_of(*range(1, 8), cost=2.9)[0]._draft, [9, *range(1, 8)]
    assert shadow._draft is not None
    shadow._draft = shadow._draft._replace(context=text)
    assert shadow.compare(text)


def test_what_was_shown_restores_the_first_credit_and_no_more() -> None:
    budget = Budget(1)
    budget.observe(1, 30.0, asked=True)
    budget.observe(1, 30.0)
    budget.restore()
    assert (budget.left, budget._priced) == (4.0, 3.0)
    rich = Budget(1, gained=20.0)
    rich.restore()
    assert (rich.left, rich._priced) == (16.0, 12.0)


def test_the_time_for_shadow_drafts_is_shared_and_nobody_makes_two_at_once() -> None:
    shadow, context = shadow_of(1)
    alone = shadow._left
    other = Shadow(shadow._priced, Calibration(), lambda: 0.0, drafters=2)
    for each in (shadow, other):
        for _ in range(100):
            each.wait()
    assert shadow._left - alone == pytest.approx(2 * other._left)
    assert not shadow.is_due(context, 1.0), "its draft is still compared"
    shadow._draft = None
    assert shadow.is_due(context, 1.0)


def test_a_shadow_draft_is_priced_as_passes_are_believed_to_be_and_none_is_verified_in_a_pause() -> None:
    lookup, model = book((7, 0.9), (8, 0.9)), book((7, 0.9), name="model", step_price=0.1)
    controller = Adaptive([lookup, model], Prices([1.0, 1.1, 1.2, 1.3]), trusting("lookup"), clock=lambda: 0.0)
    controller._budget.observe(1, 60.0)
    assert controller.is_paused
    controller._shadows[0]._left = 1.0
    controller._explorer._rounds = 10**6
    assert not controller.choose(round_context(), 3)
    assert controller._shadows[0]._draft is not None
    assert not controller._exploring


def test_no_draft_is_made_while_there_is_credit() -> None:
    drafter = book((1, 0.9), name="model", step_price=0.1)
    controller = Adaptive([drafter], Prices(STEEP), clock=lambda: 0.0)
    controller._shadows[0]._left = 100.0
    controller.choose(round_context(), 15)
    assert controller._expansion is not None
    assert controller._shadows[0]._draft is None
