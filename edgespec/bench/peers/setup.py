"""The settings that all peers share, and the error of a missing peer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..contender import ContenderFailed


class Absent(ContenderFailed):
    """A peer whose program, package or model is missing."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The models that peers run, and the resources that they use.

    Args:
        target, draft: as edgespec takes them: GGUF files, or folders of ONNX models.
        heads: files of heads of the target.
        source, draft_source: the Hugging Face checkpoints that these were made of, for peers that run those.
        genai, genai_draft: the same models as folders of ONNX Runtime GenAI, with their genai_config.json.
        openvino_genai, openvino_genai_draft: the same models as folders of OpenVINO IR, with their tokenizers; None
            takes the target and the draft.
        threads: CPU threads, 1 or more.
        context: tokens of prompt and answer together.
        gpu_layers: layers to keep on the GPU; -1 takes as many as the peer can, 0 none.
        server: llama.cpp's `llama-server`; None looks for it.
        python: one that has transformers, onnxruntime-genai or openvino-genai; None takes what the environment names,
            or this one.
        patience: seconds that a peer may take to start, or may be silent in an answer.
    """

    target: Path
    draft: Path | None = None
    source: Path | None = None
    draft_source: Path | None = None
    genai: Path | None = None
    genai_draft: Path | None = None
    openvino_genai: Path | None = None
    openvino_genai_draft: Path | None = None
    threads: int = 1
    context: int = 4096
    gpu_layers: int = -1
    server: Path | None = None
    python: Path | None = None
    patience: float = 600.0
    heads: tuple[Path, ...] = ()
