"""The comparison of controllers: what it replays is fair, and ours holds its own on a slice of it."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are not beside the tests, and no part of an install")

from benchmarks.simulator.__main__ import TRACES, fixed, others, ours
from benchmarks.simulator.ablation import HEURISTICS, SETTINGS, Setting, replay
from benchmarks.simulator.clairvoyant import clairvoyant
from benchmarks.simulator.trace import Trace
from benchmarks.simulator.world import CURVES, Curve, Outcome, World, accepted
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.types import Draft

SOME = (CURVES[0], CURVES[1], CURVES[4])


@cache
def beginning(name: str, tokens: int = 600) -> Trace:
    """The first answers of a trace, so many tokens at least."""
    items = []
    for item in Trace.load(name).items:
        items.append(item)
        if sum(len(taken.answer) for taken in items) >= tokens:
            break
    return Trace(name, items)


@cache
def known(name: str) -> dict[str, Outcome]:
    return fixed(beginning(name))


@pytest.mark.parametrize("curve", SOME, ids=lambda curve: curve.name)
@pytest.mark.parametrize("name", TRACES)
def test_ours_comes_near_every_fixed_choice_and_nobody_beats_the_clairvoyant(name: str, curve: Curve) -> None:
    trace = beginning(name)
    best = max(1.0, *(outcome.speedup(curve) for outcome in known(name).values()))
    reached = ours(trace, curve)
    assert reached >= 0.95 * best
    assert ours(trace, curve, trees=True) >= 0.93 * best
    limit = clairvoyant(trace, curve)
    assert max(best, reached, *(outcome.speedup(curve) for outcome in others(trace, curve).values())) <= limit
    assert reached > 0.7 * limit, "a limit that nobody comes near says nothing"


def test_replaying_twice_gives_the_same_figures() -> None:
    """No clock of the machine, no hash order, nothing left of the run before."""

    def replay() -> list[Outcome]:
        outcomes = []
        for trees in (False, True):
            world = World(beginning("mix", 200), SOME[2])
            drafters: list[Drafter] = [Lookup(), world.model]
            outcomes.append(world.run(Adaptive(drafters, world.prices, trees=trees, clock=world.clock)))
        return outcomes

    chains, trees = replay()
    assert replay() == [chains, trees]
    assert not any(tree for _, tree in chains.passes)
    assert any(tree for _, tree in trees.passes)
    assert chains.steps > 0


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_on_a_noisy_machine_a_replay_is_the_same_every_time(setting: Setting) -> None:
    trace = beginning("copy", 300)
    first = replay(trace, SOME[0], setting)
    assert first > 1.2
    assert replay(trace, SOME[0], setting) == first


@pytest.mark.parametrize("name", HEURISTICS)
def test_a_heuristic_is_off_and_then_on_again(name: str) -> None:
    """A name that the controller no longer has would fail here, and not after an hour of replaying."""
    trace, setting = beginning("mix", 200), SETTINGS[0]
    before = replay(trace, SOME[0], setting)
    with HEURISTICS[name]():
        assert replay(trace, SOME[0], setting) > 0.3
    assert replay(trace, SOME[0], setting) == before


def test_plain_decoding_takes_a_plain_step_a_token() -> None:
    trace = beginning("copy", 200)
    outcome = World(trace, SOME[0]).run(Fixed([], 0))
    assert outcome == Outcome(trace.tokens, passes=outcome.passes)
    assert dict(outcome.passes) == {(1, False): trace.tokens}
    assert outcome.speedup(SOME[0]) == 1


def test_a_run_costs_what_its_passes_and_guesses_cost() -> None:
    trace, curve = beginning("chat", 200), SOME[0]
    world = World(trace, curve)
    outcome = world.run(Fixed([world.model], 3))
    assert outcome.tokens == trace.tokens == outcome.accepted + outcome.rounds
    assert outcome.steps > 0
    assert world.clock.now == pytest.approx(trace.tokens / outcome.speedup(curve))
    assert 1 < outcome.speedup(curve) < 4 / curve.seconds[3]


def test_what_is_accepted_of_a_tree_is_the_path_that_the_text_follows() -> None:
    """The last token of the text always comes from the target: a draft of it is too long."""
    tree = Draft((7, 5, 6, 8, 6, 9), (-1, -1, 1, 2, 0, 3), ("test",) * 6)
    assert accepted(tree, [5, 6, 8, 9, 1]) == (1, 2, 3, 5)
    assert accepted(tree, [5, 6, 8, 9]) == (1, 2, 3)
    assert accepted(tree, [7, 6, 8, 1]) == (0, 4)
    assert accepted(tree, [5, 9, 9, 9]) == (1,)
    assert accepted(tree, [6, 5, 8]) == ()
    assert accepted(tree, [5]) == ()
    assert accepted(Draft(), [5, 6]) == ()
    chain = Draft.chain((5, 6, 7), "test")
    assert accepted(chain, [5, 6, 9, 9]) == (0, 1)
    assert accepted(chain, [5, 6, 7, 9]) == (0, 1, 2)
