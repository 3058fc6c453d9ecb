"""What a pass of a head takes, measured when it is loaded."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from ..backends import Head, Session, StateHead
from ..errors import EngineError
from ..types import Floats
from .measuring import Clock, filler

_BASE = 16  # tokens in the cache meanwhile
_STEPS = 8  # passes, the first of which engines build graphs in


def head_step(target: Session, head: Head, clock: Clock = time.perf_counter) -> float:
    """The median seconds of a pass of `head`. The session of its target must be empty, and is so afterwards."""
    base = max(1, min(_BASE, target.context - _STEPS - 1))
    text = filler(target, base + _STEPS)
    times = []
    try:
        target.prefill(text[:base])
        for n in range(_STEPS):
            before = clock()
            head.logits(text[base], text[base + 1 : base + 1 + n])
            times.append(clock() - before)
    finally:
        target.rollback(0)
    return statistics.median(times[2:])


def state_head_step(
    target: Session, head: StateHead, heard: Callable[[], Floats | None], clock: Clock = time.perf_counter
) -> float:
    """The median seconds of a pass of heads over the target's final states, as `head_step`.

    Args:
        heard: the last state that was heard of the session.

    Raises:
        ModelError: the heads read states of another width.
        EngineError: the session gave no state.
    """
    times = []
    try:
        target.prefill(filler(target, 2))
        state = heard()
        if state is None:
            raise EngineError("the engine gave no state of the target; leave this drafter out")
        head.require_width(len(state))
        for _ in range(_STEPS):
            before = clock()
            head.guesses(state)
            times.append(clock() - before)
    finally:
        target.rollback(0)
    return statistics.median(times[2:])
