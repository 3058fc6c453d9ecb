"""Models with recurrent layers on ONNX Runtime: any rollback leaves what a new session would compute."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Finished, Interrupt, Runtime, Sampling, Speculation, Started, Text, load
from edgespec.backends import installed, ort, ort_recurrent
from edgespec.backends.onnx_file import read
from edgespec.backends.ort import OrtModel
from edgespec.backends.ort_recurrent import RecurrentRows
from edgespec.backends.ort_recurrent_session import OrtRecurrentSession
from edgespec.converters import convert
from edgespec.errors import EngineError, Interrupted, MissingPackage, ModelFileError, OptionError
from edgespec.models.sizes import sizes
from edgespec.prices import Prices, engine_comparison
from edgespec.testing import check_model
from edgespec.tools.check import check
from edgespec.types import Floats

from . import family_checkpoints
from .hybrid_steps import random_steps
from .onnxfolders import Converted, converting, opened, refused, rewritten
from .test_convert import engine
from .test_families import difference
from .test_llama_exact import plainly, speculatively

KINDS = family_checkpoints.RECURRENT
TEXT = [5 + 7 * n % 250 for n in range(60)]
WORDS = [9 + 11 * n % 240 for n in range(12)]
ROUNDING = 1e-3


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return converting(tmp_path_factory.mktemp("recurrent"), "fp32")


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a large model: tiny ones keep what was computed of whole texts."""
    monkeypatch.setattr(ort_recurrent, "_KEPT", 3)
    monkeypatch.setattr(ort_recurrent, "_BYTES", 1)


def fresh(model: OrtModel, text: Sequence[int], words: Sequence[int]) -> Floats:
    with closing(model.session(256, Interrupt())) as session:
        session.prefill(text)
        return session.decode(words).copy()


# --- any steps, and the laws of sessions


@pytest.mark.parametrize("kind", KINDS)
def test_random_steps(converted: Converted, kind: str) -> None:
    done = random_steps(converted(kind), 150)
    assert done.decodes > 60
    assert (done.owed, done.worst < ROUNDING) == (0, True)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("kind", KINDS)
def test_random_steps_with_small_buffers(converted: Converted, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far rollbacks go beyond them: to saved rows, or to the beginning of the text."""
    load_, loaded = RecurrentRows._load, list[int]()

    def counted(rows: RecurrentRows, saved: Any) -> None:
        load_(rows, saved)
        loaded.append(rows._end)

    monkeypatch.setattr(RecurrentRows, "_load", counted)
    done = random_steps(converted(kind), 300, seed=1)
    assert sum(length > 0 for length in loaded) > 5
    assert done.worst < ROUNDING


@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_of_sessions(converted: Converted, kind: str) -> None:
    with closing(opened(converted(kind))) as model:
        check_model(model, rounding=ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_the_gguf_does(converted: Converted, kind: str, tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", kind)
    list(convert(source, tmp_path / "model.gguf", quantization="f32"))
    with engine(tmp_path / "model.gguf") as llama, closing(opened(converted(kind))) as model:
        llama.eval(TEXT)
        with closing(model.session(256)) as session:
            assert difference(session.decode(TEXT), llama.scores[: len(TEXT)]) < 5e-5


# --- rollbacks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 2, 9])
def test_nothing_is_owed_after_a_round(converted: Converted, kind: str, width: int) -> None:
    """Whatever is rejected, also the whole pass; and no bit of what was rejected remains."""
    with closing(opened(converted(kind))) as model:
        for kept in range(width + 1):
            rows = []
            for rejected in (3, 4):
                with closing(model.session(256)) as session:
                    assert (session.reach, session.replays, session.can_tree) == (None, False, False)
                    session.prefill(TEXT)
                    session.decode([*WORDS[:kept], *[rejected] * (width - kept)])
                    session.rollback(len(TEXT), range(kept))
                    assert not session.owed
                    rows.append(session.decode([7, 8]).copy())
            assert np.array_equal(*rows)
            np.testing.assert_allclose(rows[0], fresh(model, [*TEXT, *WORDS[:kept]], [7, 8]), atol=ROUNDING)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("kind", KINDS)
def test_a_far_rollback_begins_near_the_end_of_a_prompt(converted: Converted, kind: str) -> None:
    with closing(opened(converted(kind))) as model, closing(model.session(256)) as session:
        session.prefill(TEXT)
        for length, owed in ((60, 4), (58, 2), (56, 0), (50, 50)):
            session.prefill(WORDS[:4])  # too short to be saved
            for token in TEXT * 2:
                session.decode([token])
            session.rollback(length)
            assert session.owed == owed
            right = fresh(model, session.tokens, WORDS)
            np.testing.assert_allclose(session.decode(WORDS), right, atol=ROUNDING)
            assert not session.owed
            session.rollback(length)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_prompt_computes_little_again(converted: Converted, kind: str) -> None:
    """The state before it is kept, though it has left the buffers."""
    flag = Interrupt()
    with closing(opened(converted(kind))) as model, closing(model.session(500, flag)) as session:
        session.prefill(TEXT)
        session.decode(WORDS[:2])
        session.rollback(len(TEXT) + 2)
        run, passes = session._passes._graph.session.run_with_iobinding, [0]

        class Cancelled:
            """The engine's session, cancelled in its fourth pass."""

            def run_with_iobinding(self, binding: object, options: object) -> None:
                passes[0] += 1
                if passes[0] == 4:
                    flag.set()
                run(binding, options)

            def io_binding(self) -> object:
                return native.io_binding()

        native = session._passes._graph.session
        object.__setattr__(session._passes._graph, "session", Cancelled())
        with pytest.raises(Interrupted):
            session.prefill(TEXT * 6)
        flag.clear()
        object.__setattr__(session._passes._graph, "session", native)
        assert list(session.tokens) == [*TEXT, *WORDS[:2]]
        assert not session.owed
        np.testing.assert_allclose(session.decode(WORDS), fresh(model, [*TEXT, *WORDS[:2]], WORDS), atol=ROUNDING)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_are_those_of_the_tokens_decoded(converted: Converted, kind: str) -> None:
    """Not of those that were owed."""
    with closing(opened(converted(kind))) as model:
        with closing(model.session(256, hidden=[1])) as session:
            session.prefill([*TEXT, *TEXT, *TEXT])
            session.rollback(2 * len(TEXT))
            session.prefill(WORDS[:5])
            for token in TEXT:
                session.decode([token])
            session.rollback(2 * len(TEXT) + 4)
            assert session.owed == 3
            session.decode(WORDS)
            found = {layer: rows.copy() for layer, rows in session.hidden.items()}
        with closing(model.session(256, hidden=[1])) as session:
            session.prefill([*TEXT, *TEXT, *WORDS[:4]])
            session.decode(WORDS)
            np.testing.assert_allclose(found[1], session.hidden[1], atol=ROUNDING)


# --- padding


@pytest.mark.parametrize("quantization", ["fp32", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_padded_passes_change_no_bit(converted: Converted, kind: str, quantization: str) -> None:
    """The state does not see the padding."""
    with closing(opened(converted(kind, quantization), exact=2)) as model, closing(model.session(400)) as session:
        plain = plainly(session, TEXT, 60)
        for seed in range(2):
            said = speculatively(session, TEXT, plain.tokens, seed)
            assert said.tokens == plain.tokens
            np.testing.assert_array_equal(said.rows, plain.rows)


# --- whole runtimes


def runtime(path: Path, draft: Path | None = None, **options: Any) -> Runtime:
    return load(path, draft, device=Device(context=256, threads=1, backend="onnx"), **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 0], ids=["wrong", "right"])
def test_check_finds_the_same_text(converted: Converted, kind: str, seed: int) -> None:
    """With look-ups and a draft model, itself a hybrid, at temperatures 0 and 0.8."""
    with runtime(converted(kind), converted(kind, seed=seed)) as speaker:
        for temperature in (0.0, 0.8):
            for verdict in check(speaker, [TEXT, TEXT[:7]], Sampling(temperature=temperature, seed=1), 40):
                assert verdict.divergence is None or verdict.divergence.near_tie
                assert verdict.drafted > 20


@pytest.mark.parametrize("k", [None, 1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_same_whatever_is_drafted(converted: Converted, kind: str, k: int | None) -> None:
    """By a draft model that is nearly always wrong."""
    texts = []
    for speculation in (Speculation(k=0), Speculation(k=k)):
        with runtime(converted(kind), converted(kind, seed=1), speculation=speculation) as speaker:
            for prompt in (TEXT, [*TEXT[:50], *WORDS], TEXT[:20]):
                *_, finished = events = list(speaker.complete(prompt, Sampling(temperature=0), max_tokens=30))
                assert isinstance(finished, Finished)
                started = events[0]
                assert isinstance(started, Started)
                texts.append([token for event in events if isinstance(event, Text) for token in event.tokens])
    assert texts[:3] == texts[3:]


# --- what is refused


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_and_another_provider_are_refused(converted: Converted, kind: str) -> None:
    with (
        closing(opened(converted(kind))) as model,
        closing(model.session(256)) as session,
        pytest.raises(EngineError, match="chains only"),
    ):
        session.decode([1, 2, 3], [-1, 0, 0])
    with pytest.raises(OptionError):
        opened(converted(kind), provider="cuda")


@pytest.mark.parametrize("kind", KINDS)
def test_openvino_refuses_it_in_one_line(converted: Converted, kind: str) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(ModelFileError, match=r"recurrent state.*take --backend onnx") as caught:
        load(converted(kind), device=Device(backend="openvino"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "quantization"), [("lfm2", "fp32"), ("qwen3moe", "int4")])
@pytest.mark.usefixtures("own_cache")
def test_the_choice_of_an_engine_leaves_openvino_out(
    converted: Converted, kind: str, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(engine_comparison, "installed", installed)
    monkeypatch.setattr(engine_comparison, "measure_and_keep", lambda *_: Prices([1.0, 1.5, 2.0]))
    device, choice = engine_comparison.with_engine(converted(kind, quantization), Device(threads=1), Interrupt())
    assert device.backend == "onnx"
    assert choice is not None
    assert list(choice.speeds) == ["onnx"]


def test_an_onnxruntime_without_the_operator(
    converted: Converted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(converted("qwen35"), tmp_path / "copied"))
    data = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(data.replace(b"LinearAttention", b"LinearAttentiox"))
    monkeypatch.setattr(ort, "_NEWEST", ("LinearAttentiox",))
    with pytest.raises(MissingPackage, match=r"has no operator LinearAttentiox.*pip install -U onnxruntime") as caught:
        opened(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("recurrent_layers", "0,1", "layers|past"),
        ("recurrent_layers", "0,1,99999999", "past"),
        ("recurrent_layers", "x", "not numbers of layers"),
        ("recurrent_layers", None, "incomplete"),
        ("kernel", "9", r"past\.0\.rows is \[1, 2, 64\] and not \[1, 8, 64\]"),
        ("channels", "1" * 18, r"past\.0\.rows"),
        ("state_heads", "6", "incomplete"),
        ("format", "3", "reads '1' and '2'"),
    ],
)
def test_damaged_metadata_is_refused(
    converted: Converted, tmp_path: Path, key: str, value: str | None, words: str
) -> None:
    folder = Path(shutil.copytree(converted("lfm2"), tmp_path / "copied"))
    rewritten(folder, **{key: value})
    with pytest.raises(ModelFileError) as caught:
        opened(folder)
    assert re.search(words, str(caught.value)), str(caught.value)
    refused(folder)


@pytest.mark.parametrize("kernel", ["3", "5", "1" * 18])
def test_a_kernel_that_the_graph_does_not_have_is_refused(converted: Converted, tmp_path: Path, kernel: str) -> None:
    """Its rows are of any number where they come with those of tokens that are computed again."""
    folder = Path(shutil.copytree(converted("qwen35"), tmp_path / "copied"))
    rewritten(folder, kernel=kernel)
    refused(folder, "convolutions are [(160, 4)]", kernel)


# --- memory


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_counts_what_is_kept(converted: Converted, kind: str) -> None:
    """And no cache for layers without attention."""
    found = sizes(converted(kind))
    described = read(converted(kind) / "model.onnx")
    assert found.cache == 2 * 1 * 2 * described.head_dim * 4, "keys and values of one layer, two heads"
    with closing(opened(converted(kind))) as model, closing(model.session(256)) as session:
        assert isinstance(session, OrtRecurrentSession)
        for prompt in (TEXT, WORDS):
            session.prefill(prompt)
            session.decode(WORDS)
            session.rollback(len(session.tokens) - 3)
            session.decode(WORDS[:1])
        known = session._recurrent
        held = sum(each.nbytes for each in (*known._rows, *known._gates))
        held += sum(each.nbytes for saved in known._saved for each in saved.rows)
        states = sum(each.nbytes for made in known._made for each in made)
    counted = found.buffers - 4 * (described.vocabulary * 64 + 8 * 64 * 512)
    assert held + states <= counted < 1.1 * held + 2 * states + 1e4
