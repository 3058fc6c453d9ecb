"""The comparison of controllers: what it replays is fair, and ours holds its own on a slice of it."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are not beside the tests")

from benchmarks.simulator.__main__ import fixed
from benchmarks.simulator.trace import Trace
from benchmarks.simulator.world import Outcome


@cache
def short(name: str, items: int = 4, tokens: int = 100) -> Trace:
    whole = Trace.load(name)
    return Trace(name, [item.first(tokens) for item in whole.items[:items]])


@cache
def known(name: str) -> dict[str, Outcome]:
    return fixed(short(name))
