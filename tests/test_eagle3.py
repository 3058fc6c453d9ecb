"""What an EAGLE-3 head computes, and how it follows the session of its target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt
from edgespec.backends import head_pairs, open_model
from edgespec.backends.gguf_header import header
from edgespec.errors import ModelFileError
from edgespec.types import Floats

from . import eagle3_heads
from .eagle3_cases import KINDS, ROUNDING, TEXT, Over, Place, near, opening, values, wide_caches
from .test_hidden_rows import fresh


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("eagle3"))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(place: Place) -> Iterator[Callable[..., Over]]:
    with opening(place) as over:
        yield over


@pytest.mark.parametrize(
    "changed",
    [{}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"head_dim": 32}, {"rms_norm_eps": 0.3}],
)
@pytest.mark.parametrize("theirs", ["SafeAILab", "speculators"])
def test_a_head_computes_what_its_checkpoint_means(
    place: Place, opened: Callable[..., Over], changed: Any, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against NumPy in float64, of both makers' formats, after a prompt and along a path."""
    wide_caches(monkeypatch)
    config = eagle3_heads.config(**changed)
    tensors = eagle3_heads.tensors(config, {"hidden": 64, "vocabulary": place.vocabulary}, seed=3)
    written = (config, tensors) if theirs == "SafeAILab" else eagle3_heads.speculators(config, tensors)
    head = place.converted(f"{theirs}-{'-'.join(changed)}", *written)
    over = opened("llama", head)
    over.session.prefill(TEXT)
    with closing(open_model(place.folder / "target.gguf", Device(threads=1), Interrupt())) as model:
        features = fresh(model, TEXT, config["eagle_aux_hidden_state_layer_ids"])
    expected = eagle3_heads.Reference(config, tensors, place.vocabulary).logits(features, [*TEXT, 9], [8, 7, 6])
    near(over.rows(9, [8, 7, 6]), expected.astype(np.float32), 1e-3)


def test_a_quantized_head(place: Place, opened: Callable[..., Over]) -> None:
    exact, rough = opened("llama"), opened("llama", place.converted("rough", place.config, place.tensors, quant="q8_0"))
    for over in (exact, rough):
        over.session.prefill(TEXT)
    near(rough.rows(9, [8, 7]), exact.rows(9, [8, 7]), 0.5)


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_the_same_head_over_an_onnx_target(place: Place, opened: Callable[..., Over], kind: str) -> None:
    over, other = opened("llama"), opened(kind)
    for each in (over, other):
        each.session.prefill(TEXT)
        each.session.decode([9, 10, 11])
        each.session.rollback(len(TEXT), (0, 1))
    near(other.rows(12, [8, 7]), over.rows(12, [8, 7]), 0.1)


def agrees(over: Over, opened: Callable[..., Over], kind: str, text: Sequence[int]) -> None:
    path = [9, 30, 77]
    assert over.head.follows(text)
    new = opened(kind)
    new.session.prefill(text[:-1])
    near(over.rows(text[-1], path), new.rows(text[-1], path), 0.1)


def test_a_head_follows_rounds_and_rollbacks(opened: Callable[..., Over], kind: str) -> None:
    """Chains and trees, most of which are rejected, and rollbacks to anywhere."""
    over, text = opened(kind), TEXT[:30]
    session = over.session
    session.prefill(text[:-1])
    for accepted in (0, 2, 1):
        over.rows(text[-1], [40, 41, 42])
        held = len(session.tokens)
        session.decode([text[-1], 60, 61, 62])
        session.rollback(held, range(accepted + 1))
        text = [*text, *[60, 61, 62][:accepted], 40 + accepted]
        agrees(over, opened, kind, text)
    if session.can_tree:
        held = len(session.tokens)
        session.decode([text[-1], 50, 51, 52], (-1, 0, 0, 2))
        session.rollback(held, (0, 2, 3))
        text = [*text, 51, 52, 44]
        agrees(over, opened, kind, text)
    session.rollback(20)
    session.decode([9])
    session.rollback(21)
    agrees(over, opened, kind, [*text[:20], 9, 10])
    session.rollback(1)
    session.prefill([])
    agrees(over, opened, kind, [text[0], 9])


def test_another_path_of_the_same_length(opened: Callable[..., Over]) -> None:
    """Siblings in a tree: what was computed for one path must not serve another."""
    over, new = opened("llama"), opened("llama")
    for each in (over, new):
        each.session.prefill(TEXT)
    for last, path in ((9, [30, 77, 5]), (9, [30, 78, 5]), (9, [31, 78]), (8, [31, 78]), (9, [30, 78, 6])):
        found = over.head.logits(last, path).copy()
        near(found, new.rows(last, path)[-1])


def test_a_text_of_one_token(opened: Callable[..., Over], kind: str) -> None:
    """The first token has no pair: its row goes with the second."""
    over = opened(kind)
    assert not over.head.follows([9])
    over.session.decode([9])
    over.session.rollback(1)
    assert over.head.follows([9, 10])
    assert not over.head.follows([8, 10]), "another text of the same length"
    assert np.isfinite(over.head.logits(10, [])).any()


def test_a_long_prompt(opened: Callable[..., Over]) -> None:
    over, other, text = opened("llama", None, 768), opened("llama", None, 768), TEXT * 15
    over.session.prefill(text)
    for start in range(0, len(text), 50):
        other.session.prefill(text[start : start + 50])
        assert other.head.follows([*other.session.tokens, 9])
    near(other.rows(9, [8]), over.rows(9, [8]), 0.1)


def test_rounds_in_which_the_head_is_not_asked(opened: Callable[..., Over]) -> None:
    over, text = opened("llama"), TEXT * 3
    over.session.prefill(text[:10])
    for token in text[10:]:
        over.session.decode([token])
        over.session.rollback(len(over.session.tokens))
    agrees(over, opened, "llama", [*text, 9])


def test_an_encoder_that_fails(opened: Callable[..., Over], monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there are no drafts until the rows are heard again."""
    over = opened("llama")
    over.session.prefill(TEXT[:10])
    with monkeypatch.context() as patch:
        patch.setattr(over.head._low, "llama_encode", lambda *_: 1)
        over.session.prefill(TEXT[10:20])
        assert not over.head.follows([*TEXT[:20], 9])
    over.session.rollback(10)
    over.session.prefill(TEXT[10:20])
    agrees(over, opened, "llama", [*TEXT[:20], 9])


def test_rows_wait_until_the_head_is_asked(opened: Callable[..., Over], monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass of the encoder for all that came since, and none in a text for which the head is never asked."""
    over, text = opened("llama"), TEXT * 4
    over.session.prefill(text[:10])
    assert over.head.follows(text[:11])
    passes = _counted_passes(over, monkeypatch)
    over.session.prefill(text[10:110])
    for length in (111, 112, 113, 114, 115, 113, 114, 115, 116):  # a rollback to 112 tokens is among them
        over.session.rollback(length - 1)
        over.session.decode([text[length - 1]])
        over.session.rollback(length)
    assert not passes
    agrees(over, opened, "llama", [*text[:116], 9])
    assert passes[:2] == [64, 42]


def test_of_the_rows_that_wait_the_oldest_are_read_where_they_take_too_much_memory(
    opened: Callable[..., Over], monkeypatch: pytest.MonkeyPatch
) -> None:
    over, text = opened("llama"), TEXT * 5
    passes = _counted_passes(over, monkeypatch)
    monkeypatch.setattr(head_pairs, "_MOST_WAITING", 100 * 3 * 64 * 4)
    for start in range(0, 200, 8):
        over.session.decode(text[start : start + 8])
        over.session.rollback(start + 8)
        assert sum(len(tokens) for _, tokens, _ in over.head._waiting) <= 100
    assert passes == [64, 64]
    agrees(over, opened, "llama", [*text, 9])


def _counted_passes(over: Over, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of the passes of the encoder from now on."""
    encode, passes = over.head._low.llama_encode, list[int]()

    def counted(handle: object, batch: Any) -> object:
        passes.append(batch.n_tokens)
        return encode(handle, batch)

    monkeypatch.setattr(over.head._low, "llama_encode", counted)
    return passes


def test_scaled_rotations(place: Place, opened: Callable[..., Over]) -> None:
    """llama3's are a tensor of divisors."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = eagle3_heads.config(rope_scaling=scaling)
    head = place.converted("scaled", config, place.tensors)
    assert "rope_freqs.weight" in header(head).tensors
    over, other = opened("llama", head), opened("llama")
    for each in (over, other):
        each.session.prefill(TEXT)
    assert np.nanmax(np.abs(_finite(over.rows(9, [8])) - _finite(other.rows(9, [8])))) > ROUNDING


def _finite(rows: Floats) -> Floats:
    return np.where(np.isfinite(rows), rows, 0)


def test_the_embedding_of_a_checkpoint_is_copied(place: Place, opened: Callable[..., Over]) -> None:
    """Official heads have none. Then the head runs over ONNX models, too."""
    tensors = {name: values for name, values in place.tensors.items() if name != "embed_tokens.weight"}
    whole = place.converted("copied", place.config, tensors, place.source)
    assert "token_embd.weight" in header(whole).tensors
    over, other = opened("llama", whole), opened("onnx", whole)
    for each in (over, other):
        each.session.prefill(TEXT)
    near(over.rows(9, [8]), other.rows(9, [8]), 0.1)


def test_the_embedding_of_a_gguf_target_is_borrowed(place: Place, opened: Callable[..., Over]) -> None:
    tensors = {name: values for name, values in place.tensors.items() if name != "embed_tokens.weight"}
    bare = place.converted("bare", place.config, tensors)
    assert "token_embd.weight" not in header(bare).tensors
    embedded = {**tensors, "embed_tokens.weight": values(place.source)["model.embed_tokens.weight"]}
    over, other = opened("llama", bare), opened("llama", place.converted("embedded", place.config, embedded))
    for each in (over, other):
        each.session.prefill(TEXT)
    near(over.rows(9, [8]), other.rows(9, [8]))
    with pytest.raises(ModelFileError, match=r"lacks token_embd\.weight, which it would take from a GGUF target"):
        opened("onnx", bare)
