"""Mixtures of experts in ONNX Runtime: what they compute, in every quantization, and what they refuse."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgespec import Device, Runtime, Sampling, Speculation, load
from edgespec.backends.exactness import is_steady
from edgespec.converters import convert
from edgespec.converters.packing import FLOAT, Blockwise
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.errors import ConversionError, ModelFileError, OptionError
from edgespec.models.sizes import sizes
from edgespec.testing import check_model
from edgespec.tools.check import check

from . import checkpoints, family_checkpoints
from .onnxfolders import Converted, converting, opened, rewritten
from .onnxrun import Onnx, metadata
from .recent_reference import judge
from .reference import read_tensors
from .test_convert_onnx import PACKED, unpacked
from .test_families import PROMPT, difference

KINDS = (*family_checkpoints.SPARSE, "lfm2moe")
QUANTIZED = [name for name in PACKED if name.startswith("int")]
#: Blocks of the experts of the tiny checkpoints: at least two in each row.
BLOCKS = {"mixtral": 32, "qwen3moe": 16, "qwen35moe": 16, "lfm2moe": 16}
TEXT = [5 + 7 * n % 250 for n in range(60)]
ROUNDING = 1e-3


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Converted:
    return converting(tmp_path_factory.mktemp("experts"), "int4")


def rounded(source: Path, folder: Path, quantization: str) -> Path:
    """A checkpoint of what the packed weights of `source` stand for."""
    packing = PACKED[quantization]
    assert isinstance(packing, Blockwise)
    own = Blockwise(packing.bits, BLOCKS[source.name], packing.scales)

    def stands_for(name: str, values: Any) -> Any:
        if values.ndim != 2 or name.endswith(
            ("mlp.gate.weight", "block_sparse_moe.gate.weight", "forward.gate.weight")
        ):
            return values
        chosen = own if ".experts." in name else packing
        return unpacked(chosen, chosen.pack(values), values.shape[1])[0]

    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    packed = {name: stands_for(name, values) for name, values in read_tensors(source).items()}
    checkpoints.write_safetensors(folder / "model.safetensors", packed)
    return folder


def with_precise_activations(folder: Path) -> Path:
    """The model, which then computes with activations in float32 and not in 8 bits; 8-bit experts know no other."""
    model = onnx.load_model(folder / "model.onnx", load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 0
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


# --- what they compute


@pytest.mark.parametrize("quantization", ["int4", "int4-b32", "int4-b64"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_with_its_packed_weights(kind: str, quantization: str, tmp_path: Path) -> None:
    """The router's choice, the weights of its experts and the order of all matrices, without another rounding."""
    source = family_checkpoints.make(tmp_path / kind, kind)
    list(convert(source, tmp_path / "out", fmt="onnx", quantization=quantization))
    ours = Onnx(with_precise_activations(tmp_path / "out"))
    expected = judge(rounded(source, tmp_path / "rounded", quantization)).logits(PROMPT)
    assert difference(ours.feed(PROMPT), expected) < 1e-4


@pytest.mark.parametrize("quantization", QUANTIZED)
@pytest.mark.parametrize("kind", ["qwen3moe", "lfm2moe"])
def test_every_quantization(kind: str, quantization: str, tmp_path: Path) -> None:
    """Each token uses all experts: otherwise a difference by rounding can make it choose others."""
    count = {"qwen3moe": 6, "lfm2moe": 5}[kind]
    source = family_checkpoints.make(tmp_path / kind, kind, num_experts_per_tok=count)
    list(convert(source, tmp_path / "out", fmt="onnx", quantization=quantization))
    expected = judge(rounded(source, tmp_path / "rounded", quantization)).logits(PROMPT)
    found = Onnx(tmp_path / "out").feed(PROMPT)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.12


def test_float16(tmp_path: Path) -> None:
    source = family_checkpoints.make(tmp_path / "source", "qwen3moe", num_experts_per_tok=6)
    list(convert(source, tmp_path / "out", fmt="onnx", quantization="fp16"))
    assert difference(Onnx(tmp_path / "out").feed(PROMPT), judge(source).logits(PROMPT)) < 0.02


@pytest.mark.parametrize("quantization", ["fp32", "int4"])
@pytest.mark.parametrize("kind", family_checkpoints.SPARSE)
def test_all_spellings_of_experts_are_one(kind: str, quantization: str, tmp_path: Path) -> None:
    """A tensor an expert, and one for all of a layer."""
    found = []
    for fused in (False, True):
        source = family_checkpoints.make(tmp_path / str(fused) / "source", kind, fused=fused)
        output = tmp_path / str(fused) / "out"
        list(convert(source, output, fmt="onnx", quantization=quantization))
        found.append((output / "model.onnx.data").read_bytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("quantization", ["fp32", "int8"])
def test_experts_are_streamed_without_a_seam(
    quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, blocks = family_checkpoints.make(tmp_path / "source", "mixtral"), StoredTensor.blocks
    list(convert(source, tmp_path / "whole", fmt="onnx", quantization=quantization))
    monkeypatch.setattr(StoredTensor, "blocks", lambda self, multiple=1, weights=0: blocks(self, multiple, 200))
    list(convert(source, tmp_path / "cut", fmt="onnx", quantization=quantization))
    whole, cut = ((tmp_path / name / "model.onnx.data").read_bytes() for name in ("whole", "cut"))
    assert cut == whole


@pytest.mark.parametrize(
    ("block", "widths", "expected"),
    [(128, (2048, 768), 128), (128, (2880, 2880), 64), (32, (64, 96), 32), (128, (64, 32), 16), (128, (64, 40), 0)],
)
def test_the_blocks_that_experts_share(block: int, widths: tuple[int, int], expected: int) -> None:
    found = Blockwise(4, block, FLOAT).shared(*widths)
    assert (found.block if found else 0) == expected


# --- sessions


@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_of_sessions(converted: Converted, kind: str) -> None:
    """In float32: where activations are rounded to 8 bits, the last bits of a pass can move them by a step."""
    folder = converted(kind, "int4" if kind == "lfm2moe" else "fp32")
    if kind == "lfm2moe":
        folder = with_precise_activations(Path(shutil.copytree(folder, folder.with_name("precise"))))
    with closing(opened(folder)) as model:
        check_model(model, rounding=ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
def test_chains_of_all_widths(converted: Converted, kind: str, tmp_path: Path) -> None:
    folder = with_precise_activations(Path(shutil.copytree(converted(kind), tmp_path / "copied")))
    with closing(opened(folder)) as model, closing(model.session(256)) as session:
        session.prefill(TEXT[:20])
        expected = np.concatenate([session.decode([token]).copy() for token in TEXT[20:40]])
        for width in (2, 3, 4, 7, 20):
            session.rollback(20)
            rows = [session.decode(TEXT[start : min(40, start + width)]).copy() for start in range(20, 40, width)]
            assert difference(np.concatenate(rows), expected) < 1e-4


def runtime(path: Path, draft: Path, **options: Any) -> Runtime:
    return load(path, draft, device=Device(context=256, threads=1, backend="onnx"), **options)


@pytest.mark.parametrize("quantization", ["int4", "int8"])
@pytest.mark.parametrize("seed", [1, 0], ids=["wrong", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_check_finds_the_same_text(converted: Converted, kind: str, seed: int, quantization: str) -> None:
    """With a draft model that is often wrong, or right, at temperatures 0 and 0.8."""
    files = converted(kind, quantization), converted(kind, quantization, seed=seed)
    with runtime(*files, speculation=Speculation(k=4)) as speaker:
        for temperature in (0.0, 0.8):
            for verdict in check(speaker, [TEXT, TEXT[:7]], Sampling(temperature=temperature, seed=1), 40):
                assert verdict.divergence is None or verdict.divergence.near_tie
                assert verdict.drafted > 20


def test_the_plan_counts_all_experts(converted: Converted) -> None:
    for quantization in ("int4", "fp32"):
        folder = converted("qwen3moe", quantization)
        assert sizes(folder / "model.onnx").weights == (folder / "model.onnx.data").stat().st_size
        assert metadata(folder)["edgespec.experts"] == "6"
    assert metadata(folder)["edgespec.parameters"] == str(
        sum(values.size for values in read_tensors(folder.with_name("qwen3moe-0")).values())
    )


# --- what is refused


@pytest.mark.parametrize("kind", KINDS)
def test_exact_is_refused(converted: Converted, kind: str) -> None:
    with pytest.raises(OptionError, match=r"exact is 2, but in a mixture of experts .*leave exact out") as caught:
        opened(converted(kind), exact=2)
    assert "\n" not in str(caught.value)


def test_bits_depend_on_the_tokens_beside_a_token(converted: Converted) -> None:
    """This is why. If it fails, ONNX Runtime sums experts in a fixed order now, and `exact` can be allowed."""
    with closing(opened(converted("qwen3moe", "fp32"))) as model, closing(model.session(256)) as session:
        assert not is_steady(session, 4)
        found = set()
        for beside in range(20, 32):
            session.prefill(TEXT[:20])
            found.add(session.decode([7, *range(beside, beside + 3)])[0].tobytes())
            session.rollback(0)
        assert len(found) > 1


@pytest.mark.parametrize("kind", ["mixtral", "lfm2moe"])
def test_another_provider_is_refused(converted: Converted, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.backends.ort.chosen", lambda provider, **_: provider)
    with pytest.raises(OptionError, match=r"run on the CPU only in ONNX Runtime; give provider cpu"):
        opened(converted(kind), provider="cuda")


def test_openvino_refuses_it_in_one_line(converted: Converted) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(ModelFileError, match=r"mixture of experts.*take --backend onnx") as caught:
        load(converted("qwen3moe"), device=Device(backend="openvino"))
    assert "\n" not in str(caught.value)


def test_a_wrong_count_of_experts(converted: Converted, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(converted("qwen3moe"), tmp_path / "copied"))
    rewritten(folder, experts="-1")
    with pytest.raises(ModelFileError, match="experts is '-1', not a positive whole number"):
        opened(folder)


REFUSED: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "r8": ("qwen3moe", "r8", "no experts of this quantization; take int8 or int4", {}),
    "narrow": ("qwen3moe", "int4", "experts of 16 rows over 64 columns", {"moe_intermediate_size": 16}),
    "weighted otherwise": ("lfm2moe", "fp16", "only where they are quantized; take int8 or int4", {}),
    "biased": ("gpt-oss", "int4", "experts of gpt-oss models are not converted to onnx; convert to gguf", {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    kind, quantization, words, changes = REFUSED[case]
    source = family_checkpoints.make(tmp_path / "source", kind, **changes)
    with pytest.raises(ConversionError, match=words) as caught:
        list(convert(source, tmp_path / "out", fmt="onnx", quantization=quantization))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
