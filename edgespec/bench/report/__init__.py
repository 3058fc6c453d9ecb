"""The files of a report: the raw data as JSON, tables as Markdown, tables and charts as HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from ...errors import OptionError
from ...storage.leftovers import put
from ..records import Run
from . import html, markdown

VERSION = 1  #: of the format of bench.json
#: The files of a report, and the pattern of their beginnings.
NAMES = {
    "bench.json": re.compile(rb'\{"version":\d+,"about":'),
    "report.md": re.compile(rb"# edgespec bench: "),
    "report.html": re.compile(rb"<!doctype html>.{0,999}?<title>edgespec bench: ", re.DOTALL),
}


def write(run: Run, folder: Path) -> list[Path]:
    """Write bench.json, report.md and report.html to `folder`, each complete or not at all. Returns their paths.

    Raises:
        OptionError: the folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in _texts(run):
            written.append(folder / name)
            put(written[-1], text)
    except OSError as error:
        raise OptionError(
            f"the report cannot be written to {folder}: {error.strerror or error}; correct that, and --resume writes "
            "it: the answers are kept"
        ) from error
    return written


def is_report(name: str, data: bytes) -> bool:
    """Whether `data` is the beginning of a file that `write` wrote under this name, one of `NAMES`."""
    return NAMES[name].match(data) is not None


def _texts(run: Run) -> Iterator[tuple[str, str]]:
    """The raw data first, from which the others can be made again."""
    yield "bench.json", json.dumps({"version": VERSION, **run.as_dict()}, separators=(",", ":")) + "\n"
    yield "report.md", markdown.page(run)
    yield "report.html", html.page(run)
