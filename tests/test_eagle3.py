"""EAGLE-3 heads: their conversion, what they draft, and that the text does not depend on them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks import acceptance
from edgespec import Device, Interrupt, Runtime, Sampling, Speculation, load
from edgespec.backends import HeadWeights, Session, llama_file, open_model
from edgespec.backends.gguf_header import Header, Tensor, header
from edgespec.backends.head_header import fits, head_in
from edgespec.backends.llama import LlamaModel
from edgespec.backends.llama_eagle3 import Eagle3Head
from edgespec.bench.peers.llama_server import SERVER
from edgespec.converters import convert, convert_head
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.stored_tensor import float32
from edgespec.engine import Finished, Text
from edgespec.errors import ConversionError, EdgespecError, ModelFileError, OptionError, VocabularyMismatch
from edgespec.models import demo as model_demo
from edgespec.models import model_source
from edgespec.tools.check import check
from edgespec.types import Floats

from . import checkpoints, eagle3_heads
from .commandline import refused, run
from .test_hidden_rows import fresh

GREEDY = Sampling(temperature=0)
TEXT = [5 + 7 * n % 250 for n in range(40)]
RING_PROMPT = [*TEXT[:20], *eagle3_heads.RING[:3]]
ROUNDING = 0.02  # of logits: the caches have 16 bits

Array = npt.NDArray[Any]


def values(folder: Path) -> dict[str, Array]:
    """The tensors of a checkpoint."""
    stored = Checkpoint.open(folder).tensors
    return {
        name: np.concatenate([float32(block) for block in tensor.blocks()]).reshape(tensor.shape)
        for name, tensor in stored.items()
    }


class Place:
    """A target and heads for it in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = {"max_position_embeddings": 1024}
        self.source = checkpoints.llama(folder / "source", layers=4, tied=False, dtype="F32", config=config)
        ring = eagle3_heads.ring(values(self.source), 64)
        self.ring = folder / "ring-source"
        shutil.copytree(self.source, self.ring)
        checkpoints.write_safetensors(self.ring / "model.safetensors", ring)
        for name, source in (("target", self.source), ("ring", self.ring)):
            list(convert(source, folder / f"{name}.gguf", quantization="f32"))
            list(convert(source, folder / f"{name}-onnx", fmt="onnx", quantization="fp32"))
        self.vocabulary = header(folder / "target.gguf").vocabulary.size
        self.config = eagle3_heads.config()
        self.tensors = eagle3_heads.tensors(self.config, {"hidden": 64, "vocabulary": self.vocabulary})
        self.head = self.converted("head", self.config, self.tensors)
        right = eagle3_heads.config(draft_vocab_size=len(eagle3_heads.RING), eagle_aux_hidden_state_layer_ids=[1, 2, 3])
        self.right = self.converted("right", right, eagle3_heads.knowing(right, ring), self.ring)

    def converted(self, name: str, config: Any, tensors: Any, target: Path | None = None, quant: str = "f32") -> Path:
        source = eagle3_heads.write(self.folder / f"{name}-source", config, tensors)
        output = self.folder / f"{name}.head.gguf"
        list(convert_head(source, target or self.folder / "target.gguf", output, quantization=quant))
        return output

    def target(self, kind: str, name: str = "target") -> tuple[Path, Device]:
        device = Device(context=256, threads=1, backend="auto" if kind == "llama" else kind)
        return self.folder / (f"{name}.gguf" if kind == "llama" else f"{name}-onnx"), device


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("eagle3"))


KINDS = ("llama", "onnx", "openvino")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Over:
    """A session and an EAGLE-3 head over it."""

    def __init__(self, session: Session, head: Eagle3Head) -> None:
        self.session, self.head = session, head

    def rows(self, last: int, path: Sequence[int]) -> Floats:
        return np.stack([self.head.logits(last, path[:n]).copy() for n in range(len(path) + 1)])


@pytest.fixture
def opened(place: Place) -> Iterator[Callable[..., Over]]:
    with ExitStack() as stack:

        def over(kind: str, head: Path | None = None, context: int = 256) -> Over:
            path, device = place.target(kind)
            target = open_model(path, device, Interrupt())
            stack.callback(target.close)
            weights = open_model(head or place.head, Device(threads=1, drafts=True), Interrupt())
            stack.callback(weights.close)
            assert isinstance(weights, HeadWeights)
            session = stack.enter_context(closing(target.session(context)))
            found = stack.enter_context(closing(weights.head(session)))
            assert isinstance(found, Eagle3Head)
            return Over(session, found)

        yield over


def near(found: Floats, expected: Floats, rounding: float = ROUNDING) -> None:
    finite = np.isfinite(expected)
    assert (np.isfinite(found) == finite).all()
    np.testing.assert_allclose(found[finite], expected[finite], atol=rounding)


def runtime(place: Place, kind: str, head: Path, name: str = "target", **options: Any) -> Runtime:
    path, device = place.target(kind, name)
    speculation = options.pop("speculation", None) or Speculation(("eagle3",))
    return load(path, head, device=device, speculation=speculation, **options)


# --- what it computes


@pytest.mark.parametrize("changed", [{}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"head_dim": 32}])
@pytest.mark.parametrize("theirs", ["SafeAILab", "speculators"])
def test_a_head_computes_what_its_checkpoint_means(
    place: Place, opened: Callable[..., Over], changed: Any, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against NumPy in float64, of both makers' formats, after a prompt and along a path."""
    _wide_caches(monkeypatch)
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


def _wide_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of 32 bits, so that only sums are rounded."""
    params = LlamaModel._context_params

    def wide(self: LlamaModel, context: int) -> Any:
        found = params(self, context)
        found.type_k = found.type_v = found.flash_attn_type = 0
        return found

    monkeypatch.setattr(LlamaModel, "_context_params", wide)


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


def test_a_text_of_one_token(opened: Callable[..., Over], kind: str) -> None:
    """The first token has no pair: its row goes with the second."""
    over = opened(kind)
    assert not over.head.follows([9])
    over.session.decode([9])
    over.session.rollback(1)
    assert over.head.follows([9, 10])
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


# --- answers


@pytest.mark.parametrize("k", [1, 3, None])
@pytest.mark.parametrize("name", ["target", "ring"])
def test_the_text_does_not_depend_on_the_head(place: Place, kind: str, name: str, k: int | None) -> None:
    """At temperatures 0 and 0.8; the one is always wrong, the other right once a round."""
    head = place.head if name == "target" else place.right
    with runtime(place, kind, head, name, speculation=Speculation(("eagle3",), k)) as speaker:
        assert "eagle3" in speaker.drafters
        for temperature in (0.0, 0.8):
            sampling = Sampling(temperature=temperature, seed=1, top_k=0)
            for verdict in check(speaker, [RING_PROMPT, TEXT], sampling, 30):
                assert verdict.divergence is None or verdict.divergence.near_tie


@pytest.mark.parametrize("verifier", ["match", "rejection", "block"])
def test_every_verifier(place: Place, verifier: str) -> None:
    with runtime(place, "llama", place.right, "ring", speculation=Speculation(("eagle3",), 1, verifier)) as speaker:
        *_, finished = speaker.complete(RING_PROMPT, Sampling(temperature=0.8, seed=3, top_k=0), max_tokens=40)
        assert isinstance(finished, Finished)
        of, accepted = finished.stats.by_drafter["eagle3"]
        assert accepted > 0.3 * of


def test_a_head_that_knows_the_target_is_right(place: Place, kind: str) -> None:
    """It reads nothing but its rows: with those of another position it would always be wrong."""
    for head, least, most in ((place.right, 0.95, 1.0), (place.head, 0.0, 0.1)):
        with runtime(place, kind, head, "ring", speculation=Speculation(("eagle3",), 1)) as speaker:
            *_, finished = speaker.complete(RING_PROMPT, GREEDY, max_tokens=60)
            assert isinstance(finished, Finished)
            of, accepted = finished.stats.by_drafter["eagle3"]
            assert of > 10
            assert least <= accepted / of <= most


def test_trees_with_free_siblings(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further guesses of a row cost nothing: a tree has several children where wide passes are cheap."""
    from .helpers import TreeController  # noqa: PLC0415

    with runtime(place, "llama", place.right, "ring") as speaker:
        plain = _tokens(speaker, Speculation((), 0))
        answer = speaker.complete(
            RING_PROMPT, GREEDY, max_tokens=30, controlled=lambda drafters: TreeController(list(drafters), 8)
        )
        rounds = [event for event in answer if isinstance(event, Text)]
        assert [token for event in rounds for token in event.tokens] == plain
        assert any(not event.round.draft.is_chain for event in rounds)


def _tokens(speaker: Runtime, speculation: Speculation) -> list[int]:
    events = speaker.complete(RING_PROMPT, GREEDY, max_tokens=30, speculation=speculation)
    return [token for event in events if isinstance(event, Text) for token in event.tokens]


def test_two_runtimes_over_the_same_weights(place: Place, kind: str) -> None:
    with runtime(place, kind, place.right, "ring") as speaker, speaker.another() as second:
        assert _tokens(speaker, Speculation(("eagle3",), 2)) == _tokens(second, Speculation(("eagle3",), 2))


def test_look_ups_beside_it(place: Place) -> None:
    with runtime(place, "llama", place.right, "ring", speculation=Speculation()) as speaker:
        assert speaker.drafters == ("lookup", "eagle3")
        assert all(verdict.divergence is None for verdict in check(speaker, [RING_PROMPT], GREEDY, 30))


# --- how it is found


def test_a_head_is_found_by_its_header(place: Place, tmp_path: Path) -> None:
    shutil.copy(place.folder / "target.gguf", tmp_path / "target.gguf")
    shutil.copy(place.head, tmp_path / "any-name.gguf")
    assert head_in(place.head) == "eagle3"
    assert head_in(tmp_path / "target.gguf") is None
    assert model_source.local_draft(tmp_path / "target.gguf") == tmp_path / "any-name.gguf"
    assert fits(header(tmp_path / "target.gguf"), header(place.head))
    assert head_in(tmp_path / "missing.gguf") is None


def test_the_command_converts_and_uses_a_head(place: Place, tmp_path: Path, own_cache: Path) -> None:
    source = eagle3_heads.write(tmp_path / "source", place.config, place.tensors)
    output = tmp_path / "head.gguf"
    done = run("convert", source, "--for", place.folder / "target.gguf", "--out", output, "--quant", "q8_0")
    assert f"{output}: " in done.stderr
    done = run("chat", place.folder / "target.gguf", "--draft", output, "--drafter", "eagle3", "-p", "hello", "--stats")
    assert "eagle3" in done.stdout + done.stderr


def test_what_models_show_and_pair_say(place: Place, tmp_path: Path, own_cache: Path) -> None:
    target = tmp_path / "target.gguf"
    shutil.copy(place.folder / "target.gguf", target)
    shutil.copy(place.head, tmp_path / "head.gguf")
    said = run("models", "show", target).stdout
    assert f"head    {tmp_path / 'head.gguf'}" in said
    assert "drafts for its target, with --draft (drafter eagle3)" in said
    assert "drafter eagle3" in run("models", "show", place.head).stdout
    assert "those of this target" in run("models", "pair", target, place.head).stdout
    assert "those of another model" in run("models", "pair", model_demo().target, place.head).stdout


# --- embeddings


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


# --- what is refused


def refusal(place: Place, tmp_path: Path, config: Any, tensors: Any, target: Path | None = None) -> str:
    """The message for a head that cannot be converted, on one line; nothing is left behind."""
    source = eagle3_heads.write(tmp_path / "source", config, tensors)
    output = tmp_path / "out" / "head.gguf"
    output.parent.mkdir()
    with pytest.raises(ConversionError) as caught:
        list(convert_head(source, target or place.folder / "target.gguf", output))
    assert not list(output.parent.iterdir())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"fc_norm": True}, "fc_norm is True"),
        ({"norm_output": True}, "norm_output is True"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"parallel_drafting": True}, "parallel_drafting is True"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "'dynamic' is not supported"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, r"reads the layers \[1, 2\]"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, "may be a head for another model"),
        ({"target_hidden_size": 128}, "for a model 128 wide"),
        ({"num_key_value_heads": 3}, "4 heads of 16 over 3"),
        ({"draft_vocab_size": 100}, "lm_head.weight is"),
    ],
)
def test_what_config_json_may_not_say(place: Place, tmp_path: Path, changed: Any, words: str) -> None:
    message = refusal(place, tmp_path, {**place.config, **changed}, place.tensors)
    assert re.search(words, message), message


def test_missing_and_surplus_tensors(place: Place, tmp_path: Path) -> None:
    for name in ("fc.weight", "midlayer.hidden_norm.weight", "d2t"):
        tensors = {key: value for key, value in place.tensors.items() if key != name}
        assert "lacks" in refusal(place, tmp_path / name, place.config, tensors)
    for name in ("midlayer.self_attn.q_norm.weight", "mask_hidden", "midlayer.1.fc.weight"):
        tensors = {**place.tensors, name: np.ones(16, np.float32)}
        assert f"has the tensor {name}" in refusal(place, tmp_path / name, place.config, tensors)


def test_offsets_of_other_tokens(place: Place, tmp_path: Path) -> None:
    for n, offsets in enumerate((place.tensors["d2t"] + place.vocabulary, -np.arange(200), place.tensors["d2t"][:-1])):
        assert "d2t" in refusal(place, tmp_path / f"{n}", place.config, {**place.tensors, "d2t": offsets})


def test_a_head_for_another_model(place: Place, tmp_path: Path) -> None:
    """Another width is seen by the shape of fc, whatever config.json says."""
    tensors = eagle3_heads.tensors(place.config, {"hidden": 128, "vocabulary": place.vocabulary})
    assert "for another model" in refusal(place, tmp_path, place.config, tensors)
    other = checkpoints.llama(tmp_path / "other", layers=4, hidden=96, heads=6)
    list(convert(other, tmp_path / "other.gguf", quantization="f32"))
    with pytest.raises(VocabularyMismatch, match="reads rows of 64 numbers"):
        load(tmp_path / "other.gguf", place.head, device=Device(context=64), speculation=Speculation(("eagle3",)))
    shallow = checkpoints.llama(tmp_path / "shallow", layers=2)
    list(convert(shallow, tmp_path / "shallow.gguf", quantization="f32"))
    with pytest.raises(VocabularyMismatch, match="of the layers 1, 2, 3"):
        load(tmp_path / "shallow.gguf", place.head, device=Device(context=64), speculation=Speculation(("eagle3",)))


def test_a_truncated_head(place: Place, tmp_path: Path) -> None:
    source = eagle3_heads.write(tmp_path / "source", place.config, place.tensors)
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConversionError, match="its tensors end at byte"):
        list(convert_head(source, place.folder / "target.gguf", tmp_path / "head.gguf"))
    short = tmp_path / "short.gguf"
    short.write_bytes(place.head.read_bytes()[:-4000])
    with pytest.raises(EdgespecError) as caught:
        load(place.folder / "target.gguf", short, device=Device(context=64), speculation=Speculation(("eagle3",)))
    assert "\n" not in str(caught.value)


def test_tokens_of_no_vocabulary_in_a_file(place: Place, tmp_path: Path) -> None:
    """llama.cpp would write beyond a row of logits."""
    head = header(place.head)
    data = bytearray(place.head.read_bytes())
    at = head.length + head.tensors["d2t"].offset
    data[at : at + 8] = (1 << 40).to_bytes(8, "little")
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(data)
    with pytest.raises(ModelFileError, match="d2t has tokens that are not among"):
        load(place.folder / "target.gguf", bad, device=Device(context=64), speculation=Speculation(("eagle3",)))


def _fields(changed: dict[str, Any]) -> Callable[[Header], Header]:
    return lambda head: replace(head, fields={**head.fields, **changed})


def _tensors(changed: dict[str, Tensor | None]) -> Callable[[Header], Header]:
    def made(head: Header) -> Header:
        tensors = {**head.tensors, **changed}
        return replace(head, tensors={name: tensor for name, tensor in tensors.items() if tensor is not None})

    return made


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (_fields({"eagle3.block_count": 2}), "block_count is 2"),
        (_fields({"eagle3.target_layers": (1, 2)}), "expected 3 layers"),
        (_fields({"eagle3.target_layers": (1, 2, -3)}), "expected 3 layers"),
        (_fields({"eagle3.attention.value_length": 8}), "keys have 16 numbers and values 8"),
        (_tensors({"d2t": None}), "there is no d2t"),
        (_tensors({"d2t": Tensor((200,), 0, 0)}), "d2t is of type 0"),
        (_tensors({"d2t": Tensor((1 << 40,), 27, 0)}), "expected a whole number for each of 200 rows"),
        (_tensors({"output.weight": None}), "expected a whole number for each of"),
        (_tensors({"output.weight": Tensor((64, 1 << 40), 0, 0)}), "output.weight has"),
        (_tensors({"d2t": Tensor((200,), 27, 1 << 40)}), "d2t has tokens that are not among"),
    ],
)
def test_a_file_that_would_end_the_process(
    place: Place, changed: Callable[[Header], Header], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By assertions of llama.cpp, when the context of the head is opened or used."""
    monkeypatch.setattr(llama_file, "header", lambda path: changed(header(path)))
    with pytest.raises(ModelFileError, match=words) as caught:
        llama_file.check(place.head)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_head(place: Place, tmp_path: Path, own_cache: Path) -> None:
    with pytest.raises(ConversionError, match="holds no head of a known kind"):
        convert_head(place.source, place.folder / "target.gguf", tmp_path / "head.gguf")
    source = eagle3_heads.write(tmp_path / "source", place.config, place.tensors)
    with pytest.raises(OptionError, match="not written in the quantization 'q2_k'"):
        convert_head(source, place.folder / "target.gguf", tmp_path / "head.gguf", quantization="q2_k")
    with pytest.raises(ConversionError, match="not a model with a vocabulary"):
        convert_head(source, place.head, tmp_path / "head.gguf")
    done = run("convert", place.source, "--for", place.folder / "target.gguf", "--out", tmp_path / "head.gguf")
    assert "holds no head" in refused(done)


def test_exact_passes(place: Place) -> None:
    device = Device(context=256, threads=1, exact=4)
    path = place.folder / "target.gguf"
    with pytest.raises(OptionError, match="the drafter eagle3 needs passes of other widths"):
        load(path, place.head, device=device, speculation=Speculation(("eagle3",)))
    with load(path, place.head, device=device) as speaker:
        assert speaker.drafters == ("lookup",)


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


def test_the_default_of_rope_theta_is_not_the_target_s(place: Place) -> None:
    assert header(place.head).fields["eagle3.rope.freq_base"] == 10000.0
    head = place.converted("theta", eagle3_heads.config(rope_theta=5e5), place.tensors)
    assert header(head).fields["eagle3.rope.freq_base"] == 5e5


def test_the_default_layers(place: Place) -> None:
    config = eagle3_heads.config(eagle_aux_hidden_state_layer_ids="absent")
    assert header(place.converted("layers", config, place.tensors)).fields["eagle3.target_layers"] == (2, 2, 1)
    inner = eagle3_heads.config(
        eagle_aux_hidden_state_layer_ids="absent", eagle_config={"eagle_aux_hidden_state_layer_ids": [3, 1, 2]}
    )
    assert header(place.converted("inner", inner, place.tensors)).fields["eagle3.target_layers"] == (3, 1, 2)


def test_a_native_server_loads_the_same_file(place: Place) -> None:
    """Its acceptance on the same prompts is ours. EDGESPEC_LLAMA_SERVER names the program."""
    program = os.environ.get(SERVER)
    if not program:
        pytest.skip(f"{SERVER} names no llama-server")
    target = place.folder / "ring.gguf"
    prompts = [[*TEXT[:20], *np.roll(eagle3_heads.RING, -n)[:3].tolist()] for n in range(4)]
    with acceptance.served(Path(program), target, place.right, 1):
        drafted, accepted = acceptance.of_server(prompts, 40)
    with runtime(place, "llama", place.right, "ring") as speaker:
        ours = acceptance.totals(speaker, prompts, "eagle3", 1, 40)
    assert drafted > 50
    assert abs(accepted / drafted - ours[1] / ours[0]) < 0.03
