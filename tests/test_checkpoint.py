"""Bad input: told in one line before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.converters import convert
from edgespec.converters.checkpoint import Checkpoint, header
from edgespec.converters.stored_tensor import float32
from edgespec.errors import ConversionError

from . import checkpoints

Json = dict[str, Any]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.llama(tmp_path_factory.mktemp("good") / "source", tied=False)


@pytest.fixture
def source(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "source"))


def refused(source: Path, *, words: str) -> None:
    """The conversion is refused in one line that matches `words`, and leaves the output's folder empty."""
    output = source.parent / "out"
    output.mkdir()
    with pytest.raises(ConversionError, match=words) as caught:
        for _ in convert(source, output / "model.gguf"):
            pass
    assert "\n" not in str(caught.value)
    assert not list(output.iterdir())


def split(path: Path) -> tuple[Json, bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(path: Path, entries: Json | bytes, data: bytes) -> None:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


NORM = "model.norm.weight"
Change = Callable[[Json, bytes], tuple[Json | bytes, bytes]]


def entry(name: str, **values: Any) -> Change:
    def change(entries: Json, data: bytes) -> tuple[Json, bytes]:
        entries[name].update(values)
        return entries, data

    return change


def shifted(by: int, where: int) -> Change:
    """The offsets of one tensor's end, moved."""

    def change(entries: Json, data: bytes) -> tuple[Json, bytes]:
        entries[NORM]["data_offsets"][where] += by
        return entries, data

    return change


def moved(by: int) -> Change:
    def change(entries: Json, data: bytes) -> tuple[Json, bytes]:
        entries[NORM]["data_offsets"] = [offset + by for offset in entries[NORM]["data_offsets"]]
        return entries, data

    return change


def without(name: str) -> Change:
    """The tensor and its data taken out: the file is sound, but the graph has a gap."""

    def change(entries: Json, data: bytes) -> tuple[Json, bytes]:
        start, end = entries.pop(name)["data_offsets"]
        for other in entries.values():
            if other["data_offsets"][0] >= end:
                other["data_offsets"] = [offset - (end - start) for offset in other["data_offsets"]]
        return entries, data[:start] + data[end:]

    return change


def twice(entries: Json, data: bytes) -> tuple[bytes, bytes]:
    text = json.dumps(entries)
    return text[:-1].encode() + b"," + json.dumps({NORM: entries[NORM]})[1:].encode(), data


HEADERS: dict[str, tuple[str, Change]] = {
    "not JSON": ("JSON", lambda _, data: (b"{nonsense", data)),
    "not text": ("JSON", lambda _, data: (b"\xff\xfe{}", data)),
    "not an object": ("JSON object", lambda _, data: (b"[]", data)),
    "nested too deep": ("JSON", lambda _, data: (b"[" * 100_000, data)),
    "duplicate": ("is repeated", twice),
    "unknown dtype": ("unknown dtype 'F4'", entry(NORM, dtype="F4")),
    "dtype is a list": ("unknown dtype", entry(NORM, dtype=["F32"])),
    "unsupported dtype": ("I16; F32, F16 and BF16", entry(NORM, dtype="I16")),
    "dtype of another width": ("but has the offsets", entry(NORM, dtype="F32")),
    "shape of another size": ("but has the offsets", entry(NORM, shape=[63])),
    "shape of another layout": ("config.json asks for", entry(NORM, shape=[8, 8])),
    "negative shape": ("malformed", entry(NORM, shape=[-64])),
    "huge shape": ("but has the offsets", entry(NORM, shape=[2**62, 2**62])),
    "no offsets": ("malformed", entry(NORM, data_offsets=None)),
    "three offsets": ("but has the offsets", entry(NORM, data_offsets=[0, 1, 128])),
    "fractional offsets": ("malformed", entry(NORM, data_offsets=[0.0, 128.0])),
    "overlap": ("overlaps", moved(-2)),
    "hole": ("leaves a hole", moved(2)),
    "offsets of another size": ("but has the offsets", shifted(2, 1)),
    "cut off": ("is cut off", lambda entries, data: (entries, data[:-1])),
    "data left over": ("goes on", lambda entries, data: (entries, data + b"x")),
    "entry is no object": ("malformed", lambda entries, data: ({**entries, NORM: 3}, data)),
    "a name of two lines": (r"the name 'a\\nb', which is none", lambda entries, data: ({"a\nb": 1, **entries}, data)),
    "tensor missing": ("lacks the tensor model.norm.weight", without(NORM)),
    "matrix missing": ("lacks the tensor", without("model.layers.1.mlp.up_proj.weight")),
}


@pytest.mark.parametrize("case", HEADERS)
def test_bad_safetensors(case: str, source: Path) -> None:
    words, change = HEADERS[case]
    path = source / "model.safetensors"
    join(path, *change(*split(path)))
    refused(source, words=words)


@pytest.mark.parametrize("data", [b"", b"\x00" * 7, b"\xff" * 8, (1000).to_bytes(8, "little") + b"{}"])
def test_no_room_for_the_header(data: bytes, source: Path) -> None:
    (source / "model.safetensors").write_bytes(data)
    refused(source, words="not a whole safetensors file")


CONFIGS: dict[str, tuple[str, Json]] = {
    "architectures is a word": ("llamas is not supported", {"architectures": "x", "model_type": "llamas"}),
    "activation is an object": ("hidden_act is {}", {"hidden_act": {}}),
    "scaling is of no kind": ("the rope scaling \\[\\]", {"rope_scaling": {"type": []}}),
    "architecture": ("GemmaForCausalLM is not supported; Llama", {"architectures": ["GemmaForCausalLM"]}),
    "architectures are lists": ("is not supported; Llama", {"architectures": [["LlamaForCausalLM"]]}),
    "model type": ("bert is not supported", {"architectures": None, "model_type": "bert"}),
    "activation": ("hidden_act is 'gelu'", {"hidden_act": "gelu"}),
    "yarn": (
        "'yarn' is not supported; linear and llama3",
        {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    ),
    "dynamic": ("'dynamic'", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "longrope": ("'longrope'", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}),
    "llama3 without its factors": (
        "lacks low_freq_factor",
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    ),
    "no factor": ("lacks factor", {"rope_scaling": {"type": "linear"}}),
    "bad factor": ("factor is 'x'", {"rope_scaling": {"type": "linear", "factor": "x"}}),
    "scaling is a number": ("expected an object", {"rope_scaling": 2}),
    "part of a head": ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
    "quantized": ("already quantized \\(gptq\\)", {"quantization_config": {"quant_method": "gptq"}}),
    "more layers": ("lacks the tensor model.layers.2", {"num_hidden_layers": 3}),
    "fewer layers": ("leaves no place", {"num_hidden_layers": 1}),
    "wider": ("config.json asks for", {"hidden_size": 128, "head_dim": 16}),
    "unannounced width": ("config.json asks for", {"head_dim": 32}),
    "heads that do not divide": ("divisor", {"num_key_value_heads": 3}),
    "no heads": ("num_attention_heads is None", {"num_attention_heads": None}),
    "negative": ("positive whole number", {"num_hidden_layers": -1}),
    "layers beyond memory": ("at most 512", {"num_hidden_layers": 2147483647}),
    "fraction": ("positive whole number", {"hidden_size": 64.5}),
    "announced biases": ("lacks the tensor .*bias", {"attention_bias": True}),
    "epsilon": ("positive number", {"rms_norm_eps": 0}),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_bad_config(case: str, source: Path) -> None:
    words, values = CONFIGS[case]
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **values}))
    refused(source, words=words)


def test_tensors_without_a_place_in_the_graph(source: Path) -> None:
    """A bias that the config keeps quiet about would change what the model computes."""
    path = source / "model.safetensors"
    entries, data = split(path)
    entries["model.layers.0.self_attn.q_proj.bias"] = {
        "dtype": "BF16",
        "shape": [64],
        "data_offsets": [len(data), len(data) + 128],
    }
    join(path, entries, data + bytes(128))
    refused(source, words="q_proj.bias, for which config.json leaves no place")


def test_missing_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", words="does not exist")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer.json or tokenizer.model"),
    ],
)
def test_missing_files(name: str, words: str, source: Path) -> None:
    (source / name).unlink()
    refused(source, words=words)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json"])
def test_broken_json(name: str, source: Path) -> None:
    (source / name).write_text("{")
    refused(source, words=f"{name}.* JSON")


def test_weights_under_another_name(source: Path) -> None:
    (source / "model.safetensors").rename(source / "weights.safetensors")
    refused(source, words=r"only weights.safetensors: expected model.safetensors, pytorch_model.bin")


def sharded(tmp_path: Path) -> Path:
    return checkpoints.llama(tmp_path / "source", shards=3)


def test_missing_shard(tmp_path: Path) -> None:
    source = sharded(tmp_path)
    (source / "model-00002-of-00003.safetensors").unlink()
    refused(source, words="names model-00002-of-00003.safetensors, which is not in")


def test_shard_without_what_the_index_promises(tmp_path: Path) -> None:
    source = sharded(tmp_path)
    path = source / "model-00001-of-00003.safetensors"
    entries, data = split(path)
    join(path, *without(next(iter(entries)))(entries, data))
    refused(source, words="lists .* which lacks it")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    source = sharded(tmp_path)
    shutil.copy(source / "model-00001-of-00003.safetensors", source / "model-00002-of-00003.safetensors")
    refused(source, words="is both in")


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd"])
def test_shards_outside_the_folder(shard: str, tmp_path: Path) -> None:
    source = sharded(tmp_path)
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
    refused(source, words="not a file of its own folder")


def test_an_index_without_a_map(tmp_path: Path) -> None:
    source = sharded(tmp_path)
    (source / "model.safetensors.index.json").write_text("{}")
    refused(source, words="no weight_map")


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("weights", [1, 100, 1 << 20])
def test_blocks_are_the_tensor(dtype: str, weights: int, tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((12, 10)).astype(np.float32)
    path = tmp_path / "x.safetensors"
    checkpoints.write_safetensors(path, {"first": np.zeros(3, np.float32), "x": checkpoints.stored(values, dtype)})
    blocks = [float32(block) for block in header(path)["x"].blocks(multiple=4, weights=weights)]
    assert all(len(block) % 4 == 0 for block in blocks)
    found = np.concatenate(blocks)
    if dtype == "F32":
        assert np.array_equal(found, values)
    np.testing.assert_allclose(found, values, rtol=2**-7 if dtype == "BF16" else 2**-10, atol=1e-7)


def test_a_file_that_shrinks_while_it_is_read(source: Path) -> None:
    tensor = Checkpoint.open(source).tensors["lm_head.weight"]
    with (source / "model.safetensors").open("r+b") as file:
        file.truncate(tensor.offset + 10)
    with pytest.raises(ConversionError, match="ends inside"):
        list(tensor.blocks())


def test_an_adapter_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ConversionError, match=r"is an adapter .* merge it"):
        Checkpoint.open(tmp_path)
