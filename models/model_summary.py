"""Vocabulary, template and sizes of a model that is not loaded: of a local file, or of a file on the hub."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.backends import Labels, exit_layer, parallel, state_head_kind
from edgespec.backends.gguf_header import Header, header
from edgespec.errors import HubError

from .draft_head import drafter_of, drafts, has_head, is_alone, layers_kept, used_in
from .graph_file import described, is_graph
from .listing import is_projector
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
        has_head: whether it holds a head that drafts (`draft_head`).
        pictures: whether it has an image projector, and so is made to read pictures, too.
        architecture: its name in a GGUF file; empty where not known.
        head_drafts: whether this version drafts with the head that it holds.
        head_alone: whether it holds a head without its model.
        drafter: the name of the drafter that uses such a head; empty for others.
        guesses: tokens that a pass guesses, of a draft model that guesses several (PARD).
        layers_kept: of a draft model that is made of layers of its target, these layers, as ranges; else empty.
        exit_layer: how many of its own first layers draft for it; 0 if none do.
    """

    name: str
    size: int
    sizes: Sizes
    tokens: Labels | None = None
    template: str | None = None
    path: Path | None = None
    has_head: bool = False
    pictures: bool = False
    architecture: str = ""
    head_alone: bool = False
    head_drafts: bool = False
    drafter: str = ""
    guesses: int = 1
    layers_kept: str = ""
    exit_layer: int = 0


def of_path(path: Path) -> ModelSummary:
    """The summary of a GGUF file, an ONNX model or head, or an OpenVINO IR model.

    Raises:
        ModelError: it cannot be read.
    """
    if state_head_kind(path):
        return _of_head(path)
    if is_graph(path):
        tokens = vocabulary(path)
        template = getattr(tokens, "template", None)
        found = ModelSummary(str(path), size_of(path), sizes(path), tokens, template, path)
        guesses = _guesses(getattr(described(path), "parallel", None))
        return replace(found, guesses=guesses, exit_layer=exit_layer(path))
    size = size_of(path)
    pictures = any(is_projector(each.name) for each in path.parent.iterdir())
    return replace(_of_header(header(path), str(path), size), path=path, pictures=pictures)


def of_source(source: Source) -> ModelSummary:
    """The summary of the file in the cache, else of the one on the hub.

    If the hub cannot be reached, a file of the registry is summarized by what that knows.

    Raises:
        HubError: the hub cannot be reached, or has no such file.
    """
    if (path := source.here()) is not None:
        return of_path(path)
    from . import hub_search  # noqa: PLC0415

    try:
        seen = hub_search.inspect(source)
    except HubError:
        if not source.size and source.listed is None:
            raise
        if source.listed is None:
            return ModelSummary(str(source), source.size, Sizes(source.size))
        architecture = source.listed.memory.architecture
        return ModelSummary(str(source), source.size, source.listed.sizes, architecture=architecture)
    name, size = str(seen.source), seen.source.size
    if seen.head is None:
        return ModelSummary(name, size, seen.sizes, pictures=seen.pictures)
    return replace(_of_header(seen.head, name, size), sizes=seen.sizes, pictures=seen.pictures)


def _of_head(path: Path) -> ModelSummary:
    """Of a head that edgespec converted to ONNX."""
    from edgespec.backends.onnx_head import read_head  # noqa: PLC0415 - needs protobuf

    head, size = read_head(path), size_of(path)
    return ModelSummary(
        str(path), size, sizes(path), head.vocabulary, path=path, head_alone=True, head_drafts=True, drafter=head.kind
    )


def _of_header(head: Header, name: str, size: int) -> ModelSummary:
    return ModelSummary(
        name,
        size,
        of_header(head, size),
        head.vocabulary,
        head.template,
        has_head=has_head(head),
        architecture=head.architecture,
        head_alone=is_alone(head),
        head_drafts=used_in(head),
        drafter=drafter_of(head) if is_alone(head) and drafts(head) else "",
        guesses=_guesses(_parallel(head)),
        layers_kept=layers_kept(head),
    )


def _parallel(head: Header) -> parallel.Parallel | None:
    try:
        return parallel.read(head.fields, parallel.GGUF_MASK, head.vocabulary.size)
    except ValueError:  # it is refused when it is loaded
        return None


def _guesses(found: parallel.Parallel | None) -> int:
    return found.guesses if found is not None else 1
