"""What is known of a model before it is loaded, wherever it lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgespec.backends import Labels
from edgespec.backends.gguf_header import header
from edgespec.errors import HubError

from .model_source import Source, vocabulary
from .sizes import Sizes, is_onnx, of_header, size_of, sizes


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a file that is here (`path`), or on the hub. `tokens` is None where nothing of the file was seen.

    `name` is how a user names it, or what he reads.
    """

    name: str
    size: int
    sizes: Sizes
    tokens: Labels | None = None
    template: str | None = None
    path: Path | None = None


def of_path(path: Path) -> Facts:
    """Of a GGUF file, or an ONNX model.

    Raises:
        ModelError: it cannot be read.
    """
    if is_onnx(path):
        tokens = vocabulary(path)
        return Facts(str(path), size_of(path), sizes(path), tokens, getattr(tokens, "template", None), path)
    head, size = header(path), size_of(path)
    return Facts(str(path), size, of_header(head, size), head.vocabulary, head.template, path)


def of_source(source: Source) -> Facts:
    """Of the file in the cache, else of the one on the hub; of a file of the registry its size alone where the hub is
    out of reach.

    Raises:
        HubError: the hub cannot be reached, or has no such file.
    """
    if (path := source.here()) is not None:
        return of_path(path)
    from . import hub_search  # noqa: PLC0415

    try:
        seen = hub_search.seen(source)
    except HubError:
        if not source.size:
            raise
        return Facts(str(source), source.size, Sizes(source.size))
    tokens, template = (seen.head.vocabulary, seen.head.template) if seen.head is not None else (None, None)
    return Facts(str(seen.source), seen.source.size, seen.sizes, tokens, template)
