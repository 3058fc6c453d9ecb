"""Inspection of hub files before they are fetched, and the search for a draft on the hub.

Only the header of a file is read, a few megabytes. A search for a draft makes at most one search request, `_LISTED`
requests for listings and `_TRIED` for headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from edgespec.backends import Labels, require_same_tokens
from edgespec.backends.gguf_header import Header
from edgespec.errors import HubError, ModelError, VocabularyMismatch

from . import fit
from .draft_head import is_alone
from .hub import Hub
from .listing import gguf, is_projector, total
from .memory import machine_memory
from .model_name import parse_name
from .model_source import MIN_SIZE_RATIO, Source
from .registry import entries
from .sizes import Sizes, of_header

_SEARCHED, _LISTED, _TRIED = 100, 3, 4


@dataclass(frozen=True, slots=True)
class HubModel:
    """A file on the hub.

    Args:
        source: its repository, name and size.
        head: its header; None where it could not be read.
        sizes: what it takes in memory.
        instead_of: the name of the file with the default quantization, if that does not fit into memory.
        pictures: whether the repository has an image projector, so that the model is made to read pictures, too.
    """

    source: Source
    head: Header | None
    sizes: Sizes
    instead_of: str = ""
    pictures: bool = False


@dataclass(frozen=True, slots=True)
class DraftMatch:
    """A draft model on the hub, and the reason why it was chosen, for the user."""

    source: Source
    why: str


def inspect(source: Source, context: int = 0) -> HubModel:
    """The file that `source` means in the repository as it is now.

    Args:
        source: where it names neither file nor quantization, a file is chosen that fits into memory.
        context: tokens of context that must fit into memory beside it; 0 for the default.

    Raises:
        HubError: the hub cannot be reached, or has no such file, or none that fits.
    """
    hub = Hub()
    revision = source.revision or "main"
    listing = hub.listing(source.repo, revision)
    files = source.choose()(listing)
    head = _head(hub, source.repo, files[0].name, revision)
    usual = ""
    if not source.file and not source.quantization:
        room = fit.room(machine_memory()) - _other_bytes(head, total(files), context)
        chosen = gguf(room=max(0, room))(listing)
        if chosen != files:
            usual, files, head = files[0].name, chosen, _head(hub, source.repo, chosen[0].name, revision)
    found = replace(source, file=files[0].name, quantization="", size=total(files))
    return _seen(found, head, usual, any(is_projector(file.name) for file in listing.files))


def find_draft(name: str, tokens: Labels, size: int) -> DraftMatch | None:
    """Find a draft for a target: the registry's, else one of the same family on the hub.

    Args:
        name: repository or file name of the target.
        tokens: the target's vocabulary, which the draft must share.
        size: bytes of the target; a draft has at most a tenth of them.

    Raises:
        HubError: the hub cannot be reached.
    """
    hub = Hub()
    for candidate in islice(_candidates(hub, name, size // MIN_SIZE_RATIO), _TRIED):
        head = _head(hub, candidate.source.repo, candidate.source.file)
        if head is not None and not is_alone(head) and _same(tokens, head.vocabulary):
            return candidate
    return None


def _same(target: Labels, draft: Labels) -> bool:
    try:
        require_same_tokens(target, draft)
    except VocabularyMismatch:
        return False
    return True


def _candidates(hub: Hub, target: str, limit: int) -> Iterator[DraftMatch]:
    """Possible drafts for the target of this name, by names and sizes, the best match first."""
    ours = parse_name(target)
    if ours is None:
        return
    plain = ours.family.replace("-", "").replace("_", "")
    known = {
        entry.draft: entry.vocabulary
        for entry in entries().values()
        if entry.draft is not None and entry.vocabulary and plain.startswith(entry.vocabulary)
    }
    for file in sorted(known, key=lambda file: _rank(file.repo, target)):
        if file.size <= limit:
            yield DraftMatch(Source.of(file), f"the registry's draft for {known[file]}")
    found = [repo for repo in hub.search(ours.family, _SEARCHED) if (it := parse_name(repo)) and it.may_draft_for(ours)]
    for repo in sorted(found, key=lambda repo: _rank(repo, target))[:_LISTED]:
        try:
            files = gguf(room=limit)(hub.listing(repo))
        except HubError:
            continue
        if 0 < total(files) <= limit:
            yield DraftMatch(
                Source(repo, files[0].name, "", total(files)), f"of the family {ours.family}, found on the hub"
            )


def _rank(repo: str, target: str) -> tuple[bool, bool, bool]:
    """A sort key: exactly the same family first, then the same tuning, then the same author."""
    ours, theirs = parse_name(target), parse_name(repo)
    if ours is None or theirs is None:
        return True, True, True
    return theirs.family != ours.family, theirs.tuned != ours.tuned, _author(repo) != _author(target)


def _author(repo: str) -> str:
    return repo.partition("/")[0]


def _seen(source: Source, head: Header | None, usual: str, pictures: bool) -> HubModel:
    known = source.listed.sizes if source.listed is not None else Sizes(source.size)
    return HubModel(source, head, of_header(head, source.size) if head is not None else known, usual, pictures)


def _head(hub: Hub, repo: str, file: str, revision: str = "main") -> Header | None:
    try:
        return hub.head(repo, file, revision)
    except (HubError, ModelError):
        return None


def _other_bytes(head: Header | None, size: int, context: int) -> int:
    """Bytes of cache, recurrent states, buffers and a draft model."""
    if head is None:
        return size // MIN_SIZE_RATIO
    found = of_header(head, size)
    tokens = context or min(found.trained or fit.DEFAULT_CONTEXT, fit.DEFAULT_CONTEXT)
    return size // MIN_SIZE_RATIO + found.cached(tokens) + found.states + found.computing(tokens)
