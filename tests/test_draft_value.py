"""The value of a draft model: its acceptance by depth, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

import edgespec
from edgespec import Device, Sampling, Speculation
from edgespec.backends.toy import Bytes, ToyModel, blend, ngram_rule
from edgespec.errors import Interrupted
from edgespec.tools.draft_value import DraftValue, measure_draft


def test_worth_is_measured_by_depth() -> None:
    """A draft that is wrong now and then: counted by hand from its rounds."""
    rule = ngram_rule(Bytes.size, seed=3)
    draft = blend(rule, ngram_rule(Bytes.size, seed=9), 0.2)
    speculation = Speculation(("model",), 4)
    runtime = edgespec.assemble(ToyModel(rule), ToyModel(draft), device=Device(context=256), speculation=speculation)
    prompts = [[1, 2, 3], [4, 5]]
    with runtime:
        rounds = [
            event.round
            for prompt in prompts
            for event in runtime.complete(prompt, Sampling(), max_tokens=60)
            if isinstance(event, edgespec.Text)
        ]
        first, last = measure_draft(runtime, prompts, Sampling(), 60)
    tried = [sum(len(r.path) >= depth and len(r.draft) > depth for r in rounds) for depth in range(4)]
    accepted = [sum(len(r.path) > depth for r in rounds) for depth in range(4)]
    assert last.depths == tuple(zip(tried, accepted, strict=True))
    assert first.tokens < last.tokens == sum(len(r.tokens) for r in rounds)
    assert 0 < last.acceptance[0] == accepted[0] / tried[0] < 1


def test_a_cancelled_answer_is_no_measurement() -> None:
    rule = ngram_rule(Bytes.size, seed=3)
    with edgespec.assemble(ToyModel(rule), device=Device(context=256)) as runtime:
        steps = measure_draft(runtime, [[1], [2]], Sampling(), 20)
        next(steps)
        complete = runtime.complete

        def cancelled(*given: Any, **options: Any) -> Any:
            stream = complete(*given, **options)
            runtime.cancel()
            return stream

        runtime.complete = cancelled  # type: ignore[method-assign]
        with pytest.raises(Interrupted):
            next(steps)


def test_what_follows_from_worth() -> None:
    worth = DraftValue(((100, 50), (50, 40), (19, 1)), (1.0, 1.1, 1.2, 1.3), 0.01)
    assert worth.acceptance == (0.5, 0.8), "19 tries say nothing"
    assert worth.best.k == 3
    assert worth.best.speedup == pytest.approx((1 + 0.5 + 0.4 + 0.32) / 1.33)
    assert worth.length(2) == pytest.approx(1.9)
    assert worth.ceiling.k == 3
    few = DraftValue(((19, 19),), (1.0, 1.1), 0.0)
    assert (few.acceptance, few.known) == ((), False), "19 of 19 say nothing"
    assert worth.known
    assert not DraftValue(((100, 50),), (1.0, 0.1), 0.0).known, "prices that cannot be true"
    nothing = DraftValue((), (1.0, 1.1), 0.0)
    assert (nothing.acceptance, nothing.best.k, nothing.length(1)) == ((), 0, 1.0)
