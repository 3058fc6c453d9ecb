"""The step "speeds": edgespec against plain decoding on pairs with the acceptance of a trained one (`shapes`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from edgespec.bench.suites import Suite, read

from .race import CHAINS, WRONG, answered, contenders, figures, prices_of
from .results import Item
from .setting import Setting

_FIXED = ("k=1", "k=3", "k=5", "k=7", "k=12")
_CONTEXT = 2048
DIALOGUE = "dialogue"
#: A plain step of it in F16 on an H100 takes about as long as one of an 8B in Q8_0 should on an RTX 3090 (docs/gpu.md).
LARGE = "14B"
WEIGHTS = ("Q4_0", "Q8_0", "F16")


def items(setting: Setting) -> Iterator[Item]:
    """A race for each shape, type of weights, suite and temperature, the most important first."""
    for suite in ("demo", DIALOGUE, "replay"):
        for weights in WEIGHTS[: 1 if setting.small else None]:
            for size in reversed(setting.sizes):
                yield Item(f"{size} {weights}, {suite}, T = 0", _race(setting, size, weights, suite, 0.0))
        if suite == DIALOGUE and not setting.small:
            yield Item(f"{LARGE} F16, {suite}, T = 0", _race(setting, LARGE, "F16", suite, 0.0))
    for size in reversed(setting.sizes):
        yield Item(f"{size} Q4_0, demo, sampled at 0.8", _race(setting, size, "Q4_0", "demo", 0.8))


def _race(setting: Setting, size: str, weights: str, suite: str, temperature: float) -> Callable[[], dict[str, Any]]:
    def work() -> dict[str, Any]:
        names = setting.contenders or (CHAINS, WRONG, *(("k=3",) if setting.small else ("lookup", "model", *_FIXED)))
        target, drafts = setting.target(size, weights), setting.drafts()
        with contenders(target, drafts, setting.place(context=_CONTEXT), names, setting) as (found, left_out):
            before = prices_of(found)
            run = answered(found, _asked(suite, setting.questions), temperature, setting.tokens)
            prices = {"before": before, "after": prices_of(found)}
        return {**figures(run), "left out": left_out, "prices": prices}

    return work


def _asked(suite: str, each: int) -> Suite:
    """The questions of a suite, so many of each category; DIALOGUE has all dialogues of the demo suite."""
    if suite != DIALOGUE:
        return read(suite).limited(each)
    demo = read("demo")
    return replace(demo, questions=[one for one in demo.questions if one.category == DIALOGUE])
