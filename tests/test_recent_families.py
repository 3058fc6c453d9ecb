"""Models with recurrent layers, heads for drafting, and the newer mixtures of experts, converted to GGUF."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edgespec import Device, Sampling, Speculation, load
from edgespec.converters import convert
from edgespec.errors import ConversionError
from edgespec.tools.check import check

from . import checkpoints, family_checkpoints, recent_checkpoints
from .llama_heads import Heads
from .recent_reference import Gemma4, Gemma4Assistant, Qwen35, judge
from .reference import read_tensors
from .test_convert import engine, fields
from .test_families import PROMPT, difference, run


def tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}


def changed(source: Path, **changes: Any) -> Path:
    """The checkpoint with another config.json."""
    described = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(described | changes))
    return source


def rewritten(source: Path, **changes: Any) -> dict[str, Any]:
    """The checkpoint without the tensors whose name has a word of `changes` that is None, or with them as it says."""
    kept = {name: values for name, values in read_tensors(source).items() if name not in changes}
    kept |= {name: values for name, values in changes.items() if values is not None}
    checkpoints.write_safetensors(source / "model.safetensors", kept)
    return kept


@pytest.mark.parametrize("kind", ["qwen35", "qwen35moe", "qwen3next"])
def test_a_head_drafts_what_it_should(kind: str, tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", kind)
    run(source, tmp_path / "model.gguf", "gguf")
    told = fields(tmp_path / "model.gguf")
    assert [told[f"{kind}.{key}"] for key in ("block_count", "nextn_predict_layers")] == [5, 1]
    right = judge(source)
    assert isinstance(right, Qwen35)
    with Heads(tmp_path / "model.gguf") as heads:
        rows, expected = heads.target(PROMPT), right.hidden(PROMPT)
        assert difference(rows, expected) < 5e-5
        before, expected = (np.concatenate([np.zeros_like(each[:1]), each[:-1]]) for each in (rows, expected))
        assert difference(heads.head(PROMPT, before), right.drafted(PROMPT, expected)) < 5e-5


@pytest.mark.parametrize("kind", ["gemma4", "gemma4-e"])
def test_an_assistant_drafts_what_it_should(kind: str, tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", kind)
    small = family_checkpoints.assistant(tmp_path / "small", source)
    run(source, tmp_path / "model.gguf", "gguf")
    run(small, tmp_path / "head.gguf", "gguf")
    told = fields(tmp_path / "head.gguf")
    assert [told[f"gemma4-assistant.{key}"] for key in ("nextn_predict_layers", "embedding_length_out")] == [3, 64]
    target, right = judge(source), judge(small)
    assert isinstance(target, Gemma4)
    assert isinstance(right, Gemma4Assistant)
    with Heads(tmp_path / "model.gguf", tmp_path / "head.gguf") as heads:
        rows, expected = heads.target(PROMPT), target.hidden(PROMPT)
        assert difference(rows, expected) < 2e-3
        at = [len(PROMPT)]
        assert difference(heads.head([7], rows[-1:], at), right.drafted([7], at, expected[-1:], target)) < 2e-3


def test_no_way_out_that_is_none(tmp_path: Path) -> None:
    """Assistants are not converted to ONNX either."""
    source = changed(family_checkpoints.make(tmp_path / "source", "gemma4"), hidden_size=32)
    small = family_checkpoints.assistant(tmp_path / "small", source)
    with pytest.raises(ConversionError, match=r"an assistant as wide as its target, and onnx has no such models$"):
        run(small, tmp_path / "head.gguf", "gguf")


def test_keys_that_no_layer_uses_are_left_out(tmp_path: Path) -> None:
    """Gemma 4's checkpoints have them for layers that use those of earlier layers."""
    source = family_checkpoints.make(tmp_path / "source", "gemma4-e")
    run(source, tmp_path / "a.gguf", "gguf")
    rewritten(source, **{"model.layers.4.self_attn.k_proj.weight": np.ones((32, 64), np.float32)})
    run(source, tmp_path / "b.gguf", "gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    told = fields(tmp_path / "a.gguf")
    assert told["gemma4.feed_forward_length"] == [96, 96, 96, 192, 192, 192]
    assert told["gemma4.attention.shared_kv_layers"] == 3


def test_sizes_of_layers_that_see_all(tmp_path: Path) -> None:
    """As the models' own config.json has them, and as transformers 5 writes them."""
    source = family_checkpoints.make(tmp_path / "source", "gemma4")
    run(source, tmp_path / "a.gguf", "gguf")
    changed(source, per_layer_config=None, global_head_dim=32, num_global_key_value_heads=1)
    run(source, tmp_path / "b.gguf", "gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    told = fields(tmp_path / "a.gguf")
    assert told["gemma4.attention.head_count_kv"] == [2, 2, 1, 2, 2, 1]
    assert [told[f"gemma4.attention.key_length{end}"] for end in ("", "_swa")] == [32, 16]
    assert tensors(tmp_path / "a.gguf")["rope_freqs.weight"].tolist() == pytest.approx([1.0] * 4 + [1e30] * 12)


def test_a_checkpoint_without_its_head(tmp_path: Path) -> None:
    """Fine-tunes often lack it, though their config.json still mentions it."""
    source = family_checkpoints.make(tmp_path / "source", "qwen35")
    rewritten(source, **{name: None for name in read_tensors(source) if name.startswith("mtp.")})
    notes = run(source, tmp_path / "model.gguf", "gguf")
    assert any("lacks the head" in note for note in notes)
    told = fields(tmp_path / "model.gguf")
    assert told["qwen35.block_count"] == 4
    assert "qwen35.nextn_predict_layers" not in told
    assert told["qwen35.attention.recurrent_layers"] == [True, True, True, False]
    with engine(tmp_path / "model.gguf") as llama:
        llama.eval(PROMPT)
        assert difference(llama.scores[: len(PROMPT)], judge(source).logits(PROMPT)) < 5e-5


def test_a_part_of_a_head_is_refused(tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", "qwen35")
    rewritten(source, **{"mtp.fc.weight": None})
    with pytest.raises(ConversionError, match=r"lacks the tensor mtp\.fc\.weight"):
        run(source, tmp_path / "model.gguf", "gguf")


def test_a_model_of_pictures_is_converted_for_text(tmp_path: Path) -> None:
    """The config of the text model is nested, its tensors have a longer name; the rest is left out, with a note."""
    source = family_checkpoints.make(tmp_path / "source", "qwen35")
    run(source, tmp_path / "text.gguf", "gguf")
    described = json.loads((source / "config.json").read_text())
    outer = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": described | {"architectures": None},
        "vision_config": {"depth": 1, "hidden_size": 8},
        "tie_word_embeddings": False,
    }
    (source / "config.json").write_text(json.dumps(outer))
    inner = {re.sub("^model[.]", "model.language_model.", name): v for name, v in read_tensors(source).items()}
    inner["model.visual.blocks.0.attn.qkv.weight"] = np.ones((4, 4), np.float32)
    checkpoints.write_safetensors(source / "model.safetensors", inner)
    notes = run(source, tmp_path / "both.gguf", "gguf")
    assert any("pictures is left out" in note for note in notes)
    found, expected = tensors(tmp_path / "both.gguf"), tensors(tmp_path / "text.gguf")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert fields(tmp_path / "both.gguf") == fields(tmp_path / "text.gguf")


@pytest.mark.parametrize("quantization", ["f32", "q8_0"])
def test_mxfp4_is_copied_bit_by_bit(quantization: str, tmp_path: Path) -> None:
    """Whatever the rest is quantized to: as llama.cpp reads it, it is the checkpoint's numbers."""
    packed = family_checkpoints.make(tmp_path / "packed", "gpt-oss")
    whole = family_checkpoints.make(tmp_path / "whole", "gpt-oss")
    drawn = recent_checkpoints.mxfp4(read_tensors(packed))
    checkpoints.write_safetensors(packed / "model.safetensors", drawn)
    checkpoints.write_safetensors(whole / "model.safetensors", recent_checkpoints.without_mxfp4(drawn))
    changed(packed, quantization_config={"quant_method": "mxfp4"})
    for source in (packed, whole):
        for _ in convert(source, source.with_suffix(".gguf"), quantization=quantization):
            pass
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(packed.with_suffix(".gguf")).tensors}
    original = read_tensors(whole)["model.layers.1.mlp.experts.gate_up_proj"]
    for role, first in (("gate", 0), ("up", 1)):
        tensor = found[f"blk.1.ffn_{role}_exps.weight"]
        assert tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4
        read = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(read, original[..., first::2].transpose(0, 2, 1))
    with engine(packed.with_suffix(".gguf")) as llama:
        llama.eval(PROMPT)
        # llama.cpp rounds what it multiplies these numbers by to 8 bits: some tokens go to other experts.
        apart = np.abs(llama.scores[: len(PROMPT)] - judge(whole).logits(PROMPT))
        assert np.median(apart) < 0.3
    assert fields(packed.with_suffix(".gguf"))["general.file_type"] == 38  # MXFP4_MOE


def test_mxfp4_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", "gpt-oss")
    changed(source, quantization_config={"quant_method": "mxfp4"})
    drawn = recent_checkpoints.mxfp4(read_tensors(source))
    name = "model.layers.1.mlp.experts.down_proj"
    shape = drawn[f"{name}_scales"][1]
    cut = {**drawn, f"{name}_scales": ("U8", (*shape[:2], shape[2] + 1), bytes(shape[0] * shape[1] * (shape[2] + 1)))}
    other = {**drawn, f"{name}_blocks": ("I8", *drawn[f"{name}_blocks"][1:])}
    lacking = {key: value for key, value in drawn.items() if key != f"{name}_scales"}
    for tensors_ in (cut, other, lacking):
        checkpoints.write_safetensors(source / "model.safetensors", tensors_)
        with pytest.raises(
            ConversionError, match=r"lacks the tensor model\.layers\.1\.mlp\.experts\.0\.down_proj"
        ) as caught:
            run(source, tmp_path / "model.gguf", "gguf")
        assert "\n" not in str(caught.value)


def test_unrounded_yarn_is_noted(tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", "gpt-oss")
    assert not any("YaRN" in note for note in run(source, tmp_path / "a.gguf", "gguf"))
    rope = json.loads((source / "config.json").read_text())["rope_parameters"]
    changed(source, rope_parameters={**rope, "truncate": False})
    assert any("YaRN" in note for note in run(source, tmp_path / "b.gguf", "gguf"))


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "biases in a convolution": ("lfm2", "conv_bias is True", {"conv_bias": True}),
    "no convolution": ("lfm2", "conv_L_cache is 0", {"conv_L_cache": 0}),
    "rows of an mlp": ("lfm2", "feed_forward.w1.weight is", {"block_multiple_of": 128}),
    "a step of nothing": ("lfm2", "block_multiple_of is 0", {"block_multiple_of": 0}),
    "numbers of layers": ("lfm2", "full_attn_idxs is", {"layer_types": None, "full_attn_idxs": "2"}),
    "all dense": ("lfm2moe", "num_dense_layers is 9", {"num_dense_layers": 9}),
    "less than none": ("lfm2moe", "num_dense_layers is -1", {"num_dense_layers": -1}),
    "scaled shares": ("lfm2moe", "routed_scaling_factor is 2", {"routed_scaling_factor": 2.0}),
    "wide states": ("granite4-h", "twice the stream|in_proj.weight is", {"mamba_d_head": 32}),
    "many groups": ("granite4-h", "8 heads over 3 groups", {"mamba_n_groups": 3}),
    "rotations": ("granite4-h", "rotations beside states", {"position_embedding_type": "rope"}),
    "experts alone": (
        "granite4-h-moe",
        "experts without states|lacks the tensor",
        {"layer_types": ["attention"] * 4, "position_embedding_type": "rope"},
    ),
    "both ways": ("gemma4", "use_bidirectional_attention is 'all'", {"use_bidirectional_attention": "all"}),
    "layers of their own": ("gemma4", "per_layer_config is not one", {"per_layer_config": {"2": {"head_dim": 32}}}),
    "other words of layers": ("gemma4", "more than head_dim", {"per_layer_config": {"2": {"a": 1}, "5": {"a": 1}}}),
    "layers that are none": ("gemma4", "per_layer_config is not one", {"per_layer_config": [1]}),
    "sizes that are none": ("gemma4", "global_head_dim is", {"per_layer_config": None, "global_head_dim": "x"}),
    "all shared": ("gemma4-e", "num_kv_shared_layers is 6", {"num_kv_shared_layers": 6}),
    "shared with none": ("gemma4-e", "the 1 layers with keys lack a kind", {"num_kv_shared_layers": 5}),
    "rows of layers": ("gemma4-e", "vocab_size_per_layer_input is 7", {"vocab_size_per_layer_input": 7}),
    "another width of layers": ("gemma4-e", "per_layer_input_gate.weight is", {"hidden_size_per_layer_input": 8}),
    "too many chosen": ("gemma4-moe", "num_experts_per_tok is 9|top_k_experts is 9", {"top_k_experts": 9}),
    "another cap": ("gpt-oss", "swiglu_limit is 5.0", {"swiglu_limit": 5.0}),
    "no biases": ("gpt-oss", "attention_bias is False", {"attention_bias": False}),
    "experts": ("gpt-oss", "router.weight is|lacks the tensor", {"num_local_experts": 5}),
    "yarn": (
        "gpt-oss",
        "beta_fast 1.0 is not above 1.0",
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1.0}},
    ),
    "no state": ("qwen35", "0 of 4 layers keep a state", {"layer_types": ["full_attention"] * 4}),
    "no attention": ("qwen35", "4 of 4 layers keep a state", {"layer_types": ["linear_attention"] * 4}),
    "odd kinds": ("qwen35", "layer_types is not a list", {"layer_types": ["lightning"] * 4}),
    "kinds that are no texts": ("qwen35", "layer_types is not a list", {"layer_types": [None] * 4}),
    "heads that do not divide": ("qwen35", "6 heads over 4 groups", {"linear_num_key_heads": 4}),
    "no heads": ("qwen35", "linear_num_value_heads is 0", {"linear_num_value_heads": 0}),
    "no window": ("qwen35", "convolved over 1 tokens", {"linear_conv_kernel_dim": 1}),
    "another window": ("qwen35", "conv1d.weight is", {"linear_conv_kernel_dim": 8}),
    "widths": ("qwen35", "keys and values of different widths|in_proj_qkv", {"linear_key_head_dim": 32}),
    "too wide": ("qwen35", "expected a positive whole number", {"linear_key_head_dim": 1 << 40}),
    "no gate": ("qwen35", "q_proj.weight is", {"num_attention_heads": 8}),
    "sections": ("qwen35", "mrope_section is", {"rope_parameters": {"mrope_section": [0, 0, 0]}}),
    "another count of keys": ("qwen3next", "in_proj_qkvz.weight is", {"linear_num_key_heads": 3}),
    "another share of experts": ("qwen3next", "norm_topk_prob is False", {"norm_topk_prob": False}),
    "shared expert": ("qwen35moe", "shared_expert.gate_proj", {"shared_expert_intermediate_size": 64}),
    "shared expert missing": ("qwen35moe", "shared_expert_intermediate_size", {"shared_expert_intermediate_size": 0}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    kind, words, changes = REFUSED[case]
    source = changed(family_checkpoints.make(tmp_path / "source", kind), **changes)
    with pytest.raises(ConversionError, match=words) as caught:
        run(source, tmp_path / "model.gguf", "gguf")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [source]


def test_the_names_of_layers_in_transformers_5(tmp_path: Path) -> None:
    """It writes "linear_attention" and "full_attention" for Granite's layers, too."""
    source = family_checkpoints.make(tmp_path / "source", "granite4-h")
    run(source, tmp_path / "a.gguf", "gguf")
    kinds = json.loads((source / "config.json").read_text())["layer_types"]
    names = {"mamba": "linear_attention", "attention": "full_attention"}
    changed(source, layer_types=[names[kind] for kind in kinds])
    run(source, tmp_path / "b.gguf", "gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    told = fields(tmp_path / "a.gguf")
    assert told["granitehybrid.attention.head_count_kv"] == [0, 2, 0, 0]
    assert told["granitehybrid.rope.scaling.finetuned"] is False


def test_layers_by_number(tmp_path: Path) -> None:
    """Older config.json of LFM2 list the layers of attention, and name the rows of the MLP otherwise."""
    source = family_checkpoints.make(tmp_path / "source", "lfm2")
    run(source, tmp_path / "a.gguf", "gguf")
    width = json.loads((source / "config.json").read_text())["intermediate_size"]
    changed(source, layer_types=None, full_attn_idxs=[2], block_ff_dim=width, intermediate_size=None)
    run(source, tmp_path / "b.gguf", "gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert fields(tmp_path / "a.gguf")["lfm2.attention.head_count_kv"] == [0, 0, 2, 0]
    assert fields(tmp_path / "a.gguf")["lfm2.feed_forward_length"] == 64


ONNX_REFUSED = {
    "granite4-h": r"no operator for the recurrent layers of granitehybrid models \(Mamba 2\).*; convert to gguf",
    "gpt-oss": "the mixtures of experts of gpt-oss models are not converted to onnx; convert to gguf",
    "lfm2moe": "experts of lfm2moe models only where they are quantized; take int8 or int4",
}


@pytest.mark.parametrize("kind", ONNX_REFUSED)
def test_onnx_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", kind)
    with pytest.raises(ConversionError, match=ONNX_REFUSED[kind]) as caught:
        run(source, tmp_path / "out", "onnx")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["qwen35", "qwen35moe", "qwen3next", "lfm2", "granite4-h"])
@pytest.mark.parametrize("quantization", ["f16", "q8_0"])
def test_quantized(kind: str, quantization: str, tmp_path: Path) -> None:
    """What the recurrent layers compute with stays float32, whatever the rest is."""
    source = family_checkpoints.make(tmp_path / "source", kind)
    for _ in convert(source, tmp_path / "model.gguf", quantization=quantization):
        pass
    with engine(tmp_path / "model.gguf") as llama:
        llama.eval(PROMPT)
        found, expected = llama.scores[: len(PROMPT)], judge(source).logits(PROMPT)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < (0.01 if quantization == "f16" else 0.3)


@pytest.mark.parametrize(
    "kind", ["qwen35", "qwen35moe", "qwen3next", "lfm2", "lfm2moe", "granite4-h", "granite4-h-moe", "gemma4"]
)
def test_drafts_do_not_change_the_text(kind: str, tmp_path: Path) -> None:
    """With look-ups and a draft model that is wrong nearly always: what is rejected leaves nothing behind."""
    for name, seed in (("target", 0), ("draft", 1)):
        run(family_checkpoints.make(tmp_path / name, kind, seed=seed), tmp_path / f"{name}.gguf", "gguf")
    files = (tmp_path / "target.gguf", tmp_path / "draft.gguf")
    with load(*files, device=Device(context=256, threads=1), speculation=Speculation(k=4)) as runtime:
        for sampling in (Sampling(), Sampling(0.8, seed=3)):
            found = list(check(runtime, [PROMPT, PROMPT[:9]], sampling, 32))
            assert [verdict.divergence for verdict in found] == [None] * 2
            accepted = sum(verdict.accepted for verdict in found)
            assert 5 < accepted < sum(verdict.drafted for verdict in found)
