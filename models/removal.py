"""Removal of a model from the cache that the Hugging Face tools share: its names in all commits, then its content.

Nothing outside of that cache is deleted, and no other file of the repository. A draft stays: others may use it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import HubError, OptionError

from .hub import Hub
from .model_source import Source, resolve_name


@dataclass(frozen=True, slots=True)
class Removal:
    """What is to be deleted.

    Args:
        repo: the repository.
        names: the paths of its files in the repository.
        links: their paths in all commits that have the same content.
        contents: the files that hold it.
        draft: the draft that is fetched with this model and stays; empty if there is none here.
    """

    repo: str
    names: tuple[str, ...]
    links: tuple[Path, ...]
    contents: tuple[Path, ...]
    draft: str = ""

    @property
    def size(self) -> int:
        """Bytes that are freed."""
        return sum(path.stat().st_size for path in self.contents)

    def carry_out(self) -> None:
        """Delete them; the repository's folder, too, if it holds no other file.

        Raises:
            HubError: a file cannot be deleted, such as one that is in use on Windows.
        """
        folder = Hub().cache / f"models--{self.repo.replace('/', '--')}"
        try:
            for path in (*self.links, *self.contents):
                path.unlink(missing_ok=True)
            if not any(path.is_file() or path.is_symlink() for path in _inside(folder)):
                shutil.rmtree(folder)
        except OSError as error:
            raise HubError(
                f"{error.filename} cannot be deleted: {error.strerror}; close the programs that use it"
            ) from error


def _inside(folder: Path) -> Iterator[Path]:
    """What a repository's folder holds besides the notes of its branches."""
    for name in ("blobs", "snapshots"):
        yield from (folder / name).rglob("*")


def removal(name: str) -> Removal:
    """What `edgespec models rm NAME` deletes.

    Raises:
        OptionError: `name` is a path, is not in the cache, or stands for several files there.
    """
    known = resolve_name(name)
    if known is None:
        raise OptionError(f"{name} is a path; only models of the cache are removed, so delete it yourself")
    hub, source = Hub(), known.target
    _require_one(hub, source)
    found = hub.find(source.repo, source.choose(), source.revision or "main")
    if found is None:
        raise OptionError(f"{name} is not in the cache {hub.cache}; `edgespec models list` lists what is there")
    folder = hub.cache / f"models--{source.repo.replace('/', '--')}"
    contents = {path.resolve() for path in found.paths}
    if outside := [path for path in contents if folder.resolve() not in path.parents]:
        raise OptionError(f"{outside[0]} is outside of the cache, and a link leads there; delete it yourself")
    links = tuple(sorted(path for path in (folder / "snapshots").rglob("*") if path.resolve() in contents))
    names = tuple(dict.fromkeys(path.relative_to(folder / "snapshots").as_posix().split("/", 1)[1] for path in links))
    draft = known.draft
    stays = draft.repo if draft is not None and draft.repo != source.repo and draft.here() is not None else ""
    return Removal(source.repo, names, links, tuple(sorted(contents)), stays)


def _require_one(hub: Hub, source: Source) -> None:
    """OptionError where the repository has several models in the cache, and none of them is named."""
    if source.file or source.quantization:
        return
    names = sorted({path.name for repo, path in hub.models() if repo == source.repo})
    if len(names) > 1:
        raise OptionError(f"{source.repo} has {', '.join(names)} in the cache; name one, as {source.repo}:Q8_0")
