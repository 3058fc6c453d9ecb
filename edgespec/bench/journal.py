"""Answers on disk as they come, so that an interrupted run can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ..errors import OptionError
from ..regular import regular
from .records import Answer


class Journal:
    """A file of JSON lines: what the run is of, then its answers.

    Args:
        terms: what answers must have in common to be compared: models, suite, settings.
        resume: go on with what the file holds; else it is begun anew.

    Raises:
        OptionError: the file cannot be written, or is of a run on other terms.
    """

    def __init__(self, path: Path, terms: Mapping[str, str], *, resume: bool) -> None:
        self.answers: Sequence[Answer] = ()
        kept: list[str] = []
        if resume and path.is_file():
            kept = self._read(path, terms)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[str] = regular(path).open("w", encoding="utf-8")
            for line in (json.dumps(terms), *kept):
                self._write(line)
        except OSError as error:
            raise OptionError(f"{path} cannot be written: {error.strerror}; choose another --out") from error

    def add(self, answer: Answer) -> None:
        """Keep an answer."""
        self._write(json.dumps(answer.as_dict(), separators=(",", ":")))

    def close(self) -> None:
        self._file.close()

    def _write(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()

    def _read(self, path: Path, terms: Mapping[str, str]) -> list[str]:
        """The answers of an earlier run; one that it was killed in the middle of writing is not among them."""
        try:
            first, *rest = path.read_text("utf-8").splitlines() or [""]
            earlier = dict(json.loads(first))
        except (OSError, ValueError, TypeError) as error:
            raise OptionError(f"{path} cannot be gone on with ({error}); leave out --resume to begin anew") from error
        unlike = next((name for name, value in terms.items() if earlier.get(name) != value), None)
        if unlike is not None:
            raise OptionError(
                f"{path} is of a run whose {unlike} was {earlier.get(unlike)!r}, and now it is {terms[unlike]!r}; "
                "leave out --resume to begin anew, or give another --out"
            )
        answers = []
        for line in rest:
            try:
                answers.append(Answer.of(json.loads(line)))
            except (ValueError, KeyError, TypeError):
                break
        self.answers = answers
        return rest[: len(answers)]
