"""Checkpoints of EAGLE-1 and 2: what is converted, what is refused, and what loading and the commands say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from edgespec import Device, Speculation, load
from edgespec.backends import Interrupt, onnx_head, open_model, state_head_kind
from edgespec.backends.onnx_head import read_head
from edgespec.cli import app
from edgespec.converters import convert, convert_head
from edgespec.errors import ConversionError, EdgespecError, ModelError, ModelFileError, OptionError
from edgespec.models.sizes import sizes

from . import checkpoints, eagle3_heads, torch_files
from .eagle_heads import HIDDEN, Tensors
from .small_pair import SMALL_PAIR
from .test_eagle import Place, place

__all__ = ["place"]  # the fixture
VECTOR = np.zeros(HIDDEN, np.float32)


# --- what is converted


def test_a_head_that_pytorch_saved(place: Place, tmp_path: Path) -> None:
    source = eagle3_heads.write(tmp_path / "source", place.config, place.tensors)
    torch_files.pickled(source)
    list(convert_head(source, place.folder / "target.gguf", tmp_path / "head.onnx", quantization="fp32"))
    assert (tmp_path / "head.onnx").read_bytes() == place.head.read_bytes()


def test_constants_of_older_files(place: Place, tmp_path: Path) -> None:
    tensors = {**place.tensors, "layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    source = eagle3_heads.write(tmp_path / "source", place.config, tensors)
    list(convert_head(source, place.folder / "target.gguf", tmp_path / "head.onnx", quantization="fp32"))
    assert (tmp_path / "head.onnx").read_bytes() == place.head.read_bytes()


@pytest.mark.parametrize("target", ["target-onnx", "source"])
def test_other_targets(target: str, place: Place, tmp_path: Path) -> None:
    """The weights are those from the GGUF file, which are float32, too."""
    source = eagle3_heads.write(tmp_path / "source", place.config, place.tensors)
    list(convert_head(source, place.folder / target, tmp_path / "head.onnx", quantization="fp32"))
    found, expected = (path.read_bytes() for path in (tmp_path / "head.onnx", place.head))
    weights = place.values["lm_head.weight"].tobytes()
    assert weights in found
    assert len(found) == pytest.approx(len(expected), abs=64)  # but for the name of the target


def test_what_it_holds(place: Place) -> None:
    described = read_head(place.head)
    assert state_head_kind(place.head) == described.kind == "eagle"
    assert (described.width, described.kv_heads, described.head_dim) == (HIDDEN, 2, 16)
    assert described.parameters == 2 * place.vocabulary * HIDDEN + sum(each.size for each in place.tensors.values())
    assert described.summary == f"eagle head for source ({place.vocabulary} tokens, 0.1M, fp32)"
    assert sizes(place.head).cache == 2 * 2 * 16 * 4


def test_metadata_are_read_without_weights(place: Place, tmp_path: Path) -> None:
    content = place.head.read_bytes()
    assert len(onnx_head._skimmed(place.head)) < 12_000 < len(content) / 10
    path = tmp_path / "head.onnx"
    for end in (len(content) - 1, len(content) // 2, 100, 0):
        path.write_bytes(content[:end])
        with pytest.raises(ModelFileError, match="is no head, or it is damaged"):
            read_head(path)
    path.write_bytes(b"\x12" + b"\x80" * 8 + b"\x40")  # a name of 2^62 bytes
    with pytest.raises(ModelFileError, match="it is truncated"):
        read_head(path)
    assert not state_head_kind(path)


def test_the_commands(place: Place, tmp_path: Path) -> None:
    target, output = place.folder / "ring.gguf", tmp_path / "head.onnx"
    source = place.folder / "right-source"
    made = CliRunner().invoke(app, ["convert", str(source), "--for", str(target), "--out", str(output)])
    assert made.exit_code == 0, made.output
    asked = ["chat", str(target), "--draft", str(output), "--drafter", "eagle", "-p", "x", "--max-tokens", "9"]
    said = CliRunner().invoke(app, [*asked, "--stats", "--temp", "0", "--ctx", "256", "--k", "2"])
    assert said.exit_code == 0, said.output
    assert "eagle" in said.output


def test_what_models_show_and_pair_say(place: Place) -> None:
    """Of Medusa heads as well."""
    weights = {"0.0.weight": np.ones((place.vocabulary, HIDDEN), np.float32)}
    (place.folder / "medusa").mkdir()
    checkpoints.write_safetensors(place.folder / "medusa" / "medusa_lm_head.safetensors", weights)
    list(convert_head(place.folder / "medusa", place.folder / "target.gguf", place.folder / "medusa.onnx"))
    for head, name in ((place.head, "eagle"), (place.folder / "medusa.onnx", "medusa")):
        said = CliRunner().invoke(app, ["models", "show", str(head)])
        assert f"drafts for its target, with --draft (drafter {name})" in said.output
        said = CliRunner().invoke(app, ["models", "pair", str(place.folder / "ring.gguf"), str(head)])
        assert "rows and vocabulary: those of this target" in said.output, said.output
    said = CliRunner().invoke(app, ["models", "pair", str(SMALL_PAIR.target), str(place.head)])
    assert "rows and vocabulary: those of another model" in said.output


# --- what is refused


def refusal(place: Place, tmp_path: Path, config: Any, tensors: Tensors, target: Path | None = None) -> str:
    """The message for a head that cannot be converted, on one line; nothing is left behind."""
    source = eagle3_heads.write(tmp_path / "source", config, tensors)
    output = tmp_path / "out" / "head.onnx"
    output.parent.mkdir()
    with pytest.raises(EdgespecError) as caught:
        list(convert_head(source, target or place.folder / "target.gguf", output))
    assert not list(output.parent.iterdir())
    assert "\n" not in str(caught.value)
    return str(caught.value)


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"num_hidden_layers": 2}, "num_hidden_layers is 2; an EAGLE head of one layer"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    "rotations": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
    "heads": ({"num_key_value_heads": 3}, "4 heads of 16 over 3"),
    "narrow heads": ({"num_attention_heads": 8, "num_key_value_heads": 4}, "8 heads of 8 over 4"),
    "width": ({"hidden_size": 128}, "states of 128 numbers, those of source have 64: it was made for another model"),
    "no bias": ({"bias": False}, "has the tensor fc.bias, which heads of EAGLE-1 and 2 do not have"),
    "biases": ({"qkv_bias": True}, "lacks the tensor layers.0.self_attn.q_proj.bias"),
    "ffn": ({"intermediate_size": 95}, r"gate_proj.weight is \[96, 64\], but config.json asks for \[95, 64\]"),
    "DFlash": ({"architectures": ["DFlashDraftModel"]}, "holds a DFlash draft, which .* take an EAGLE-3 head"),
    "DFlash's keys": ({"dflash_config": {"block_size": 16}}, "holds a DFlash draft"),
    "speculators' DFlash": ({"speculators_model_type": "dflash"}, "holds a DFlash draft"),
    "P-EAGLE": ({"architectures": ["PEagleDraftModel"]}, "holds a P-EAGLE head, which"),
    "MLP": ({"model_type": "mlp_speculator"}, "holds an MLP speculator, which"),
    "Hydra": ({"hydra_head_arch": "prefix-mlp"}, "holds Hydra heads, which .* take Medusa or EAGLE heads"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_what_config_json_may_not_say(case: str, place: Place, tmp_path: Path) -> None:
    changed, words = CONFIGS[case]
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(refusal(place, tmp_path, {**place.config, **changed}, place.tensors))


TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    "no bias": ({"fc.bias": None}, 'lacks the tensor fc.bias .* set "bias": false'),
    "no norm": ({"layers.0.post_attention_layernorm.weight": None}, "lacks the tensor layers.0.post_attention"),
    "a norm more": ({"layers.0.input_layernorm.weight": VECTOR}, "has the tensor layers.0.input_layernorm.weight"),
    "a layer more": ({"layers.1.mlp.up_proj.weight": VECTOR}, "has the tensor layers.1.mlp.up_proj.weight"),
    "an output more": ({"lm_head.weight": VECTOR}, "has the tensor lm_head.weight"),
    "another shape": ({"fc.weight": np.zeros((64, 192), np.float32)}, r"fc.weight is \[64, 192\]"),
    "whole numbers": ({"fc.bias": ("I64", (HIDDEN,), bytes(8 * HIDDEN))}, "fc.bias is I64; F32, F16 and BF16"),
    "not numbers": ({"fc.bias": np.full(HIDDEN, np.nan, np.float32)}, "not finite"),
    "another vocabulary": ({"embed_tokens.weight": np.zeros((5000, HIDDEN), np.float32)}, "made for another model"),
    "wide embeddings": ({"embed_tokens.weight": np.zeros((701, 96), np.float32)}, "made for another model"),
    "other heads": ({"fc.weight": None}, "holds no head of a known kind .* expected the folder of an EAGLE head"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_missing_and_surplus_tensors(case: str, place: Place, tmp_path: Path) -> None:
    changed, words = TENSORS[case]
    tensors = {name: each for name, each in {**place.tensors, **changed}.items() if each is not None}
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(refusal(place, tmp_path, place.config, tensors))


def test_a_target_whose_embeddings_are_scaled(place: Place, tmp_path: Path) -> None:
    """The head does not have the scale."""
    config = {"model_type": "granite", "architectures": ["GraniteForCausalLM"], "logits_scaling": 8.0}
    other = checkpoints.llama(tmp_path / "other", tied=False, config=config)
    list(convert(other, tmp_path / "other.gguf"))
    list(convert(other, tmp_path / "other-onnx", fmt="onnx"))
    for number, target in enumerate((other, tmp_path / "other.gguf", tmp_path / "other-onnx")):
        message = refusal(place, tmp_path / f"{number}", place.config, place.tensors, target)
        assert "EAGLE heads are not converted for models with" in message
        assert "logit" in message


def test_quantizations_and_rows(place: Place, tmp_path: Path) -> None:
    source, target = place.folder / "head-source", place.folder / "target.gguf"
    with pytest.raises(OptionError, match="unknown quantization 'q8_0' of a head"):
        convert_head(source, target, tmp_path / "head.onnx", quantization="q8_0")
    with pytest.raises(OptionError, match="cannot have 10 rows"):
        convert_head(source, target, tmp_path / "head.onnx", rows=10)
    with pytest.raises(ConversionError, match=r"must end in \.onnx"):
        convert_head(source, target, tmp_path / "head.gguf")


def test_a_hostile_head(place: Place, tmp_path: Path) -> None:
    executed, source = tmp_path / "executed", eagle3_heads.write(tmp_path / "source", place.config, place.tensors)
    (source / "model.safetensors").unlink()
    call = b"cos\nsystem\n(" + torch_files.text(f"touch {executed}") + b"tR"
    (source / "pytorch_model.bin").write_bytes(torch_files.archive(torch_files.dictionary({"fc.weight": call}), {}))
    with pytest.raises(ConversionError, match=r"os\.system.*nothing was executed"):
        convert_head(source, place.folder / "target.gguf", tmp_path / "head.onnx")
    assert not executed.exists()
    assert not (tmp_path / "head.onnx").exists()


def test_truncated_heads(place: Place, tmp_path: Path) -> None:
    source = eagle3_heads.write(tmp_path / "source", place.config, place.tensors)
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConversionError, match="its tensors end at byte"):
        convert_head(source, place.folder / "target.gguf", tmp_path / "head.onnx")


# --- what loading says


def test_a_head_of_another_model(place: Place, tmp_path: Path) -> None:
    wider = checkpoints.llama(tmp_path / "wider", hidden=128, heads=4)
    list(convert(wider, tmp_path / "wider.gguf"))
    with pytest.raises(ModelError, match="have 64 numbers, and not 128"):
        load(tmp_path / "wider.gguf", place.head, speculation=Speculation(("eagle",)))
    foreign = checkpoints.llama(tmp_path / "foreign", tokenizer="qwen2")
    list(convert(foreign, tmp_path / "foreign.gguf"))
    with pytest.raises(ModelError, match="whose vocabulary is not that of this model"):
        load(tmp_path / "foreign.gguf", place.head)


def test_a_head_is_no_model(place: Place) -> None:
    with pytest.raises(ModelFileError, match="without its model"):
        load(place.head, "none")


def test_exact_passes(place: Place) -> None:
    device, path = Device(context=256, threads=1, exact=4), place.folder / "target.gguf"
    with pytest.raises(OptionError, match="exact is 4, but the drafter eagle needs passes of other widths"):
        load(path, place.head, device=device, speculation=Speculation(("eagle",)))
    with load(path, place.head, device=device) as speaker:
        assert "eagle" not in speaker.drafters


def test_a_pair_without_such_a_head(place: Place) -> None:
    with pytest.raises(
        OptionError, match=r"no drafter 'eagle', only lookup.*'eagle', 'eagle3' or 'medusa' such a head"
    ):
        load(place.folder / "target.gguf", "none", speculation=Speculation(("eagle",)))


def test_damaged_files(place: Place, tmp_path: Path) -> None:
    path, content = tmp_path / "head.onnx", place.head.read_bytes()
    draw = np.random.default_rng(1)
    for _ in range(40):
        data = bytearray(content)
        for at in draw.integers(len(data) - 5000, len(data), 5):
            data[at] ^= int(draw.integers(1, 256))
        path.write_bytes(bytes(data) if draw.random() < 0.8 else content[: int(draw.integers(len(content)))])
        try:
            load(place.folder / "target.gguf", path, device=Device(context=256, threads=1)).close()
        except EdgespecError as error:
            assert "\n" not in str(error)  # noqa: PT017 - any may be raised


def test_a_draft_that_is_no_head_of_ours(place: Place, tmp_path: Path) -> None:
    """A DFlash checkpoint, and a GGUF file of that architecture."""
    import gguf  # noqa: PLC0415

    folder = eagle3_heads.write(tmp_path / "dflash", {"architectures": ["DFlashDraftModel"]}, {"fc.weight": VECTOR})
    shutil.copy(folder / "model.safetensors", tmp_path / "model.safetensors")
    writer = gguf.GGUFWriter(tmp_path / "dflash.gguf", "dflash")
    writer.add_block_count(5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    writer.add_token_merges(["a b"])
    writer.add_tensor("fc.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for draft, words in (
        (tmp_path / "dflash.gguf", "holds a head of the architecture 'dflash' without its model"),
        (folder, "DFlash"),
    ):
        with pytest.raises(EdgespecError, match=words) as caught:
            load(place.folder / "target.gguf", draft)
        assert "\n" not in str(caught.value)


def test_a_head_cannot_be_opened_as_a_model(place: Place) -> None:
    head = open_model(place.head, Device(threads=1), Interrupt())
    with pytest.raises(ModelFileError, match="without its model"):
        head.session(16)
