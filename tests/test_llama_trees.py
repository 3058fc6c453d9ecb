"""Token trees on llama.cpp: each branch as if it were alone, and no trace of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import Model, Session, open_model
from edgespec.backends.llama import LlamaModel
from edgespec.backends.llama_library import bindings
from edgespec.errors import ClosedError, EngineError, Interrupted
from edgespec.testing import EngineCase
from edgespec.testing.engine_case import dice, paths

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
def sharp(small_pair: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The small pair's draft with 32-bit weights, which do not enlarge the rounding of attention."""
    path = requantize(small_pair["draft"], tmp_path_factory.mktemp("sharp") / "draft.gguf", "ALL_F32")
    model = opened(path)
    yield model
    model.close()


# --- each branch as if it were alone


@pytest.mark.parametrize("before", [0, 37])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_branch_is_bit_equal_to_itself_alone(small_target: Model, shape: str, before: int) -> None:
    """In passes of one width, multiples of four, and with cells in the order of the text: then nothing may differ."""
    parents, rng = SHAPES[shape], dice(before)
    case = EngineCase(small_target)
    text, tokens = case.words(rng, before), case.words(rng, len(parents))
    session, alone = small_target.session(512), small_target.session(512)
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


def test_a_chain_given_as_a_tree_is_a_chain(small_pair: dict[str, Path]) -> None:
    low = Calls()
    model = opened(small_pair["draft"], low)
    session, other = model.session(256), model.session(256)
    np.testing.assert_array_equal(session.decode([5, 6, 7], (-1, 0, 1)), other.decode([5, 6, 7]))
    assert list(session.tokens) == [5, 6, 7]
    session.rollback(0, [0, 1])
    assert list(session.tokens) == [5, 6]
    assert low.copies == [], "chains cost no bookkeeping"
    session.close()
    other.close()
    model.close()


def test_a_tree_costs_no_copy_of_the_text(small_pair: dict[str, Path]) -> None:
    """A sequence keeps the text from tree to tree: else a round would cost the more, the longer the text."""
    low = Calls()
    model = opened(small_pair["draft"], low)
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


def test_trees_that_cannot_be(sharp: Model) -> None:
    session, text = sharp.session(256), EngineCase(sharp).words(dice(1), 20)
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
        EngineCase(sharp, ROUNDING).holds(session, text)
    assert len(session.decode([5] * (leaves + 1), [-1, *[0] * leaves])) == leaves + 1
    session.rollback(20)
    with pytest.raises(EngineError, match="could not decode"):
        session.decode([5, 10**6, 7], (-1, 0, 0))
    EngineCase(sharp, ROUNDING).holds(session, text)
    session.close()
    with pytest.raises(ClosedError):
        session.decode([5, 6, 7], (-1, 0, 0))


@pytest.mark.parametrize("polls", [1, 5, 20])
def test_a_tree_is_cancelled_in_the_middle(sharp: Model, polls: int) -> None:
    """llama.cpp itself removes only some of the tree's cells then."""
    session, text = sharp.session(256), EngineCase(sharp).words(dice(1), 20)
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
    EngineCase(sharp, ROUNDING).holds(session, text)
    session.decode([7, 8, 9, 10], (-1, 0, 0, 1))
    session.rollback(20, [0, 1, 3])
    EngineCase(sharp, ROUNDING).holds(session, [*text, 7, 8, 10])
    session.close()


def test_an_interrupt_that_is_set_stops_a_tree(small_pair: dict[str, Path]) -> None:
    interrupt = Interrupt()
    model = open_model(small_pair["draft"], Device(threads=1), interrupt)
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
def test_models_whose_branches_cannot_be_kept_apart_take_none(small_pair: dict[str, Path], what: str) -> None:
    model = opened(small_pair["draft"], Calls(**{what: lambda _model: 512}))
    session = model.session(64)
    refuses(session)
    model.close()


def test_a_model_that_chooses_among_cells_takes_no_trees(small_pair: dict[str, Path]) -> None:
    def value(model: Any, key: bytes, buffer: Any, room: int) -> int:
        if key == b"llama.attention.indexer.head_count":
            buffer.value = b"4"
            return 1
        return int(bindings().llama_model_meta_val_str(model, key, buffer, room))

    model = opened(small_pair["draft"], Calls(llama_model_meta_val_str=value))
    refuses(model.session(64))
    model.close()


def test_where_a_context_for_trees_does_not_open_chains_do(small_pair: dict[str, Path]) -> None:
    def init(model: Any, params: Any) -> Any:
        return None if params.kv_unified else bindings().llama_init_from_model(model, params)

    model = opened(small_pair["draft"], Calls(llama_init_from_model=init))
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
