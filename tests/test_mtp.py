"""Heads for multi-token prediction: what they draft, that the text does not depend on them, and llama.cpp's traps."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt, Runtime, Sampling, Speculation, load
from edgespec.backends import HeadWeights, Session, head_header, llama_head, open_model, recurrent_state
from edgespec.backends.gguf_header import header
from edgespec.backends.head_header import TOKENS, tokens_of, written
from edgespec.backends.llama import LlamaModel
from edgespec.backends.llama_head import LlamaHead
from edgespec.backends.llama_session import LlamaSession
from edgespec.backends.llama_windowed import Windowed
from edgespec.bench.contender import AnswerRequest
from edgespec.bench.edgespec_contender import ContenderFactory
from edgespec.bench.records import OURS, PLAIN
from edgespec.converters import head_rows
from edgespec.engine import Finished, Started, Text
from edgespec.errors import (
    ConversionError,
    EngineError,
    Interrupted,
    MissingPackage,
    ModelFileError,
    OptionError,
    VocabularyMismatch,
)
from edgespec.models import model_source, runtime_support
from edgespec.models.fit import Requested, choose
from edgespec.models.memory import MachineMemory
from edgespec.models.sizes import sizes
from edgespec.prices import head_step
from edgespec.runtime.loading import Files as Paths
from edgespec.tools.check import check
from edgespec.types import Floats

from . import heads, hybrids, windowed
from .commandline import refused, run
from .hybrid_steps import ROUNDING

KINDS = ("in the file", "qwen35moe", "apart", "gemma4")
PROMPT = [5 + 7 * n % 250 for n in range(60)]
RIGHT_PROMPT = [*PROMPT[:20], *heads.RING[:2]]
GREEDY = Sampling(temperature=0)
Files = tuple[Path, Path | None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Files]:
    """The target and the file of its head, by kind, and whether the head knows the target."""
    found: dict[tuple[str, bool], Files] = {}
    for right in (False, True):
        folder = tmp_path_factory.mktemp("heads")
        found["in the file", right] = heads.qwen35(folder, right=right), None
        found["qwen35moe", right] = heads.qwen35(folder, right=right, architecture="qwen35moe"), None
        found["apart", right] = heads.qwen35_apart(folder, right=right)
        found["gemma4", right] = heads.gemma4(folder, right=right)
    return found


def runtime(files: Files, **options: Any) -> Runtime:
    speculation = options.pop("speculation", None) or Speculation(("mtp",))
    device = Device(context=options.pop("context", 256), threads=1)
    return load(files[0], files[1] or "none", device=device, speculation=speculation, **options)


class Over:
    """A session and the head over it."""

    def __init__(self, session: Session, head: LlamaHead, weights: LlamaModel) -> None:
        self.session, self.head, self.weights = session, head, weights

    def draft(self, last: int, n: int) -> list[int]:
        path: list[int] = []
        for _ in range(n):
            path.append(int(self.head.logits(last, path).argmax()))
        return path

    def rows(self, last: int, path: Sequence[int]) -> Floats:
        """The head's logits after `last` and each token of `path`."""
        return np.stack([self.head.logits(last, path[:n]).copy() for n in range(len(path) + 1)])


@contextmanager
def opened(files: Files, context: int = 256, flag: Interrupt | None = None) -> Iterator[Over]:
    flag = flag or Interrupt()
    with ExitStack() as stack:
        model = open_model(files[0], Device(threads=1, head=files[1] is None), flag)
        stack.callback(model.close)
        weights = model if files[1] is None else open_model(files[1], Device(threads=1, drafts=True), flag)
        if weights is not model:
            stack.callback(weights.close)
        assert isinstance(weights, LlamaModel)
        session = stack.enter_context(closing(model.session(context)))
        head = stack.enter_context(closing(weights.head(session)))
        yield Over(session, head, weights)


def fresh(files: Files, text: Sequence[int], path: Sequence[int]) -> Floats:
    """The logits of a head that has followed `text` from its beginning, without its last token."""
    with opened(files, 512) as over:
        over.session.prefill(text[:-1])
        return over.rows(text[-1], path)


def agrees(over: Over, files: Files, text: Sequence[int]) -> None:
    """Raises AssertionError unless the head drafts after `text` what one that is newly filled drafts."""
    path = [9, 30, 77]
    assert over.head.follows(text)
    np.testing.assert_allclose(over.rows(text[-1], path), fresh(files, text, path), atol=ROUNDING)


@pytest.fixture
def few_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_state, "_OF_SMALL", 3)


# --- the text, and what is accepted


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


def acceptance(files: Files, temperature: float = 0.0, verifier: str = "match") -> float:
    """The share of drafted tokens that are accepted."""
    with runtime(files, speculation=Speculation(("mtp",), 3, verifier)) as speaker:
        sampling = Sampling(temperature=temperature, seed=3, top_k=0)
        *_, finished = speaker.complete(RIGHT_PROMPT, sampling, max_tokens=60)
        assert isinstance(finished, Finished)
        of, accepted = finished.stats.by_drafter["mtp"]
        return accepted / of


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


# --- rollbacks


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


# --- cancelling, and chats


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


def tokens(speaker: Runtime, prompt: Sequence[int], speculation: Speculation) -> list[int]:
    events = speaker.complete(prompt, GREEDY, max_tokens=30, speculation=speculation)
    return [token for event in events if isinstance(event, Text) for token in event.tokens]


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


# --- llama.cpp's traps


def test_a_head_over_a_model_that_was_loaded_without_it(made: dict[tuple[str, bool], Files]) -> None:
    """llama.cpp would end the process, although it says that the model has a head."""
    path = made["in the file", False][0]
    with closing(open_model(path, Device(threads=1), Interrupt())) as model, closing(model.session(64)) as session:
        assert isinstance(model, LlamaModel)
        assert model._low.llama_model_n_layer_nextn(model._model) == 1
        assert not model.holds_head
        with pytest.raises(ModelFileError, match="loaded without a head"):
            model.head(session)


def test_a_model_without_a_head(tmp_path: Path) -> None:
    path = hybrids.write(tmp_path / "model.gguf", "qwen35")
    with closing(open_model(path, Device(threads=1, head=True), Interrupt())) as model:
        assert isinstance(model, HeadWeights)
        assert not model.holds_head
    with pytest.raises(OptionError, match="no drafter 'mtp'"):
        load(path, "none", device=Device(context=64), speculation=Speculation(("mtp",)))


def test_a_head_alone_is_no_target(made: dict[tuple[str, bool], Files]) -> None:
    for kind in ("apart", "gemma4"):
        head = made[kind, False][1]
        assert head is not None
        with pytest.raises(ModelFileError, match="holds a head without its model"):
            load(head, "none", device=Device(context=64))


def test_a_head_that_is_not_run(made: dict[tuple[str, bool], Files], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as several heads, or EAGLE-3's: refused before llama.cpp sees it."""
    target, head = made["apart", False]
    monkeypatch.setattr(head_header, "_ONE_LAYER", ())
    with pytest.raises(ModelFileError, match="does not draft with that; it does with those of qwen35,"):
        runtime((target, head))
    with closing(open_model(made["in the file", False][0], Device(threads=1, head=True), Interrupt())) as model:
        assert isinstance(model, LlamaModel)
        assert not model.holds_head


def test_a_head_of_another_target(made: dict[tuple[str, bool], Files]) -> None:
    """llama.cpp would read rows beyond their end. The assistant's own rows are narrower than those it reads."""
    target, head = made["in the file", False][0], made["gemma4", False][1]
    with (
        closing(open_model(target, Device(threads=1), Interrupt())) as model,
        closing(model.session(64)) as session,
        closing(open_model(head or target, Device(threads=1, drafts=True), Interrupt())) as weights,
    ):
        assert isinstance(weights, LlamaModel)
        assert isinstance(session, LlamaSession)
        assert (weights._low.llama_model_n_embd(weights._model), session.row_width) == (32, 64)
        session.row_width = 48
        with pytest.raises(VocabularyMismatch, match="reads rows of 64 numbers"):
            weights.head(session)


def test_rows_of_all_tokens_of_a_pass(made: dict[tuple[str, bool], Files]) -> None:
    """With masked rows a pass of several tokens and one output gives the row of the first token for the last."""
    files = made["in the file", False]
    with opened(files) as over:
        over.session.prefill(PROMPT[:-2])
        over.session.decode(PROMPT[-2:])  # two pairs are not computed yet: they ride in the pass of the first guess
        found = over.rows(9, [8, 7])
    np.testing.assert_allclose(found, fresh(files, [*PROMPT, 9], [8, 7]), atol=ROUNDING)


def test_the_target_is_the_same_with_its_rows(made: dict[tuple[str, bool], Files]) -> None:
    """To the last bit."""
    for kind in KINDS:
        rows = []
        for with_head in (False, True):
            files = made[kind, False]
            with ExitStack() as stack:
                if with_head:
                    session = stack.enter_context(opened(files)).session
                else:
                    model = stack.enter_context(closing(open_model(files[0], Device(threads=1), Interrupt())))
                    session = stack.enter_context(closing(model.session(256)))
                session.prefill(PROMPT)
                rows.append(session.decode([4, 5, 6]).copy())
        assert np.array_equal(*rows)


def test_older_bindings(made: dict[tuple[str, bool], Files], monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the head is left out, or refused if it was named; the message says which version has the functions."""
    monkeypatch.setattr(llama_head, "_PRIVATE", ("llama_of_tomorrow",))
    llama_head.private_functions.cache_clear()
    try:
        for kind in ("in the file", "gemma4"):
            with pytest.raises(MissingPackage, match=r"no llama_of_tomorrow.*install llama-cpp-python 0\.3\.36"):
                runtime(made[kind, False])
            with runtime(made[kind, False], speculation=Speculation()) as speaker:
                assert "mtp" not in speaker.drafters
                assert any("does not draft" in notice for notice in speaker.notices)
    finally:
        monkeypatch.undo()
        llama_head.private_functions.cache_clear()


def test_a_context_that_cannot_be_opened(made: dict[tuple[str, bool], Files], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_model(made["in the file", False][0], Device(threads=1, head=True), Interrupt())) as model:
        assert isinstance(model, LlamaModel)
        with closing(model.session(64)) as session:
            monkeypatch.setattr(model._low, "llama_init_from_model", lambda *_: None)
            with pytest.raises(EngineError, match="could not open the head"):
                model.head(session)


def test_exact_passes_have_no_head(made: dict[tuple[str, bool], Files]) -> None:
    target, head = made["gemma4", True]
    device = Device(context=256, threads=1, exact=4)
    with pytest.raises(OptionError, match="exact is 4"):
        load(target, head, device=device, speculation=Speculation(("mtp",)))
    with load(target, head, device=device) as speaker:
        assert speaker.drafters == ("lookup", "recycling")


# --- when it is loaded


@pytest.mark.parametrize(
    ("kind", "drafters", "loaded"),
    [
        ("in the file", None, True),
        ("in the file", ("mtp", "lookup"), True),
        ("in the file", ("lookup",), False),
        ("apart", None, True),
        ("apart", ("lookup",), False),
        ("gemma4", None, True),
    ],
)
def test_a_head_is_loaded_only_where_it_drafts(
    made: dict[tuple[str, bool], Files],
    kind: str,
    drafters: tuple[str, ...] | None,
    loaded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_heads: list[bool] = []
    load_file = LlamaModel.__init__

    def noted(self: LlamaModel, *args: Any) -> None:
        load_file(self, *args)
        with_heads.append(self.holds_head)

    monkeypatch.setattr(LlamaModel, "__init__", noted)
    with runtime(made[kind, False], speculation=Speculation(drafters)) as speaker:
        assert ("mtp" in speaker.drafters) is loaded
    assert any(with_heads) is loaded


def test_a_draft_model_takes_the_place_of_a_head_that_is_not_named(made: dict[tuple[str, bool], Files]) -> None:
    target, draft = made["in the file", False][0], made["apart", False][0]
    for drafters, expected in (
        (None, ("lookup", "model")),
        (("mtp", "model"), ("mtp", "model")),
    ):
        with runtime((target, draft), speculation=Speculation(drafters)) as speaker:
            assert set(expected) <= set(speaker.drafters)
            assert ("mtp" in speaker.drafters) is ("mtp" in expected)


def test_a_draft_model_is_loaded_without_its_own_head(made: dict[tuple[str, bool], Files]) -> None:
    device = Device(head=True).of_draft(made["in the file", False][0])
    assert not device.head
    assert replace(device, head=True).head


# --- found, fetched and counted


def test_a_head_beside_the_target_is_found_by_its_header(made: dict[tuple[str, bool], Files], tmp_path: Path) -> None:
    for kind in ("apart", "gemma4"):
        target, head = made[kind, True]
        assert head is not None
        folder = tmp_path / kind
        folder.mkdir()
        own = folder / "model.gguf"
        own.write_bytes(target.read_bytes())
        for name, other in (("a.gguf", "apart"), ("b.gguf", "gemma4")):
            (folder / name).write_bytes((made[other, True][1] or target).read_bytes())
        found = model_source.local_draft(own)
        assert found is not None
        assert found.read_bytes() == head.read_bytes(), "not that of the other target"
        with load(own, device=Device(context=256, threads=1)) as speaker:
            assert "mtp" in speaker.drafters


def test_a_target_with_a_head_needs_no_draft_model(
    made: dict[tuple[str, bool], Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = made["in the file", False][0]
    for name in ("model.gguf", "other.gguf"):
        (tmp_path / name).write_bytes(target.read_bytes())
    monkeypatch.setattr(model_source, "MIN_SIZE_RATIO", 1)
    assert model_source.local_draft(tmp_path / "model.gguf") is None
    monkeypatch.setattr(runtime_support, "HEADS", frozenset())
    assert model_source.local_draft(tmp_path / "model.gguf") == tmp_path / "other.gguf"


def test_heads_of_the_registry_are_fetched_with_their_targets() -> None:
    apart = model_source.resolve_name("gemma-4-12b")
    assert apart is not None
    assert apart.draft is not None
    assert apart.draft.file == "mtp-gemma-4-12B-it.gguf"
    within, other = model_source.resolve_name("qwen3.8-27b"), model_source.resolve_name("muse-glimmer-30b")
    assert within is not None
    assert other is not None
    assert (within.draft, other.draft) == (None, None), "in the target's file; of a kind that is not run"


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_counts_the_head(
    made: dict[tuple[str, bool], Files], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The cache of its layer, its weights, and buffers of its own; the states of the target once."""
    target, head = made[kind, False]
    caplog.set_level(logging.DEBUG, "edgespec.llama")
    with opened(made[kind, False], 2048):
        pass
    cached = sum(map(float, re.findall(r"KV buffer size = +([\d.]+) MiB", caplog.text))) * 2**20
    stated = [sizes(each) for each in (target, head) if each is not None]
    caches = sum(each.held(replace(layer, state=0), 2048) for each in stated for layer in each.layers)
    assert caches == pytest.approx(cached, abs=1e4)
    assert sum(each.weights for each in stated) >= sum(each.stat().st_size for each in (target, head) if each) * 0.95
    assert len([each for each in stated if each.state]) == (kind != "gemma4")
    (within, *_) = stated
    without = within.without_head()
    assert (without.weights < within.weights) is (head is None)
    assert (without.buffers < within.buffers) is (head is None)
    free = MachineMemory(1 << 30)
    if head is None:
        assert choose(within, None, free, Requested()).needed > choose(without, None, free, Requested()).needed
        assert choose(within, stated[0], free, Requested()).cache == choose(without, stated[0], free, Requested()).cache


def test_the_price_of_a_pass_is_measured(made: dict[tuple[str, bool], Files]) -> None:
    with opened(made["gemma4", True]) as over:
        assert 0 < head_step(over.session, over.head) < 10
        assert list(over.session.tokens) == []
        assert over.head.follows([7])


def test_a_contender_of_the_bench(made: dict[tuple[str, bool], Files]) -> None:
    for kind in ("in the file", "gemma4"):
        device = Device(context=256, threads=1)
        with ExitStack() as stack:
            factory = ContenderFactory(Paths(*made[kind, True]), device, Interrupt(), lambda _what, _share: None)
            stack.callback(factory.close)
            for name, drafts in (("mtp", True), ("lookup", False), (PLAIN, False), (OURS, True)):
                contender = factory.contender(name)
                stack.callback(contender.close)
                assert ("mtp" in contender.runtime.drafters) is drafts
                assert list(contender.answer(AnswerRequest(RIGHT_PROMPT, GREEDY, 10)))


# --- fewer rows


@pytest.mark.parametrize("kind", ["in the file", "apart"])
def test_a_head_with_fewer_rows_is_right_as_often(
    made: dict[tuple[str, bool], Files], kind: str, tmp_path: Path
) -> None:
    """Tokens of the prompt that have no row are taken for another; the text is the same."""
    target, apart = made[kind, True]
    small = tmp_path / "small.gguf"
    size = head_rows.write(apart or target, small, 140)
    assert size == small.stat().st_size < (apart or target).stat().st_size
    assert acceptance((target, small)) > 0.9
    for temperature in (0.0, 0.8):
        with runtime((target, small)) as speaker:
            (verdict,) = check(speaker, [RIGHT_PROMPT], Sampling(temperature=temperature, top_k=0), 30)
            assert verdict.divergence is None or verdict.divergence.near_tie


@pytest.mark.parametrize("quantized", [False, True])
def test_rows_are_copied_byte_by_byte(quantized: bool, tmp_path: Path) -> None:
    """The logits of the tokens that stay are the same to the last bit; no other token is guessed."""
    target, small = heads.qwen35(tmp_path, quantized=quantized), tmp_path / "small.gguf"
    head_rows.write(target, small, 100)
    tokens, of = tokens_of(header(small)) or ([], 0)
    assert (len(tokens), of) == (100, len(hybrids.TOKENS))
    text = [token for token in PROMPT if token in tokens]
    assert len(text) > 15
    with opened((target, small)) as over:
        over.session.prefill(text)
        rows = over.rows(9, [8])
    expected = fresh((target, None), [*text, 9], [8])
    assert np.array_equal(rows[:, tokens], expected[:, tokens])
    assert np.isneginf(rows[:, np.setdiff1d(np.arange(of), tokens)]).all()


def test_files_of_fewer_rows_that_cannot_be(made: dict[tuple[str, bool], Files], tmp_path: Path) -> None:
    target, assistant = made["in the file", False][0], made["gemma4", False][1]
    assert assistant is not None
    small = tmp_path / "small.gguf"
    for source, rows, says in (
        (target, 1, "cannot have 1 rows; give a number from 64 to 270"),
        (target, 1000, "cannot have 1000 rows"),
        (assistant, 100, "holds no head whose rows can be chosen"),
        (made["apart", False][0], 100, "holds no head whose rows can be chosen"),
    ):
        with pytest.raises(ConversionError, match=says):
            head_rows.write(source, small, rows)
    assert list(tmp_path.iterdir()) == []
    head_rows.write(target, small, 100)
    with pytest.raises(ConversionError, match="holds no head whose rows"):
        head_rows.write(small, tmp_path / "again.gguf", 80)
    with pytest.raises(ConversionError, match="exists"):
        head_rows.write(target, small, 100)


@pytest.mark.parametrize("text", ["5-3", "0-5,4", "x", "", "0-999", "0-98", "-1"])
def test_tokens_of_a_head_that_contradict_the_file(text: str, tmp_path: Path) -> None:
    """They would be read beyond the end of its matrix."""
    target, small = heads.qwen35(tmp_path), tmp_path / "small.gguf"
    head_rows.write(target, small, 100)
    head = header(small)
    fields = {**head.fields, TOKENS: text}
    with pytest.raises(ValueError, match=r"edgespec\.head\.tokens|invalid literal"):
        tokens_of(replace(head, fields=fields))
    found = tokens_of(head)
    assert found is not None
    assert written(found[0]) == head.fields[TOKENS]


def test_the_command_that_writes_fewer_rows(made: dict[tuple[str, bool], Files], tmp_path: Path) -> None:
    target = made["in the file", True][0]
    done = run("convert", target, "--head-rows", "140", "--out", tmp_path / "small.gguf")
    assert done.returncode == 0, done.stderr
    assert "small.gguf: 0." in done.stderr
    assert "give a number from 64" in refused(run("convert", target, "--head-rows", "3", "--out", tmp_path / "a.gguf"))
