"""Heads and PARD drafts that others published, by their targets: public_drafts.toml."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .listing import split_page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FILE = Path(__file__).parent / "public_drafts.toml"
_BYTES = 1.0625  # of a weight of 8 bits with a scale for each 32, as the converters write by default


@dataclass(frozen=True, slots=True)
class PublicDraft:
    """A head, or a PARD draft, on the hub.

    Args:
        repo: its repository.
        kind: the name of the drafter that uses it.
        made_for: the model, or the family, that it was trained for.
        targets: the names of the registry that it drafts for.
        verified: what was checked, and where.
        file: a GGUF file in the repository that needs no conversion; empty for a checkpoint.
        reads: weights that a guess reads, or a pass where one makes several guesses; 0 where not known.
        size: bytes of its weights on the hub; 0 where not known.
        note: what else decides its price.
    """

    repo: str
    kind: str
    made_for: str
    targets: tuple[str, ...]
    verified: str
    file: str = ""
    reads: int = 0
    size: int = 0
    note: str = ""

    def share(self, size: int) -> float:
        """The bytes that a guess reads, of the bytes of a target's file, as the converters write it by default."""
        return self.reads * _BYTES / size


@cache
def entries() -> tuple[PublicDraft, ...]:
    """All of them."""
    tables = tomllib.loads(_FILE.read_text("utf-8"))["draft"]
    return tuple(PublicDraft(**{**table, "targets": tuple(table["targets"])}) for table in tables)


def made_for(name: str) -> list[PublicDraft]:
    """Those for the target of this name in the registry."""
    return [draft for draft in entries() if name in draft.targets]


def in_repository(text: str) -> PublicDraft | None:
    """The checkpoint in the repository `text`, given as org/name or by the address of its page; None for others."""
    page = split_page(text)
    repo = page.repo if page is not None else text
    return next((draft for draft in entries() if draft.repo == repo and not draft.file), None)
