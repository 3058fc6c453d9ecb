"""Heads for multi-token prediction after rollbacks, in cancelled passes, and in chats."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from edgespec import Interrupt, Sampling, Speculation
from edgespec.backends import recurrent_state
from edgespec.backends.llama_head import LlamaHead
from edgespec.backends.llama_session import LlamaSession
from edgespec.backends.llama_windowed import Windowed
from edgespec.engine import Finished, Text
from edgespec.errors import EngineError, Interrupted
from edgespec.tools.check import check

from . import heads, windowed
from .hybrid_steps import ROUNDING
from .mtp_cases import (
    GREEDY,
    KINDS,
    PROMPT,
    RIGHT_PROMPT,
    Files,
    acceptance,
    agrees,
    all_kinds,
    fresh,
    opened,
    runtime,
    tokens,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Files]:
    return all_kinds(tmp_path_factory)


@pytest.fixture
def few_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_state, "_OF_SMALL", 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_follows_rounds_and_rollbacks(made: dict[tuple[str, bool], Files], kind: str) -> None:
    files = made[kind, False]
    with opened(files) as over:
        session, text = over.session, PROMPT[:30]
        session.prefill(text[:-1])
        for accepted in (0, 2, 4, 1, 3):
            path = over.draft(text[-1], 4)
            held = len(session.tokens)
            session.decode([text[-1], *path])
            session.rollback(held, range(accepted + 1))
            text = [*text, *path[:accepted], 40 + accepted]
            agrees(over, files, text)


def test_an_assistant_over_a_cache_that_holds_only_the_window(tmp_path: Path) -> None:
    """It reads the target's cells, also after a far rollback, for which they are computed again."""
    files = heads.gemma4(tmp_path, right=False, window=windowed.WINDOW)
    text = [5 + 7 * n % 250 for n in range(400)]
    with windowed.short_passes(), opened(files, windowed.CONTEXT) as over:
        session = over.session
        assert isinstance(session, LlamaSession)
        assert isinstance(session._cache, Windowed)
        session.prefill(text[:-1])
        for accepted in (0, 2, 4, 1):
            path = over.draft(text[-1], 4)
            held = len(session.tokens)
            session.decode([text[-1], *path])
            session.rollback(held, range(accepted + 1))
            text = [*text, *path[:accepted], 40 + accepted]
            with windowed.whole_cache():
                agrees(over, files, text)
        session.rollback(100)
        text = [*text[:100], 9]
        session.prefill([])
        with windowed.whole_cache():
            agrees(over, files, text)


@pytest.mark.parametrize("kind", ["in the file", "qwen35moe", "apart"])
def test_owed_tokens_have_their_rows_already(
    made: dict[tuple[str, bool], Files], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without snapshots the tokens that were accepted ride in the next pass: its first rows are known."""
    monkeypatch.setattr(recurrent_state, "_WITH_SNAPSHOTS", ())
    files = made[kind, False]
    with opened(files) as over:
        session, text = over.session, PROMPT[:30]
        session.prefill(text[:-1])
        owed = 0
        for accepted in (0, 2, 4, 1, 3):
            path = over.draft(text[-1], 4)
            held = len(session.tokens)
            session.decode([text[-1], *path])
            session.rollback(held, range(accepted + 1))
            owed += session.owed
            text = [*text, *path[:accepted], 40 + accepted]
            agrees(over, files, text)
        assert owed > 5
    with runtime(made[kind, True]) as speaker:
        for temperature in (0.0, 0.8):
            for verdict in check(speaker, [RIGHT_PROMPT, PROMPT], Sampling(temperature=temperature, top_k=0), 30):
                assert verdict.divergence is None or verdict.divergence.near_tie
    assert acceptance(made[kind, True]) > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_in_which_the_head_is_not_asked(made: dict[tuple[str, bool], Files], kind: str) -> None:
    """Their rows are kept until it is, or until there are too many."""
    files = made[kind, False]
    with opened(files) as over:
        session, text = over.session, PROMPT[:10]
        session.prefill(text)
        session.decode(text[:7])
        session.rollback(10, range(5))
        for token in PROMPT * 3:
            session.decode([token])
        agrees(over, files, [*text, *text[:5], *PROMPT * 3, 8])


@pytest.mark.parametrize("few", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("back", [0, 1, 3, 6, 11, 25, 59, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_after_a_rollback_to_anywhere(
    made: dict[tuple[str, bool], Files], kind: str, back: int, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beyond the snapshots of the state. The row that was lost is computed again by the next pass."""
    if few:
        monkeypatch.setattr(recurrent_state, "_OF_SMALL", 3)
    files = made[kind, False]
    with opened(files) as over:
        session, length = over.session, len(PROMPT) - back
        session.prefill(PROMPT)
        over.draft(9, 2)
        session.rollback(length)
        if not over.head.follows([*PROMPT[:length], 9]):
            assert session.owed, "so that the next pass brings the row"
        session.decode([9])
        agrees(over, files, [*PROMPT[:length], 9, 10])


@pytest.mark.parametrize("kind", KINDS)
def test_where_a_state_was_saved_the_row_is_kept(made: dict[tuple[str, bool], Files], kind: str) -> None:
    """Else a hybrid would have to compute the whole text again, for one row."""
    files = made[kind, False]
    with opened(files) as over:
        session, saved = over.session, len(PROMPT) - 4
        session.prefill(PROMPT)
        for token in PROMPT[:40]:
            session.decode([token])
        over.draft(9, 2)
        session.rollback(saved)
        assert session.owed <= 1
        session.decode([9])
        agrees(over, files, [*PROMPT[:saved], 9, 10])


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_several_chunks(made: dict[tuple[str, bool], Files], kind: str) -> None:
    files = made[kind, False]
    with opened(files, 1536) as over:
        over.session.prefill(PROMPT * 20)
        found = over.rows(9, [8, 7])
    with opened(files, 1536) as over:
        for start in range(0, 20, 4):
            over.session.prefill(PROMPT * 4)
            assert over.head.follows([*PROMPT * (start + 4), 9])
        np.testing.assert_allclose(over.rows(9, [8, 7]), found, atol=ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_that_others_drafted(made: dict[tuple[str, bool], Files], kind: str) -> None:
    """Any path at any time, as the controller asks: the head computes what of it is missing, and drops the rest."""
    files = made[kind, False]
    with opened(files) as over:
        over.session.prefill(PROMPT)
        expected = fresh(files, [*PROMPT, 9], [3, 4, 5, 6])
        for path in ([3, 4, 5, 6], [3, 4], [7], [3, 4, 5], [], [3, 4, 5, 6]):
            row = over.head.logits(9, path)
            if path != [7]:
                np.testing.assert_allclose(row, expected[len(path)], atol=ROUNDING)
        other = over.head.logits(10, [3]).copy()
        assert np.abs(other - expected[1]).max() > ROUNDING, "after another last token"


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_that_is_cancelled_in_the_middle(made: dict[tuple[str, bool], Files], kind: str) -> None:
    files, flag = made[kind, False], Interrupt()
    with opened(files, 4096, flag) as over:
        session = over.session
        session.prefill(PROMPT)
        for seconds in (0.0, 0.002, 0.01, 0.03):
            timer = threading.Timer(seconds, flag.set)
            timer.start()
            try:
                session.prefill(PROMPT * 50)
                session.rollback(len(PROMPT))
            except Interrupted:
                pass
            timer.join()
            flag.clear()
            assert list(session.tokens) == PROMPT
            session.decode([9])
            session.rollback(len(PROMPT))
        session.decode([9])
        agrees(over, files, [*PROMPT, 9, 10])


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_of_the_head_that_is_cancelled(made: dict[tuple[str, bool], Files], kind: str) -> None:
    files, flag = made[kind, False], Interrupt()
    with opened(files, flag=flag) as over:
        over.session.prefill(PROMPT)
        flag.set()
        with pytest.raises(Interrupted):
            over.head.logits(9, [8])
        flag.clear()
        agrees(over, files, [*PROMPT, 9])


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_of_the_head_that_is_aborted_in_the_middle(
    made: dict[tuple[str, bool], Files], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of it is in the cache is removed, in a prompt and in a draft."""
    files = made[kind, False]
    with opened(files) as over:
        low, handle = over.weights._low, over.head._handle
        decode = low.llama_decode
        with monkeypatch.context() as patch:
            patch.setattr(low, "llama_decode", lambda where, batch: decode(where, batch) or 2 * (where == handle))
            over.session.prefill(PROMPT)
            with pytest.raises(Interrupted):
                over.head.logits(9, [])
        agrees(over, files, [*PROMPT, 9])
        over.head.logits(9, [8])
        with monkeypatch.context() as patch:
            patch.setattr(low, "llama_decode", lambda where, batch: decode(where, batch) or 2 * (where == handle))
            with pytest.raises(Interrupted):
                over.head.logits(9, [8, 7])
        agrees(over, files, [*PROMPT, 9])


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_fails_is_turned_off(
    made: dict[tuple[str, bool], Files], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runtime(made[kind, True]) as speaker:
        plain = tokens(speaker, RIGHT_PROMPT, Speculation((), 0))
        run = LlamaHead._pass
        monkeypatch.setattr(LlamaHead, "_pass", _fails)
        assert tokens(speaker, RIGHT_PROMPT, Speculation(("mtp",), 3)) == plain
        assert any("could not run the head" in notice for notice in speaker.notices)
        monkeypatch.setattr(LlamaHead, "_pass", run)
        assert tokens(speaker, RIGHT_PROMPT, Speculation(("mtp",), 3)) == plain


def _fails(*_args: object, **_kwargs: object) -> None:
    raise EngineError("llama.cpp could not run the head")


@pytest.mark.usefixtures("few_snapshots")
@pytest.mark.parametrize("kind", KINDS)
def test_three_turns_of_a_chat(made: dict[tuple[str, bool], Files], kind: str) -> None:
    """The second and third prompt go on near the end of the one before; the head goes on with them."""
    files = made[kind, True]
    turns = [RIGHT_PROMPT, [*PROMPT[:18], *range(101, 120), 40, 41, *heads.RING[:2]]]
    turns.append([*turns[1][:-2], *range(90, 99), *heads.RING[:2]])
    said = []
    for speculation in (Speculation((), 0), Speculation(("mtp",), 3)):
        with runtime(files) as speaker:
            for prompt in turns:
                *events, finished = speaker.complete(prompt, GREEDY, max_tokens=24, speculation=speculation)
                assert isinstance(finished, Finished)
                said.append([token for event in events if isinstance(event, Text) for token in event.tokens])
                if speculation.k:
                    of, accepted = finished.stats.by_drafter["mtp"]
                    assert accepted > 0.8 * of
    assert said[:3] == said[3:]


@pytest.mark.parametrize("kind", ["in the file", "gemma4"])
def test_several_runtimes_over_the_same_weights(made: dict[tuple[str, bool], Files], kind: str) -> None:
    """Each session has a head of its own."""
    with runtime(made[kind, True], speculation=Speculation(("mtp",), 3)) as speaker, speaker.another() as second:
        first, other = (each.complete(RIGHT_PROMPT, GREEDY, max_tokens=20) for each in (speaker, second))
        said = [[], []]  # type: list[list[int]]
        for pair in zip(first, other, strict=False):
            for n, event in enumerate(pair):
                said[n] += event.tokens if isinstance(event, Text) else ()
        assert said[0] == said[1]
        assert len(said[0]) > 10
