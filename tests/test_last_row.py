"""A listener that wants the row of the last token only: which row it hears, and that prompts are not dearer for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import FINAL, HiddenRows, Model, Session, Wanted, open_model
from edgespec.backends.llama_session import LlamaSession
from edgespec.backends.padded_session import PaddedSession
from edgespec.bench.replay import ReplaySession
from edgespec.converters import convert
from edgespec.errors import Interrupted
from edgespec.testing.engine_case import dice, grown, paths
from edgespec.types import Floats

from . import checkpoints, hybrids
from .requantize import requantize
from .test_hidden_rows import ROUNDING, Notes, fresh

TEXT = [5 + 7 * n % 250 for n in range(700)]
KINDS = ("llama", "onnx", "openvino")


class Last:
    """A listener that keeps the last row."""

    def __init__(self) -> None:
        self.length, self.token, self.row = 0, -1, np.zeros(0, np.float32)
        self.forgot: list[int] = []

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:
        assert len(tokens) == len(rows) == 1
        self.length, self.token, self.row = start + 1, tokens[0], rows[0].copy()

    def forget(self, length: int) -> None:
        assert length < self.length, "what is not known is not forgotten"
        self.length = 0
        self.forgot.append(length)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    folder = tmp_path_factory.mktemp("last")
    source = checkpoints.llama(folder / "source", layers=3, config={"max_position_embeddings": 1024})
    list(convert(source, folder / "model.gguf", fmt="gguf", quantization="f32"))
    sharp = requantize(folder / "model.gguf", folder / "sharp.gguf", "ALL_F32")
    list(convert(source, folder / "onnx", fmt="onnx", quantization="fp32"))
    opened = {
        kind: open_model(
            sharp if kind == "llama" else folder / "onnx",
            Device(threads=1, backend="auto" if kind == "llama" else kind),
            Interrupt(),
        )
        for kind in KINDS
    }
    yield opened
    for model in opened.values():
        model.close()


def followed(model: Model, layers: Sequence[int] = (FINAL,), context: int = 1024) -> tuple[Session, Last]:
    session, last = model.session(context), Last()
    assert isinstance(session, HiddenRows)
    session.follow(layers, last, Wanted.LAST)
    return session, last


def holds(model: Model, last: Last, text: Sequence[int], rounding: float, layers: Sequence[int] = (FINAL,)) -> None:
    assert (last.length, last.token) == (len(text), text[-1])
    np.testing.assert_allclose(last.row, fresh(model, text, layers, 1024)[-1], atol=rounding)


#: A pass: its tokens, and for how many of them logits are computed.
Pass = tuple[int, int]


def passes_of(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    """All passes of `session` from now on."""
    found: list[Pass] = []
    if isinstance(session, LlamaSession):
        decode, embed, states = session._low.llama_decode, session._low.llama_set_embeddings, [session._gives_states]

        def decoded(context: Any, batch: Any) -> int:
            wanted = sum(batch.logits[n] != 0 for n in range(batch.n_tokens))
            found.append((batch.n_tokens, batch.n_tokens if states[-1] else wanted))
            return int(decode(context, batch))

        def embedded(context: Any, on: bool) -> None:
            states.append(on)
            embed(context, on)

        monkeypatch.setattr(session._low, "llama_decode", decoded)
        monkeypatch.setattr(session._low, "llama_set_embeddings", embedded)
        return found
    assert isinstance(session, PaddedSession)
    chain: Callable[..., None] = session._passes.chain

    def chained(tokens: Sequence[int], held: int, *, width: int = 0, silent: int = 0, logits: bool) -> None:
        found.append((max(len(tokens), width), len(tokens) - silent if logits else 0))
        chain(tokens, held, width=width, silent=silent, logits=logits)

    monkeypatch.setattr(session._passes, "chain", chained)
    return found


#: How llama.cpp computes prompts of these lengths, where final states come with logits only: up to 64 tokens with all
#: logits, else the last token in a pass of its own.
WITH_STATES: dict[int, list[Pass]] = {
    1: [(1, 1)],
    64: [(64, 64)],
    65: [(64, 0), (1, 1)],
    300: [(299, 0), (1, 1)],
    512: [(511, 0), (1, 1)],
    513: [(512, 0), (1, 1)],
    560: [(512, 0), (48, 48)],
    650: [(512, 0), (137, 0), (1, 1)],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", WITH_STATES)
def test_a_prompt_is_computed_as_without_a_listener_but_for_its_end(
    models: dict[str, Model], kind: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found = models[kind], list[list[Pass]]()
    plain = model.session(1024)
    session, last = followed(model)
    for each in (plain, session):
        with closing(each):
            with monkeypatch.context() as patch:
                passes = passes_of(each, patch)
                each.prefill(TEXT[:length])
            found.append(passes)
    without, heard = found
    assert sum(n for n, _ in without) == length
    assert not any(logits for _, logits in without)
    assert heard == (WITH_STATES[length] if kind == "llama" else without)
    holds(model, last, TEXT[:length], 2 * ROUNDING[kind])


@pytest.mark.parametrize("layers", [(FINAL,), (1,), (2, FINAL)], ids=["final", "inside", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_and_rollbacks(models: dict[str, Model], kind: str, layers: Sequence[int]) -> None:
    """The row is that of the last token that stays of chains and trees, most of whose tokens are rejected; after a
    rollback to before the last decode there is none until the next pass, and nothing is computed again."""
    model, rng = models[kind], dice(5)
    session, last = followed(model, layers, 256)
    with closing(session):
        session.prefill(TEXT[:30])
        text = TEXT[:30]
        for n in range(8):
            start, tokens = len(text), [rng.randrange(5, 250) for _ in range(rng.choice([1, 3, 8]))]
            tree = (
                grown(rng, len(tokens))
                if session.can_tree and n % 2 and len(tokens) > 1
                else list(range(-1, len(tokens) - 1))
            )
            session.decode(tokens, tree)
            path = rng.choice([path for path in paths(tree) if path])
            kept = path[: 1 + rng.randrange(len(path))]
            session.rollback(start, kept)
            text += [tokens[node] for node in kept]
            holds(model, last, text, ROUNDING[kind], layers)
            if n % 3 == 2:
                session.rollback(start - 5)
                session.rollback(start - 6)
                text = text[: start - 6]
                assert (last.length, last.forgot[-1], session.owed) == (0, start - 5, 0), "it is forgotten once"
                added = TEXT[: rng.choice([1, 2, 20])]
                session.prefill(added)
                text += added
                holds(model, last, text, ROUNDING[kind], layers)


@pytest.mark.parametrize("kind", KINDS)
def test_a_decode_that_nobody_judged(models: dict[str, Model], kind: str) -> None:
    """All of it stays with the next call, which has overwritten the rows by then."""
    model = models[kind]
    session, last = followed(model)
    with closing(session):
        session.decode(TEXT[:3])
        expected = fresh(model, TEXT[:3], (FINAL,), 1024)[-1]
        heard: list[tuple[int, Floats]] = []
        listening = last.heard

        def hear(start: int, tokens: Sequence[int], rows: Floats) -> None:
            listening(start, tokens, rows)
            heard.append((last.length, last.row))

        last.heard = hear  # type: ignore[method-assign]
        session.decode(TEXT[3:9])
        session.rollback(9)
        assert [length for length, _ in heard] == [3, 9]
        np.testing.assert_allclose(heard[0][1], expected, atol=ROUNDING[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_logits_beside_it(models: dict[str, Model], kind: str) -> None:
    """Also after a prompt whose last token had a pass of its own, and of a tree."""
    session, _ = followed(models[kind])
    with closing(session), closing(models[kind].session(1024)) as plain:
        assert session.widest == plain.widest, "no room is left for tokens that are computed again"
        for each in (session, plain):
            each.prefill(TEXT[:300])
        for tree in (None, (-1, 0, 0)):
            expected = plain.decode([7, 8, 9], tree).copy()
            np.testing.assert_allclose(session.decode([7, 8, 9], tree), expected, atol=2 * ROUNDING[kind])
            for each in (session, plain):
                each.rollback(200)
                each.prefill(TEXT[:90])


@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_beside_a_listener_that_wants_all(models: dict[str, Model], kind: str, last_first: bool) -> None:
    model, session = models[kind], models[kind].session(1024)
    notes, last = Notes(), Last()
    assert isinstance(session, HiddenRows)
    with closing(session):
        for wanted in (Wanted.LAST, Wanted.ALL) if last_first else (Wanted.ALL, Wanted.LAST):
            session.follow((FINAL,), last if wanted is Wanted.LAST else notes, wanted)
        session.prefill(TEXT[:100])
        session.rollback(80)
        session.prefill(TEXT[80:90])
        held = len(session.tokens)
        session.decode([3, 4, 5])
        session.rollback(held, (0, 1))
        text = [*TEXT[:90], 3, 4]
        holds(model, last, text, 2 * ROUNDING[kind])
        assert notes.tokens == text
        np.testing.assert_allclose(notes.rows[-1], last.row, atol=1e-6)


def test_a_prompt_that_was_cancelled_leaves_no_row_of_it(models: dict[str, Model]) -> None:
    for kind in KINDS:
        flag = Interrupt()
        session, last = models[kind].session(1024, flag), Last()
        assert isinstance(session, HiddenRows)
        with closing(session):
            session.follow((FINAL,), last, Wanted.LAST)
            session.prefill(TEXT[:20])
            flag.set()
            with pytest.raises(Interrupted):
                session.prefill(TEXT[20:600])
            flag.clear()
            assert (list(session.tokens), last.length) == (TEXT[:20], 20)


@pytest.mark.parametrize("snapshots", [True, False])
def test_a_hybrid(tmp_path: Path, snapshots: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that it owes are computed again before others, and their rows are not wanted."""
    from edgespec.backends import recurrent_state  # noqa: PLC0415

    if not snapshots:
        monkeypatch.setattr(recurrent_state, "_WITH_SNAPSHOTS", ())
    path = hybrids.write(tmp_path / "model.gguf", "qwen35")
    with closing(open_model(path, Device(threads=1), Interrupt())) as model:
        session, last = followed(model, context=256)
        with closing(session), closing(model.session(256)) as plain:
            plain.prefill(TEXT[:100])
            session.prefill(TEXT[:100])
            holds(model, last, TEXT[:100], 0.01)
            for accepted in (0, 2, 4, 1, 3):
                held = len(session.tokens)
                expected = plain.decode([9, *range(40, 44)]).copy()
                np.testing.assert_allclose(session.decode([9, *range(40, 44)]), expected, atol=0.01)
                for each in (plain, session):
                    each.rollback(held, range(accepted + 1))
                holds(model, last, session.tokens, 0.01)
            session.rollback(96)
            assert not session.owed, "a state was saved there"
            session.prefill(TEXT[:7])
            holds(model, last, session.tokens, 0.01)
            session.rollback(40)
            session.prefill(())
            holds(model, last, TEXT[:40], 0.01)


def test_a_session_that_replays_passes_it_on(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    session, last = ReplaySession(models["llama"].session(256)), Last()
    with closing(session):
        session.follow((FINAL,), last, Wanted.LAST)
        found = passes_of(session.inner, monkeypatch)
        session.prefill(TEXT[:100])
        assert (last.length, found) == (100, [(99, 0), (1, 1)])
