"""Checks of the output folder: whether it holds a run, or files that `edgespec bench` did not write."""

from __future__ import annotations

from pathlib import Path

from ..errors import OptionError
from . import journal, report

_LOOKED_AT = 4096  # bytes of a file by which its kind is recognized


def prepared(folder: Path, *, resume: bool, force: bool) -> Path:
    """The path of the journal of a run in `folder`.

    Raises:
        OptionError: the folder holds a run, and neither `resume` nor `force` is given; or a file that `edgespec bench`
            did not write has the name of one that it would write, which only `force` overwrites.
    """
    names = (journal.NAME, *report.NAMES)
    for path in (folder / name for name in names):
        if path.exists() and not path.is_file():
            raise OptionError(f"{path} is not a file and cannot be overwritten; move it, or give another --out")
        if not force and not _ours(path):
            raise OptionError(
                f"{path} was not written by `edgespec bench`, which would overwrite it; give another --out, or --force"
            )
    kept = folder / journal.NAME
    if force:
        return kept
    if journal.holds_run(kept):
        if not resume:
            raise OptionError(
                f"{folder} holds a run; --resume continues it, --force begins a new one, or give another --out"
            )
    elif any((folder / name).exists() for name in report.NAMES):
        raise OptionError(
            f"{folder} holds the report of a run without its answers, {journal.NAME}; --force begins a new run, or "
            "give another --out"
        )
    return kept


def _ours(path: Path) -> bool:
    """Whether `path` was written by `edgespec bench`, is empty, or does not exist."""
    try:
        with path.open("rb") as file:
            data = file.read(_LOOKED_AT)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}; give another --out") from error
    if not data:
        return True
    return journal.is_journal(data) if path.name == journal.NAME else report.is_report(path.name, data)
