"""Trees and exactness with real models, from the prices to the text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgespec import Device, Runtime, Sampling, Speculation, Text, load
from edgespec.backends.llama_session import LlamaSession
from edgespec.prices import Prices
from edgespec.tools.check import check

from .helpers import ignore_machine_times

TEXTS = (
    "I need a table for two in Oakland tonight.",
    "Find me a cheap hotel in San Jose, and a train there on Friday.",
    "one two three one two three one two",
)


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Prices at which trees pay: wide passes for nothing, whatever they take here. The widths of all trees decoded."""
    widths: list[int] = []
    decode = LlamaSession.decode

    def noted(session: LlamaSession, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Any:
        if tree is not None:
            widths.append(len(tokens))
        return decode(session, tokens, tree)

    def flat(session: LlamaSession, _text: object, what: str, *_rest: object) -> Prices:
        return Prices([{"target": 2e-3, "draft": 1e-4}[what]] * min(16, session.widest))

    monkeypatch.setattr(LlamaSession, "decode", noted)
    ignore_machine_times(monkeypatch)
    monkeypatch.setattr("edgespec.runtime.opening._priced", flat)
    return widths


def checked(runtime: Runtime, sampling: Sampling) -> int:
    """All texts must be what plain decoding says, near ties apart; how many are so to the last token."""
    prompts = [runtime.prompt([{"role": "user", "content": text}]) for text in TEXTS]
    verdicts = list(check(runtime, prompts, sampling, 48))
    assert all(verdict.divergence is None or verdict.divergence.near_tie for verdict in verdicts)
    assert sum(verdict.drafted for verdict in verdicts) > sum(verdict.accepted for verdict in verdicts) > 0
    return sum(verdict.divergence is None for verdict in verdicts)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=40, seed=3)], ids=["greedy", "sampled"])
def test_trees_are_bought_where_they_pay_and_change_no_word(
    small_pair: dict[str, Path], trees: list[int], sampling: Sampling
) -> None:
    with load(small_pair["target"], small_pair["draft"], device=Device(512, threads=1)) as runtime:

        def answers(speculation: Speculation | None) -> list[str]:
            asked = [[{"role": "user", "content": text}] for text in TEXTS]
            events = (runtime.chat(each, sampling, max_tokens=48, speculation=speculation) for each in asked)
            return ["".join(event.text for event in each if isinstance(event, Text)) for each in events]

        pairs = zip(answers(None), answers(Speculation(k=0)), strict=True)
        assert len(trees) > 5
        assert max(trees) > 3
        assert sum(ours == plain for ours, plain in pairs) >= len(TEXTS) - 1
        assert checked(runtime, sampling) >= len(TEXTS) - 1


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_no_tree_is_bought_where_drafts_are_drawn(small_pair: dict[str, Path], trees: list[int], verifier: str) -> None:
    """At temperature 0 the text can be compared all the same; that check forces trees, which any verifier takes."""
    speculation = Speculation(verifier=verifier)
    with load(
        small_pair["target"], small_pair["draft"], device=Device(512, threads=1), speculation=speculation
    ) as runtime:
        for text in TEXTS:
            list(runtime.chat([{"role": "user", "content": text}], Sampling(0.8, seed=3), max_tokens=48))
        assert trees == []
        checked(runtime, Sampling())


def test_where_passes_are_exact_there_are_no_trees_and_no_ties(small_pair: dict[str, Path], trees: list[int]) -> None:
    with load(small_pair["target"], small_pair["draft"], device=Device(512, 1, 0, exact=4)) as runtime:
        assert checked(runtime, Sampling()) == len(TEXTS)
    assert trees == []
