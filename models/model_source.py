"""From what a user typed to files: a path, a name of the registry, or org/repo on the hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.backends import Labels, require_same_tokens
from edgespec.backends.gguf_header import header
from edgespec.errors import EdgespecError, OptionError

from .listing import is_model, split_name, split_page
from .registry import Entry, File, entries
from .sizes import is_onnx, size_of

if TYPE_CHECKING:
    from .hub import OnProgress, Pulled
    from .listing import Choose

# The hub's package takes a third of a second to load, and paths need none.

TENTH = 10  #: a draft model has at most this part of the target's bytes
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

    def pull(self, on_progress: OnProgress | None = None, revision: str = "main") -> Pulled:
        """Have it here. Raises HubError."""
        from .hub import Hub  # noqa: PLC0415

        return Hub().pull(self.repo, self.choose(), revision=revision, on_progress=on_progress)

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

    The address of a page of the hub names its repository, or its file.

    Raises:
        OptionError: it is neither, or a page of another revision than the main one.
    """
    path = Path(text)
    if not text or text == "." or _exists(path):
        return None
    if (page := split_page(text)) is not None and page.file:
        return Named(Source(page.repo, page.file))
    text = page.name if page is not None else text
    if page is None and path.suffix.lower() in {".gguf", ".json"}:
        return None
    if (entry := entries().get(text)) is not None:
        return Named(Source.of(entry.target), Source.of(entry.draft) if entry.draft else None, entry)
    if "/" not in text and "\\" not in text:
        raise OptionError(
            f"no model at {text}, and none of that name is known{_meant(text)}: `edgespec models list` lists names; or "
            "give a .gguf file, or org/repo on the hub"
        )
    return _of_repository(text)


def _of_repository(text: str) -> Named | None:
    """The pair of the registry whose target is of this repository, else the repository; None where it is a path."""
    repo = split_name(text.replace("\\", "/"))
    if repo is None or _exists(Path(text.replace("\\", "/").split("/")[0])):
        return None
    known = next((each for each in entries().values() if each.target.repo == repo[0] and not repo[1]), None)
    if known is not None and known.draft is not None:
        return Named(Source.of(known.target), Source.of(known.draft), known)
    return Named(Source(repo[0], quantization=repo[1]))


def _meant(text: str) -> str:
    """The name that `text` may be a slip of, said."""
    close = get_close_matches(text.lower(), entries(), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def local_draft(target: Path) -> Path | None:
    """The largest model that is here, shares the target's vocabulary and has at most a tenth of its bytes.

    Looked for beside it, and among the GGUF files in the cache of the Hugging Face tools.
    """
    try:
        small = _small(_beside(target), size_of(target) // TENTH)
        return _speaking(vocabulary(target), small) if small else None
    except (OSError, EdgespecError):  # what is wrong with the target is told when it is opened
        return None


def draft_here(tokens: Labels, limit: int) -> Path | None:
    """The same for a target that is not here: one with these tokens and at most `limit` bytes, in the cache."""
    return _speaking(tokens, _small((), limit))


def _small(beside: Iterable[Path], limit: int) -> list[Path]:
    """The models `beside` and in the cache with at most `limit` bytes, the largest first."""
    from .hub import Hub  # noqa: PLC0415

    found = {path.resolve(): path for path in chain(beside, (path for _, path in Hub().models()))}
    sized = sorted(((size_of(path), path) for path in found.values()), key=lambda each: -each[0])
    return [path for size, path in sized if 0 < size <= limit][:_LOOKED_AT]


def _speaking(tokens: Labels, paths: Iterable[Path]) -> Path | None:
    """The first of `paths` with these tokens."""
    for path in paths:
        with suppress(EdgespecError):
            require_same_tokens(tokens, vocabulary(path))
            return path
    return None


def vocabulary(path: Path) -> Labels:
    """The tokens of a GGUF file or of an ONNX model, its weights left alone.

    Raises:
        ModelError: it cannot be read.
    """
    if not is_onnx(path):
        return header(path).vocabulary
    from edgespec.backends.ort_file import read  # noqa: PLC0415
    from edgespec.backends.ort_vocabulary import OrtVocabulary, TokenizerFiles  # noqa: PLC0415

    described = read(path / "model.onnx" if path.is_dir() else path)
    return OrtVocabulary(TokenizerFiles(described.path.parent), described.vocabulary)


def _beside(target: Path) -> Iterator[Path]:
    """GGUF files beside a GGUF, folders of ONNX models beside one."""
    if is_onnx(target):
        folder = target if target.is_dir() else target.parent
        yield from (path.parent for path in folder.parent.glob("*/model.onnx") if path.parent != folder)
        return
    for path in target.parent.glob("*.gguf"):
        if path.is_file() and is_model(path.name):
            yield path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, say: a path then
        return True
