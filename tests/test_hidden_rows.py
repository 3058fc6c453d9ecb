"""The tap of a session: a listener hears the hidden rows of exactly the tokens that stay, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import FINAL, HiddenRows, Model, Session, llama_rows, open_model
from edgespec.backends.openvino import OpenvinoModel
from edgespec.backends.openvino_graph import PagedGraph
from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.converters import convert
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.stored_tensor import float32
from edgespec.errors import EngineError, Interrupted, OptionError
from edgespec.testing.engine_case import dice, grown, paths
from edgespec.types import Floats

from . import checkpoints, hybrids
from .requantize import requantize

LAYERS = (2, 1)
TEXT = [5 + 7 * n % 250 for n in range(60)]


class Notes:
    """A listener that keeps all it hears, and checks that it is told in order."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.rows: list[Floats] = []
        self.calls: list[tuple[int, int]] = []
        self._cut = False

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:
        length = len(self.tokens)
        assert start == max(0, length - self._cut), "rows go on where they ended, or repeat one after a cut"
        assert len(tokens) == len(rows) > 0
        assert self.tokens[start:] == list(tokens[: length - start])
        self.tokens[start:], self.rows[start:] = list(tokens), [row.copy() for row in rows]
        self.calls.append((start, len(tokens)))
        self._cut = False

    def forget(self, length: int) -> None:
        assert length < len(self.tokens) or self._cut
        del self.tokens[length:], self.rows[length:]
        self._cut = True


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of four layers that all engines take."""
    return checkpoints.llama(
        tmp_path_factory.mktemp("rows") / "source", layers=4, config={"max_position_embeddings": 1024}
    )


@pytest.fixture(scope="module")
def models(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    """The same weights in all engines; "named" is llama.cpp without published layers."""
    folder = tmp_path_factory.mktemp("models")
    list(convert(source, folder / "model.gguf", fmt="gguf", quantization="f32"))
    sharp = requantize(folder / "model.gguf", folder / "sharp.gguf", "ALL_F32")
    list(convert(source, folder / "onnx", fmt="onnx", quantization="fp32"))
    places = {"llama": (sharp, "auto"), "onnx": (folder / "onnx", "onnx"), "openvino": (folder / "onnx", "openvino")}
    opened = {
        name: open_model(path, Device(threads=1, backend=backend), Interrupt())
        for name, (path, backend) in places.items()
    }
    yield opened
    for model in opened.values():
        model.close()


ENGINES = ("llama", "named", "onnx", "openvino")
#: How much a row may differ between engines, or between passes of other widths: OpenVINO's cache has 16 bits.
ROUNDING = {"llama": 0.4, "named": 0.4, "onnx": 0.01, "openvino": 0.4}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "named":
        monkeypatch.setattr(llama_rows, "_PUBLISHING", frozenset())
    return str(request.param)


def model_of(models: dict[str, Model], engine: str) -> Model:
    return models["llama" if engine == "named" else engine]


def followed(model: Model, layers: Sequence[int] = LAYERS, context: int = 256) -> tuple[Session, Notes]:
    session, notes = model.session(context), Notes()
    assert isinstance(session, HiddenRows)
    session.follow(layers, notes)
    return session, notes


def fresh(model: Model, tokens: Sequence[int], layers: Sequence[int] = LAYERS, context: int = 256) -> Floats:
    """The rows of a text, token by token in a new session."""
    session, notes = followed(model, layers, context)
    with closing(session):
        for token in tokens:
            session.decode([token])
            session.rollback(len(session.tokens))
        return np.stack(notes.rows)


def holds(model: Model, notes: Notes, tokens: Sequence[int], rounding: float, layers: Sequence[int] = LAYERS) -> None:
    assert notes.tokens == list(tokens)
    if tokens:
        np.testing.assert_allclose(np.stack(notes.rows), fresh(model, tokens, layers), atol=rounding)


@pytest.mark.parametrize("layers", [(2, 1), (FINAL,), (1, FINAL, 3)], ids=["two", "final", "both"])
def test_engines_agree(models: dict[str, Model], layers: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The input of layer i is what ONNX graphs call hidden.{i-1}."""
    right = fresh(models["onnx"], TEXT[:20], layers)
    assert right.shape == (20, 64 * len(layers))
    assert right.std(axis=1).min() > 0.1
    for engine in ENGINES:
        if engine == "named":
            monkeypatch.setattr(llama_rows, "_PUBLISHING", frozenset())
        found = fresh(model_of(models, engine), TEXT[:20], layers)
        np.testing.assert_allclose(found, right, atol=ROUNDING[engine], err_msg=engine)


def test_the_final_state_gives_the_logits(models: dict[str, Model], source: Path) -> None:
    for engine in ("llama", "onnx", "openvino"):
        session, notes = followed(models[engine], (FINAL,))
        with closing(session):
            session.prefill(TEXT)
            rows = session.decode([7, 8, 9]).copy()
            session.rollback(63)
            (head,) = Checkpoint.open(source).tensors["model.embed_tokens.weight"].blocks()
            expected = np.stack(notes.rows[-3:]) @ float32(head).T
            np.testing.assert_allclose(rows, expected, atol=ROUNDING[engine])


@pytest.mark.parametrize("layers", [LAYERS, (FINAL,)], ids=["inside", "final"])
def test_only_what_stays_is_heard(models: dict[str, Model], engine: str, layers: Sequence[int]) -> None:
    """Rounds with trees and chains, most of whose tokens are rejected, and rollbacks to anywhere."""
    model, rng = model_of(models, engine), dice(3)
    session, notes = followed(model, layers)

    def words(n: int) -> list[int]:
        return [rng.randrange(5, 250) for _ in range(n)]

    with closing(session):
        text = words(30)
        session.prefill(text)
        for n in range(12):
            start, tokens = len(text), words(rng.choice([1, 3, 8]))
            tree = (
                grown(rng, len(tokens))
                if session.can_tree and n % 2 and len(tokens) > 1
                else list(range(-1, len(tokens) - 1))
            )
            session.decode(tokens, tree)
            assert notes.tokens == text, "what may be rejected is not heard"
            path = rng.choice(paths(tree))
            kept = path[: rng.randrange(len(path) + 1)]
            session.rollback(start, kept)
            text += [tokens[node] for node in kept]
            if n % 4 == 3:
                length = rng.randrange(1, len(text))
                session.rollback(length)
                text = text[:length]
                added = words(rng.choice([1, 2, 20]))
                (session.prefill if rng.random() < 0.5 else session.decode)(added)
                text += added
                session.rollback(len(text))
            holds(model, notes, text, ROUNDING[engine], layers)


@pytest.mark.parametrize("layers", [LAYERS, (FINAL,)], ids=["inside", "final"])
def test_a_chain_that_nobody_judges_stays_and_a_tree_does_not(
    models: dict[str, Model], engine: str, layers: Sequence[int]
) -> None:
    """When it is known that it stays, a wider pass has overwritten its rows."""
    model = model_of(models, engine)
    session, notes = followed(model, layers)
    with closing(session):
        session.decode(TEXT[:2])
        session.decode(TEXT[2:5])
        assert notes.tokens == TEXT[:2]
        session.prefill(TEXT[5:8])
        holds(model, notes, TEXT[:8], ROUNDING[engine], layers)
        if session.can_tree:
            session.decode([7, 8, 9], (-1, 0, 0))
            session.decode([6])
            session.rollback(9)
            holds(model, notes, [*TEXT[:8], 6], ROUNDING[engine], layers)


@pytest.mark.parametrize("back", [0, 1, 2, 30, 59, 60])
def test_after_a_rollback_the_last_row_is_heard_again(models: dict[str, Model], engine: str, back: int) -> None:
    """A head needs it with the token that follows now. Nothing more is computed again."""
    model, length = model_of(models, engine), len(TEXT) - back
    session, notes = followed(model)
    with closing(session):
        session.prefill(TEXT)
        session.rollback(length)
        assert session.owed == (1 if back and length else 0)
        rows = session.decode([9, 10]).copy()
        session.rollback(length + 2)
        assert not session.owed
        assert notes.calls[-1][0] == length - (1 if back and length else 0)
        holds(model, notes, [*TEXT[:length], 9, 10], ROUNDING[engine])
        session.rollback(length)
        session.prefill([])
        assert not session.owed
        np.testing.assert_allclose(session.decode([9, 10]), rows, atol=ROUNDING[engine])


@pytest.mark.parametrize("engine", ["llama", "onnx", "openvino"])
def test_logits_are_the_same_with_a_listener(models: dict[str, Model], engine: str) -> None:
    """Also of a decode before which a row is computed again, and of a tree."""
    for layers in (LAYERS, (FINAL,)):
        session, _ = followed(models[engine], layers)
        with closing(session), closing(models[engine].session(256)) as plain:
            for each in (session, plain):
                each.prefill(TEXT)
                each.rollback(40)
            for tree in (None, (-1, 0, 0)):
                expected = plain.decode([7, 8, 9], tree).copy()
                np.testing.assert_allclose(session.decode([7, 8, 9], tree), expected, atol=ROUNDING[engine])
                for each in (session, plain):
                    each.rollback(30)


def test_a_long_prompt_is_heard_chunk_by_chunk(models: dict[str, Model], engine: str) -> None:
    model, tokens = model_of(models, engine), TEXT * 10
    for layers in (LAYERS, (FINAL,)):
        session, notes = followed(model, layers, 700)
        with closing(session):
            session.prefill(tokens[:560])
            session.rollback(550)
            session.prefill(tokens[550:])
            assert len(notes.calls) > 2
            assert notes.tokens == tokens
            last = np.stack(notes.rows[-3:])
        np.testing.assert_allclose(last, fresh(model, tokens, layers, 700)[-3:], atol=2 * ROUNDING[engine])


@pytest.mark.parametrize("first", [(2,), (FINAL,)])
def test_two_listeners(models: dict[str, Model], engine: str, first: Sequence[int]) -> None:
    model = model_of(models, engine)
    session, notes = followed(model, first)
    other = Notes()
    with closing(session):
        assert isinstance(session, HiddenRows)
        session.follow((1, FINAL), other)
        session.prefill(TEXT)
        session.rollback(30)
        session.decode([9])
        session.rollback(31)
        holds(model, notes, [*TEXT[:30], 9], ROUNDING[engine], first)
        holds(model, other, [*TEXT[:30], 9], ROUNDING[engine], (1, FINAL))


def test_sessions_that_follow_a_part_of_the_rows_share_one_graph(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO has a copy of the weights for each graph that it compiles."""
    model = models["openvino"]
    compiled: list[PagedGraph] = []
    compile_graph = OpenvinoModel._compile

    def counting(self: OpenvinoModel, graph: PagedGraph) -> object:
        compiled.append(graph)
        return compile_graph(self, graph)

    monkeypatch.setattr(OpenvinoModel, "_compile", counting)
    for layers in ((1, 3, FINAL), (3,), (FINAL, 1)):
        session, notes = model.session(100), Notes()
        assert isinstance(session, HiddenRows)
        with closing(session):
            session.follow(layers, notes)
            session.prefill(TEXT)
            session.decode([9])
            session.rollback(61)
            holds(model, notes, [*TEXT, 9], ROUNDING["openvino"], layers)
    assert len(compiled) == 1


@pytest.mark.parametrize("engine", ["llama", "onnx", "openvino"])
def test_a_prompt_that_is_cancelled(models: dict[str, Model], engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = Interrupt()
    model = models[engine]
    session, notes = model.session(700, flag), Notes()
    assert isinstance(session, HiddenRows)
    with closing(session):
        session.follow(LAYERS, notes)
        session.prefill(TEXT)
        heard = notes.heard

        def stopping(start: int, tokens: Sequence[int], rows: Floats) -> None:
            heard(start, tokens, rows)
            flag.set()

        monkeypatch.setattr(notes, "heard", stopping)
        with pytest.raises(Interrupted):
            session.prefill(TEXT * 10)
        monkeypatch.undo()
        flag.clear()
        assert list(session.tokens) == TEXT
        session.decode([9])
        session.rollback(61)
        holds(model, notes, [*TEXT, 9], ROUNDING[engine])


@pytest.mark.parametrize("snapshots", [True, False])
def test_a_hybrid(tmp_path: Path, snapshots: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that it owes were heard already. Where a state was saved, the row was kept with it."""
    from edgespec.backends import recurrent_state  # noqa: PLC0415

    if not snapshots:
        monkeypatch.setattr(recurrent_state, "_WITH_SNAPSHOTS", ())
    path = hybrids.write(tmp_path / "model.gguf", "qwen35")
    with closing(open_model(path, Device(threads=1), Interrupt())) as model:
        session, notes = followed(model)
        with closing(session):
            session.prefill(TEXT)
            for accepted in (0, 2, 4, 1, 3):
                held = len(session.tokens)
                session.decode([9, *range(40, 44)])
                session.rollback(held, range(accepted + 1))
            holds(model, notes, session.tokens, 0.01)
            saved = len(TEXT) - 4
            session.rollback(saved)
            assert session.owed <= 1
            session.decode([9])
            session.rollback(saved + 1)
            holds(model, notes, [*TEXT[:saved], 9], 0.01)
            session.rollback(20)
            session.decode([9])
            session.rollback(21)
            holds(model, notes, [*TEXT[:20], 9], 0.01)


# --- what is refused


@pytest.mark.parametrize("layer", [-2, 4, 5, 1000])
def test_a_layer_that_does_not_exist(models: dict[str, Model], engine: str, layer: int) -> None:
    """llama.cpp would end the process."""
    with closing(model_of(models, engine).session(64)) as session:
        assert isinstance(session, HiddenRows)
        with pytest.raises(OptionError, match=f"layer {layer} cannot be read in this model"):
            session.follow((1, layer), Notes())
        session.decode(TEXT)


def test_embeddings_are_given_where_they_are_published(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fresh(models["llama"], TEXT, (0,)).shape == (60, 64)
    monkeypatch.setattr(llama_rows, "_PUBLISHING", frozenset())
    for engine in ("llama", "onnx", "openvino"):
        with closing(models[engine].session(64)) as session:
            assert isinstance(session, HiddenRows)
            with pytest.raises(OptionError, match=r"layer 0 cannot be read .* 1 to 3"):
                session.follow((0,), Notes())


def test_a_graph_without_such_names(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known before the first token."""
    monkeypatch.setattr(llama_rows, "_PUBLISHING", frozenset())
    monkeypatch.setattr(llama_rows, "_NODE", "nonsense-{}")
    with closing(models["llama"].session(64)) as session:
        assert isinstance(session, HiddenRows)
        with pytest.raises(EngineError, match="has no output of layer 1"):
            session.follow((2,), Notes())
        assert not session.tokens


def test_a_session_that_holds_tokens(models: dict[str, Model], engine: str) -> None:
    with closing(model_of(models, engine).session(64)) as session:
        assert isinstance(session, HiddenRows)
        session.decode([5])
        with pytest.raises(EngineError, match="from the first token on"):
            session.follow(LAYERS, Notes())


def test_exact_passes(source: Path, tmp_path: Path) -> None:
    list(convert(source, tmp_path / "model.gguf", fmt="gguf", quantization="f32"))
    list(convert(source, tmp_path / "onnx", fmt="onnx", quantization="fp32"))
    for path, backend in (("model.gguf", "auto"), ("onnx", "onnx")):
        device = Device(threads=1, exact=2, backend=backend)
        with (
            closing(open_model(tmp_path / path, device, Interrupt())) as model,
            closing(model.session(64)) as session,
        ):
            assert isinstance(session, HiddenRows)
            with pytest.raises(OptionError, match="exact is 2"):
                session.follow(LAYERS, Notes())


def test_an_engine_without_rows() -> None:
    with pytest.raises(EngineError, match="gives no hidden rows"):
        ToySession(ngram_rule(24), 24).follow((1,), Notes())


def test_the_listed_architectures_are_those_of_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version may not publish them, and would end the process."""
    import llama_cpp  # noqa: PLC0415

    assert llama_rows.publishes("llama")
    assert not llama_rows.publishes("gemma3n")
    llama_rows.layer_functions.cache_clear()
    monkeypatch.setattr(llama_cpp, "__version__", "0.3.99")
    assert not llama_rows.publishes("llama")
    llama_rows.layer_functions.cache_clear()
