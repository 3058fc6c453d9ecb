"""What was made of the same files in the same way before is there, and need not be made again."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgespec.errors import ConversionError
from edgespec.storage.cache import Shelf

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Again:
    """A conversion, by all that its output depends on: the files as they were, and how they are to be converted."""

    output: Path
    recipe: dict[str, Any]

    @classmethod
    def of(cls, source: Path, output: Path, fmt: str, quantization: str) -> Again:
        """Look at the files of `source` now. ConversionError if they cannot be listed."""
        try:
            made_by = version("edgespec")
        except PackageNotFoundError:  # run from a bare checkout
            made_by = ""
        recipe = {"source": _listed(source), "format": fmt, "quantization": quantization, "edgespec": made_by}
        return cls(output, recipe)

    @property
    def is_there(self) -> bool:
        """Whether the output is what this very conversion made, untouched since."""
        return self._shelf.read() == {**self.recipe, "output": _listed(self.output)}

    def keep(self) -> None:
        """Note that the output was just made. Where that cannot be noted it is made again."""
        self._shelf.write({**self.recipe, "output": _listed(self.output)})

    @property
    def _shelf(self) -> Shelf:
        return Shelf("conversions", str(self.output.absolute()), _VERSION)


def _listed(path: Path) -> list[list[Any]]:
    """The file `path`, or the files in this folder and the folders in it: names, bytes and times."""
    try:
        files = sorted([path] if path.is_file() else [*path.glob("*"), *path.glob("*/*")])
        states = [(file, file.stat()) for file in files if file.is_file()]
    except OSError as error:
        raise ConversionError(f"{path} cannot be listed: {error.strerror or error}; mend its permissions") from error
    return [[file.relative_to(path.parent).as_posix(), state.st_size, state.st_mtime_ns] for file, state in states]
