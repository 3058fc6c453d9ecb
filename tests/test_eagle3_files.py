"""Files of EAGLE-3 heads: how they are converted, found, and refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Speculation, load
from edgespec.backends import llama_file
from edgespec.backends.gguf_header import Header, Tensor, header
from edgespec.backends.head_header import fits, head_in
from edgespec.converters import convert, convert_head
from edgespec.errors import ConversionError, EdgespecError, ModelFileError, OptionError, VocabularyMismatch
from edgespec.models import model_source

from . import checkpoints, eagle3_heads
from .commandline import refused, run
from .eagle3_cases import Place
from .small_pair import SMALL_PAIR
from .torch_files import pickled


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("eagle3"))


def test_a_head_is_found_by_its_header(place: Place, tmp_path: Path) -> None:
    shutil.copy(place.folder / "target.gguf", tmp_path / "target.gguf")
    shutil.copy(place.head, tmp_path / "any-name.gguf")
    assert head_in(place.head) == "eagle3"
    assert head_in(tmp_path / "target.gguf") is None
    assert model_source.local_draft(tmp_path / "target.gguf") == tmp_path / "any-name.gguf"
    assert fits(header(tmp_path / "target.gguf"), header(place.head))
    assert head_in(tmp_path / "missing.gguf") is None


def test_a_head_that_pytorch_saved(place: Place, tmp_path: Path) -> None:
    source = eagle3_heads.write(tmp_path / "source", place.config, place.tensors)
    pickled(source)
    list(convert_head(source, place.folder / "target.gguf", tmp_path / "head.gguf", quantization="f32"))
    assert (tmp_path / "head.gguf").read_bytes() == place.head.read_bytes()


def test_the_command_converts_and_uses_a_head(place: Place, tmp_path: Path, own_cache: Path) -> None:
    source = eagle3_heads.write(tmp_path / "source", place.config, place.tensors)
    output = tmp_path / "head.gguf"
    done = run("convert", source, "--for", place.folder / "target.gguf", "--out", output, "--quant", "q8_0")
    assert f"{output}: " in done.stderr
    done = run(
        "chat",
        place.folder / "target.gguf",
        "--draft",
        output,
        "--drafter",
        "eagle3",
        "-p",
        "hello",
        "--stats",
        "--k",
        "2",
    )
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
    assert "those of another model" in run("models", "pair", SMALL_PAIR.target, place.head).stdout


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
        ({"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, "give the model that the head was trained for"),
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
    assert "give the model that it was trained for" in refusal(place, tmp_path, place.config, tensors)
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


def test_the_default_of_rope_theta_is_not_the_target_s(place: Place) -> None:
    assert header(place.head).fields["eagle3.rope.freq_base"] == 10000.0
    head = place.converted("theta", eagle3_heads.config(rope_theta=5e5), place.tensors)
    assert header(head).fields["eagle3.rope.freq_base"] == 5e5


def test_the_longest_text_and_the_epsilon_are_those_of_the_head(place: Place) -> None:
    config = eagle3_heads.config(max_position_embeddings=512, rms_norm_eps=0.25)
    fields = header(place.converted("own", config, place.tensors)).fields
    assert fields["eagle3.context_length"] == 512
    assert fields["eagle3.attention.layer_norm_rms_epsilon"] == 0.25


def test_the_default_layers(place: Place) -> None:
    config = eagle3_heads.config(eagle_aux_hidden_state_layer_ids="absent")
    assert header(place.converted("layers", config, place.tensors)).fields["eagle3.target_layers"] == (2, 2, 1)
    inner = eagle3_heads.config(
        eagle_aux_hidden_state_layer_ids="absent", eagle_config={"eagle_aux_hidden_state_layer_ids": [3, 1, 2]}
    )
    assert header(place.converted("inner", inner, place.tensors)).fields["eagle3.target_layers"] == (3, 1, 2)
