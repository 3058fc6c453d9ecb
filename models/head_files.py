"""Heads in files of their own: whether they fit a target, and which of them lie beside it, by metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec.backends import Labels, state_head_kind
from edgespec.backends.gguf_header import Header, header
from edgespec.backends.head_fit import is_same
from edgespec.backends.head_header import EAGLE3, fits_rows, target_layers
from edgespec.errors import EdgespecError

from . import draft_head
from .graph_file import ONNX, graph_in, is_graph
from .sizes import size_of

MOST_OPENED = 8  #: files that are opened in a search
_FINAL = "output_norm"  # the output of an ONNX model with the states that heads read


@dataclass(frozen=True, slots=True)
class HeadTarget:
    """A model that heads draft for.

    Args:
        path: its GGUF file, or the graph of a converted ONNX model.
        width: numbers of a hidden row.
        vocabulary: its tokens.
        header: of a GGUF file, else None.
        layers: how many it has.
        rows: the names of the hidden rows that an ONNX model gives.
    """

    path: Path
    width: int
    vocabulary: Labels
    header: Header | None = None
    layers: int = 0
    rows: frozenset[str] = frozenset()

    @classmethod
    def of(cls, target: Path) -> HeadTarget | None:
        """The model at `target`; None for an OpenVINO IR model, which gives no hidden rows.

        Raises:
            ModelError: it cannot be read.
        """
        if not is_graph(target):
            own = header(target)
            return cls(target, own.number("embedding_length"), own.vocabulary, own)
        file = graph_in(target)
        if file.suffix.lower() != Path(ONNX).suffix:
            return None
        from edgespec.backends import onnx_file  # noqa: PLC0415 - needs protobuf
        from edgespec.backends.onnx_vocabulary import OnnxVocabulary, TokenizerFiles  # noqa: PLC0415

        model = onnx_file.read(file)
        words = OnnxVocabulary(TokenizerFiles(file.parent), model.vocabulary)
        return cls(file, model.hidden, words, None, model.layers, model.rows)

    def is_fitted_by(self, head: Path) -> bool:
        """Whether the file `head` holds a head for this model, as far as metadata tell.

        Raises:
            ModelError: it is a GGUF file that cannot be read, or a damaged head.
        """
        if state_head_kind(head):
            return self._has_states_for(head)
        if head.suffix.lower() != ".gguf":
            return False
        found = header(head)
        if self.header is not None:
            return draft_head.fits(self.header, found)
        if found.architecture != EAGLE3 or not {"token_embd.weight", "output.weight"} <= found.tensors.keys():
            return False  # others read the cache of a GGUF target, or borrow its matrices
        given = {f"hidden.{layer - 1}" for layer in target_layers(found)} <= self.rows
        return given and fits_rows(found, self.width, self.layers, self.vocabulary.size)

    def _has_states_for(self, head: Path) -> bool:
        from edgespec.backends.onnx_head import read_head  # noqa: PLC0415 - needs protobuf

        found = read_head(head)
        if self.header is None and _FINAL not in self.rows:
            return False
        return found.width == self.width and is_same(found.vocabulary, self.vocabulary)


def beside(target: Path) -> Path | None:
    """The smallest file with a head for the model at `target`: in its folder, then beside the folder of a graph.

    Raises:
        ModelError: the target cannot be read.
    """
    model = HeadTarget.of(target)
    if model is None:
        return None
    for path in _others(target, model.path):
        with suppress(EdgespecError, OSError):
            if model.is_fitted_by(path):
                return path
    return None


def _others(target: Path, model: Path) -> Iterator[Path]:
    """Files that may hold a head, the smallest first."""
    folders = [model.parent, *([model.parent.parent] if is_graph(target) else [])]
    for folder in folders:
        found = [path for kind in ("*.gguf", "*.onnx") for path in folder.glob(kind) if path.is_file()]
        yield from sorted((path for path in found if path != model), key=size_of)[:MOST_OPENED]


def shape(head: Path) -> Iterator[str]:
    """What a file with a head holds, and for which target, in lines.

    Raises:
        ModelError: it cannot be read.
    """
    if kind := state_head_kind(head):
        from edgespec.backends.onnx_head import read_head  # noqa: PLC0415 - needs protobuf

        found = read_head(head)
        heads = f"{found.heads} head{'s' if found.heads != 1 else ''}"
        parts = f"{heads}, {found.rows} tokens each, {found.parameters / 1e6:.1f} M weights"
        yield f"shape: {kind}, {parts}, {found.quantization}"
        yield f"made for: {found.target}, with states of {found.width} numbers and {found.target_tokens} tokens"
        return
    yield from _of_header(header(head))


def _of_header(head: Header) -> Iterator[str]:
    output = head.tensors.get("output.weight")
    rows = f", {output.shape[-1]} rows in its output matrix" if output is not None else ""
    width = head.number("embedding_length")
    if head.architecture != EAGLE3:
        named = f" of {head.name}" if head.name else ""
        yield f"shape: {draft_head.head_layers(head) or head.layers} layers{named}, {width} wide{rows}"
        return
    layers = ", ".join(map(str, target_layers(head)))
    own = "its own" if "token_embd.weight" in head.tensors else "its target's, so it drafts for GGUF targets only"
    yield f"shape: eagle3, {head.layers} layer, {width} wide{rows or ', the output matrix of its target'}"
    yield (
        f"made for: rows of {head.number('target_hidden_size')} numbers of the layers {layers}, and "
        f"{head.vocabulary.size} tokens; embeddings: {own}"
    )
