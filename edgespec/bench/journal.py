"""The answers of a run on disk, written one by one, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from ..errors import EdgespecError, OptionError
from ..storage.files import regular
from ..values import shown
from .records import AnswerRecord

NAME = "answers.jsonl"
_BEGINNING = b'{"suite": "'  # of the first line of every journal


class Journal:
    """A file of JSON lines: the settings of the run, then its answers.

    Args:
        path: the file.
        terms: the settings that comparable answers share: models, suite, options; "suite" is the first key.
        resume: continue the file; else it is overwritten.

    Raises:
        OptionError: the file cannot be written, or is of a run with other settings.
    """

    def __init__(self, path: Path, terms: Mapping[str, str], *, resume: bool) -> None:
        self.answers: Sequence[AnswerRecord] = ()
        self._path = path
        held = 0
        if resume and holds_run(path):
            held = self._read(terms)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a failed write must not be repeated when the file is closed.
            self._file: IO[bytes] = regular(path).open("r+b" if held else "wb", buffering=0)
            self._file.truncate(held)
            self._file.seek(held)
            if not held:
                self._write(json.dumps(terms))
        except OSError as error:
            raise OptionError(
                f"{path} cannot be written: {error.strerror}; free space, or choose another --out"
            ) from error

    def add(self, answer: AnswerRecord) -> None:
        """Write an answer.

        Raises:
            EdgespecError: it cannot be written; the answers before it are kept.
        """
        try:
            self._write(json.dumps(answer.as_dict(), separators=(",", ":")))
        except OSError as error:
            raise EdgespecError(
                f"{self._path} cannot be written: {error.strerror or error}; free space and continue with --resume: "
                "the answers before are kept"
            ) from error

    def close(self) -> None:
        self._file.close()

    def _write(self, line: str) -> None:
        left = memoryview(f"{line}\n".encode())
        while left:  # an unbuffered file may write a part
            left = left[self._file.write(left) or 0 :]

    def _read(self, terms: Mapping[str, str]) -> int:
        """Read the answers of an earlier run. Returns the length of the file without an incomplete last answer."""
        path = self._path
        try:
            data = path.read_bytes()
            first, *rest = data.split(b"\n")
            earlier = dict(json.loads(first))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            why = shown(str(error))
            raise OptionError(f"{path} cannot be continued ({why}); --force begins a new run") from error
        unlike = next((name for name, value in terms.items() if earlier.get(name) != value), None)
        if unlike is not None:
            raise OptionError(
                f"{path} is of a run whose {unlike} was {shown(earlier.get(unlike))}, and now it is {terms[unlike]!r}; "
                "--force begins a new run, or give another --out"
            )
        self.answers = list(_answers(rest[:-1]))
        return len(data) - len(rest[-1])


def holds_run(path: Path) -> bool:
    """Whether there is a journal at `path` with a complete first line."""
    try:
        with path.open("rb") as file:
            return file.readline().endswith(b"\n")
    except FileNotFoundError:
        return False


def is_journal(data: bytes) -> bool:
    """Whether `data` is the beginning of a journal."""
    return data.startswith(_BEGINNING) or _BEGINNING.startswith(data)


def _answers(lines: Sequence[bytes]) -> Iterator[AnswerRecord]:
    """The answers in `lines`; damaged lines are left out, and their questions asked again."""
    for line in lines:
        try:
            yield AnswerRecord.of(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
