"""What a user's model argument means: a path, a name of the registry, or org/repo on the hub; and local drafts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.backends import Labels, exit_layer, require_same_tokens
from edgespec.backends.gguf_header import header
from edgespec.errors import EdgespecError, OptionError

from . import head_files
from .draft_head import is_alone, is_used, used_in
from .graph_file import described, graph_in, is_graph
from .listing import is_model, split_name, split_page
from .registry import Entry, HubFile, entries
from .sizes import size_of

if TYPE_CHECKING:
    from .hub import OnProgress, Pulled
    from .listing import Choose

# The hub's package takes a third of a second to import, so it is imported only where a hub is needed.

MIN_SIZE_RATIO = 10  #: bytes of a target over bytes of its draft model, at least
_MAIN = "main"  # the branch of a repository


@dataclass(frozen=True, slots=True)
class Source:
    """A model on the hub.

    Args:
        repo: its repository.
        file: the GGUF file; empty where `quantization` chooses it.
        quantization: of the file; empty for the default.
        size: bytes, about; 0 where only the hub knows.
        revision: the commit that has it; empty for the newest of the main branch.
        listed: its file in the registry, if it is from there.
    """

    repo: str
    file: str = ""
    quantization: str = ""
    size: int = 0
    revision: str = ""
    listed: HubFile | None = field(default=None, compare=False)

    @classmethod
    def of(cls, file: HubFile) -> Source:
        return cls(file.repo, file.file, file.quantization, file.size, file.revision, file)

    def choose(self) -> Choose:
        from .listing import file_named, gguf  # noqa: PLC0415

        return file_named(self.file) if self.file else gguf(self.quantization)

    def here(self) -> Path | None:
        """The file, if it is in the cache. Makes no request."""
        from .hub import Hub  # noqa: PLC0415

        found = Hub().find(self.repo, self.choose(), self.revision or _MAIN)
        return found.paths[0] if found else None

    def pull(self, on_progress: OnProgress | None = None) -> Pulled:
        """Download it. Raises HubError."""
        from .hub import Hub  # noqa: PLC0415

        return Hub().pull(self.repo, self.choose(), revision=self.revision or _MAIN, on_progress=on_progress)

    def __str__(self) -> str:
        return f"{self.repo} {self.file or self.quantization}".rstrip()


@dataclass(frozen=True, slots=True)
class ResolvedName:
    """The target and the draft that a name means; `entry` is set for a name of the registry."""

    target: Source
    draft: Source | None = None
    entry: Entry | None = None


def resolve_name(text: str) -> ResolvedName | None:
    """Resolve a name of the registry, a repository, or the address of a hub page.

    None where `text` is a path: what exists is a path, and so is what looks like one.

    Raises:
        OptionError: `text` is none of these, or a page of another revision than main.
    """
    path = Path(text)
    if not text or text == "." or _exists(path):
        return None
    if (page := split_page(text)) is not None and page.file:
        return ResolvedName(Source(page.repo, page.file))
    text = page.name if page is not None else text
    if page is None and path.suffix.lower() in {".gguf", ".json"}:
        return None
    if (entry := entries().get(text)) is not None:
        return ResolvedName(Source.of(entry.target), Source.of(entry.drafting) if entry.drafting else None, entry)
    if "/" not in text and "\\" not in text:
        raise OptionError(
            f"no model at {text}, and none of that name is known{_suggestion(text)}: `edgespec models list` lists "
            "names; or give a .gguf file, or org/repo on the hub"
        )
    return _of_repository(text)


def _of_repository(text: str) -> ResolvedName | None:
    """The registry's pair whose target is in this repository, else the repository; None where `text` is a path."""
    repo = split_name(text.replace("\\", "/"))
    if repo is None or _exists(Path(text.replace("\\", "/").split("/")[0])):
        return None
    known = next((each for each in entries().values() if each.target.repo == repo[0] and not repo[1]), None)
    if known is not None and known.drafting is not None:
        return ResolvedName(Source.of(known.target), Source.of(known.drafting), known)
    return ResolvedName(Source(repo[0], quantization=repo[1]))


def _suggestion(text: str) -> str:
    """A hint with the known name closest to `text`; empty if none is close."""
    close = get_close_matches(text.lower(), entries(), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def local_draft(target: Path) -> Path | None:
    """What drafts for a target on this machine: a head for it in a file in its folder (or beside the folder of an ONNX
    model), else the largest local model with its vocabulary and at most a tenth of its bytes. None for a target whose
    own file holds a head, or whose first layers draft.

    The search for models covers the target's folder, and the GGUF files in the cache of the Hugging Face tools.
    """
    try:
        if is_used():
            if exit_layer(target) if is_graph(target) else used_in(header(target)):
                return None
            if (head := head_files.beside(target)) is not None:
                return head
        small = _small(_beside(target), size_of(target) // MIN_SIZE_RATIO)
        return _first_compatible(vocabulary(target), small) if small else None
    except (OSError, EdgespecError):  # opening the target reports the error
        return None


def cached_draft(tokens: Labels, limit: int) -> Path | None:
    """The largest model in the cache with these tokens and at most `limit` bytes."""
    return _first_compatible(tokens, _small((), limit))


def _small(beside: Iterable[Path], limit: int) -> list[Path]:
    """Those of the models `beside` and in the cache with at most `limit` bytes, the largest first."""
    from .hub import Hub  # noqa: PLC0415

    found = {path.resolve(): path for path in chain(beside, (path for _, path in Hub().models()))}
    sized = sorted(((size_of(path), path) for path in found.values()), key=lambda each: -each[0])
    return [path for size, path in sized if 0 < size <= limit][: head_files.MOST_OPENED]


def _first_compatible(tokens: Labels, paths: Iterable[Path]) -> Path | None:
    """The first of `paths` that is a model with these tokens."""
    for path in paths:
        with suppress(EdgespecError):
            head = None if is_graph(path) else header(path)
            if head is not None and is_alone(head):
                continue  # a head has its target's tokens, but runs on that only
            require_same_tokens(tokens, vocabulary(path) if head is None else head.vocabulary)
            return path
    return None


def vocabulary(path: Path) -> Labels:
    """The tokens of a GGUF file, an ONNX model or an OpenVINO IR model, without loading its weights.

    Raises:
        ModelError: it cannot be read.
    """
    if not is_graph(path):
        return header(path).vocabulary
    from edgespec.backends.onnx_vocabulary import OnnxVocabulary, TokenizerFiles  # noqa: PLC0415

    model = described(path)
    return OnnxVocabulary(TokenizerFiles(model.path.parent), model.vocabulary)


def _beside(target: Path) -> Iterator[Path]:
    """GGUF files in the folder of a GGUF file; beside the folder of a graph, the folders of others of its format."""
    if is_graph(target):
        graph = graph_in(target)
        found = graph.parent.parent.glob(f"*/{graph.name}")
        yield from (path.parent for path in found if path.parent != graph.parent)
        return
    for path in target.parent.glob("*.gguf"):
        if path.is_file() and is_model(path.name):
            yield path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, for example, can only be a path
        return True
