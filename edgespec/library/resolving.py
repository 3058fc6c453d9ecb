"""From the names that a user gives to files: a target and its drafts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TypeAlias

from ..errors import OptionError
from ..runtime.loading import Files, path_of
from ..storage import pair_file as pairfile
from .converting import converted
from .fetching import fetched, notice_pictures
from .job import Job

DEMO = "demo"  #: the name of the bundled pair, where there is no such file

#: A name, several, or none.
Drafts: TypeAlias = str | Path | Sequence[str | Path] | None


def resolve(model: str | Path | None, draft: Drafts, job: Job, *, context: int = 0) -> Files:
    """The files of a target and its drafts, downloaded and converted if necessary.

    Args:
        model: as in `edgespec.load`; None is the bundled demo pair, as is the name "demo".
        draft: as in `edgespec.load`. Without a name, a draft model is searched by its file name in the folder of the
            target, in the registry, among local files, and on the hub for a target from there.
        context: tokens of context that must fit into memory with a file that is chosen; 0 for the default.

    Raises:
        OptionError: an unknown name, a draft that is given twice, or downloading is not allowed.
        HubError: the target cannot be downloaded.
        ConversionError: a checkpoint cannot be converted.
        ModelFileError: a pair file is invalid.
        Interrupted: the job was stopped.
    """
    job.check()
    names = _names(draft)
    look = names == ("auto",)
    files = _target(model, job, look=look, context=context)
    _notice_projector(files.target, job)
    if not look:
        drafts = tuple(_draft(path_of("draft", name), name, job) for name in names)
        _require_distinct(drafts)
        return Files(files.target, drafts)
    if not files.drafts and model is not None and _exists(files.target):
        from edgespec.models import model_source  # noqa: PLC0415

        local = model_source.local_draft(files.target)
        return replace(files, drafts=(local,) if local is not None else (), found=True)
    return files


def _names(draft: Drafts) -> tuple[str | Path, ...]:
    """The names of the drafts; ("auto",) if they are to be found.

    Raises:
        OptionError: "auto" or "none" among others, or a name twice.
    """
    names = ("auto",) if draft is None else tuple(draft) if isinstance(draft, list | tuple) else (draft,)
    if len(names) > 1 and (alone := [name for name in names if name in ("auto", "none")]):
        raise OptionError(f"draft is {alone[0]} and {len(names) - 1} more; {alone[0]} stands alone, so leave it out")
    _require_distinct(names)
    return () if names == ("none",) else names


def _require_distinct(drafts: Sequence[str | Path]) -> None:
    """OptionError if two of `drafts` are the same name or file: the second would guess what the first did."""
    for one, other in combinations(drafts, 2):
        same = one == other
        with suppress(OSError, ValueError, TypeError):  # opening the file reports the error
            same = same or Path(one).samefile(other)
        if same:
            raise OptionError(f"the draft {other} is given twice; give each draft once")


def _target(model: str | Path | None, job: Job, *, look: bool, context: int) -> Files:
    """The target and its draft, by a pair file or the folder of the target; with `look`, by the registry or the hub."""
    from edgespec import models  # noqa: PLC0415

    if model is None or (model == DEMO and not Path(DEMO).exists()):
        demo = models.demo()
        return Files(demo.target, demo.drafts, found=True)
    path = path_of("model", model)
    if isinstance(model, str):
        from edgespec.models import model_source  # noqa: PLC0415

        if (known := model_source.resolve_name(model)) is not None:
            wanted = known.draft if look else None
            notice_pictures(known.entry is not None and known.entry.pictures, job)
            target, draft = fetched(known.target, wanted, job, context=context, look=look)
            return Files(target, (draft,) if draft is not None else (), found=True)
    path = converted(path, job)
    return Files(*models.with_draft(path), found=pairfile.at(path) is None)


def _notice_projector(target: Path, job: Job) -> None:
    """Say that pictures are not read, if there is an image projector beside a GGUF file."""
    from edgespec.models.listing import is_projector  # noqa: PLC0415

    if target.suffix.lower() == ".gguf":
        with suppress(OSError):  # opening the target reports the error
            notice_pictures(any(is_projector(each.name) for each in target.parent.iterdir()), job)


def _draft(path: Path, draft: object, job: Job) -> Path:
    """The file of a draft model that was named."""
    if isinstance(draft, str):
        from edgespec.models import model_source  # noqa: PLC0415

        if (named := model_source.resolve_name(draft)) is not None:
            return fetched(named.target, None, job)[0]
    return converted(path, job)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or an invalid one: reported when it is opened
        return False
