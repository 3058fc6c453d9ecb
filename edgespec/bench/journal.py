"""Answers on disk as they come, so that an interrupted run can go on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from ..errors import EdgespecError, OptionError
from ..storage.files import regular
from ..values import shown
from .records import Answer

NAME = "answers.jsonl"
_BEGINNING = b'{"suite": "'  # of the first line of every journal


class Journal:
    """A file of JSON lines: what the run is of, then its answers.

    Args:
        terms: what answers must have in common to be compared: models, suite, settings; "suite" comes first.
        resume: go on with what the file holds; else it is begun anew.

    Raises:
        OptionError: the file cannot be written, or is of a run on other terms.
    """

    def __init__(self, path: Path, terms: Mapping[str, str], *, resume: bool) -> None:
        self.answers: Sequence[Answer] = ()
        self._path = path
        held = 0
        if resume and holds_run(path):
            held = self._read(terms)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer: what could not be written must not be tried again when the file is closed.
            self._file: IO[bytes] = regular(path).open("r+b" if held else "wb", buffering=0)
            self._file.truncate(held)
            self._file.seek(held)
            if not held:
                self._write(json.dumps(terms))
        except OSError as error:
            raise OptionError(
                f"{path} cannot be written: {error.strerror}; make room for it, or choose another --out"
            ) from error

    def add(self, answer: Answer) -> None:
        """Keep an answer.

        Raises:
            EdgespecError: it cannot be written; what was kept before is still there.
        """
        try:
            self._write(json.dumps(answer.as_dict(), separators=(",", ":")))
        except OSError as error:
            raise EdgespecError(
                f"{self._path} cannot be written: {error.strerror or error}; make room and go on with --resume: the "
                "answers before are kept"
            ) from error

    def close(self) -> None:
        self._file.close()

    def _write(self, line: str) -> None:
        left = memoryview(f"{line}\n".encode())
        while left:  # a file without a buffer may take a part
            left = left[self._file.write(left) or 0 :]

    def _read(self, terms: Mapping[str, str]) -> int:
        """Take the answers of an earlier run. Returns the length of the file without an answer that the run was
        stopped in the middle of writing."""
        path = self._path
        try:
            data = path.read_bytes()
            first, *rest = data.split(b"\n")
            earlier = dict(json.loads(first))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            why = shown(str(error))
            raise OptionError(f"{path} cannot be gone on with ({why}); --force begins anew") from error
        unlike = next((name for name, value in terms.items() if earlier.get(name) != value), None)
        if unlike is not None:
            raise OptionError(
                f"{path} is of a run whose {unlike} was {shown(earlier.get(unlike))}, and now it is {terms[unlike]!r}; "
                "--force begins anew, or give another --out"
            )
        self.answers = list(_answers(rest[:-1]))
        return len(data) - len(rest[-1])


def holds_run(path: Path) -> bool:
    """Whether there is a journal at `path` with more than the beginning of its first line."""
    try:
        with path.open("rb") as file:
            return file.readline().endswith(b"\n")
    except FileNotFoundError:
        return False


def is_journal(data: bytes) -> bool:
    """Whether a file that begins with `data` is a journal, or the beginning of one."""
    return data.startswith(_BEGINNING) or _BEGINNING.startswith(data)


def _answers(lines: Sequence[bytes]) -> Iterator[Answer]:
    """Those of `lines` that are answers: a damaged one is asked again."""
    for line in lines:
        try:
            yield Answer.of(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
