"""From what a user typed to files: a path, a name of the registry, or org/repo on the hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.backends import require_same_tokens
from edgespec.errors import EdgespecError, ModelFileError, OptionError, VocabularyMismatch

from .registry import Entry, File, entries

if TYPE_CHECKING:
    from .hub import OnProgress, Pulled
    from .listing import Choose

# The hub's package takes a third of a second to load, and paths need none.

_TENTH = 10  # a draft model has at most this part of the target's bytes
_LOOKED_AT = 8  # files that are opened while a draft is looked for


@dataclass(frozen=True, slots=True)
class Source:
    """A model on the hub: its repository, and which file. `size` in bytes, about; 0 where only the hub knows."""

    repo: str
    file: str = ""
    quantization: str = ""
    size: int = 0

    @classmethod
    def of(cls, file: File) -> Source:
        return cls(file.repo, file.file, "", file.size)

    def choose(self) -> Choose:
        from .listing import gguf, named  # noqa: PLC0415

        return named(self.file) if self.file else gguf(self.quantization)

    def here(self) -> Path | None:
        """The file, if it is in the cache. Asks nobody."""
        from .hub import Hub  # noqa: PLC0415

        found = Hub().find(self.repo, self.choose())
        return found.paths[0] if found else None

    def pull(self, on_progress: OnProgress | None = None) -> Pulled:
        """Have it here. Raises HubError."""
        from .hub import Hub  # noqa: PLC0415

        return Hub().pull(self.repo, self.choose(), on_progress=on_progress)

    def __str__(self) -> str:
        return f"{self.repo} {self.file or self.quantization}".rstrip()


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for; `entry` where it is one of the registry's."""

    target: Source
    draft: Source | None = None
    entry: Entry | None = None


def named(text: str) -> Named | None:
    """What `text` names: None where it is a path, as what exists always is, and what looks like one.

    Raises:
        OptionError: it is neither.
    """
    path = Path(text)
    if not text or text == "." or _exists(path) or path.suffix.lower() in {".gguf", ".json"}:
        return None
    if (entry := entries().get(text)) is not None:
        return Named(Source.of(entry.target), Source.of(entry.draft) if entry.draft else None, entry)
    if "/" not in text and "\\" not in text:
        raise OptionError(
            f"no model at {text}, and none of that name is known: `edgespec models list` lists names; or give a .gguf "
            "file, or org/repo on the hub"
        )
    from .listing import split_name  # noqa: PLC0415

    repo = split_name(text.replace("\\", "/"))
    if repo is None or _exists(Path(text.replace("\\", "/").split("/")[0])):
        return None
    known = next((each for each in entries().values() if each.target.repo == repo[0] and not repo[1]), None)
    if known is not None and known.draft is not None:
        return Named(Source.of(known.target), Source.of(known.draft), known)
    return Named(Source(repo[0], quantization=repo[1]))


def local_draft(target: Path) -> Path | None:
    """The largest model that is here, shares the target's vocabulary and has at most a tenth of its bytes.

    Looked for beside it, and among the registry's files in the cache.
    """
    from .fit import size_of  # noqa: PLC0415
    from .header import header  # noqa: PLC0415

    try:
        limit = size_of(target) // _TENTH
        found = {path.resolve(): path for path in _models_here(target) if 0 < path.stat().st_size <= limit}
        candidates = sorted(found.values(), key=lambda path: -path.stat().st_size)[:_LOOKED_AT]
        if not candidates:
            return None
        with header(target) as ours:
            for path in candidates:
                try:
                    with header(path) as theirs:
                        require_same_tokens(ours.vocabulary, theirs.vocabulary)
                except (ModelFileError, VocabularyMismatch):
                    continue
                return path
    except (OSError, EdgespecError):  # what is wrong with the target is told when it is opened
        return None
    return None


def _models_here(target: Path) -> Iterator[Path]:
    for path in target.parent.glob("*.gguf"):
        if path.is_file() and "-of-0" not in path.name and not path.name.startswith("mmproj"):
            yield path
    files = {file for entry in entries().values() for file in (entry.target, entry.draft) if file is not None}
    for file in files:
        cached = Source.of(file).here()
        if cached is not None:
            yield cached


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, say: a path then
        return True
