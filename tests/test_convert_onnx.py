"""The converted graph is the checkpoint: logit by logit, in every quantization as near as it can be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer

from edgespec.converters import ConversionProgress, Note, chosen_quantization, convert, quantizations
from edgespec.converters import onnx as onnx_writer
from edgespec.converters.onnx_nodes import Scheme
from edgespec.converters.packing import FLOAT, HALF, Blockwise, Packing, Turned, Unquantized
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.errors import ConversionError, OptionError

from . import checkpoints
from .onnxrun import Onnx, metadata
from .pair_checkpoints import checkpoint_of
from .reference import Reference, read_tensors
from .test_convert import LLAMA3, VARIANTS

PACKED: dict[str, Packing] = {
    "fp32": Unquantized(FLOAT),
    "fp16": Unquantized(HALF),
    "int8": Blockwise(8, 128, FLOAT),
    "int8-fp16": Blockwise(8, 128, HALF),
    "int4": Blockwise(4, 128, FLOAT),
    **{f"int4-b{block}": Blockwise(4, block, FLOAT) for block in (32, 64, 128)},
    "int4-fp16": Blockwise(4, 128, HALF),
    "r8": Turned(),
}
QUANTIZATIONS = tuple(PACKED)
PROMPT = [5, 300, 41, *range(100, 170)]


def run(source: Path, output: Path, quantization: str = "fp32", **options: Any) -> Path:
    for _ in convert(source, output, fmt="onnx", quantization=quantization, **options):
        pass
    return output


def near(found: Any, expected: Any, share: float = 1e-4) -> None:
    """Equal up to a share of the largest number."""
    assert np.abs(found - expected).max() <= share * np.abs(expected).max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_computes_what_the_checkpoint_computes(variant: str, tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", **VARIANTS[variant])
    ours, expected = Onnx(run(source, tmp_path / "out")), Reference(source).logits(PROMPT)
    near(ours.feed(PROMPT), expected)
    ours.length = 0  # again in pieces, over the old buffers
    pieces = [ours.feed(PROMPT[start:end]) for start, end in ((0, 7), (7, 8), (8, 40), (40, len(PROMPT)))]
    near(np.concatenate(pieces), expected)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 96 and 80: three blocks of 32, no whole block of 64 or 128. Biases, llama3 rope, tied."""
    folder = tmp_path_factory.mktemp("odd") / "source"
    return checkpoints.llama(
        folder, hidden=96, ffn=80, heads=6, head_dim=16, rope=LLAMA3, attention_bias=True, mlp_bias=True
    )


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole blocks, an embedding of its own."""
    return checkpoints.llama(tmp_path_factory.mktemp("wide") / "source", hidden=256, ffn=384, tied=False)


@pytest.mark.parametrize("kind", ["odd", "wide"])
@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_every_quantization_computes_with_its_packed_weights(
    name: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A checkpoint of what the packed weights stand for gives the same, but for activations in eight bits."""
    source = request.getfixturevalue(kind)
    packing = PACKED[name]
    packed = {
        label: unpacked(packing, packing.pack(values), values.shape[1])[0] if values.ndim == 2 else values
        for label, values in read_tensors(source).items()
    }
    (rounded := tmp_path / "rounded").mkdir()
    shutil.copy(source / "config.json", rounded)
    checkpoints.write_safetensors(rounded / "model.safetensors", packed)
    found, expected = Onnx(run(source, tmp_path / "out", name)).feed(PROMPT), Reference(rounded).logits(PROMPT)
    assert found.dtype == np.float32
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < {"fp32": 1e-5, "fp16": 5e-3}.get(name, 0.12)


@pytest.mark.parametrize("name", ["target", "draft"])
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_a_trained_pair(name: str, quantization: str, small_pair: Mapping[str, Path], tmp_path: Path) -> None:
    source = checkpoint_of(small_pair[name], tmp_path / "source")
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    text = "<|im_start|>user\nHi, a table for two in San Jose tonight.<|im_end|>\n<|im_start|>assistant\nWhat time?"
    tokens = tokenizer.encode(text).ids
    found, expected = Onnx(run(source, tmp_path / "out", quantization)).feed(tokens), Reference(source)
    logits = expected.logits(tokens)
    if quantization == "fp32":
        assert np.abs(found - logits).max() < 1e-4
    loss, least = _surprise(found, tokens), _surprise(logits, tokens)
    assert abs(loss - least) < (0.3 if "int4" in quantization else 0.03)


def _surprise(logits: Any, tokens: list[int]) -> float:
    shifted = logits - logits.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return float(-logs[np.arange(len(tokens) - 1), tokens[1:]].mean())


def test_a_tree_is_its_branches(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", rope=LLAMA3)
    ours, judge = Onnx(run(source, tmp_path / "out")), Reference(source)
    ours.feed(PROMPT[:20])
    nodes, parents = [7, 8, 9, 7, 10, 11, 12], [-1, -1, 0, 1, 2, 0, 3]
    found = ours.feed(nodes, parents)
    for node, row in enumerate(found):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        near(row, judge.logits([*PROMPT[:20], *(nodes[i] for i in path)])[-1])


def test_rows_are_chosen(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    expected = Reference(source).logits(PROMPT)
    for name in ("fp32", "fp16", "int4"):
        folder = run(source, tmp_path / name, name)
        assert Onnx(folder).feed(PROMPT, rows=[]).shape == (0, expected.shape[1])
        ours = Onnx(folder)
        near(ours.feed(PROMPT, rows=[9, 2]), Onnx(folder).feed(PROMPT)[[9, 2]], 1e-3)
    assert Onnx(run(source, tmp_path / "r8", "r8")).feed(PROMPT, rows=[3]).shape == (1, expected.shape[1])


def test_hidden_states_are_the_stream_after_each_layer(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", layers=3)
    tensors, ours = read_tensors(source), Onnx(run(source, tmp_path / "out"))
    logits = ours.feed(PROMPT)
    assert list(ours.hidden) == ["hidden.0", "hidden.1", "hidden.2"]
    last = ours.hidden["hidden.2"]
    normed = last / np.sqrt((last**2).mean(-1, keepdims=True) + 1e-5) * tensors["model.norm.weight"]
    near(normed @ tensors["model.embed_tokens.weight"].T, logits)
    # Cut off after one layer, the model's stream is the whole one's first.
    short = tmp_path / "short"
    checkpoints.llama(short, layers=3)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    kept = {name: values for name, values in tensors.items() if ".layers.1." not in name and ".layers.2." not in name}
    checkpoints.write_safetensors(short / "model.safetensors", kept)
    first = Onnx(run(short, tmp_path / "first"))
    first.feed(PROMPT)
    near(ours.hidden["hidden.0"], first.hidden["hidden.0"])


@pytest.mark.parametrize("rope", [None, LLAMA3])
def test_every_position_has_its_rotation(rope: Any, tmp_path: Path) -> None:
    """More positions than are computed at a time, and not a multiple of them."""
    source = checkpoints.llama(tmp_path / "source", rope=rope, config={"max_position_embeddings": 2500})
    model = onnx.load_model(run(source, tmp_path / "out") / "model.onnx")
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name, expected in zip(("rope.cos", "rope.sin"), Reference(source)._rotation(2500), strict=True):
        np.testing.assert_allclose(stored[name], expected[:, : expected.shape[1] // 2], atol=1e-6)


PACKINGS: tuple[Packing, ...] = (
    *(Blockwise(bits, block, scales) for bits in (4, 8) for block in (32, 128) for scales in (FLOAT, HALF)),
    Turned(),
    Unquantized(FLOAT),
    Unquantized(HALF),
)


def unpacked(packing: Packing, arrays: tuple[Any, ...], columns: int) -> tuple[Any, Any]:
    """The numbers that stand for a matrix, and how far each may be from the original."""
    if isinstance(packing, Unquantized):
        values = arrays[0].astype(np.float32)
        return values, np.abs(values) * (2.0**-11 if packing.dtype == HALF else 0)
    if isinstance(packing, Turned):
        codes, scales = arrays
        return codes.T * scales[:, None], scales[:, None] * 0.5
    codes, scales, zeros = arrays
    if packing.bits == 4:
        codes, zeros = (np.stack([both & 15, both >> 4], -1).reshape(len(both), -1) for both in (codes, zeros))
    blocks = packing.blocks(columns)
    steps = scales.astype(np.float32).repeat(packing.width(columns), 1)[:, :columns]
    middle = zeros[:, :blocks].astype(np.float32).repeat(packing.width(columns), 1)[:, :columns]
    return (codes[:, :columns] - middle) * steps, steps


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
@pytest.mark.parametrize("columns", [128, 96, 80, 20, 1])
def test_packing_is_within_a_step(packing: Packing, columns: int) -> None:
    draw = np.random.default_rng(3)
    rows = draw.standard_normal((6, columns)).astype(np.float32)
    rows[1] = np.abs(rows[1]) + 3  # all on one side: 0 is in the range all the same
    rows[2] = 0
    rows[3, ::2] = 0
    rows[4] *= 1e-30
    arrays = packing.pack(rows)
    for part, array in zip(packing.parts(6, columns), arrays, strict=True):
        assert (array.dtype, array.nbytes) == (part.dtype, part.nbytes)
    found, step = unpacked(packing, arrays, columns)
    assert (np.abs(found - rows) <= step * 1.01 + 1e-7).all()
    assert not found[2].any()
    if isinstance(packing, Blockwise):
        assert not found[3, ::2].any(), "zero stays zero"
        error = np.sqrt(((found[0] - rows[0]) ** 2).mean())
        assert error < 0.35 * step[0].mean(), "rounded to the nearest, not down"


@pytest.mark.parametrize("packing", [packing for packing in PACKINGS if packing != Unquantized(FLOAT)], ids=str)
def test_packing_refuses_what_is_not_finite(packing: Packing) -> None:
    for value in (np.inf, -np.inf, np.nan):
        rows = np.ones((2, 40), np.float32)
        rows[1, 7] = value
        with pytest.raises(ValueError, match="finite"):
            packing.pack(rows)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", dtype="F32")
    tensors = read_tensors(source)
    for value, name, fits in ((np.nan, "int4", False), (1e6, "fp16", False), (1e6, "fp32", True)):
        tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = value
        checkpoints.write_safetensors(source / "model.safetensors", tensors)
        if fits:
            run(source, tmp_path / name, name)
            continue
        with pytest.raises(ConversionError, match=r"up_proj\.weight holds numbers"):
            run(source, tmp_path / name, name)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["fp32", "int4", "r8"])
def test_large_tensors_are_cut_into_blocks_without_a_seam(
    name: str, odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (run(odd, tmp_path / "whole", name) / "model.onnx.data").read_bytes()
    blocks = StoredTensor.blocks
    monkeypatch.setattr(StoredTensor, "blocks", lambda self, multiple=1, weights=0: blocks(self, multiple, 1))
    monkeypatch.setattr(onnx_writer, "SCHEMES", {**onnx_writer.SCHEMES, "r8": Scheme(Turned(1, 300), PACKED["int8"])})
    assert (run(odd, tmp_path / "cut", name) / "model.onnx.data").read_bytes() == whole


@pytest.mark.parametrize("name", ["fp32", "int4", "r8"])
def test_a_tied_head_shares_the_embeddings_bytes(name: str, odd: Path, tmp_path: Path) -> None:
    model = onnx.load_model(run(odd, tmp_path / "out", name) / "model.onnx", load_external_data=False)
    places = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}["offset"]
        for tensor in model.graph.initializer
        if tensor.external_data
    }
    ours = {offset for label, offset in places.items() if label.startswith("token_embd")}
    assert ours == {offset for label, offset in places.items() if label.startswith("output.") and "norm" not in label}
    assert {int(offset) % 4096 for offset in places.values()} == {0}


def test_r8_keeps_the_output_matrix_in_blocks(wide: Path, tmp_path: Path) -> None:
    """One scale a row was too coarse for a few large numbers: 63% of the demo target's likeliest tokens stayed."""
    model = onnx.load_model(run(wide, tmp_path / "out", "r8") / "model.onnx", load_external_data=False)
    products = [node for node in model.graph.node if node.op_type in ("MatMulNBits", "MatMulIntegerToFloat")]
    assert [node.op_type for node in products].count("MatMulNBits") == 1
    assert products[-1].op_type == "MatMulNBits"
    assert products[-1].output[0].startswith(("logits", "output"))


def test_metadata(wide: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "named").mkdir()
    even = {"fp32": "0", "r8": "1", "int4-b32": "0", "int4-b64": "1", "int8": "1"}
    for name, expected in even.items():
        found = metadata(run(wide, folder / name, name))
        assert found["edgespec.even"] == expected
        assert found["edgespec.quantization"] == name
        assert found["edgespec.data_bytes"] == str((folder / name / "model.onnx.data").stat().st_size)
    total = sum(values.size for values in read_tensors(wide).values())
    numbers = {"layers": 2, "kv_heads": 2, "head_dim": 64, "hidden": 256, "context": 512, "parameters": total}
    assert {key: found[f"edgespec.{key}"] for key in numbers} == {key: str(value) for key, value in numbers.items()}
    assert (found["edgespec.format"], found["edgespec.name"]) == ("1", "source")
    assert found["edgespec.vocabulary"] == str(len(read_tensors(wide)["lm_head.weight"]))


def test_the_fingerprint_is_of_the_shapes(wide: Path, odd: Path, tmp_path: Path) -> None:
    """Prices depend on names, shapes and types, not on the numbers."""
    other = checkpoints.llama(tmp_path / "other", hidden=256, ffn=384, tied=False, seed=9)
    prints = [
        metadata(run(source, tmp_path / f"{place}", name))["edgespec.weights"]
        for place, (source, name) in enumerate([(wide, "int4"), (other, "int4"), (wide, "int8"), (odd, "int4")])
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_progress_counts_every_parameter_once(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source")
    steps = [step for step in convert(source, tmp_path / "out", fmt="onnx") if isinstance(step, ConversionProgress)]
    total = sum(values.size for values in read_tensors(source).values())
    assert {step.total for step in steps} == {total}
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1] == ConversionProgress("done", total, total)
    assert steps[-2].done == total
    assert {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"} <= {step.what for step in steps}


def test_a_second_conversion_gives_the_same_bytes(odd: Path, tmp_path: Path) -> None:
    first, second = (run(odd, tmp_path / f"{i}", "int4") for i in range(2))
    assert {path.name: path.read_bytes() for path in first.iterdir()} == {
        path.name: path.read_bytes() for path in second.iterdir()
    }


@pytest.mark.parametrize(("name", "notes"), [("int8", 0), ("r8", 1)])
def test_what_needs_a_newer_cpu_says_so(name: str, notes: int, tmp_path: Path) -> None:
    source = checkpoints.llama(
        tmp_path / "source", tokenizer="qwen2"
    )  # NFC is no matter here: the tokenizer is its own
    steps = convert(source, tmp_path / "out", fmt="onnx", quantization=name)
    assert ["VNNI" in step.text for step in steps if isinstance(step, Note)] == [True] * notes


def test_names() -> None:
    assert quantizations("onnx") == QUANTIZATIONS
    assert (chosen_quantization("gguf", None), chosen_quantization("onnx", None)) == ("q8_0", "int8")
    with pytest.raises(OptionError, match=r"known: fp32, .*r8"):
        convert(Path(), Path("x"), fmt="onnx", quantization="q4_0")


def test_heads_that_onnx_runtime_does_not_turn(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", head_dim=10)
    with pytest.raises(ConversionError, match="heads of 10"):
        run(source, tmp_path / "out")
