"""An answer that is cancelled, or left by its reader."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgespec.backends import Interrupt
from edgespec.backends.toy import Rule, ToySession, blend
from edgespec.controller.fixed import Fixed
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Finished, Request
from edgespec.sampling import Sampling
from edgespec.types import Floats

from .engine_runs import OTHER, PROMPT, TARGET, VOCAB, drafting, engine, run
from .helpers import decode_plain


def interrupting(rule: Rule, interrupt: Interrupt, call: int) -> Rule:
    """Sets the interrupt while it computes its row number `call`."""
    calls = iter(range(1, 10**9))

    def wrapped(context: Sequence[int]) -> Floats:
        if next(calls) == call:
            interrupt.set()
        return rule(context)

    return wrapped


@pytest.mark.parametrize("call", range(1, 16))
@pytest.mark.parametrize("where", ["target", "draft"])
def test_cancelling_at_any_moment_leaves_everything_usable(where: str, call: int) -> None:
    """In the target's pass, between rounds, within a draft; then the same engine answers anew."""
    interrupt = Interrupt()
    rules = {"target": TARGET, "draft": blend(TARGET, OTHER, 0.3)}
    rules[where] = interrupting(rules[where], interrupt, call)
    target = ToySession(rules["target"], VOCAB, interrupt=interrupt)
    drafter = ModelDrafter(ToySession(rules["draft"], VOCAB, interrupt=interrupt), VOCAB)
    speaker = engine(target, Fixed([drafter], 3), interrupt=interrupt)
    right = decode_plain(TARGET, PROMPT, Sampling(), 20)

    said, finished = run(speaker.generate(Request(PROMPT, max_tokens=20)), target, PROMPT)
    assert finished.reason == "cancelled"
    assert said == right[: len(said)] != right

    interrupt.clear()
    said, finished = run(speaker.generate(Request(PROMPT, max_tokens=20)), target, PROMPT)
    assert (said, finished.reason) == (right, "length")


def test_cancelling_works_with_an_engine_that_cannot_stop_in_a_pass() -> None:
    """Then it takes until the end of the round."""
    interrupt = Interrupt()
    target = ToySession(interrupting(TARGET, interrupt, 5), VOCAB)
    events = engine(target, Fixed([], 0), interrupt=interrupt).generate(Request(PROMPT, max_tokens=20))
    said, finished = run(events, target, PROMPT)
    assert (len(said), finished.reason) == (5, "cancelled")


def test_cancelled_before_the_prompt_is_read() -> None:
    interrupt = Interrupt()
    interrupt.set()
    target = ToySession(TARGET, VOCAB, interrupt=interrupt)
    (only,) = engine(target, interrupt=interrupt).generate(Request(PROMPT))
    assert isinstance(only, Finished)
    assert (only.reason, only.stats.tokens, list(target.tokens)) == ("cancelled", 0, [])


@pytest.mark.parametrize("events", range(6))
def test_a_reader_may_leave_at_any_event(events: int) -> None:
    target = ToySession(TARGET, VOCAB)
    speaker = engine(target, Fixed([drafting(blend(TARGET, OTHER, 0.4))], 4))
    stream = speaker.generate(Request(PROMPT, max_tokens=20))
    for _ in range(events):
        next(stream)
    del stream
    other = [5, 5, 1]
    said, _ = run(speaker.generate(Request(other, max_tokens=20)), target, other)
    assert said == decode_plain(TARGET, other, Sampling(), 20)
