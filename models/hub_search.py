"""What a hub has, seen before it is fetched: which file of a repository, what it takes, and a draft that goes with it.

Of a file only the head is read, a few megabytes. To find a draft, at most one search, `_LISTED` listings and `_TRIED`
heads are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from edgespec.backends import Labels, require_same_tokens
from edgespec.backends.gguf_header import Header
from edgespec.errors import HubError, ModelError, VocabularyMismatch

from . import fit
from .hub import Hub
from .listing import gguf, total
from .memory import memory
from .model_name import kin
from .model_source import TENTH, Source
from .registry import entries
from .sizes import Sizes, of_header

_SEARCHED, _LISTED, _TRIED = 100, 3, 4


@dataclass(frozen=True, slots=True)
class Seen:
    """A file on the hub: which, its head, None where it could not be read, what it takes, and the name of the usual
    one where that does not fit."""

    source: Source
    head: Header | None
    sizes: Sizes
    instead_of: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """A draft model, and in a few words why it is one."""

    source: Source
    why: str


def seen(source: Source, context: int = 0) -> Seen:
    """The file that `source` means, by what the hub holds now. Where no quantization was asked for, one that fits into
    memory with so many tokens of context, 0 for the default.

    Raises:
        HubError: the hub cannot be reached, or has no such file, or none that fits.
    """
    hub = Hub()
    listing = hub.listing(source.repo)
    files = source.choose()(listing)
    head = _head(hub, source.repo, files[0].name)
    usual = ""
    if not source.file and not source.quantization:
        room = fit.room(memory()) - _beside(head, total(files), context)
        chosen = gguf(room=max(0, room))(listing)
        if chosen != files:
            usual, files, head = files[0].name, chosen, _head(hub, source.repo, chosen[0].name)
    return _seen(Source(source.repo, files[0].name, "", total(files)), head, usual)


def draft_for(name: str, tokens: Labels, size: int) -> Match | None:
    """A model for the target of this name, with its tokens and at most a tenth of its `size` in bytes: the registry's,
    else the hub's of the same family.

    Raises:
        HubError: the hub cannot be reached.
    """
    hub = Hub()
    for candidate in islice(_candidates(hub, name, size // TENTH), _TRIED):
        head = _head(hub, candidate.source.repo, candidate.source.file)
        if head is not None and _same(tokens, head.vocabulary):
            return candidate
    return None


def _same(target: Labels, draft: Labels) -> bool:
    try:
        require_same_tokens(target, draft)
    except VocabularyMismatch:
        return False
    return True


def _candidates(hub: Hub, target: str, limit: int) -> Iterator[Match]:
    """What may draft for the target of this name, by names and sizes, the likeliest first."""
    ours = kin(target)
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
            yield Match(Source.of(file), f"the registry's draft for {known[file]}")
    found = [repo for repo in hub.search(ours.family, _SEARCHED) if (it := kin(repo)) and it.may_draft_for(ours)]
    for repo in sorted(found, key=lambda repo: _rank(repo, target))[:_LISTED]:
        try:
            files = gguf(room=limit)(hub.listing(repo))
        except HubError:
            continue
        if 0 < total(files) <= limit:
            yield Match(Source(repo, files[0].name, "", total(files)), f"of the family {ours.family}, found on the hub")


def _rank(repo: str, target: str) -> tuple[bool, bool, bool]:
    """The same family exactly, tuned or not as the target is, the same author; otherwise as they came."""
    ours, theirs = kin(target), kin(repo)
    if ours is None or theirs is None:
        return True, True, True
    return theirs.family != ours.family, theirs.tuned != ours.tuned, _author(repo) != _author(target)


def _author(repo: str) -> str:
    return repo.partition("/")[0]


def _seen(source: Source, head: Header | None, usual: str) -> Seen:
    return Seen(source, head, of_header(head, source.size) if head is not None else Sizes(source.size), usual)


def _head(hub: Hub, repo: str, file: str) -> Header | None:
    try:
        return hub.head(repo, file)
    except (HubError, ModelError):
        return None


def _beside(head: Header | None, size: int, context: int) -> int:
    """Bytes of cache and buffers, and of a draft model."""
    if head is None:
        return size // TENTH
    found = of_header(head, size)
    tokens = context or min(found.trained or fit.DEFAULT_CONTEXT, fit.DEFAULT_CONTEXT)
    return size // TENTH + (found.cache or 0) * tokens + found.computing(tokens)
