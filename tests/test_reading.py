"""What drafters read before they guess: how much, what it takes, when it is worth it, and how it is paid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulator.cards import KEPT, curve
from benchmarks.simulator.measured import flat, load
from benchmarks.simulator.reading import joined
from benchmarks.simulator.trace import Trace
from benchmarks.simulator.world import CURVES, World
from edgespec.backends.toy import ToySession, scripted
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.budget import Budget, Instalments
from edgespec.controller.fixed import Fixed
from edgespec.controller.reading import Reading
from edgespec.drafters import Drafter, reading_price_of
from edgespec.drafters.failsafe import Failsafe
from edgespec.drafters.model import ModelDrafter

STEP = 0.1


def test_only_what_is_new_is_read() -> None:
    reading, context = Reading(STEP / 4), list(range(100))
    assert reading.tokens(context) == 100
    assert reading.read(context) == 100
    assert reading.tokens(context) == 0
    context.extend(range(5))
    assert reading.tokens(context) == 5
    context.extend(range(60))
    assert reading.read(context) == 65


def test_of_another_text_the_common_beginning_is_not_read_again() -> None:
    reading = Reading(STEP / 4)
    reading.read([*range(100)])
    assert reading.tokens([*range(90), *range(50)]) == 50
    assert reading.tokens([*range(100)]) == 10, "what it had of the end is gone"
    assert reading.tokens([7] * 30) == 30
    assert reading.tokens([]) == 0


def test_what_a_round_commits_is_read_with_the_first_guess() -> None:
    reading, context = Reading(STEP / 4), list(range(100))
    reading.read(context)
    context.extend(range(16))
    assert reading.expected(context) == 0
    assert reading.read(context) == 0
    context.extend(range(17))
    assert reading.expected(context) > 0
    assert reading.read(context) == 17


def test_what_was_committed_since_the_answer_began_is_not_part_of_its_prompt() -> None:
    reading, context = Reading(STEP / 4), [0] * 100
    prompt = reading.expected(context)
    assert reading.expected_of_prompt(context) == prompt > 0
    context.extend([1] * 200)
    assert reading.expected_of_prompt(context) == prompt
    assert reading.expected(context) == pytest.approx(3 * prompt)
    reading.read(context)
    context.extend([2] * 200)
    assert reading.expected_of_prompt(context) == 0


def test_the_price_of_a_token_is_learned() -> None:
    reading = Reading(STEP / 4)
    for _ in range(5):
        reading.observe(100, 2.0)
    assert reading.expected([0] * 50) == pytest.approx(1.0)


def test_a_hiccup_is_no_reading() -> None:
    reading = Reading(STEP / 4)
    for _ in range(5):
        reading.observe(100, 2.0)
    assert reading.observe(100, 2.5) == 2.5
    assert reading.observe(100, 1000.0) < 10


def test_reading_is_shared_by_the_rounds_that_it_serves() -> None:
    """A drafter that is soon left alone again has little of what it read."""
    long, short = Reading(STEP / 4), Reading(STEP / 4)
    for reading, rounds in ((long, 40), (short, 1)):
        for answer in range(20):
            context = [answer] * 100
            for _ in range(rounds):
                reading.read(context)
                context.append(answer)
    assert long.share(1.0) == pytest.approx(1 / 40, rel=0.1)
    assert short.share(1.0) == pytest.approx(1, rel=0.1)


def test_a_reading_is_paid_in_full_over_some_rounds() -> None:
    instalments = Instalments()
    paid = [instalments.pay(32.0), *(instalments.pay(0.0) for _ in range(1600))]
    assert paid[0] == 0.5
    assert sum(paid) == pytest.approx(32)


def test_one_long_reading_does_not_end_speculation_at_once() -> None:
    budget, instalments = Budget(), Instalments()
    budget.observe(1, 1.0, instalments.pay(30.0))
    assert budget.is_left_for_priced
    for _ in range(16):
        budget.observe(1, 1.0, instalments.pay(0.0))
    assert not budget.is_left_for_priced
    assert budget.is_left, "look-ups read nothing"


def strangers(name: str, count: int) -> Trace:
    """The first items of a trace, each with a prompt of its own: nothing that was read before is of use."""
    items = Trace.load(name).items[:count]
    return Trace(name, [replace(item, prompt=(number, *item.prompt)) for number, item in enumerate(items)])


@pytest.mark.parametrize("place", [0, 4])
def test_a_draft_model_is_used_where_each_answer_has_a_prompt_of_its_own(place: int) -> None:
    """Each reading was taken for a loss of the guesses after it, so it was asked in 7% of the rounds."""
    curve, trace = replace(CURVES[place], step=0.03), strangers("chat", 80)
    world = World(trace, curve, reading=0.3)
    outcome = world.run(Adaptive([world.look_up, world.model], world.prices, clock=world.clock))
    looked_up = World(trace, curve)
    alone = looked_up.run(Adaptive([looked_up.look_up], looked_up.prices, clock=looked_up.clock))
    assert outcome.seconds < 0.98 * alone.seconds


@pytest.mark.parametrize("reading", [0.3, 3.0])
def test_reading_for_nothing_costs_little(reading: float) -> None:
    """It was cut as a hiccup is, and so not in the account: 0.96 at a reading of 3."""
    trace = strangers("hard", 400)
    world = World(trace, replace(CURVES[0], step=0.03), reading=reading)
    outcome = world.run(Adaptive([world.look_up, world.model], world.prices, clock=world.clock))
    assert trace.tokens / outcome.seconds > 0.98


def test_look_ups_go_on_beside_a_model_whose_first_reading_takes_more_than_all_may_lose() -> None:
    """12 plain steps. All drafters paid for them, and nothing was drafted in these texts any more: 0.97 of plain
    decoding, where look-ups alone come to 1.65."""
    trace = Trace("mix", Trace.load("mix").items[:24])
    curve = replace(flat()[0], step=0.1)
    alone, beside = World(trace, curve), World(trace, curve, reading=1.0)
    looked_up = alone.run(Adaptive([alone.look_up], alone.prices, clock=alone.clock))
    outcome = beside.run(Adaptive([beside.look_up, beside.model], beside.prices, clock=beside.clock))
    assert outcome.seconds < 1.1 * looked_up.seconds


def on_a_card(weights: str, answers: int, prompt: int, *, model: bool = True) -> float:
    """The speedup at the prices of an 8B on an H200, where the draft model reads 33 tokens in the time of a guess."""
    prices = next(curve(line) for line in load(KEPT) if (line.model, line.weights) == ("8B", weights))
    trace = joined(Trace.load("chat"), answers, prompt)
    world = World(trace, prices, reading=0.03)
    world.model.reading_price = 0.03 * prices.step
    drafters: list[Drafter] = [world.look_up, world.model] if model else [world.look_up]
    outcome = world.run(Adaptive(drafters, world.prices, settling=len(prices.starts), clock=world.clock))
    return World(trace, prices).run(Fixed([], 0)).seconds / outcome.seconds


def test_a_model_that_reads_fast_is_used_after_a_long_prompt() -> None:
    """It was believed to take a quarter of a guess for each token, and never asked after 4,000."""
    assert on_a_card("f16", 10, 4000) > 1.4 * on_a_card("f16", 10, 4000, model=False)


def test_a_long_reading_does_not_pause_all_drafters() -> None:
    """Paid over 16 rounds, it used up what speculation may lose, and look-ups were paused, too: 0.97 of them alone."""
    assert on_a_card("q4_0", 10, 4000) > 1.1 * on_a_card("q4_0", 10, 4000, model=False)


def test_a_draft_model_is_expected_to_read_as_fast_as_its_wide_passes() -> None:
    session = ToySession(scripted(4, [1, 2, 3]), 4)
    assert reading_price_of(ModelDrafter(session, 4, STEP, reading_price=0.03 * STEP)) == 0.03 * STEP
    assert reading_price_of(ModelDrafter(session, 4, STEP, reading_price=STEP)) == STEP / 4
    assert reading_price_of(ModelDrafter(session, 4, STEP)) == STEP / 4
    assert reading_price_of(ModelDrafter(session, 4, STEP, reading_price=0.0)) == STEP / 100
    assert reading_price_of(Failsafe(ModelDrafter(session, 4, STEP, reading_price=0.03 * STEP))) == 0.03 * STEP
