"""Token trees on llama.cpp: each branch as if it were alone, and no trace of the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import Model, Session, open_model
from edgespec.backends.llama import LlamaModel
from edgespec.errors import ClosedError, ContextOverflow, EngineError, Interrupted, RollbackError
from edgespec.llamacpp import bindings

from .requantize import requantize

#: By how much a logit may differ where the cells of a text are in another order: attention sums in half precision,
#: in the order of the cells. With 32-bit weights 0.03 was the most in 10 000 rows; Q8_0 enlarges it to 0.4.
ROUNDING = 0.06

SHAPES = {
    "wide": [-1, *[0] * 63],
    "comb": [-1, 0, 0, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13],
    "two long": [-1, *(n for i in range(15) for n in (max(0, 2 * i - 1), 2 * i)), 29],
    "back and forth": [-1, 0, 0, 1, 2, 1, 0, 4, 3, 3, 2, 8, 7, 0, 13, 11],
    "forest": [-1, -1, 0, 1, -1, 1, 4, 0, 2, 3, 6, 6, 4, 2, 5, 10],
    "single nodes": [-1] * 64,
}


class Calls:
    """llama.cpp's bindings, some functions replaced, with the calls of `seq_cp` written down."""

    def __init__(self, **replaced: Callable[..., Any]) -> None:
        self._low = bindings()
        self._replaced = replaced
        self.copies: list[tuple[int, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(self._low, name)

    def llama_memory_seq_cp(self, memory: Any, source: int, target: int, start: int, end: int) -> None:
        self.copies.append((source, target, start))
        self._low.llama_memory_seq_cp(memory, source, target, start, end)


def opened(path: Path, low: Calls | None = None, **options: Any) -> LlamaModel:
    model = open_model(path, Device(threads=1, **options), Interrupt())
    assert isinstance(model, LlamaModel)
    model._low = low or model._low
    return model


@pytest.fixture(scope="module")
def sharp(demo: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The demo's draft with 32-bit weights, which do not enlarge the rounding of attention."""
    path = requantize(demo["draft"], tmp_path_factory.mktemp("sharp") / "draft.gguf", "ALL_F32")
    model = opened(path)
    yield model
    model.close()


def paths(parents: Sequence[int]) -> list[list[int]]:
    """The nodes from a root down to each leaf."""
    found = []
    for leaf in range(len(parents)):
        if leaf not in parents:
            path = [leaf]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            found.append(path)
    return found


def dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - no secret


def words(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(5, 4000) for _ in range(n)]


def grown(rng: random.Random, n: int) -> list[int]:
    """A tree of `n` nodes that is no chain: bushy, slender, or several."""
    kind = rng.choice(["wide", "slender", "any", "forest"])
    if kind == "forest" or n < 3:
        return [-1, *(rng.randrange(-1, node) for node in range(1, n - 1)), -1]
    parents = [-1, 0]
    for node in range(2, n - 1):
        choices = {"wide": rng.choice([0, 0, 1]), "slender": node - 1, "any": rng.randrange(node)}
        parents.append(choices[kind])
    return [*parents, 0]


# --- each branch as if it were alone


@pytest.mark.parametrize("before", [0, 37])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_branch_is_bit_equal_to_itself_alone(demo_target: Model, shape: str, before: int) -> None:
    """In passes of one width, multiples of four, and with cells in the order of the text: then nothing may differ."""
    parents, rng = SHAPES[shape], dice(before)
    text, tokens = words(rng, before), words(rng, len(parents))
    session, alone = demo_target.session(512), demo_target.session(512)
    session.prefill(text)
    alone.prefill(text)
    assert session.can_tree
    assert session.leaves >= len(paths(parents))
    rows = session.decode(tokens, parents).copy()
    assert rows.shape == (len(tokens), session.vocab)
    for path in rng.sample(paths(parents), min(6, len(paths(parents)))):
        branch = [tokens[node] for node in path]
        right = alone.decode([*branch, *[7] * (len(tokens) - len(branch))])
        np.testing.assert_array_equal(rows[path], right[: len(path)])
        alone.rollback(before)
    session.close()
    alone.close()


def test_a_chain_given_as_a_tree_is_a_chain(demo: dict[str, Path]) -> None:
    low = Calls()
    model = opened(demo["draft"], low)
    session, other = model.session(256), model.session(256)
    np.testing.assert_array_equal(session.decode([5, 6, 7], (-1, 0, 1)), other.decode([5, 6, 7]))
    assert list(session.tokens) == [5, 6, 7]
    session.rollback(0, [0, 1])
    assert list(session.tokens) == [5, 6]
    assert low.copies == [], "chains cost no bookkeeping"
    session.close()
    other.close()
    model.close()


# --- many rounds


def rounds(model: Model, rng: random.Random, context: int, begin: int) -> int:
    """Rounds of trees and chains, most of which is wrong, against a session that is told right away what is right.

    Returns how often the context was full.
    """
    session, plain = model.session(context), model.session(context)
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
        np.testing.assert_allclose(rows[path], plain.decode([tokens[i] for i in path]), atol=ROUNDING)
        kept = path[: rng.choice([0, 1, 1, 2, 3, len(path)])]
        session.rollback(start, kept)
        plain.rollback(start + len(kept))
        assert list(session.tokens) == list(plain.tokens)
        if rng.random() < 0.3 and len(plain.tokens) + 3 <= context:
            chain = words(rng, 3)
            np.testing.assert_allclose(session.decode(chain), plain.decode(chain), atol=ROUNDING)
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
def test_many_rounds_of_trees_leave_no_trace(sharp: Model, seed: int) -> None:
    rounds(sharp, dice(seed), 1024, 0)


@pytest.mark.parametrize("seed", range(3))
def test_trees_at_the_end_of_the_context(sharp: Model, seed: int) -> None:
    """No room but what rejected branches gave back: 256 cells are all there are."""
    assert rounds(sharp, dice(seed), 256, 225) > 3


def test_a_tree_may_fill_the_context(sharp: Model) -> None:
    session = sharp.session(256)
    session.prefill([5] * 200)
    for _ in range(3):
        session.decode(words(dice(0), 56), [-1, *[0] * 55])
        session.rollback(200)
    with pytest.raises(ContextOverflow):
        session.decode([5] * 57, [-1, *[0] * 56])
    assert len(session.tokens) == 200
    session.close()


def test_a_tree_costs_no_copy_of_the_text(demo: dict[str, Path]) -> None:
    """A sequence keeps the text from tree to tree: else a round would cost the more, the longer the text."""
    low = Calls()
    model = opened(demo["draft"], low)
    session = model.session(512)
    session.prefill([5] * 300)
    last = None
    for node in (1, 2, 1, 3):  # each the leaf of the sequence before its own number
        low.copies.clear()
        start = len(session.tokens)
        session.decode([5, 6, 7, 8], (-1, 0, 0, 0))
        session.rollback(start, [0, node])
        given = [(0, leaf, start - 1 if last else 0) for leaf in (1, 2) if leaf + 1 != last]
        assert low.copies == given + [(node - 1, 0, start + 1)] * (node > 1)
        last = node
    session.close()
    model.close()


# --- what is refused, and what goes wrong


def same(session: Session, model: Model, text: list[int]) -> None:
    """`session` holds `text` and nothing else: what follows is what follows in a session of its own."""
    assert list(session.tokens) == text
    other = model.session(256)
    other.prefill(text)
    for tokens, tree in (([8, 9], None), ([8, 9, 10, 11], (-1, 0, 0, -1)), ([9], None)):
        np.testing.assert_allclose(session.decode(tokens, tree), other.decode(tokens, tree), atol=ROUNDING)
        for each in (session, other):
            each.rollback(len(text))
    other.close()


def test_only_paths_are_kept(sharp: Model) -> None:
    session, text = sharp.session(256), words(dice(1), 20)
    session.prefill(text)
    session.decode([7, 8, 9, 10, 11], (-1, 0, 0, 1, 2))
    for length, keep in [(20, [1]), (20, [0, 3]), (20, [0, 1, 2]), (19, [0]), (21, []), (-1, []), (20, [5])]:
        with pytest.raises(RollbackError):
            session.rollback(length, keep)
    session.rollback(20, [0, 2, 4])
    with pytest.raises(RollbackError):
        session.rollback(20, [0])
    same(session, sharp, [*text, 7, 9, 11])
    session.close()


def test_a_tree_that_nobody_settles_is_forgotten(sharp: Model) -> None:
    session, text = sharp.session(256), words(dice(1), 20)
    session.prefill(text)
    for length in (20, 15, 0):
        session.decode([7, 8, 9], (-1, 0, 0))
        assert list(session.tokens) == text
        if length < 20:
            session.rollback(length)
        held = text[:length]
        session.prefill([3, 4])
        same(session, sharp, [*held, 3, 4])
        session.rollback(len(held))
        session.prefill(text[len(held) :])
        session.decode([7, 8, 9], (-1, 0, 0))
        session.decode([1])
        same(session, sharp, [*text, 1])
        session.rollback(20)
    session.close()


def test_trees_that_cannot_be(sharp: Model) -> None:
    session, text = sharp.session(256), words(dice(1), 20)
    session.prefill(text)
    leaves = session.leaves
    for n, tree in [
        (leaves + 2, [-1, *[0] * (leaves + 1)]),
        (2, [-1, 1]),
        (3, [-1, 0]),
        (3, [-1, 0, 1, 2]),
        (3, [-1, 0, -2]),
        (3, [-1, 0, 0, 0]),
    ]:
        with pytest.raises(EngineError):
            session.decode([5] * n, tree)
        same(session, sharp, text)
    assert len(session.decode([5] * (leaves + 1), [-1, *[0] * leaves])) == leaves + 1
    session.rollback(20)
    with pytest.raises(EngineError, match="could not decode"):
        session.decode([5, 10**6, 7], (-1, 0, 0))
    same(session, sharp, text)
    session.close()
    with pytest.raises(ClosedError):
        session.decode([5, 6, 7], (-1, 0, 0))


@pytest.mark.parametrize("polls", [1, 5, 20])
def test_a_tree_is_cancelled_in_the_middle(sharp: Model, polls: int) -> None:
    """llama.cpp itself removes only some of the tree's cells then."""
    session, text = sharp.session(256), words(dice(1), 20)
    session.prefill(text)
    session.decode([7, 8, 9], (-1, 0, 0))
    session.rollback(20)
    low, left = bindings(), [polls]

    @low.ggml_abort_callback  # type: ignore[untyped-decorator]
    def poll(_data: object) -> bool:
        left[0] -= 1
        return left[0] < 0

    low.llama_set_abort_callback(session._context, poll, None)  # type: ignore[attr-defined]
    with pytest.raises(Interrupted):
        session.decode([7, 8, 9, 10, 11], (-1, 0, 0, 1, 1))
    left[0] = 10**9
    same(session, sharp, text)
    session.decode([7, 8, 9, 10], (-1, 0, 0, 1))
    session.rollback(20, [0, 1, 3])
    same(session, sharp, [*text, 7, 8, 10])
    session.close()


def test_an_interrupt_that_is_set_stops_a_tree(demo: dict[str, Path]) -> None:
    interrupt = Interrupt()
    model = open_model(demo["draft"], Device(threads=1), interrupt)
    session = model.session(256)
    session.prefill([5, 6])
    interrupt.set()
    with pytest.raises(Interrupted):
        session.decode([7, 8, 9], (-1, 0, 0))
    interrupt.clear()
    assert list(session.tokens) == [5, 6]
    assert len(session.decode([7, 8, 9], (-1, 0, 0))) == 3
    session.close()
    model.close()


@pytest.mark.parametrize("what", ["llama_model_n_swa", "llama_model_is_recurrent", "llama_model_is_hybrid"])
def test_models_whose_branches_cannot_be_kept_apart_take_none(demo: dict[str, Path], what: str) -> None:
    model = opened(demo["draft"], Calls(**{what: lambda _model: 512}))
    session = model.session(64)
    refuses(session)
    model.close()


def test_a_model_that_chooses_among_cells_takes_no_trees(demo: dict[str, Path]) -> None:
    def value(model: Any, key: bytes, buffer: Any, room: int) -> int:
        if key == b"llama.attention.indexer.head_count":
            buffer.value = b"4"
            return 1
        return int(bindings().llama_model_meta_val_str(model, key, buffer, room))

    model = opened(demo["draft"], Calls(llama_model_meta_val_str=value))
    refuses(model.session(64))
    model.close()


def test_where_a_context_for_trees_does_not_open_chains_do(demo: dict[str, Path]) -> None:
    def init(model: Any, params: Any) -> Any:
        return None if params.kv_unified else bindings().llama_init_from_model(model, params)

    model = opened(demo["draft"], Calls(llama_init_from_model=init))
    refuses(model.session(64))
    model.close()


def refuses(session: Session) -> None:
    assert not session.can_tree
    assert session.leaves == 0
    with pytest.raises(EngineError, match="can_tree"):
        session.decode([5, 6, 7], (-1, 0, 0))
    assert list(session.tokens) == []
    assert len(session.decode([5, 6, 7], (-1, 0, 1))) == 3
    session.rollback(0)
    session.close()
