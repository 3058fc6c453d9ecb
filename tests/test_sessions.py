"""What every engine's sessions do alike: passes, rollbacks, trees."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import Model, Session, open_model
from edgespec.errors import ContextOverflow, EngineError, RollbackError
from edgespec.types import Floats

from .branching import dice, grown, paths, same, words
from .requantize import requantize

PROMPT = [5 + i * 37 % 900 for i in range(30)]


@dataclass(frozen=True)
class Engine:
    """A model of an engine, and by how much its logits may differ where passes are of other widths or shapes."""

    model: Model
    rounding: float


@pytest.fixture(scope="module")
def sharp(demo: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The demo's draft with 32-bit weights, which do not enlarge the rounding of attention."""
    path = requantize(demo["draft"], tmp_path_factory.mktemp("sharp") / "draft.gguf", "ALL_F32")
    model = open_model(path, Device(threads=1), Interrupt())
    yield model
    model.close()


@pytest.fixture(scope="module", params=["llama", "onnx"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "onnx":
        return Engine(request.getfixturevalue("onnx_target"), 1e-4)
    return Engine(request.getfixturevalue("sharp"), 0.06)  # llama.cpp's attention sums in half precision


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    opened = engine.model.session(512)
    yield opened
    opened.close()


def fresh(model: Model, tokens: Sequence[int]) -> Floats:
    """The logits after `tokens`, token by token in a session of its own."""
    session = model.session(512)
    try:
        return np.concatenate([session.decode([token]).copy() for token in tokens])
    finally:
        session.close()


def test_one_pass_many_passes_and_a_prefill_agree(engine: Engine, session: Session) -> None:
    one_by_one = fresh(engine.model, PROMPT)
    assert one_by_one.shape == (len(PROMPT), engine.model.vocabulary.size)
    assert one_by_one.dtype == np.float32
    assert one_by_one.std(axis=1).min() > 1, "these are no logits"
    np.testing.assert_allclose(session.decode(PROMPT), one_by_one, atol=engine.rounding)
    for cut in (1, 7, len(PROMPT) - 1):
        session.rollback(0)
        session.prefill(PROMPT[:cut])
        assert list(session.tokens) == PROMPT[:cut]
        np.testing.assert_allclose(session.decode(PROMPT[cut:]), one_by_one[cut:], atol=engine.rounding)
    assert list(session.tokens) == PROMPT


def test_a_prefill_longer_than_a_chunk(engine: Engine) -> None:
    """Chunks of 512: the positions must go on from one to the next."""
    tokens = [5 + n % 700 for n in range(700)]
    rows = []
    for cut in (0, 100, 512, 699):
        session = engine.model.session(1024)
        session.prefill(tokens[:cut])
        session.prefill(tokens[cut:-1])
        rows.append(session.decode(tokens[-1:]).copy())
        assert list(session.tokens) == tokens
        session.close()
    for row in rows[1:]:
        np.testing.assert_allclose(row, rows[0], atol=engine.rounding)


def test_rollback_is_exact(engine: Engine, session: Session) -> None:
    """What was rolled back must leave no trace: the same pass gives the very same numbers."""
    session.prefill(PROMPT)
    first = session.decode([7, 8, 9]).copy()
    for rubbish in ([100, 101], [7, 8, 9], [1] * 50, [7]):
        session.rollback(len(PROMPT))
        session.decode(rubbish)
        session.rollback(len(PROMPT))
        assert list(session.tokens) == PROMPT
        assert (session.decode([7, 8, 9]) == first).all()


def test_rollback_keeps_accepted_tokens(engine: Engine, session: Session) -> None:
    session.prefill(PROMPT)
    for keep in ([], [0], [0, 1], [0, 1, 2]):
        session.rollback(len(PROMPT))
        session.decode([7, 8, 9])
        session.rollback(len(PROMPT), keep)
        kept = [*PROMPT, *[7, 8, 9][: len(keep)]]
        assert list(session.tokens) == kept
        right = fresh(engine.model, [*kept, 11])[-1:]
        np.testing.assert_allclose(session.decode([11]), right, atol=engine.rounding)


def test_rollback_that_cannot_be_is_an_error_and_changes_nothing(session: Session) -> None:
    session.prefill(PROMPT)
    session.decode([7, 8, 9])
    held, n = list(session.tokens), len(PROMPT)
    for length, keep in [
        (n + 4, []),
        (-1, []),
        (n, [1]),
        (n, [0, 2]),
        (n, [0, 1, 2, 3]),
        (n - 1, [0]),
        (n + 1, [0]),
    ]:
        with pytest.raises(RollbackError):
            session.rollback(length, keep)
        assert list(session.tokens) == held
    session.rollback(n + 3)
    session.rollback(n, [0])
    assert list(session.tokens) == held[: n + 1]


def test_what_does_not_fit_is_refused_and_changes_nothing(engine: Engine) -> None:
    session = engine.model.session(40)
    session.prefill([5] * 38)
    for call in (session.decode, session.prefill):
        with pytest.raises(ContextOverflow, match="38 \\+ 3 tokens do not fit the context of 40"):
            call([1, 2, 3])
    assert len(session.tokens) == 38
    assert len(session.decode([1, 2])) == 2
    session.close()


def test_a_pass_too_wide_for_the_batch_is_an_error(engine: Engine) -> None:
    session = engine.model.session(2048)
    assert session.widest == 512
    with pytest.raises(EngineError, match="at most 512"):
        session.decode([5] * 513)
    session.close()


def rounds(engine: Engine, rng: random.Random, context: int, begin: int) -> int:
    """Rounds of trees and chains, most of which is wrong, against a session that is told right away what is right.

    Returns how often the context was full.
    """
    session, plain = engine.model.session(context), engine.model.session(context)
    text = words(rng, begin)
    session.prefill(text)
    plain.prefill(text)
    full = 0
    for _ in range(60):
        start = len(plain.tokens)
        tokens = words(rng, rng.choice([2, 3, 4, 8, 12, 24, 48, 64]))
        parents = grown(rng, len(tokens))
        if start + len(tokens) > context:
            with pytest.raises(ContextOverflow):
                session.decode(tokens, parents)
            tokens, parents = tokens[: context - start], parents[: context - start]
            full += 1
        if len(tokens) < 2:
            session.rollback(begin)
            plain.rollback(begin)
            continue
        rows = session.decode(tokens, parents).copy()
        path = rng.choice(paths(parents))
        np.testing.assert_allclose(rows[path], plain.decode([tokens[i] for i in path]), atol=engine.rounding)
        kept = path[: rng.choice([0, 1, 1, 2, 3, len(path)])]
        session.rollback(start, kept)
        plain.rollback(start + len(kept))
        assert list(session.tokens) == list(plain.tokens)
        if rng.random() < 0.3 and len(plain.tokens) + 3 <= context:
            chain = words(rng, 3)
            np.testing.assert_allclose(session.decode(chain), plain.decode(chain), atol=engine.rounding)
            if rng.random() < 0.5:
                session.rollback(len(plain.tokens) - 3, [0])
                plain.rollback(len(plain.tokens) - 2)
        if rng.random() < 0.05:
            length = rng.randrange(begin // 2, len(plain.tokens) + 1)
            session.rollback(length)
            plain.rollback(length)
    session.close()
    plain.close()
    return full


@pytest.mark.parametrize("seed", range(3))
def test_many_rounds_of_trees_leave_no_trace(engine: Engine, seed: int) -> None:
    rounds(engine, dice(seed), 1024, 0)


@pytest.mark.parametrize("seed", range(3))
def test_trees_at_the_end_of_the_context(engine: Engine, seed: int) -> None:
    """No room but what rejected branches gave back: 256 cells are all there are."""
    assert rounds(engine, dice(seed), 256, 225) > 3


def test_a_tree_may_fill_the_context(engine: Engine) -> None:
    session = engine.model.session(256)
    session.prefill([5] * 200)
    for _ in range(3):
        session.decode(words(dice(0), 56), [-1, *[0] * 55])
        session.rollback(200)
    with pytest.raises(ContextOverflow):
        session.decode([5] * 57, [-1, *[0] * 56])
    assert len(session.tokens) == 200
    session.close()


def test_only_paths_are_kept(engine: Engine) -> None:
    session, text = engine.model.session(256), words(dice(1), 20)
    session.prefill(text)
    session.decode([7, 8, 9, 10, 11], (-1, 0, 0, 1, 2))
    for length, keep in [(20, [1]), (20, [0, 3]), (20, [0, 1, 2]), (19, [0]), (21, []), (-1, []), (20, [5])]:
        with pytest.raises(RollbackError):
            session.rollback(length, keep)
    session.rollback(20, [0, 2, 4])
    with pytest.raises(RollbackError):
        session.rollback(20, [0])
    same(session, engine.model, [*text, 7, 9, 11], engine.rounding)
    session.close()


def test_a_tree_that_nobody_settles_is_forgotten(engine: Engine) -> None:
    session, text = engine.model.session(256), words(dice(1), 20)
    session.prefill(text)
    for length in (20, 15, 0):
        session.decode([7, 8, 9], (-1, 0, 0))
        assert list(session.tokens) == text
        if length < 20:
            session.rollback(length)
        held = text[:length]
        session.prefill([3, 4])
        same(session, engine.model, [*held, 3, 4], engine.rounding)
        session.rollback(len(held))
        session.prefill(text[len(held) :])
        session.decode([7, 8, 9], (-1, 0, 0))
        session.decode([1])
        same(session, engine.model, [*text, 1], engine.rounding)
        session.rollback(20)
    session.close()


def test_a_chain_after_a_tree_that_nobody_settles(engine: Engine, session: Session) -> None:
    """What is kept then are the chain's nodes and not the tree's."""
    session.prefill(PROMPT)
    session.decode([7, 8, 9], (-1, 0, 0))
    session.decode([10, 11, 12])
    session.rollback(len(PROMPT), [0, 1])
    same(session, engine.model, [*PROMPT, 10, 11], engine.rounding)


def test_a_tree_may_begin_the_text_and_fill_the_context(engine: Engine) -> None:
    session, alone = engine.model.session(256), engine.model.session(256)
    tokens = words(dice(3), session.context)
    parents = [-1, *range(len(tokens) - 2), 0]
    rows = session.decode(tokens, parents).copy()
    np.testing.assert_allclose(rows[:-1], alone.decode(tokens[:-1]), atol=engine.rounding)
    session.rollback(0, range(len(tokens) - 1))
    assert list(session.tokens) == tokens[:-1]
    session.close()
    alone.close()
