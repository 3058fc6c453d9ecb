"""Passes of a recurrent state that are cancelled in the middle, and states that cannot be loaded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec import Sampling
from edgespec.backends import llama
from edgespec.engine import Finished, Started, Text
from edgespec.errors import Interrupted

from . import hybrids
from .hybrid_cases import TEXT, WORDS, Poll, agrees, all_files, fresh, opened, runtime
from .hybrid_steps import ROUNDING


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return all_files(tmp_path_factory.mktemp("hybrids"))


@pytest.fixture
def poll(monkeypatch: pytest.MonkeyPatch) -> Poll:
    made = Poll()
    monkeypatch.setattr(llama, "_poller", lambda: made.native)
    return made


@pytest.mark.parametrize("after", [1, 20, 60])
@pytest.mark.parametrize("drafts", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("architecture", hybrids.ARCHITECTURES)
def test_a_pass_that_was_aborted(
    files: dict[str, Path], poll: Poll, architecture: str, drafts: bool, after: int
) -> None:
    """Within, snapshots would be taken for right; without them, every later pass would fail."""
    with closing(opened(files[architecture], drafts=drafts)) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.decode(WORDS)
        session.rollback(len(TEXT), range(2))
        held = list(session.tokens)
        poll.after = after
        with pytest.raises(Interrupted):
            session.prefill(WORDS)
        assert list(session.tokens) == held
        agrees(session, model)
        poll.after = after
        if session.reach is None:
            with pytest.raises(Interrupted):
                session.decode(WORDS)
        else:
            session.decode(WORDS)
            session.rollback(len(held))
        poll.after = -1
        assert list(session.tokens) == held
        agrees(session, model)


def test_a_cancelled_answer_loses_no_state(files: dict[str, Path]) -> None:
    with runtime(files["qwen35"]) as speaker:
        events = speaker.complete(TEXT, Sampling(temperature=0), max_tokens=50)
        for _, event in zip(range(5), events, strict=False):
            last = event
        assert isinstance(last, Text)
        speaker.cancel()
        assert isinstance(list(events)[-1], Finished)
        assert not speaker.session.owed
        started, *_ = speaker.complete([*speaker.session.tokens, 5, 6], max_tokens=2)
        assert isinstance(started, Started)
        assert started.cached == started.prompt - 2


def test_a_state_that_cannot_be_loaded_is_computed_anew(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(opened(files["qwen35"])) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        session.prefill(WORDS)
        session.rollback(len(TEXT))
        monkeypatch.setattr(model._low, "llama_state_seq_set_data_ext", lambda *_arguments: 0)
        assert session.owed == 4
        agrees(session, model)


@pytest.mark.parametrize("tree", [None, [-1, 0, 0, *range(2, 11)]], ids=["chain", "tree"])
def test_a_cache_that_cannot_be_cut_is_computed_anew(
    small_pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tree: list[int] | None
) -> None:
    """Also that of a model without a recurrent state."""
    with closing(opened(small_pair["target"])) as model, closing(model.session(256)) as session:
        right = [fresh(model, text, WORDS[:1]) for text in (TEXT[:50], TEXT[:10])]
        session.prefill(TEXT)
        remove, refused = model._low.llama_memory_seq_rm, [True, False, True, False, False, False, False]
        monkeypatch.setattr(model._low, "llama_memory_seq_rm", lambda *given: not refused.pop(0) and remove(*given))
        for length, first in ((50, right[0]), (10, right[1])):
            session.rollback(length)
            assert session.owed == length
            np.testing.assert_allclose(session.decode(WORDS, tree)[:1], first, atol=ROUNDING)
            session.rollback(length)
