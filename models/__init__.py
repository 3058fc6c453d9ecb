"""The models that can be loaded: the bundled demo pair, pairs by name, files of a Hugging Face hub, local drafts.

registry.py       models and pairs by name: registry.toml, and the user's own file
public_drafts.py  heads and PARD drafts that others published
runtime_support.py  what of a model this version runs
draft_head.py     heads that draft for their target, by the header
head_files.py     heads in files of their own: what they are, and whether they fit a target
model_source.py   a name, a repository or a path to files; drafts on this machine
hub.py            downloads of hub files, checked by checksum
hub_errors.py     errors of the hub's package and of the disk as HubError
hub_metadata.py   checks of what a hub states, before it becomes part of a path
removal.py        the removal of files from the hub's cache
listing.py        the files of a repository, and the choice among them
partial_file.py   a file that is being downloaded
hub_search.py     what a hub file needs before it is fetched; the search for a draft on the hub
model_name.py     family and size of a model by its name
model_summary.py  vocabulary, template and sizes of a model that is not loaded
sizes.py          bytes of weights, caches, states and buffers
memory.py         free memory of the machine
fit.py            the context and the GPU layers that fit into memory
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from edgespec.storage import pair_file as pairfile

_DEMO = Path(__file__).parent / "demo"
DEMO_PROMPT = _DEMO / "rewrite.txt"  #: a file with a question that suits the bundled pair


class Pair(NamedTuple):
    """The files of a target and of its drafts."""

    target: Path
    drafts: tuple[Path, ...] = ()

    @property
    def draft(self) -> Path | None:
        """The first draft; None if there is none."""
        return next(iter(self.drafts), None)


def demo() -> Pair:
    """The bundled pair, 39 and 3 million parameters: it repeats, rewrites and quotes texts (demo/CARD.md)."""
    return Pair(_DEMO / "target.gguf", (_DEMO / "draft.gguf",))


def with_draft(target: Path) -> Pair:
    """The pair of a pair file, if `target` is one or a folder with one; else `target` and the draft model beside it.

    Raises:
        ModelFileError: a malformed pair file.
    """
    if (file := pairfile.at(target)) is not None:
        pair = pairfile.read(file)
        return Pair(pair.target, pair.drafts)
    draft = pairfile.beside(target)
    return Pair(target, (draft,) if draft is not None else ())
