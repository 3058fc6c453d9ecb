"""The target that a head is converted for: its sizes, its tokens, and its matrices with a row for each token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.backends import Labels
from edgespec.backends.gguf_header import header
from edgespec.backends.head_fit import sample
from edgespec.backends.head_header import head_layers, is_alone
from edgespec.backends.model_files import find_model
from edgespec.converters import card, decoder, vocabulary
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.target_weights import CheckpointWeights, GgufWeights, OnnxWeights, TargetWeights
from edgespec.errors import ConversionError

#: Key, value, type, and the type of the elements of an array, as `gguf.GGUFWriter.add_key_value` takes them.
Field = tuple[str, Any, Any, Any]
_CONTROL = re.compile(r"<\|.*\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>")


@dataclass(frozen=True, slots=True)
class HeadTarget:
    """A model.

    Args:
        path: its file, or the folder of its checkpoint.
        name: for messages.
        layers: how many it has, a head's not counted.
        width: numbers of a hidden state.
        vocabulary: its tokens.
        weights: its matrices of embeddings and of outputs.
        checkpoint: the folder, opened; None for other formats.
    """

    path: Path
    name: str
    layers: int
    width: int
    vocabulary: Labels
    weights: TargetWeights
    checkpoint: Checkpoint | None = None

    @classmethod
    def of(cls, path: Path) -> HeadTarget:
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
            layers, width = found.layers - head_layers(found), found.number("embedding_length")
            weights = GgufWeights(file, found)
            return cls(file, found.name or file.stem, layers, width, found.vocabulary, weights)
        if engine == "onnx":
            from edgespec.backends.onnx_file import read  # noqa: PLC0415 - needs protobuf
            from edgespec.backends.onnx_vocabulary import OnnxVocabulary, TokenizerFiles  # noqa: PLC0415

            described = read(file)
            words = OnnxVocabulary(TokenizerFiles(file.parent), described.vocabulary)
            name = described.name or file.parent.name
            return cls(file, name, described.layers, described.hidden, words, OnnxWeights(described))
        raise ConversionError(
            f"{path} is an OpenVINO IR model, which has no heads; give the checkpoint it was made from"
        )

    @classmethod
    def _of_checkpoint(cls, folder: Path) -> HeadTarget:
        checkpoint = Checkpoint.open(folder)
        graph = decoder.read(checkpoint)
        words = _Words(tuple(vocabulary.read(checkpoint, graph.vocabulary).candidates[0].tokens))
        name, weights = card.read(checkpoint).name or folder.name, CheckpointWeights(checkpoint, graph)
        return cls(folder, name, graph.layers, graph.hidden, words, weights, checkpoint)

    @property
    def tokens(self) -> int:
        """How many it has."""
        return self.vocabulary.size

    @property
    def labels(self) -> Mapping[int, str]:
        """Some tokens by their labels (`head_fit.sample`)."""
        return sample(self.vocabulary)

    @property
    def control(self) -> tuple[int, ...]:
        """Tokens that a head with fewer tokens keeps."""
        labels = self.vocabulary
        return tuple(token for token in range(labels.size) if _CONTROL.fullmatch(labels.label(token)))

    def tokenizer(self, writer: Any) -> None:
        """Add its tokens to the GGUF file that `writer` writes.

        Raises:
            ConversionError: it is an ONNX model, whose tokenizer is in another form.
        """
        from edgespec.converters import gguf as gguf_writer  # noqa: PLC0415

        if self.checkpoint is not None:
            gguf_writer.add_vocabulary_of(writer, self.checkpoint, self.tokens)
            return
        if self.path.suffix.lower() != ".gguf":
            raise ConversionError(
                f"{self.path} is an ONNX model, whose tokens a GGUF file cannot take; give its checkpoint or GGUF file"
            )
        for key, value, kind, inner in self._fields():
            writer.add_key_value(key, value, kind, inner)

    def _fields(self) -> Iterator[Field]:
        from gguf import GGUFReader  # noqa: PLC0415 - takes as long to import as all else here

        for key, field in GGUFReader(self.path).fields.items():
            if key.startswith("tokenizer.ggml."):
                kinds = [*field.types, None]
                yield key, field.contents(), kinds[0], kinds[1]


@dataclass(frozen=True, slots=True)
class _Words:
    tokens: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.tokens)

    def label(self, token: int) -> str:
        return self.tokens[token]
