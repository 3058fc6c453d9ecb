"""Rollbacks of a recurrent state: snapshots, the spare sequence, owed tokens, and saved states."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Sampling
from edgespec.backends import recurrent_state
from edgespec.engine import Finished, Started

from . import hybrids
from .hybrid_cases import TEXT, WITH_SNAPSHOTS, WORDS, agrees, all_files, fresh, opened, runtime
from .hybrid_steps import ROUNDING


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return all_files(tmp_path_factory.mktemp("hybrids"))


@pytest.fixture
def few_snapshots(monkeypatch: pytest.MonkeyPatch) -> int:
    """As many as for a large model: tiny ones have 32."""
    monkeypatch.setattr(recurrent_state, "_OF_SMALL", 3)
    return 3


@pytest.mark.usefixtures("few_snapshots")
@pytest.mark.parametrize("architecture", WITH_SNAPSHOTS)
@pytest.mark.parametrize("back", range(1, 5))
def test_snapshots_go_back_for_nothing_as_far_as_they_reach(
    files: dict[str, Path], architecture: str, back: int
) -> None:
    """To the last bit: the same passes with other rejected tokens give the same logits."""
    with closing(opened(files[architecture])) as model:
        rows = []
        for rejected in (3, 4):
            with closing(model.session(256)) as session:
                assert (session.reach, session.replays, session.can_tree) == (3, False, False)
                session.prefill(TEXT)
                session.decode([*WORDS[:9], *[rejected] * back])
                session.rollback(len(TEXT), range(9))
                assert session.owed == (0 if back <= 3 else 9 + 4), "beyond, from where the prompt's end was saved"
                rows.append(session.decode([7, 8]).copy())
        assert np.array_equal(*rows)
        np.testing.assert_allclose(rows[0], fresh(model, [*TEXT, *WORDS[:9]], [7, 8]), atol=ROUNDING)


@pytest.mark.usefixtures("few_snapshots")
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_whole_pass_is_not_taken_back_by_snapshots(files: dict[str, Path], width: int) -> None:
    """llama.cpp says that it did, and computes wrong logits: the state before the pass is in no snapshot."""
    with closing(opened(files["qwen35"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(WORDS[:width])
        session.rollback(len(TEXT))
        assert session.owed
        agrees(session, model)


def test_a_second_rollback_before_the_next_pass(files: dict[str, Path]) -> None:
    """llama.cpp refuses it, so it is told of the last one only."""
    with closing(opened(files["qwen35"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(WORDS)
        for length in (70, 69, 69, 66):
            session.rollback(length)
            assert not session.owed
        agrees(session, model)


def test_a_state_is_saved_rightly_and_not_copied_while_a_rollback_waits(files: dict[str, Path]) -> None:
    """llama.cpp's copies of sequences would have the state before the rollback."""
    with closing(opened(files["lfm2"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(WORDS)
        session.rollback(65)
        session.prefill(WORDS)
        session.decode(WORDS)
        session.rollback(73)  # where the second prompt's end was saved
        assert not session.owed
        agrees(session, model)
        assert model._low.llama_n_seq_max(session._context) == 1, "nothing to copy to"


def test_snapshots_that_are_not_granted_are_replaced(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp takes the request for none without a word."""
    monkeypatch.setattr(recurrent_state, "_WITH_SNAPSHOTS", ("granitehybrid",))
    with closing(opened(files["granitehybrid"])) as model, closing(model.session(256)) as session:
        assert (session.reach, session.replays) == (None, True)
        session.prefill(TEXT)
        session.decode(WORDS)
        session.rollback(65)
        agrees(session, model)


def test_more_snapshots_than_a_pass_is_wide(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp opens no such context, and would end the process if it had to split a pass."""
    monkeypatch.setattr(recurrent_state, "_OF_SMALL", 100_000)
    with closing(opened(files["lfm2"])) as model, closing(model.session(256)) as session:
        assert session.reach is not None
        assert 32 < session.reach < 255
        session.prefill(TEXT * 4)
        agrees(session, model)


def test_a_context_without_memory_for_snapshots(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(files["qwen35"])) as model:
        init = model._low.llama_init_from_model
        asked: list[tuple[int, int]] = []

        def scarce(weights: Any, params: Any) -> Any:
            asked.append((params.n_rs_seq, params.n_seq_max))
            return None if params.n_rs_seq else init(weights, params)

        monkeypatch.setattr(model._low, "llama_init_from_model", scarce)
        with closing(model.session(256)) as session:
            assert asked == [(n, 1) for n in (32, 16, 8, 4, 2, 1)] + [(0, 2)]
            assert session.replays


@pytest.mark.parametrize("architecture", ["granitehybrid", "mamba2"])
def test_owed_tokens_ride_in_the_next_pass(files: dict[str, Path], architecture: str) -> None:
    with closing(opened(files[architecture])) as model, closing(model.session(256)) as session:
        assert (session.reach, session.replays, session.can_tree) == (None, True, False)
        session.prefill(TEXT)
        session.decode(WORDS[:5])
        session.rollback(len(TEXT), range(3))
        assert session.owed == 3
        session.decode([7, 8, 9])
        session.rollback(len(TEXT) + 3, range(1))
        assert session.owed == 4, "the state kept is still that of the prompt's end"
        session.decode([4, 5])
        session.rollback(len(TEXT) + 4, range(2))
        assert not session.owed, "nothing was rejected"
        agrees(session, model)


def test_many_owed_tokens_are_computed_in_a_pass_of_their_own(files: dict[str, Path]) -> None:
    with closing(opened(files["granitehybrid"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(TEXT[:30])
        session.rollback(len(TEXT), range(20))
        assert session.owed == 20
        session.decode([7, 8])
        session.rollback(len(TEXT) + 20, range(1))
        assert session.owed == 1, "the state was kept after the 20"
        agrees(session, model)


def test_a_draft_model_keeps_the_state_at_which_it_began(files: dict[str, Path]) -> None:
    """Its passes are single tokens, of which snapshots reach none."""
    with closing(opened(files["qwen35"], drafts=True)) as model, closing(model.session(256)) as session:
        assert (session.reach, session.replays) == (None, True)
        session.prefill(TEXT)
        for token in WORDS[:4]:
            session.decode([token])
        session.rollback(len(TEXT) + 1)
        assert session.owed == 1
        agrees(session, model)


def test_a_state_kept_of_another_text_is_not_used(files: dict[str, Path]) -> None:
    """It is as long as a part of the text, but the text went another way before."""
    with closing(opened(files["granitehybrid"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT[:40])
        session.prefill(TEXT[40:44])  # too short to be saved
        session.decode([7])
        session.rollback(40)
        session.decode(WORDS)
        session.rollback(46)
        agrees(session, model)


@pytest.mark.parametrize("architecture", hybrids.ARCHITECTURES)
def test_a_far_rollback_begins_near_the_end_of_a_prompt(files: dict[str, Path], architecture: str) -> None:
    with closing(opened(files[architecture])) as model, closing(model.session(256)) as session:
        for _ in range(2):  # also the second prompt after the same one
            session.rollback(0)
            session.prefill(TEXT[:40])
            session.prefill(TEXT[40:])
            for length, owed in ((60, 4), (58, 2), (56, 0), (50, 14), (36, 0), (30, 30)):
                session.prefill(WORDS[:4])  # too short to be saved
                for token in WORDS:
                    session.decode([token])
                session.rollback(length)
                assert session.owed == owed
                agrees(session, model)


def test_a_chat_computes_only_what_is_new(files: dict[str, Path]) -> None:
    """The template drops the end of the last prompt and the thinking, as those of today's models do."""
    with runtime(files["qwen35"]) as speaker:
        messages = [{"role": "user", "content": "a question that is long enough"}]
        prompts, cached = [], []
        for _ in range(3):
            started, *_, finished = speaker.chat(messages, Sampling(temperature=0), max_tokens=12)
            assert isinstance(started, Started)
            assert isinstance(finished, Finished)
            prompts.append(started.prompt)
            cached.append(started.cached)
            answered = {"role": "assistant", "content": "thinking#an answer"}
            messages += [answered, {"role": "user", "content": "another question"}]
        assert cached[0] == 0
        assert all(now >= before - 6 for now, before in zip(cached[1:], prompts, strict=False)), "all but its end"
