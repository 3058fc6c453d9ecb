"""A command of edgespec, run in this process as its entry point runs it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple

from edgespec.cli import main

from .judge import Wrong, check_message, check_terminal
from .place import Place

_STATUS = (0, 1, 2, 130)
_ERROR = "Error: "


class Done(NamedTuple):
    """How it ended, and what it wrote."""

    status: int
    out: str
    err: str


def run(place: Place, arguments: Sequence[str], given: bytes = b"") -> Done:
    """Run `edgespec ARGUMENTS` with this on standard input. Raises `Wrong` where it does not end as it should."""
    with _streams(given) as (out, err):
        try:
            main_of(arguments)
            status: object = 0
        except SystemExit as leaving:
            status = 0 if leaving.code is None else leaving.code
        for stream in (out, err):
            stream.flush()
        done = Done(status if isinstance(status, int) else -1, _content(out), _content(err))
    if done.status not in _STATUS:
        raise Wrong("status", f"exit status {status!r}: {done.err[-500:]}")
    check_terminal(done.err)
    if "--json" not in arguments:
        check_terminal(
            "".join(each for each in done.out if each.isprintable() or (ord(each) < 32 and each not in "\r\0"))
        )
    errors = [line for line in done.err.splitlines() if line.startswith(_ERROR)]
    if done.status in (1, 2) and errors:
        place.refusals += 1
        check_message(errors[-1].removeprefix(_ERROR))
    return done


def main_of(arguments: Sequence[str]) -> None:
    """The entry point, with these arguments."""
    before = sys.argv
    sys.argv = ["edgespec", *arguments]
    try:
        main()
    finally:
        sys.argv = before


def _content(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


@contextmanager
def _streams(given: bytes) -> Iterator[tuple[IO[str], IO[str]]]:
    """Files in place of the standard streams: with a descriptor, as real ones have."""
    before = sys.stdin, sys.stdout, sys.stderr
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace") as err,
        tempfile.TemporaryFile("w+b") as source,
    ):
        source.write(given)
        source.seek(0)
        with open(source.fileno(), encoding="utf-8", errors="surrogateescape", closefd=False) as stdin:
            sys.stdin, sys.stdout, sys.stderr = stdin, out, err
            try:
                yield out, err
            finally:
                sys.stdin, sys.stdout, sys.stderr = before
