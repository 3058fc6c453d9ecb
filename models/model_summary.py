"""Vocabulary, template and sizes of a model that is not loaded: of a local file, or of a file on the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgespec.backends import Labels
from edgespec.backends.gguf_header import header
from edgespec.errors import HubError

from .graph_file import is_graph
from .model_source import Source, vocabulary
from .sizes import Sizes, of_header, size_of, sizes


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model file, local or on the hub.

    Args:
        name: its path, or its repository and file name.
        size: bytes of the file, about.
        sizes: what it takes in memory.
        tokens: its vocabulary; None where its header could not be read.
        template: its chat template, if it has one.
        path: the local file; None where it is only on the hub.
    """

    name: str
    size: int
    sizes: Sizes
    tokens: Labels | None = None
    template: str | None = None
    path: Path | None = None


def of_path(path: Path) -> ModelSummary:
    """The summary of a GGUF file, an ONNX model or an OpenVINO IR model.

    Raises:
        ModelError: it cannot be read.
    """
    if is_graph(path):
        tokens = vocabulary(path)
        return ModelSummary(str(path), size_of(path), sizes(path), tokens, getattr(tokens, "template", None), path)
    head, size = header(path), size_of(path)
    return ModelSummary(str(path), size, of_header(head, size), head.vocabulary, head.template, path)


def of_source(source: Source) -> ModelSummary:
    """The summary of the file in the cache, else of the one on the hub.

    If the hub cannot be reached, a file of the registry is summarized by its size alone.

    Raises:
        HubError: the hub cannot be reached, or has no such file.
    """
    if (path := source.here()) is not None:
        return of_path(path)
    from . import hub_search  # noqa: PLC0415

    try:
        seen = hub_search.inspect(source)
    except HubError:
        if not source.size:
            raise
        return ModelSummary(str(source), source.size, Sizes(source.size))
    tokens, template = (seen.head.vocabulary, seen.head.template) if seen.head is not None else (None, None)
    return ModelSummary(str(seen.source), seen.source.size, seen.sizes, tokens, template)
