"""`check` must find what is wrong, and must not cry over near ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from edgespec import Device, Interrupt, OptionError, Sampling, Speculation, assemble
from edgespec.backends.toy import Bytes, Rule, ToyModel, ToySession, blend, ngram_rule
from edgespec.errors import Interrupted
from edgespec.prices import Prices
from edgespec.sampling import pick
from edgespec.terminal.check_report import CheckReport
from edgespec.tools.check import Divergence, Verdict, _diverge, _several_ways, check
from edgespec.types import Floats
from edgespec.verify import match

VOCAB = Bytes.size
RULE = ngram_rule(VOCAB)


class Drifting(ToySession):
    """Logits that depend on the width of the pass, as real engines' do, by `drift`; as a fault if `fault` is large."""

    drift = 0.0
    fault = 0.0

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        rows = super().decode(tokens, tree)
        if len(tokens) > 1:
            rows[:, ::2] += self.drift
            rows[1:, 1::2] += self.fault  # only behind a draft: no way to compute one place shows it
        return rows


class DriftingModel(ToyModel):
    def __init__(self, drift: float = 0.0, fault: float = 0.0, kind: type[Drifting] = Drifting) -> None:
        super().__init__(RULE)
        self._drift, self._fault, self._kind = drift, fault, kind

    def session(self, context: int, interrupt: Interrupt | None = None) -> ToySession:
        session = self._kind(RULE, VOCAB, context)
        session.drift, session.fault = self._drift, self._fault
        return session


class Shuffled(Drifting):
    """Logits that depend on whether trees left gaps in the cache, and on nothing else."""

    def __init__(self, rule: Rule, vocab: int, context: int) -> None:
        super().__init__(rule, vocab, context)
        self._gaps: set[int] = set()

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        rows = ToySession.decode(self, tokens, tree)
        if any(gap < len(self.tokens) for gap in self._gaps):
            rows[:, ::2] += self.drift
        if tree is not None:
            self._gaps.add(len(self.tokens))
            rows[1:, 1::2] += self.fault
        return rows

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        super().rollback(length, keep)
        if not length:
            self._gaps.clear()


class Stained(Drifting):
    """Logits that depend on the width of the pass in which the token before the last was: real engines keep what it
    computed, rounded in its way, in the cache."""

    def __init__(self, rule: Rule, vocab: int, context: int) -> None:
        super().__init__(rule, vocab, context)
        self._widths: list[int] = []

    def prefill(self, tokens: Sequence[int]) -> None:
        super().prefill(tokens)
        self._widths += [1] * len(tokens)

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        rows = ToySession.decode(self, tokens, tree)
        for i, row in enumerate(rows):
            if (len(tokens) if i else (self._widths or [1])[-1]) > 1:
                row[::2] += self.drift
        self._widths += [len(tokens)] * len(tokens)
        return rows

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        width = self._widths[-1] if self._widths else 1
        super().rollback(length, keep)
        self._widths = [*self._widths[:length], *[width] * len(keep)]


def verdicts(model: ToyModel, sampling: Sampling) -> list[tuple[bool, bool]]:
    draft = ToyModel(blend(RULE, ngram_rule(VOCAB, seed=9), 0.2))
    with assemble(model, draft, device=Device(context=512), speculation=Speculation(k=4)) as runtime:
        found = list(check(runtime, [[i, 7, 3] for i in range(20)], sampling, 60))
    assert sum(verdict.drafted for verdict in found) > 0
    return [(v.divergence is None, v.divergence is None or v.divergence.near_tie) for v in found]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_exact_engine_is_identical(temperature: float) -> None:
    assert set(verdicts(DriftingModel(), Sampling(temperature, seed=5))) == {(True, True)}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounding_is_told_as_near_ties(temperature: float) -> None:
    found = verdicts(DriftingModel(drift=0.3), Sampling(temperature, seed=5))
    assert any(not identical for identical, _ in found), "the drift must show, or this tests nothing"
    assert all(tie for _, tie in found)


def test_a_fault_is_no_near_tie() -> None:
    """An engine that is wrong only behind drafted tokens (a bad rollback, say) must fail the check."""
    found = verdicts(DriftingModel(fault=6.0), Sampling())
    assert any(not tie for _, tie in found)


def behind_trees(drift: float = 0.0, fault: float = 0.0) -> list[tuple[bool, bool]]:
    """As `verdicts`, where only trees matter."""
    model = DriftingModel(drift, fault, Shuffled)
    draft = ToyModel(blend(RULE, ngram_rule(VOCAB, seed=9), 0.2))
    with assemble(model, draft, device=Device(context=512)) as runtime:
        found = list(check(runtime, [[i, 7, 3] for i in range(20)], Sampling(), 60))
    assert sum(verdict.accepted for verdict in found) > 0
    return [(v.divergence is None, v.divergence is None or v.divergence.near_tie) for v in found]


def test_rounding_behind_trees_is_told_as_near_ties() -> None:
    """A tree leaves the cache in another order; that no width of a pass shows."""
    found = behind_trees(drift=0.3)
    assert any(not identical for identical, _ in found), "the drift must show, or this tests nothing"
    assert all(tie for _, tie in found)
    assert all(identical for identical, _ in behind_trees())
    assert any(not tie for _, tie in behind_trees(fault=6.0))


PENALTIES = {
    "presence": Sampling(presence_penalty=9.0),
    "repetition": Sampling(repetition_penalty=1.5),
    "bias": Sampling(logit_bias=((9, -np.inf), *((token, 3.0) for token in range(20, 40)))),
}


@pytest.mark.parametrize("what", PENALTIES)
@pytest.mark.parametrize("where", ["everywhere", "behind drafts"])
def test_a_verifier_that_ignores_penalties_is_no_near_tie(
    what: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the raw logits the faulty token leads, and its lead, below zero, once passed for a tie."""
    right = pick

    def wrong(row: Floats, sampling: Sampling, position: int, recent: Sequence[int] = ()) -> int:
        if where == "everywhere" or position % 3 == 0:
            return right(row, Sampling(sampling.temperature, seed=sampling.seed), position)
        return right(row, sampling, position, recent)

    assert set(verdicts(DriftingModel(), PENALTIES[what])) == {(True, True)}
    monkeypatch.setattr(match, "pick", wrong)
    found = verdicts(DriftingModel(), PENALTIES[what])
    assert any(not identical for identical, _ in found)
    assert not any(tie for identical, tie in found if not identical)


@pytest.mark.parametrize("what", PENALTIES)
def test_rounding_under_penalties_is_told_as_near_ties(what: str) -> None:
    found = verdicts(DriftingModel(drift=0.3), PENALTIES[what])
    assert any(not identical for identical, _ in found), "the drift must show, or this tests nothing"
    assert all(tie for _, tie in found)


@pytest.mark.parametrize("sampling", [Sampling(1.0, top_p=0.5), Sampling(1.0, min_p=0.6)])
@pytest.mark.parametrize("kept", [True, False])
def test_rounding_over_the_edge_of_a_filter_is_a_near_tie(
    sampling: Sampling, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filter keeps token 1 in one pass and drops it in another, and the noise would choose it."""
    likeliest, second = (0.499, 0.3) if sampling.min_p == 0 else (0.49, 0.298)
    if not kept:
        likeliest, second = (0.501, 0.3) if sampling.min_p == 0 else (0.49, 0.29)
    row = np.full(VOCAB, -50.0, np.float32)
    row[:3] = np.log([likeliest, second, 1 - likeliest - second])
    seeds = (replace(sampling, seed=n) for n in range(99))
    chosen = next(each for each in seeds if pick(row, replace(each, top_p=1.0, min_p=0.0), 1) == 1)
    expected, other = (1, 0) if kept else (0, 1)
    assert pick(row, chosen, 1) == expected
    for shift, tie in ((0.05, True), (1e-6, False)):
        rows = [row, row + np.float32(shift)]
        monkeypatch.setattr("edgespec.tools.check._several_ways", lambda *_arguments, rows=rows: list(rows))
        found = _diverge(cast(Any, None), [5], [expected], [other], chosen)
        assert found.flips == tie


class Chains(DriftingModel):
    """As an engine without trees, or one whose passes are padded to a width."""

    def session(self, context: int, interrupt: Interrupt | None = None) -> ToySession:
        session = super().session(context, interrupt)
        session.can_tree, session.leaves, session.widest = False, 0, 4
        return session


@pytest.mark.parametrize("kind", [DriftingModel, Chains])
@pytest.mark.parametrize("drafts", ["draft model", "look-ups", "none"])
def test_drafts_are_forced_where_none_would_be_bought(kind: type[DriftingModel], drafts: str) -> None:
    """Accepted ones and rejected ones, whatever they cost: of a pair that does not pay nothing was checked."""
    draft = ToyModel(blend(RULE, ngram_rule(VOCAB, seed=9), 0.2)) if drafts == "draft model" else None
    speculation = Speculation(()) if drafts == "none" else Speculation()
    with assemble(kind(), draft, device=Device(context=80), speculation=speculation) as runtime:
        curve = [1e-3 * 50**n for n in range(len(runtime.prices.curve()))]
        runtime._controller.prices = Prices(curve)  # type: ignore[attr-defined]
        passes = runtime.session.passes  # type: ignore[attr-defined]
        before = len(passes)
        (verdict,) = check(runtime, [[1, 7, 3, 1, 7, 3]], Sampling(), 70)
        assert verdict.divergence is None
        assert verdict.drafted > 20
        assert verdict.accepted < verdict.drafted - 5, "there must be something to take back"
        assert verdict.accepted > 20, "and something to keep"
        assert max(passes[before:]) > (8 if kind is DriftingModel else 3)


def test_a_length_that_was_asked_for_is_forced() -> None:
    for k, widest in ((0, 1), (2, 5)):
        with assemble(DriftingModel(), ToyModel(RULE), speculation=Speculation(k=k)) as runtime:
            passes = runtime.session.passes  # type: ignore[attr-defined]
            before = len(passes)
            (verdict,) = check(runtime, [[1, 7, 3]], Sampling(), 40)
            assert (verdict.drafted > 0, max(passes[before:])) == (k > 0, widest)


def test_rounding_behind_wide_passes_is_told_as_near_ties() -> None:
    """From the second token on, where no tree fits before it."""
    model = DriftingModel(drift=0.5, kind=Stained)
    draft = ToyModel(blend(RULE, ngram_rule(VOCAB, seed=9), 0.2))
    with assemble(model, draft, device=Device(context=512), speculation=Speculation(k=4)) as runtime:
        found = [v.divergence for v in check(runtime, [[i, 7, 3] for i in range(20)], Sampling(), 40)]
        parted = [divergence for divergence in found if divergence is not None]
        assert parted, "the drift must show, or this tests nothing"
        assert all(divergence.near_tie for divergence in parted)
        rows = _several_ways(runtime, [1, 7, 3], [5])
    assert max(np.abs(row - rows[0]).max() for row in rows) == pytest.approx(0.5)


def test_an_exact_session_is_asked_for_no_wider_pass_than_it_takes() -> None:
    """Its passes are of one width."""
    with assemble(ToyModel(RULE), device=Device(context=64)) as runtime:
        runtime.session.widest = 4
        wide: list[int] = []
        decode = runtime.session.decode

        def noted(tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
            wide.append(len(tokens) if tree is None else 0)
            return decode(tokens, tree)

        runtime.session.decode = noted  # type: ignore[method-assign]
        _several_ways(runtime, [1, 7, 3], [5, 6])
    assert max(wide) == 4


def test_a_text_that_stops_short_is_no_near_tie() -> None:
    model = DriftingModel()
    with assemble(model, device=Device(context=64), speculation=Speculation(k=2)) as runtime:
        complete = runtime.complete

        def cut(*arguments: object, max_tokens: int, **options: object) -> object:
            return complete(*arguments, max_tokens=max_tokens - 10, **options)  # type: ignore[arg-type]

        runtime.complete = cut  # type: ignore[method-assign, assignment]
        (verdict,) = check(runtime, [[1, 2, 3]], Sampling(logit_bias=((256, -np.inf), (258, -np.inf))), 40)
    assert verdict.divergence is not None
    assert not verdict.divergence.near_tie


def test_rejection_at_a_temperature_cannot_be_compared() -> None:
    speculation = Speculation(verifier="rejection")
    with (
        assemble(ToyModel(), speculation=speculation) as runtime,
        pytest.raises(OptionError, match="preserves the distribution"),
    ):
        list(check(runtime, [[1]], Sampling(0.8), 8))


def test_half_an_answer_is_not_judged() -> None:
    """Ctrl-C during a check: what was cancelled is shorter, and no divergence."""
    model = DriftingModel()
    with assemble(model, speculation=Speculation(k=2)) as runtime:
        verdicts_ = check(runtime, [[1, 2, 3], [4, 5, 6]], Sampling(), 40)
        next(verdicts_)
        complete = runtime.complete

        def cancelled(*arguments: object, **options: object) -> object:
            for event in complete(*arguments, **options):  # type: ignore[arg-type]
                yield event
                runtime.cancel()

        runtime.complete = cancelled  # type: ignore[method-assign, assignment]
        with pytest.raises(Interrupted):
            next(verdicts_)


def test_an_answer_that_is_cut_short_has_no_gap_to_state() -> None:
    """Nor "inf apart"."""
    report = CheckReport(1)
    report.add(Verdict(9, 4, 2, Divergence(3, float("inf"), 0.0, flips=False)))
    line, *_ = report.text().splitlines()
    assert line == "prompt 1: DIFFERENT at token 3, and not by a near tie"
