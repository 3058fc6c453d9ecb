"""The target that an EAGLE-3 head is converted for: its sizes, and the tokens that the head's file repeats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.backends.gguf_header import header
from edgespec.backends.head_header import head_layers, is_alone
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.stored_tensor import StoredTensor
from edgespec.errors import ConversionError

#: Key, value, type, and the type of the elements of an array, as `gguf.GGUFWriter.add_key_value` takes them.
Field = tuple[str, Any, Any, Any]
_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "language_model.model.embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class Eagle3Target:
    """A target model.

    Args:
        path: its GGUF file or checkpoint folder.
        layers: how many it has.
        hidden: numbers of a hidden row.
        vocabulary: how many tokens.
        checkpoint: the folder, opened; None for a GGUF file.
        embedding: its matrix of embeddings, None for a GGUF file.
    """

    path: Path
    layers: int
    hidden: int
    vocabulary: int
    checkpoint: Checkpoint | None = None
    embedding: StoredTensor | None = None

    @classmethod
    def open(cls, path: Path) -> Eagle3Target:
        """Read the headers of the target at `path`.

        Raises:
            ConversionError: it is neither a GGUF file of a model nor a checkpoint that can be converted.
            ModelFileError: it is a GGUF file that cannot be read.
        """
        if path.suffix.lower() == ".gguf":
            head = header(path)
            if is_alone(head) or not head.vocabulary.size:
                raise ConversionError(f"{path} is not a model with a vocabulary; give the target of the head")
            layers = head.layers - head_layers(head)
            return cls(path, layers, head.number("embedding_length"), head.vocabulary.size)
        from edgespec.converters import decoder  # noqa: PLC0415

        checkpoint = Checkpoint.open(path)
        graph = decoder.read(checkpoint)
        embedding = next((checkpoint.tensors[name] for name in _EMBEDDINGS if name in checkpoint.tensors), None)
        return cls(path, graph.layers, graph.hidden, graph.vocabulary, checkpoint, embedding)

    def tokenizer(self, writer: Any) -> None:
        """Add its tokens to the GGUF file that `writer` writes."""
        from edgespec.converters import gguf as gguf_writer  # noqa: PLC0415

        if self.checkpoint is not None:
            gguf_writer.add_vocabulary_of(writer, self.checkpoint, self.vocabulary)
            return
        for key, value, kind, inner in self._fields():
            writer.add_key_value(key, value, kind, inner)

    def _fields(self) -> Iterator[Field]:
        from gguf import GGUFReader  # noqa: PLC0415 - takes as long to import as all else here

        for key, field in GGUFReader(self.path).fields.items():
            if key.startswith("tokenizer.ggml."):
                kinds = [*field.types, None]
                yield key, field.contents(), kinds[0], kinds[1]
