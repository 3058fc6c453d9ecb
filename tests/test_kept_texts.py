"""Texts that a session keeps when it goes on with others, and draft models that need not read them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import Device, Interrupt, Runtime
from edgespec.backends import KeepingSession, Model, Session, Wanted, common_prefix, open_model
from edgespec.backends.llama_session import LlamaSession
from edgespec.backends.llama_texts import KeptTexts
from edgespec.controller.reading import Reading
from edgespec.drafters import held_by
from edgespec.drafters.checked import Checked
from edgespec.drafters.draft_session import DraftSession
from edgespec.drafters.failsafe import Failsafe
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Text
from edgespec.errors import DrafterError, RollbackError
from edgespec.types import Floats

from . import windowed
from .helpers import FunctionDrafter, round_context

FIRST, SECOND = [*range(100, 200)], [*range(300, 400)]


@pytest.fixture(scope="module")
def draft(small_pair: dict[str, Path]) -> Iterator[Model]:
    model = open_model(small_pair["draft"], Device(threads=1), Interrupt())
    yield model
    model.close()


@pytest.fixture
def session(draft: Model) -> Iterator[LlamaSession]:
    opened = draft.session(512)
    assert isinstance(opened, LlamaSession)
    yield opened
    opened.close()


def hold(session: Session, text: Sequence[int]) -> None:
    """Let `session` go on with `text`, as one that keeps texts."""
    assert isinstance(session, KeepingSession)
    session.resume(text)
    session.rollback(common_prefix(session.tokens, text))
    session.prefill(text[len(session.tokens) :])


def test_a_text_is_held_again_after_another(session: LlamaSession) -> None:
    hold(session, FIRST)
    assert session.kept(FIRST) == 0, "nothing is kept before another text comes"
    hold(session, SECOND)
    assert session.kept([*FIRST, 7]) == len(FIRST)
    session.resume([*FIRST, 7])
    assert list(session.tokens) == FIRST
    assert session.kept(SECOND) == len(SECOND)


def test_what_little_was_computed_is_not_kept(session: LlamaSession) -> None:
    hold(session, FIRST[:20])
    hold(session, SECOND)
    assert session.kept(FIRST) == 0


def test_what_the_session_has_in_common_needs_no_other_text(session: LlamaSession) -> None:
    hold(session, FIRST)
    hold(session, SECOND)
    session.resume([*SECOND, 1])
    assert list(session.tokens) == SECOND


def test_a_text_that_went_on_takes_the_place_of_its_beginning(session: LlamaSession) -> None:
    for turn in range(4):
        hold(session, [*FIRST, *range(10 * turn)])
        hold(session, SECOND)
    assert session._texts is not None
    assert [len(each.tokens) for each in session._texts._kept] == [130]
    assert session.kept([*FIRST, *range(40)]) == 130


def test_a_text_with_the_same_beginning_does_not_take_the_place_of_the_other(session: LlamaSession) -> None:
    """A system prompt that conversations share."""
    one, two = [*FIRST, *SECOND], [*FIRST, *range(600, 700)]
    hold(session, one)
    hold(session, [*range(900, 1000)])
    session.resume(two)
    assert list(session.tokens) == one, "its beginning need not be computed"
    session.rollback(len(FIRST))
    session.prefill(two[len(FIRST) :])
    assert session.kept(one) == len(one)


def test_a_text_that_is_held_again_has_no_pass_of_which_a_path_may_stay(session: LlamaSession) -> None:
    hold(session, FIRST)
    session.decode([7, 8])
    hold(session, SECOND)
    session.resume(FIRST)
    with pytest.raises(RollbackError):
        session.rollback(0, [0])


def test_of_a_text_that_is_owed_in_part_the_computed_beginning_is_kept(session: LlamaSession) -> None:
    """As after a pass that was aborted."""
    hold(session, FIRST)
    session._computed = session._cache.cut(60)
    hold(session, SECOND)
    assert session.kept(FIRST) == 60


def test_the_text_used_least_recently_makes_room(session: LlamaSession, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(session, FIRST)
    assert session._texts is not None
    size = int(session._low.llama_state_seq_get_size(session.handle, 0))
    monkeypatch.setattr(session._texts, "_most", 2 * size)
    texts = [[*range(start, start + 100)] for start in (100, 600, 1200, 1800)]
    for text in texts:
        hold(session, text)
    assert [session.kept(text) for text in texts] == [0, 100, 100, 0]
    session.resume(texts[1])
    hold(session, texts[0])
    assert [session.kept(text) for text in texts] == [0, 100, 0, 100], "the last two that were left"
    monkeypatch.setattr(session._texts, "_most", size // 2)
    hold(session, texts[2])
    assert session.kept(texts[0]) == 0, "a text that does not fit is not kept"


def test_a_text_that_cannot_be_loaded_is_computed(session: LlamaSession, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(session, FIRST)
    hold(session, SECOND)
    with monkeypatch.context() as patch:
        patch.setattr(session._low, "llama_state_seq_set_data", lambda *_: 0)
        session.resume(FIRST)
    assert list(session.tokens) == []
    hold(session, FIRST)
    row = session.decode([5]).copy()
    session.rollback(0)
    session.prefill(FIRST)
    np.testing.assert_array_equal(session.decode([5]), row)


class Nobody:
    """Listens to no rows."""

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:
        """Nothing to learn."""

    def forget(self, length: int) -> None:
        """Nothing to forget."""


def test_a_session_whose_rows_are_followed_keeps_nothing(draft: Model) -> None:
    """Rows come with passes."""
    session = draft.session(512)
    assert isinstance(session, LlamaSession)
    session.follow((0,), Nobody(), Wanted.ALL)
    hold(session, FIRST)
    hold(session, SECOND)
    assert session.kept(FIRST) == 0
    session.close()


def test_a_closed_session_holds_no_texts(draft: Model) -> None:
    session = draft.session(512)
    hold(session, FIRST)
    hold(session, SECOND)
    session.close()
    assert isinstance(session, LlamaSession)
    assert session.kept(FIRST) == 0


# --- the draft model


class Counted:
    """Counts the tokens that a session computes."""

    def __init__(self, session: LlamaSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens = 0
        passes = session._pass_chain

        def counted(tokens: Sequence[int], **how: Any) -> None:
            self.tokens += len(tokens)
            passes(tokens, **how)

        monkeypatch.setattr(session, "_pass_chain", counted)


def test_a_draft_model_reads_conversations_in_turn_once(session: LlamaSession, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(session, monkeypatch)
    drafter = ModelDrafter(session, session.vocab)
    alone = {}
    for name, text in (("first", FIRST), ("second", SECOND)):
        drafter.begin(round_context([*text, 5]))
        alone[name] = drafter.guess((), 1)
    assert counted.tokens == len(FIRST) + len(SECOND) + 2
    counted.tokens = 0
    for _ in range(3):
        for name, text in (("first", FIRST), ("second", SECOND)):
            assert drafter.held([*text, 5]) >= len(text)
            drafter.begin(round_context([*text, 5]))
            again = drafter.guess((), 1)
            assert [guess.token for guess in again] == [guess.token for guess in alone[name]]
    assert counted.tokens == 6


def test_a_draft_session_says_what_it_holds_for_sessions_that_keep_nothing() -> None:
    class Plain:
        tokens = FIRST
        vocab = 1000

    held = DraftSession(Plain(), 1000).held  # type: ignore[arg-type]
    assert held([*FIRST[:30], 7]) == 30
    assert held(SECOND) == 0


def test_what_a_drafter_holds_is_not_expected_to_be_read() -> None:
    known = {1: 80, 2: None}
    reading = Reading(0.1, lambda context: known[context[-1]])
    assert reading.tokens([*FIRST, 1]) == 21
    assert reading.tokens([*FIRST, 2]) == 21, "of the text before the first 80 were held, which begin this one"
    reading.read([*FIRST, 2])
    assert reading.tokens([*FIRST, *SECOND, 2]) == 101


@pytest.mark.parametrize("held", [-1, 101, "all", True])
def test_a_drafter_that_holds_what_cannot_be_is_turned_off(held: Any) -> None:
    drafter = FunctionDrafter(lambda _context, _path: [], "outside")
    drafter.held = lambda _context: held  # type: ignore[attr-defined]
    with pytest.raises(DrafterError, match="it must be a number from 0"):
        Checked(drafter, "outside", 1000).held(FIRST)
    safe = Failsafe(Checked(drafter, "outside", 1000))
    assert held_by(safe, FIRST) is None
    assert "it holds" in safe.notice


def test_a_drafter_that_fails_or_says_nothing_holds_nothing_known(session: LlamaSession) -> None:
    assert held_by(Lookup(), FIRST) is None
    assert held_by(Failsafe(Lookup()), FIRST) is None
    drafter = Failsafe(ModelDrafter(session, session.vocab))
    assert held_by(drafter, FIRST) == 0
    session.close()
    drafter.begin(round_context(FIRST))
    drafter.guess((), 1)
    assert drafter.notice
    assert held_by(drafter, FIRST) is None


def test_conversations_in_turn_are_answered_as_alone(
    small_pair: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a draft model that is often wrong, at a temperature."""
    asked = [
        [{"role": "user", "content": text}] for text in ("I want to book a table for two. " * 6, "Find me a film." * 12)
    ]
    sampling = edgespec.Sampling(temperature=0.8, seed=3)

    def said(runtime: Runtime, messages: Any) -> list[int]:
        events = runtime.complete(runtime.prompt(messages), sampling, max_tokens=30)
        return [token for event in events if isinstance(event, Text) for token in event.tokens]

    def answers(turns: int) -> list[list[int]]:
        device = Device(context=1024, threads=2)
        with edgespec.load(
            small_pair["target"], small_pair["draft"], device=device, speculation=edgespec.Speculation(("model",), 3)
        ) as runtime:
            return [said(runtime, asked[turn % 2]) for turn in range(turns)]

    loaded, load = list[bool](), KeptTexts._load

    def counted(texts: KeptTexts, kept: Any) -> bool:
        loaded.append(load(texts, kept))
        return loaded[-1]

    monkeypatch.setattr(KeptTexts, "_load", counted)
    alone = answers(2)
    assert not loaded
    assert answers(6) == 3 * alone
    assert loaded == [True] * 4, "each turn but the first two goes on with its own text"


def test_models_with_other_memory_keep_nothing(tmp_path: Path) -> None:
    """Cells of a sliding window are not all of a text."""
    model = open_model(windowed.write(tmp_path / "model.gguf", "gemma3"), Device(threads=1), Interrupt())
    with windowed.short_passes():
        session = model.session(windowed.CONTEXT)
    hold(session, [*range(5, 105)])
    hold(session, [*range(105, 205)])
    assert isinstance(session, KeepingSession)
    assert session.kept([*range(5, 105)]) == 0
    session.close()
    model.close()
