"""The converted model is the checkpoint: tensor by tensor, logit by logit, token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest

from edgespec.converters import ConversionProgress, convert, formats, quantizations
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.errors import OptionError

from . import checkpoints
from .pair_checkpoints import checkpoint_of
from .reference import Reference, read_tensors

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grouped, tied": {},
    "untied, one kv head": {"tied": False, "kv_heads": 1},
    "plain attention": {"kv_heads": 4, "dtype": "F16"},
    "wide heads": {"head_dim": 32, "dtype": "F32"},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear, old spelling": {"rope": {"type": "linear", "factor": 2.0}},
    "linear, new spelling": {"rope": {"rope_type": "linear", "factor": 4.0}, "tied": False},
    "llama3": {"rope": LLAMA3, "head_dim": 32},
    "rope_parameters": {
        "config": {
            "rope_scaling": "absent",
            "rope_theta": "absent",
            "rope_parameters": {**LLAMA3, "rope_theta": 500000.0},
        }
    },
    "default rope_parameters": {"config": {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}},
    "shards": {"shards": 3, "tied": False},
    "padded vocabulary": {"padding": 37},
    "mistral": {
        "config": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None},
        "tied": False,
    },
    "qwen2": {"family": "qwen2", "config": {"sliding_window": 8, "use_sliding_window": False}, "tied": False},
    "qwen3": {"family": "qwen3", "head_dim": 32},
}


def run(source: Path, output: Path, quantization: str = "f32", **options: Any) -> Path:
    for _ in convert(source, output, quantization=quantization, **options):
        pass
    return output


@contextmanager
def engine(path: Path) -> Iterator[Any]:
    """llama.cpp with a float32 cache, so that what differs is the model."""
    llama = llama_cpp.Llama(
        str(path),
        verbose=False,
        logits_all=True,
        n_ctx=256,
        n_threads=1,
        type_k=0,
        type_v=0,
        flash_attn=False,
    )
    try:
        yield llama
    finally:
        llama.close()


def greedy(llama: Any, tokens: list[int], n: int) -> list[int]:
    llama.reset()
    llama.eval(tokens)
    found: list[int] = []
    while len(found) < n:
        found.append(int(np.argmax(llama.scores[llama.n_tokens - 1])))
        llama.eval(found[-1:])
    return found


def check_same(source: Path, output: Path, prompts: list[list[int]], n: int = 48) -> None:
    judge = Reference(source)
    with engine(output) as llama:
        for prompt in prompts:
            llama.reset()
            llama.eval(prompt)
            expected = judge.logits(prompt)
            scale = np.abs(expected).max()
            np.testing.assert_allclose(llama.scores[: len(prompt)], expected, atol=2e-4 * scale)
            text = greedy(llama, prompt, n)
            assert len(text) == n
            assert judge.agrees(prompt, text)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_computes_what_the_checkpoint_computes(variant: str, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", **VARIANTS[variant])
    output = run(source, tmp_path / "model.gguf")
    check_same(source, output, [[5, 300, 41], [*range(100, 170)]])


@pytest.mark.parametrize("name", ["target", "draft"])
def test_a_trained_pair(name: str, small_pair: Mapping[str, Path], tmp_path: Path) -> None:
    source = checkpoint_of(small_pair[name], tmp_path / "source")
    output = run(source, tmp_path / "model.gguf")
    with engine(output) as llama:
        texts = (
            "<|im_start|>user\nHi, a table for two in San Jose tonight.<|im_end|>\n<|im_start|>assistant\n",
            "I",
        )
        prompts = [llama.tokenize(text.encode(), add_bos=False, special=True) for text in texts]
    check_same(source, output, prompts)


def test_a_pair_in_q8_0_is_the_same_file_after_dequantization_and_conversion(
    small_pair: Mapping[str, Path], tmp_path: Path
) -> None:
    for name, file in small_pair.items():
        output = run(checkpoint_of(file, tmp_path / name), tmp_path / f"{name}.gguf", quantization="q8_0")
        before, after = ({tensor.name: tensor for tensor in gguf.GGUFReader(each).tensors} for each in (file, output))
        assert before.keys() == after.keys()
        for key, tensor in before.items():
            assert tensor.tensor_type == after[key].tensor_type
            np.testing.assert_array_equal(tensor.data, after[key].data)


def test_tensors_are_the_checkpoints(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", attention_bias=True, tied=False, rope=LLAMA3)
    original = read_tensors(source)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(run(source, tmp_path / "model.gguf")).tensors}

    def interleaved(values: Any, heads: int) -> Any:
        half = values.reshape(heads, 2, -1, *values.shape[1:])
        return half.swapaxes(1, 2).reshape(values.shape)

    prefix = "model.layers.1"
    for name, expected in {
        "token_embd.weight": original["model.embed_tokens.weight"],
        "output.weight": original["lm_head.weight"],
        "output_norm.weight": original["model.norm.weight"],
        "blk.1.attn_norm.weight": original[f"{prefix}.input_layernorm.weight"],
        "blk.1.ffn_norm.weight": original[f"{prefix}.post_attention_layernorm.weight"],
        "blk.1.attn_q.weight": interleaved(original[f"{prefix}.self_attn.q_proj.weight"], 4),
        "blk.1.attn_k.weight": interleaved(original[f"{prefix}.self_attn.k_proj.weight"], 2),
        "blk.1.attn_q.bias": interleaved(original[f"{prefix}.self_attn.q_proj.bias"], 4),
        "blk.1.attn_k.bias": interleaved(original[f"{prefix}.self_attn.k_proj.bias"], 2),
        "blk.1.attn_v.weight": original[f"{prefix}.self_attn.v_proj.weight"],
        "blk.1.attn_v.bias": original[f"{prefix}.self_attn.v_proj.bias"],
        "blk.1.attn_output.weight": original[f"{prefix}.self_attn.o_proj.weight"],
        "blk.1.ffn_gate.weight": original[f"{prefix}.mlp.gate_proj.weight"],
        "blk.1.ffn_up.weight": original[f"{prefix}.mlp.up_proj.weight"],
        "blk.1.ffn_down.weight": original[f"{prefix}.mlp.down_proj.weight"],
    }.items():
        assert np.array_equal(found[name].data.reshape(expected.shape), expected), name
    assert len(found) == len(original) + 1
    assert found["rope_freqs.weight"].data.shape == (8,)


def test_large_tensors_are_cut_into_blocks_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row group at a time, the smallest block there is, gives the same file as whole tensors."""
    source = checkpoints.llama(tmp_path / "source", hidden=256, ffn=256, heads=4)
    whole = run(source, tmp_path / "whole.gguf", "q4_k_m").read_bytes()
    blocks = StoredTensor.blocks
    monkeypatch.setattr(StoredTensor, "blocks", lambda self, multiple=1: blocks(self, multiple, weights=1))
    assert run(source, tmp_path / "cut.gguf", "q4_k_m").read_bytes() == whole


def test_progress_counts_every_parameter_once(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    steps = [step for step in convert(source, tmp_path / "model.gguf") if isinstance(step, ConversionProgress)]
    total = sum(values.size for values in read_tensors(source).values())
    assert {step.total for step in steps} == {total}
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[0].done == 0
    assert steps[-1] == ConversionProgress("done", total, total)
    assert {"token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"} <= {step.what for step in steps}


def test_a_second_conversion_gives_the_same_bytes(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    first, second = (run(source, tmp_path / f"{i}.gguf", "q8_0").read_bytes() for i in range(2))
    assert first == second


def fields(path: Path) -> dict[str, Any]:
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items()}


def test_metadata(tmp_path: Path) -> None:
    source = checkpoints.llama(
        tmp_path / "source",
        generation={
            "eos_token_id": [2, 0],
            "temperature": 0.6,
            "top_k": 50,
            "top_p": 0.9,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
        },
        config={"sliding_window": 128, "rope_theta": 5000.0},
    )
    (source / "README.md").write_text('---\nlicense: apache-2.0\nmodel_name: "Tiny"\ntags:\n- x\n---\n# Tiny\n')
    found = fields(run(source, tmp_path / "model.gguf", "q8_0"))
    assert found["general.name"] == "Tiny"
    assert found["general.license"] == "apache-2.0"
    assert found["general.quantized_by"].startswith("edgespec")
    assert (found["general.file_type"], found["general.quantization_version"]) == (7, 2)
    assert found["llama.context_length"] == 128, "the window is the longest context that is exact"
    assert found["llama.rope.freq_base"] == 5000.0
    assert found["general.sampling.top_k"] == 50
    for key, value in {"temp": 0.6, "top_p": 0.9, "min_p": 0.05, "penalty_repeat": 1.1}.items():
        assert found[f"general.sampling.{key}"] == pytest.approx(value)
    assert (found["tokenizer.ggml.bos_token_id"], found["tokenizer.ggml.eos_token_id"]) == (0, 2)
    assert found["tokenizer.chat_template"] == checkpoints.CHATML


@pytest.mark.parametrize(("flag", "context"), [(False, 512), (True, 128), ("absent", 512)])
def test_a_family_has_its_name_and_its_window(flag: bool | str, context: int, tmp_path: Path) -> None:
    settings = {"architectures": None, "sliding_window": 128, "use_sliding_window": flag}
    source = checkpoints.llama(tmp_path / "source", family="qwen2", config=settings)
    found = fields(run(source, tmp_path / "model.gguf"))
    assert found["general.architecture"] == "qwen2"
    assert found["qwen2.context_length"] == context


def test_no_sampling_means_temperature_zero(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", generation={"do_sample": False, "temperature": 0.7})
    found = fields(run(source, tmp_path / "model.gguf"))
    assert found["general.sampling.temp"] == 0.0
    assert found["general.name"] == "source", "the folder's name, where no card gives one"


def test_named_chat_templates(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings["chat_template"] = [{"name": "default", "template": "A"}, {"name": "tool use", "template": "B"}]
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    found = fields(run(source, tmp_path / "a.gguf"))
    assert found["tokenizer.chat_template"] == "A"
    assert found["tokenizer.chat_template.tool_use"] == "B"
    (source / "chat_template.jinja").write_text("C")
    assert fields(run(source, tmp_path / "b.gguf"))["tokenizer.chat_template"] == "C"


def test_every_end_of_turn_ends_a_generation(tmp_path: Path) -> None:
    """Tokens that llama.cpp would not recognise by their text are named as eot and eom."""
    source = checkpoints.llama(tmp_path / "source", generation={"eos_token_id": [2, 1, 300]})
    with engine(run(source, tmp_path / "model.gguf")) as llama:
        vocab = llama_cpp.llama_model_get_vocab(llama.model)
        ends = [token for token in range(llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocab, token)]
        assert ends == [0, 1, 2, 300]
        assert llama_cpp.llama_vocab_eos(vocab) == 2


def test_formats_and_quantizations() -> None:
    assert formats() == ("gguf", "onnx")
    assert {"f32", "f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0"} <= set(quantizations("gguf"))
    with pytest.raises(OptionError, match="gguf"):
        quantizations("goofy")
