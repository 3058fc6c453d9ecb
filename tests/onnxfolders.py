"""Folders of ONNX models for tests: opened, copied and damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from edgespec import Device, Interrupt, load
from edgespec.backends.ort import OrtModel, open_model
from edgespec.converters import convert
from edgespec.errors import ModelFileError

from . import family_checkpoints

Folders = Callable[[str], Path]
Converted = Callable[..., Path]


def converting(root: Path, usual: str) -> Converted:
    """A function of a family, a quantization (`usual` by default) and a seed: that family's tiny checkpoint as an ONNX
    model below `root`."""

    def made(kind: str, quantization: str = usual, seed: int = 0) -> Path:
        source, output = root / f"{kind}-{seed}", root / f"{kind}-{quantization}-{seed}"
        if not source.exists():
            family_checkpoints.make(source, kind, seed=seed, max_position_embeddings=2048)
        if not output.exists():
            list(convert(source, output, fmt="onnx", quantization=quantization))
        return output

    return made


def opened(folder: Path, interrupt: Interrupt | None = None, **options: Any) -> OrtModel:
    model = open_model(folder / "model.onnx", Device(**{"threads": 1, **options}), interrupt or Interrupt())
    assert isinstance(model, OrtModel)
    return model


def refused(path: Path, *words: str) -> None:
    """Opening is an error on one line that names the model, says `words` and a way out."""
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert 30 < len(message) < 600


def rewritten(folder: Path, **changed: str | None) -> None:
    """Metadata of the model, replaced or, with None, removed."""
    model = onnx.load_model(folder / "model.onnx", load_external_data=False)
    props = {entry.key: entry.value for entry in model.metadata_props}
    props |= {f"edgespec.{key}": value for key, value in changed.items()}
    del model.metadata_props[:]
    helper.set_model_props(model, {key: value for key, value in props.items() if value is not None})
    (folder / "model.onnx").write_bytes(model.SerializeToString())
