"""Heads for multi-token prediction: what they draft, and that the text does not depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgespec import Sampling, Speculation
from edgespec.backends.llama_head import LlamaHead
from edgespec.engine import Started, Text
from edgespec.tools.check import check
from edgespec.types import Floats

from .mtp_cases import KINDS, PROMPT, RIGHT_PROMPT, Files, acceptance, all_kinds, runtime


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Files]:
    return all_kinds(tmp_path_factory)


@pytest.mark.parametrize("k", [1, 2, 5, None])
@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_does_not_depend_on_the_head(
    made: dict[tuple[str, bool], Files], kind: str, right: bool, k: int | None
) -> None:
    """At temperatures 0 and 0.8, for every length of drafts."""
    with runtime(made[kind, right], speculation=Speculation(("mtp",), k)) as speaker:
        assert speaker.drafters == ("mtp",) or "mtp" in speaker.drafters
        for temperature in (0.0, 0.8):
            prompts = [RIGHT_PROMPT, PROMPT]
            for verdict in check(speaker, prompts, Sampling(temperature=temperature, seed=1, top_k=0), 40):
                assert verdict.divergence is None or verdict.divergence.near_tie


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_knows_the_target_is_right(made: dict[tuple[str, bool], Files], kind: str) -> None:
    assert acceptance(made[kind, True]) > 0.95
    assert acceptance(made[kind, False]) < 0.1


@pytest.mark.parametrize("verifier", ["match", "rejection", "block"])
def test_a_right_head_with_sampling(made: dict[tuple[str, bool], Files], verifier: str) -> None:
    assert acceptance(made["in the file", True], 0.8, verifier) > 0.3


@pytest.mark.parametrize("kind", ["in the file", "gemma4"])
def test_the_row_of_another_position_would_be_seen(
    made: dict[tuple[str, bool], Files], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head that knows the target reads nothing but its rows: one that lags behind makes it always wrong."""
    follow = LlamaHead.follow

    def late(self: LlamaHead, start: int, tokens: Sequence[int], rows: Floats, *, judged: bool) -> None:
        follow(self, start, tokens, np.concatenate([rows[:1], rows[:-1]]), judged=judged)

    monkeypatch.setattr(LlamaHead, "follow", late)
    assert acceptance(made[kind, True]) < 0.7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 3, 6])
def test_k_passes_of_the_head_for_k_tokens(
    made: dict[tuple[str, bool], Files], kind: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every round: what was accepted rides in the pass of the first guess. llama-server takes one pass more."""
    passes: list[int] = []
    run = LlamaHead._pass

    def counted(self: LlamaHead, tokens: Sequence[int], *args: Any, **kwargs: Any) -> None:
        passes.append(len(tokens))
        run(self, tokens, *args, **kwargs)

    monkeypatch.setattr(LlamaHead, "_pass", counted)
    with runtime(made[kind, True], speculation=Speculation(("mtp",), k)) as speaker:
        for temperature in (0.0, 0.8):
            before, drafted = 0, []
            for event in speaker.complete(RIGHT_PROMPT, Sampling(temperature=temperature, top_k=0), max_tokens=40):
                if isinstance(event, Started):
                    passes.clear()
                if isinstance(event, Text):
                    drafted.append(len(event.round.draft))
                    assert len(passes) - before == len(event.round.draft)
                    before = len(passes)
            assert drafted.count(k) > 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_with_look_ups(made: dict[tuple[str, bool], Files], kind: str) -> None:
    """The default: both draft, and each goes on where the other stopped."""
    with runtime(made[kind, True], speculation=Speculation()) as speaker:
        assert speaker.drafters == ("lookup", "mtp")
        for temperature in (0.0, 0.8):
            for verdict in check(speaker, [RIGHT_PROMPT, PROMPT], Sampling(temperature=temperature, top_k=0), 40):
                assert verdict.divergence is None or verdict.divergence.near_tie
                assert verdict.accepted
