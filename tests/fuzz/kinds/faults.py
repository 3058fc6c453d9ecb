"""What the judge is there to see, one of each sort: inputs that do nothing but harm. No part of a campaign."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from edgespec.errors import EdgespecError

from ..judge import Wrong
from ..place import Place


class _AsItIs(EdgespecError):
    """An error whose message is not made printable."""

    def __str__(self) -> str:
        return str(self.args[0])


def _raise(error: BaseException) -> None:
    raise error


def _spin() -> None:
    while True:
        pass


def _grow() -> None:
    held = []
    while True:
        held.append(b"x" * 50_000_000)


def _leave(folder: str) -> None:
    (Path(folder) / "left").write_bytes(b"x")


def _warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a warning before an error", RuntimeWarning, stacklevel=1)


#: By the sort of failure, which a number may follow.
CORPUS: Mapping[str, Callable[[Place], object]] = {
    "fine": lambda place: None,
    "refused": lambda place: _raise(EdgespecError("no; give another")),
    "traceback": lambda place: _raise(TypeError("no")),
    "traceback 2": lambda place: _raise(KeyboardInterrupt()),
    "message": lambda place: _raise(_AsItIs("two\nlines")),
    "message 2": lambda place: _raise(_AsItIs("\x1b[31m")),
    "message 3": lambda place: _raise(_AsItIs("\ud800")),
    "message 4": lambda place: _raise(EdgespecError("")),
    "signal": lambda place: os.abort(),
    "signal 2": lambda place: os._exit(0),
    "hang": lambda place: _spin(),
    "memory": lambda place: _grow(),
    "memory 2": lambda place: len(b"x" * 1_200_000_000),
    "leftover": lambda place: _leave(tempfile.gettempdir()),
    "leftover 2": lambda place: _leave("."),
    "leftover 3": lambda place: _leave(os.path.expanduser("~")),  # noqa: PTH111
    "leftover 4": lambda place: (Path(os.environ["EDGESPEC_CACHE"]) / "x.part").write_bytes(b""),
    "noise": lambda place: _warn(),
    "noise 2": lambda place: os.write(2, b"a line of an engine\n"),
    "wrong": lambda place: _raise(Wrong("wrong", "as it says")),
}


def play(rng: Random, place: Place) -> None:
    """Nothing."""
