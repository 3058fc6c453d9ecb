"""Enlarged models say what the small ones say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from benchmarks.enlarge import main, read_tensors
from edgespec.backends import Device, Interrupt, open_model
from edgespec.converters import convert
from edgespec.types import Floats

from . import eagle3_heads, eagle_heads
from .pair_checkpoints import checkpoint_of

PAIR = Path(__file__).parent / "pair"


def test_a_head_of_eagle3_guesses_the_same(tmp_path: Path) -> None:
    config = eagle3_heads.config()
    tensors = eagle3_heads.tensors(config, {"hidden": 48, "vocabulary": 300})
    changed, found = _wide_head(tmp_path, config, tensors)
    assert found["midlayer.mlp.gate_proj.weight"].shape == (512, 64)
    np.testing.assert_array_equal(found["d2t"], tensors["d2t"])
    np.testing.assert_allclose(_guesses(changed, found), _guesses(config, tensors), atol=1e-5)


def _wide_head(
    folder: Path, config: eagle3_heads.Json, tensors: dict[str, Any]
) -> tuple[eagle3_heads.Json, dict[str, Any]]:
    """The config.json and the tensors of a head that was enlarged to 512 neurons."""
    _enlarge(eagle3_heads.write(folder / "small", config, tensors), folder / "large", "--ffn", 512)
    changed = json.loads((folder / "large" / "config.json").read_text())
    assert (changed["num_hidden_layers"], changed["intermediate_size"]) == (1, 512)
    return changed, read_tensors(folder / "large")


def _guesses(config: eagle3_heads.Json, tensors: dict[str, eagle3_heads.Floats]) -> Floats:
    rows = np.random.default_rng(1).standard_normal((4, 3 * 48)).astype(np.float32)
    reference = eagle3_heads.Reference(config, tensors, 300)
    return reference.logits(rows, (3, 1, 4, 1, 5), (9,))


def test_a_head_of_eagle_guesses_the_same(tmp_path: Path) -> None:
    config = eagle_heads.config()
    tensors = eagle_heads.tensors(config, embeddings=300)
    changed, found = _wide_head(tmp_path, config, tensors)
    assert found["layers.0.mlp.down_proj.weight"].shape == (64, 512)
    output, states = (
        np.random.default_rng(seed).standard_normal((n, 64)).astype(np.float32) for seed, n in ((1, 300), (2, 4))
    )
    large, small = (
        eagle_heads.Reference(made, weights, output).logs(states, (3, 1, 4, 1, 5), (9,))
        for made, weights in ((changed, found), (config, tensors))
    )
    np.testing.assert_allclose(large, small, atol=1e-5)


def test_a_llama_with_more_layers_says_the_same(tmp_path: Path) -> None:
    small = checkpoint_of(PAIR / "draft.gguf", tmp_path / "small")
    _enlarge(small, tmp_path / "large", "--ffn", 2048, "--layers", 4)
    np.testing.assert_allclose(_logits(tmp_path / "large"), _logits(small), atol=2e-3)


def _logits(checkpoint: Path) -> Floats:
    file = checkpoint.with_suffix(".gguf")
    list(convert(checkpoint, file, quantization="f32"))
    model = open_model(file, Device(64, 1), Interrupt())
    rows: Floats = model.session(64).decode((5, 300, 40, 7))
    model.close()
    return rows


def _enlarge(source: Path, output: Path, *options: object) -> None:
    done = CliRunner().invoke(main, [str(source), str(output), *map(str, options)], catch_exceptions=False)
    assert done.exit_code == 0
