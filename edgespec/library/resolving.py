"""From the names that a user gives to files: a target and its draft model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..runtime.loading import Files, path_of
from ..storage import pair_file as pairfile
from .converting import converted
from .fetching import fetched, notice_pictures
from .job import Job


def resolve(model: str | Path | None, draft: str | Path | None, job: Job, *, context: int = 0) -> Files:
    """The files of a target and its draft model, downloaded and converted if necessary.

    Args:
        model: as in `edgespec.load`; None is the bundled demo pair.
        draft: as in `edgespec.load`. Without a name, a draft model is searched by its file name in the folder of the
            target, in the registry, among local files, and on the hub for a target from there.
        context: tokens of context that must fit into memory with a file that is chosen; 0 for the default.

    Raises:
        OptionError: an unknown name, or downloading is not allowed.
        HubError: the target cannot be downloaded.
        ConversionError: a checkpoint cannot be converted.
        ModelFileError: a pair file is invalid.
        Interrupted: the job was stopped.
    """
    job.check()
    look = draft in (None, "auto")
    files = _target(model, job, look=look, context=context)
    _notice_projector(files.target, job)
    if draft == "none":
        return replace(files, draft=None, found=False)
    if not look:
        return Files(files.target, _draft(path_of("draft", draft), draft, job))
    if files.draft is None and model is not None and _exists(files.target):
        from edgespec.models import model_source  # noqa: PLC0415

        return replace(files, draft=model_source.local_draft(files.target), found=True)
    return files


def _target(model: str | Path | None, job: Job, *, look: bool, context: int) -> Files:
    """The target and its draft, by a pair file or the folder of the target; with `look`, by the registry or the hub."""
    from edgespec import models  # noqa: PLC0415

    if model is None:
        demo = models.demo()
        return Files(demo.target, demo.draft, found=True)
    path = path_of("model", model)
    if isinstance(model, str):
        from edgespec.models import model_source  # noqa: PLC0415

        if (known := model_source.resolve_name(model)) is not None:
            wanted = known.draft if look else None
            notice_pictures(known.entry is not None and known.entry.pictures, job)
            return Files(*fetched(known.target, wanted, job, context=context, look=look), found=True)
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
