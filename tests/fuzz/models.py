"""The small models that inputs spoil: made once, the same for all workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edgespec.converters import convert

from .. import checkpoints, family_checkpoints, irfolders

CHECKPOINTS = ("qwen2", "spm", "gpt-2", "gemma")
FAMILIES = ("qwen3", "mixtral", "phi4-mini", "gemma3", "gpt2", "olmo2", "granite", "starcoder2")


@dataclass(frozen=True)
class Models:
    """A folder of small sound models.

    Checkpoints by the kind of their tokenizer (`CHECKPOINTS`) or by their family, and what they were converted to.
    """

    folder: Path

    def checkpoint(self, name: str) -> Path:
        """The folder of a checkpoint."""
        return self.folder / "checkpoints" / name

    def gguf(self, name: str) -> Path:
        """A GGUF file."""
        return self.folder / f"{name}.gguf"

    def onnx(self, name: str) -> Path:
        """The folder of an ONNX model."""
        return self.folder / "onnx" / name

    def ir(self, name: str) -> Path:
        """The folder of an OpenVINO IR model."""
        return self.folder / "ir" / name

    @cached_property
    def ggufs(self) -> list[str]:
        """The names of the GGUF files."""
        return sorted(path.stem for path in self.folder.glob("*.gguf"))

    @cached_property
    def onnxs(self) -> list[str]:
        """The names of the ONNX models."""
        return sorted(path.name for path in (self.folder / "onnx").iterdir())

    @cached_property
    def irs(self) -> list[str]:
        """The names of the IR models."""
        return sorted(path.name for path in (self.folder / "ir").iterdir())

    @cached_property
    def all_checkpoints(self) -> list[str]:
        """The names of the checkpoints."""
        return sorted(path.name for path in (self.folder / "checkpoints").iterdir())


def make(folder: Path) -> Models:
    """Make all of them in `folder`."""
    models = Models(folder)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "onnx").mkdir()
    tokenizers = {"qwen2": "qwen2", "spm": "spm-both", "gpt-2": "gpt-2", "gemma": "gemma"}
    for name, tokenizer in tokenizers.items():
        checkpoints.llama(models.checkpoint(name), tokenizer=tokenizer, dtype="F32")
    for family in FAMILIES:
        family_checkpoints.make(models.checkpoint(family), family)
    for name in ("qwen2", "spm", "gemma3", "mixtral"):
        list(convert(models.checkpoint(name), models.gguf(name), quantization="q8_0"))
    for name, quantization in {"qwen2": "int8", "spm": "int4", "gemma3": "fp32"}.items():
        list(convert(models.checkpoint(name), models.onnx(name), fmt="onnx", quantization=quantization))
    for name, groups in {"plain": 0, "groups": 32}.items():
        irfolders.write(models.checkpoint("qwen2"), models.ir(name), groups=groups)
    return models
