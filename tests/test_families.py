"""Every family, in both formats, computes what NumPy's forward pass computes, and that what transformers does."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edgespec.converters import Note, convert, quantize
from edgespec.converters.families import FAMILIES
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.converters.unsupported import hint
from edgespec.errors import ConversionError

from . import family_checkpoints, llamacpp_converter
from .onnxrun import Onnx
from .recent_reference import judge
from .reference import Reference, read_tensors
from .test_convert import LLAMA3, engine, fields

SPARSE = family_checkpoints.SPARSE
KINDS = [kind for kind in family_checkpoints.CONFIGS if kind not in {"llama", "mistral", "qwen2", "qwen3"}]
PRE = "tokenizer.ggml.pre"
PROMPT = [5, 300, 41, *range(100, 170)]
# llama.cpp looks GELU up in a table of float16.
LOOKED_UP = {"gemma2", "gemma3", "gemma4", "gemma4-e", "gemma4-moe", "starcoder2", "gpt2"}


def difference(found: Any, expected: Any) -> float:
    """As a share of the largest logit."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def run(source: Path, output: Path, fmt: str) -> list[str]:
    """The notes of a conversion."""
    steps = convert(source, output, fmt=fmt, quantization={"gguf": "f32", "onnx": "fp32"}[fmt])
    return [step.text for step in steps if isinstance(step, Note)]


@pytest.mark.parametrize("kind", KINDS)
def test_gguf(kind: str, tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", kind)
    run(source, tmp_path / "model.gguf", "gguf")
    with engine(tmp_path / "model.gguf") as llama:
        llama.eval(PROMPT)
        found = llama.scores[: len(PROMPT)]
        assert difference(found, judge(source).logits(PROMPT)) < (2e-3 if kind in LOOKED_UP else 5e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in family_checkpoints.GGUF_ONLY])
def test_onnx(kind: str, tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", kind)
    run(source, tmp_path / "out", "onnx")
    ours, expected = Onnx(tmp_path / "out"), judge(source).logits(PROMPT)
    assert difference(ours.feed(PROMPT), expected) < 5e-5
    ours.length = 0  # again in pieces, over the old buffers
    pieces = [ours.feed(PROMPT[start:end]) for start, end in ((0, 7), (7, 8), (8, 40), (40, len(PROMPT)))]
    assert difference(np.concatenate(pieces), expected) < 5e-5


@pytest.mark.parametrize("kind", ["gemma3", "gemma2", "smollm3", "gpt2"])
def test_a_tree_is_its_branches(kind: str, tmp_path: Path) -> None:
    """Where layers see a window, or know positions otherwise, a node sees what its branch alone would."""
    source = family_checkpoints.make(tmp_path / "source", kind)
    run(source, tmp_path / "out", "onnx")
    ours, judge = Onnx(tmp_path / "out"), Reference(source)
    ours.feed(PROMPT[:20])
    nodes, parents = [7, 8, 9, 7, 10, 11, 12], [-1, -1, 0, 1, 2, 0, 3]
    for node, row in enumerate(ours.feed(nodes, parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        assert difference(row, judge.logits([*PROMPT[:20], *(nodes[i] for i in path)])[-1]) < 5e-5


@pytest.mark.parametrize("quantization", ["int8", "r8", "fp16"])
@pytest.mark.parametrize("kind", ["granite", "olmo2", "phi4-mini", "gemma2", "gpt2", "lfm2", "qwen35"])
def test_quantized(kind: str, quantization: str, tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", kind)
    for _ in convert(source, tmp_path / "out", fmt="onnx", quantization=quantization):
        pass
    found, expected = Onnx(tmp_path / "out").feed(PROMPT), judge(source).logits(PROMPT)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < (0.02 if quantization == "fp16" else 0.25)


def test_stored_numbers(tmp_path: Path) -> None:
    """1 + w is written out, columns are turned, fused matrices stay fused."""
    for kind in ("gemma2", "gpt2", "phi3"):
        family_checkpoints.make(tmp_path / kind / "source", kind)
        run(tmp_path / kind / "source", tmp_path / f"{kind}.gguf", "gguf")
    found = {
        kind: {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / f"{kind}.gguf").tensors}
        for kind in ("gemma2", "gpt2", "phi3")
    }
    original = {kind: read_tensors(tmp_path / kind / "source") for kind in found}
    norm = original["gemma2"]["model.layers.1.post_feedforward_layernorm.weight"]
    assert np.array_equal(found["gemma2"]["blk.1.post_ffw_norm.weight"], norm + 1)
    assert np.array_equal(found["gpt2"]["blk.1.ffn_up.weight"], original["gpt2"]["transformer.h.1.mlp.c_fc.weight"].T)
    fused = original["phi3"]["model.layers.1.mlp.gate_up_proj.weight"]
    assert np.array_equal(found["phi3"]["blk.1.ffn_up.weight"], fused)


@pytest.mark.parametrize("quantization", ["f32", "q4_k_m"])
@pytest.mark.parametrize("kind", SPARSE)
def test_all_spellings_of_experts_are_one(kind: str, quantization: str, tmp_path: Path) -> None:
    """A tensor an expert, and one for all of a layer: the same file results."""
    found = []
    for fused in (False, True):
        source = family_checkpoints.make(tmp_path / str(fused) / "source", kind, fused=fused)
        assert fused is any(name.endswith("mlp.experts.gate_up_proj") for name in read_tensors(source))
        for _ in convert(source, tmp_path / f"{fused}.gguf", quantization=quantization):
            pass
        found.append((tmp_path / f"{fused}.gguf").read_bytes())
    assert found[0] == found[1]


def test_experts_are_stacked_and_told(tmp_path: Path) -> None:
    for kind in SPARSE:
        run(family_checkpoints.make(tmp_path / kind / "source", kind), tmp_path / f"{kind}.gguf", "gguf")
    told = {kind: fields(tmp_path / f"{kind}.gguf") for kind in SPARSE}
    assert [told["mixtral"][f"llama.expert_{key}count"] for key in ("", "used_")] == [4, 2]
    assert [told["qwen3moe"][f"qwen3moe.expert_{key}count"] for key in ("", "used_")] == [6, 3]
    assert told["qwen3moe"]["qwen3moe.expert_feed_forward_length"] == 32
    assert told["qwen3moe"]["qwen3moe.feed_forward_length"] == 96
    assert told["mixtral"]["general.size_label"].startswith("4x")
    original = read_tensors(tmp_path / "mixtral" / "source")
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "mixtral.gguf").tensors}
    names = [f"model.layers.1.block_sparse_moe.experts.{expert}.w3.weight" for expert in range(4)]
    assert np.array_equal(found["blk.1.ffn_up_exps.weight"], np.stack([original[name] for name in names]))


def test_experts_are_streamed_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantized a few rows at a time, and no block is larger than that."""
    source = family_checkpoints.make(tmp_path / "source", "mixtral", fused=True)
    sizes, blocks, packed = set(), StoredTensor.blocks, quantize.packed

    def noted(*arguments: Any) -> Iterator[Any]:
        for weights, data in packed(*arguments):
            sizes.add(weights)
            yield weights, data

    run(source, tmp_path / "whole.gguf", "gguf")
    monkeypatch.setattr(StoredTensor, "blocks", lambda self, multiple=1: blocks(self, multiple, weights=2000))
    monkeypatch.setattr(quantize, "packed", noted)
    run(source, tmp_path / "cut.gguf", "gguf")
    assert max(sizes) <= 2000
    assert (tmp_path / "cut.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_long_contexts_that_would_turn_otherwise_are_cut_off(tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", "phi4-mini")
    notes = run(source, tmp_path / "model.gguf", "gguf")
    assert any("context is 256 tokens" in note for note in notes)
    assert fields(tmp_path / "model.gguf")["phi3.context_length"] == 256


def test_a_window_is_told_or_limits_the_context(tmp_path: Path) -> None:
    run(family_checkpoints.make(tmp_path / "a", "gemma3"), tmp_path / "a.gguf", "gguf")
    found = fields(tmp_path / "a.gguf")
    assert (found["gemma3.attention.sliding_window"], found["gemma3.context_length"]) == (8, 512)
    assert found["gemma3.attention.sliding_window_pattern"] == [True, True, False, True, True, False]
    run(family_checkpoints.make(tmp_path / "b", "starcoder2"), tmp_path / "b.gguf", "gguf")
    assert fields(tmp_path / "b.gguf")["starcoder2.context_length"] == 100


TOLD: dict[str, dict[str, Any]] = {  # what no logits over a few tokens would show
    "gemma3": {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0, "gemma3.vocab_size": 602},
    "phi4-mini": {"phi3.rope.scaling.original_context_length": 256, "phi3.vocab_size": 701},
    "starcoder2": {"starcoder2.attention.layer_norm_epsilon": 1e-5},
    "gpt2": {"gpt2.attention.layer_norm_epsilon": 1e-5, "gpt2.attention.head_count_kv": 4},
}


@pytest.mark.parametrize("kind", TOLD)
def test_what_a_file_tells(kind: str, tmp_path: Path) -> None:
    run(family_checkpoints.make(tmp_path / "source", kind), tmp_path / "model.gguf", "gguf")
    found = fields(tmp_path / "model.gguf")
    assert {key: found[key] for key in TOLD[kind]} == {
        key: value if isinstance(value, str) else pytest.approx(value) for key, value in TOLD[kind].items()
    }


def test_the_factors_of_long_contexts_are_told(tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", "phi4-mini")
    run(source, tmp_path / "model.gguf", "gguf")
    found = {tensor.name: tensor.data.tolist() for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    scaling = json.loads((source / "config.json").read_text())["rope_scaling"]
    for length in ("short", "long"):
        assert found[f"rope_factors_{length}.weight"] == pytest.approx(scaling[f"{length}_factor"])


def test_the_spelling_of_transformers_5(tmp_path: Path) -> None:
    """Rotations by kind of layer, and the kinds listed."""
    source = family_checkpoints.make(tmp_path / "source", "gemma3")
    expected = Reference(source).logits(PROMPT)
    described = json.loads((source / "config.json").read_text())
    for key in ("rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"):
        described.pop(key)
    described["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
    described["layer_types"] = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    (source / "config.json").write_text(json.dumps(described))
    run(source, tmp_path / "out", "onnx")
    assert difference(Onnx(tmp_path / "out").feed(PROMPT), expected) < 5e-5


REFUSED: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "multiplier elsewhere": ("llama", "onnx", "logits_scaling is 8", {"logits_scaling": 8}),
    "cap elsewhere": ("qwen3", "onnx", "final_logit_softcapping", {"final_logit_softcapping": 30.0}),
    "clipped": ("olmo2", "onnx", "clip_qkv is 8", {"clip_qkv": 8.0}),
    "both ways": ("gemma3", "onnx", "use_bidirectional_attention", {"use_bidirectional_attention": True}),
    "scaled by layer": ("gpt2", "onnx", "inverse_layer_idx", {"scale_attn_by_inverse_layer_idx": True}),
    "other activation": ("gpt2", "onnx", "only gelu_pytorch_tanh or gelu_new", {"activation_function": "relu"}),
    "other layers unturned": ("smollm3", "gguf", "each fourth", {"no_rope_layers": [1, 0, 1, 0, 1]}),
    "tied": ("olmo2", "gguf", "tied to the embedding", {"tie_word_embeddings": True}),
    "scale": ("gemma3", "gguf", "query_pre_attn_scalar; convert to onnx", {"query_pre_attn_scalar": 100}),
    "factors": ("phi4-mini", "gguf", "list of 8", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}),
    "shares that do not add up": (
        "qwen3moe",
        "gguf",
        "norm_topk_prob is False.*expected True",
        {"norm_topk_prob": None},
    ),
    "layers without experts": ("qwen3moe", "gguf", "mlp_only_layers is \\[0\\]", {"mlp_only_layers": [0]}),
    "every other layer": ("qwen3moe", "gguf", "decoder_sparse_step is 2", {"decoder_sparse_step": 2}),
    "more experts asked than there are": ("mixtral", "gguf", "at most the 4", {"num_experts_per_tok": 5}),
    "fewer experts than there are": ("qwen3moe", "gguf", "asks for \\[5, 64\\]", {"num_experts": 5}),
    "experts without a number": ("qwen3moe", "gguf", "num_experts is None", {"num_experts": None}),
    "experts in onnx": ("gpt-oss", "onnx", "the mixtures of experts of gpt-oss .*; convert to gguf", {}),
    "tied, with experts": (
        "gpt-oss",
        "gguf",
        "tied to the embedding, and onnx has no such models",
        {"tie_word_embeddings": True},
    ),
    "divided frequencies": ("qwen3", "gguf", "llama3 rope scaling; convert to onnx", {"rope_scaling": LLAMA3}),
    "and of experts": ("qwen3moe", "gguf", "llama3 rope scaling; convert to onnx", {"rope_scaling": LLAMA3}),
    "kinds": ("gemma3", "onnx", "layer_types", {"layer_types": ["chunked_attention"] * 6}),
    "known to llama.cpp": ("llama", "gguf", "are; llama.cpp runs it", {"architectures": ["GPTBigCodeForCausalLM"]}),
    "by its type": ("llama", "onnx", "use a GGUF file of it", {"architectures": None, "model_type": "gpt_bigcode"}),
    "recurrent": ("llama", "gguf", "cannot roll its recurrent state", {"architectures": ["Rwkv7ForCausalLM"]}),
    "known to nobody": (
        "llama",
        "gguf",
        "Starcoder2ForCausalLM, GPT2LMHeadModel, .*ForConditionalGeneration are$",
        {"architectures": ["BertModel"]},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_graph_does_not_honour_is_refused(case: str, tmp_path: Path) -> None:
    kind, fmt, words, changes = REFUSED[case]
    source = family_checkpoints.make(tmp_path / "source", kind)
    described = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(described | changes))
    with pytest.raises(ConversionError, match=words) as caught:
        run(source, tmp_path / ("model.gguf" if fmt == "gguf" else "out"), fmt)
    assert "\n" not in str(caught.value)


def test_the_reference_is_transformers(tmp_path: Path) -> None:
    """With EDGESPEC_TRANSFORMERS naming a Python that has torch and transformers; slow, so not otherwise."""
    python = os.environ.get("EDGESPEC_TRANSFORMERS")
    if not python:
        pytest.skip("EDGESPEC_TRANSFORMERS names no Python with torch and transformers")
    for kind in family_checkpoints.CONFIGS:
        source = family_checkpoints.make(tmp_path / kind / "source", kind)
        found = tmp_path / f"{kind}.npy"
        subprocess.run([python, "-c", _TRANSFORMERS, source, found, json.dumps(PROMPT)], check=True)
        assert difference(judge(source).logits(PROMPT), np.load(found)) < 5e-5, kind


def llamacpp() -> str:
    folder = os.environ.get("EDGESPEC_LLAMACPP")
    if not folder:
        pytest.skip("EDGESPEC_LLAMACPP names no folder with llama.cpp's source")
    return folder


def test_llama_cpps_converter_writes_the_same(tmp_path: Path) -> None:
    """With EDGESPEC_LLAMACPP naming the folder of llama.cpp's source, and EDGESPEC_TRANSFORMERS as above."""
    folder, python = llamacpp(), os.environ.get("EDGESPEC_TRANSFORMERS")
    if not python:
        pytest.skip("EDGESPEC_TRANSFORMERS names no Python with torch and transformers")
    jobs = []
    for kind in family_checkpoints.CONFIGS:
        source = family_checkpoints.make(tmp_path / kind / "source", kind)
        run(source, tmp_path / f"{kind}.gguf", "gguf")
        jobs.append((source, tmp_path / f"{kind}.theirs.gguf", fields(tmp_path / f"{kind}.gguf")[PRE]))
    llamacpp_converter.convert(python, folder, jobs)
    for kind in family_checkpoints.CONFIGS:
        assert llamacpp_converter.unexplained(tmp_path / f"{kind}.gguf", tmp_path / f"{kind}.theirs.gguf") == [], kind


# Encoders, drafters' heads, diffusion, speech; those that read a text at once, or none.
NO_TEXT = re.compile(
    "bert|roberta|t5|dream|llada|rnd1|dflash|dspark|eagle|assistant|bidirectional|embedding|tts|tokenizerdec|"
    "audiotokenizer|^(qwen2|qwen3|gemma3text)model$",
    re.IGNORECASE,
)


def test_what_llama_cpp_converts_is_converted_or_known() -> None:
    """With EDGESPEC_LLAMACPP: each architecture of its converter is ours, or has a hint, or writes no text."""
    tree = ast.parse((Path(llamacpp()) / "conversion" / "__init__.py").read_text(encoding="utf-8"))
    tables = [node for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)]
    (listed,) = (node.value for node in tables if ast.unparse(node.target) == "TEXT_MODEL_MAP")
    assert isinstance(listed, ast.Dict)
    names = [ast.literal_eval(key) for key in listed.keys if key is not None]
    assert len(names) > 200
    missing = [name for name in names if name not in FAMILIES and not hint(name) and not NO_TEXT.search(name)]
    assert missing == []


_TRANSFORMERS = """
import json, sys
import numpy, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
with torch.no_grad():
    numpy.save(sys.argv[2], model(torch.tensor([json.loads(sys.argv[3])])).logits[0].numpy())
"""
