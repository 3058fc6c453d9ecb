"""What a pass of a head takes, measured when it is loaded."""

from __future__ import annotations

import statistics
import time

from ..backends import Head, Session
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
