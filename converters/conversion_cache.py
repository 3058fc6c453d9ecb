"""A record of conversions, so that an output is not converted again while its source and its settings are the same."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgespec.errors import ConversionError
from edgespec.storage.cache import Shelf

_VERSION = 1


@dataclass(frozen=True, slots=True)
class CachedConversion:
    """A conversion: its output, and a recipe of all that the output depends on."""

    output: Path
    recipe: dict[str, Any]

    @classmethod
    def of(cls, source: Path, output: Path, fmt: str, quantization: str) -> CachedConversion:
        """The conversion of the files of `source` as they are now. ConversionError if they cannot be listed."""
        try:
            made_by = version("edgespec")
        except PackageNotFoundError:  # run from a bare checkout
            made_by = ""
        recipe = {"source": _listed(source), "format": fmt, "quantization": quantization, "edgespec": made_by}
        return cls(output, recipe)

    @property
    def is_current(self) -> bool:
        """Whether the output was made by this conversion and has not been changed since."""
        return self._shelf.read() == {**self.recipe, "output": _listed(self.output)}

    def record(self) -> None:
        """Record that the output was just made. If that fails, the next run converts again."""
        self._shelf.write({**self.recipe, "output": _listed(self.output)})

    @property
    def _shelf(self) -> Shelf:
        return Shelf("conversions", str(self.output.absolute()), _VERSION)


def _listed(path: Path) -> list[list[Any]]:
    """Names, bytes and modification times of the file `path`, or of the files of a folder and its subfolders."""
    try:
        files = sorted([path] if path.is_file() else [*path.glob("*"), *path.glob("*/*")])
        states = [(file, file.stat()) for file in files if file.is_file()]
    except OSError as error:
        raise ConversionError(f"{path} cannot be listed: {error.strerror or error}; check its permissions") from error
    return [[file.relative_to(path.parent).as_posix(), state.st_size, state.st_mtime_ns] for file, state in states]
