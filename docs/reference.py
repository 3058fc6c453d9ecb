"""Writes the API reference from docstrings with pdoc: python docs/reference.py FOLDER."""

from __future__ import annotations

import sys
import typing
import warnings
from pathlib import Path

import pdoc

import edgespec


def main(folder: Path) -> None:
    """Write the reference; warnings of pdoc are errors."""
    for name in edgespec.__all__:
        value = getattr(edgespec, name)
        if isinstance(value, type) and issubclass(value, tuple):
            # The constructor of a NamedTuple has no module of its own, so pdoc cannot resolve its annotations.
            value.__new__.__annotations__ = typing.get_type_hints(value)
    warnings.filterwarnings("error", module="pdoc")
    pdoc.render.configure(docformat="google")
    pdoc.pdoc("edgespec", output_directory=folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
