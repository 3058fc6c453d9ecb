"""The target that Medusa heads are converted for: its width, and its tokens by their labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgespec.backends import Labels
from edgespec.backends.gguf_header import header
from edgespec.backends.head_fit import sample
from edgespec.backends.head_header import is_alone
from edgespec.backends.model_files import find_model
from edgespec.converters import card, decoder, vocabulary
from edgespec.converters.checkpoint import Checkpoint
from edgespec.errors import ConversionError

_CONTROL = re.compile(r"<\|.*\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>")


@dataclass(frozen=True, slots=True)
class MedusaTarget:
    """A model.

    Args:
        name: for messages.
        width: numbers of a hidden state.
        tokens: of its vocabulary.
        control: tokens that a head with fewer tokens keeps.
        labels: some of its tokens by their labels (`head_fit.sample`).
    """

    name: str
    width: int
    tokens: int
    control: tuple[int, ...]
    labels: Mapping[int, str]

    @classmethod
    def of(cls, path: Path) -> MedusaTarget:
        """The model at `path`: a GGUF file, the folder of a converted ONNX model, or that of a checkpoint.

        Raises:
            ConversionError: it is a checkpoint that cannot be converted, an OpenVINO IR model, or a head.
            ModelFileError: it is no model, or cannot be read.
        """
        if path.is_dir() and (path / "config.json").is_file() and not list(path.glob("*.onnx")):
            return cls._of_checkpoint(path)
        engine, file = find_model(path, "auto")
        if engine == "llama":
            found = header(file)
            if is_alone(found) or not found.vocabulary.size:
                raise ConversionError(f"{path} is not a model with a vocabulary; give the target of the head")
            return cls._with(found.name or file.stem, found.number("embedding_length"), found.vocabulary)
        if engine == "onnx":
            from edgespec.backends.onnx_file import read  # noqa: PLC0415 - needs protobuf
            from edgespec.backends.onnx_vocabulary import OnnxVocabulary, TokenizerFiles  # noqa: PLC0415

            described = read(file)
            words = OnnxVocabulary(TokenizerFiles(file.parent), described.vocabulary)
            return cls._with(described.name or file.parent.name, described.hidden, words)
        raise ConversionError(
            f"{path} is an OpenVINO IR model, which has no heads; give the checkpoint it was made from"
        )

    @classmethod
    def _of_checkpoint(cls, folder: Path) -> MedusaTarget:
        checkpoint = Checkpoint.open(folder)
        graph = decoder.read(checkpoint)
        words = vocabulary.read(checkpoint, graph.vocabulary).candidates[0]
        return cls._with(card.read(checkpoint).name or folder.name, graph.hidden, _Words(tuple(words.tokens)))

    @classmethod
    def _with(cls, name: str, width: int, labels: Labels) -> MedusaTarget:
        control = [token for token in range(labels.size) if _CONTROL.fullmatch(labels.label(token))]
        return cls(name, width, labels.size, tuple(control), sample(labels))


@dataclass(frozen=True, slots=True)
class _Words:
    tokens: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.tokens)

    def label(self, token: int) -> str:
        return self.tokens[token]
