"""Our streamed quantization against llama.cpp's own, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from llama_cpp import llama_cpp

from edgespec.converters import convert, native, quantizations, quantize
from edgespec.errors import ConversionError, OptionError

from . import checkpoints, family_checkpoints


def run(source: Path, output: Path, quantization: str) -> Path:
    for _ in convert(source, output, quantization=quantization):
        pass
    return output


def tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    return {t.name: (t.tensor_type.name, t.data.tobytes()) for t in gguf.GGUFReader(path).tensors}


# Enough layers that the mixtures differ between them; rows of 256 take K-quants, rows of 96 and 40 fall back.
MODELS: dict[str, dict[str, Any]] = {
    "tied, grouped": {"hidden": 256, "ffn": 256, "layers": 9, "heads": 8, "kv_heads": 2},
    "untied": {"hidden": 256, "ffn": 256, "layers": 3, "tied": False, "attention_bias": True, "dtype": "F16"},
    "odd rows": {"hidden": 64, "ffn": 96, "layers": 2, "head_dim": 10, "dtype": "F32"},
}
# Eight experts have a policy of their own; rows of 32 take no K-quants.
SPARSE: dict[str, tuple[str, dict[str, Any]]] = {
    "8 experts": ("mixtral", {"intermediate_size": 256, "num_local_experts": 8}),
    "6 narrow experts": ("qwen3moe", {"num_hidden_layers": 3}),
    "states, and a head": ("qwen35", {"num_hidden_layers": 4}),
}


@pytest.fixture(scope="module", params=[*MODELS, *SPARSE])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and its float32 GGUF."""
    folder = tmp_path_factory.mktemp("quantize")
    if request.param in SPARSE:
        kind, changes = SPARSE[request.param]
        source = family_checkpoints.make(
            folder / "source", kind, **{"hidden_size": 256, "num_hidden_layers": 2, **changes}
        )
    else:
        source = checkpoints.llama(folder / "source", **MODELS[request.param])
    return source, run(source, folder / "f32.gguf", "f32")


@pytest.mark.parametrize("name", quantize.FILE_TYPES)
def test_equal_to_llama_cpp(model: tuple[Path, Path], name: str, tmp_path: Path) -> None:
    source, full = model
    native.quantize_file(full, tmp_path / "theirs.gguf", quantize.FILE_TYPES[name], threads=1)
    ours, theirs = tensors(run(source, tmp_path / "ours.gguf", name)), tensors(tmp_path / "theirs.gguf")
    assert {key: kind for key, (kind, _) in ours.items()} == {key: kind for key, (kind, _) in theirs.items()}
    assert ours == theirs


def test_mixtures_are_mixed(model: tuple[Path, Path], tmp_path: Path) -> None:
    """Guards the test above: had every tensor one type, it would prove little."""
    kinds = {kind for kind, _ in tensors(run(model[0], tmp_path / "mixed.gguf", "q4_k_m")).values()}
    assert len(kinds) > 2


def test_the_list_is_llama_cpps() -> None:
    """Every file type of llama.cpp is either offered or refused for a reason."""
    theirs = {
        name.removeprefix("LLAMA_FTYPE_").removeprefix("MOSTLY_").removeprefix("ALL_").lower(): value
        for name, value in vars(llama_cpp).items()
        if name.startswith("LLAMA_FTYPE_")
    }
    del theirs["guessed"]
    assert theirs.keys() == quantize.FILE_TYPES.keys() | quantize.REFUSED.keys()
    assert {name: theirs[name] for name in quantize.FILE_TYPES} == quantize.FILE_TYPES
    assert quantizations("gguf") == tuple(quantize.FILE_TYPES)


@pytest.mark.parametrize("name", quantize.REFUSED)
def test_refusals_give_the_reason(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        quantize.file_type(name)
    assert quantize.REFUSED[name] in str(caught.value)
    assert "q8_0" in str(caught.value)


def test_what_needs_an_importance_matrix_is_refused_by_llama_cpp_too(tmp_path: Path) -> None:
    source = checkpoints.llama(tmp_path / "source", hidden=256, ffn=256)
    full = run(source, tmp_path / "f32.gguf", "f32")
    for name in ("iq2_xxs", "iq3_xs", "iq1_m", "q2_k_s"):
        with pytest.raises(ConversionError, match="imatrix"):
            native.quantize_file(full, tmp_path / "x.gguf", getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name.upper()}"))


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e6])
def test_numbers_that_do_not_fit_are_refused(value: float, tmp_path: Path) -> None:
    """float16 ends at 65504; what does not fit would come out as infinity and the model as noise."""
    source = checkpoints.llama(tmp_path / "source", dtype="F32")
    path = source / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-256:-252] = np.float32(value).tobytes()  # in model.norm.weight, a vector: stays float32
    path.write_bytes(data)
    if np.isfinite(value):
        assert run(source, tmp_path / "f16.gguf", "f16").exists()
    start = 8 + int.from_bytes(data[:8], "little")
    data[start : start + 4] = np.float32(value).tobytes()  # in the embedding
    path.write_bytes(data)
    with pytest.raises(ConversionError, match=r"embed_tokens.* not finite or too large"):
        run(source, tmp_path / "bad.gguf", "f16")
    assert not (tmp_path / "bad.gguf").exists()
