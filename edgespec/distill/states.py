"""The target's hidden rows of its answers, which heads read: as the runtime gives them, on disk.

A shard of answers has a file of rows, which appears whole or not at all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.converters.atomic_file import atomic_file

from ..backends import HiddenRows
from ..errors import ModelFileError, OptionError
from ..runtime.runtime import Runtime
from ..storage.files import contents
from ..types import Floats
from .example import Example
from .shards import Shards

_PLAN = "plan.json"


@dataclass(frozen=True, slots=True)
class Read:
    """What a head reads of a text.

    Args:
        layers: whose inputs, or `FINAL`, side by side in a row.
        prompt: of how many tokens before an answer, at most.
        window: tokens of these and the answer, at most.
    """

    layers: tuple[int, ...]
    prompt: int
    window: int

    def cut(self, example: Example) -> Example:
        """The part of an example that is read."""
        return example.after(self.prompt).within(self.window)


class States:
    """The files of rows in one folder, which is created.

    Args:
        read: what is kept.
        plan: what the answers depend on. Files of another plan are computed again.

    Raises:
        ConversionError: the folder cannot be written.
    """

    def __init__(self, folder: Path, read: Read, plan: Mapping[str, Any]) -> None:
        self._folder, self._read = folder, read
        wanted = {**plan, "layers": read.layers, "prompt": read.prompt, "window": read.window}
        data = json.dumps(wanted, sort_keys=True).encode()
        folder.mkdir(parents=True, exist_ok=True)
        if contents(folder / _PLAN) != data:
            for path in folder.glob("rows-*.npy"):
                path.unlink()
            _put(folder / _PLAN, data)

    def collect(self, runtime: Runtime, shards: Shards, count: int) -> Generator[int, None, None]:
        """Compute the rows of the first `count` shards where they are missing; yields how many shards have theirs.

        Raises:
            OptionError: the engine gives no rows of this model.
            Interrupted: the runtime was cancelled; files that are complete stay.
            ConversionError: a file cannot be written.
        """
        missing = [number for number in range(count) if not self._path(number).is_file()]
        heard = _Recorder()
        if missing:
            session = runtime.session
            if not isinstance(session, HiddenRows):
                raise OptionError("this engine gives no hidden states, which heads read; give a GGUF file")
            session.rollback(0)
            session.follow(self._read.layers, heard)
        for done, number in enumerate(missing, count - len(missing)):
            yield done
            parts = [self._rows(runtime, heard, example) for example in shards.read(number)]
            buffer = io.BytesIO()
            np.save(buffer, np.concatenate(parts))
            _put(self._path(number), buffer.getvalue())
        yield count

    def examples(self, number: int, examples: Sequence[Example]) -> list[Example]:
        """What is read of the examples of a shard, with the rows, which stay on disk until they are used.

        Raises:
            ModelFileError: the file is damaged.
        """
        path, found = self._path(number), [self._read.cut(example) for example in examples]
        try:
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
            parts = np.split(rows, np.cumsum([len(example.tokens) for example in found[:-1]]))
            fits = len(parts[-1]) == len(found[-1].tokens)
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(path) from error
        if not fits:
            raise _damaged(path)
        return [replace(example, rows=part) for example, part in zip(found, parts, strict=True)]

    def _rows(self, runtime: Runtime, heard: _Recorder, example: Example) -> npt.NDArray[np.float16]:
        """The rows of the part of an example that is read."""
        kept, session = self._read.cut(example), runtime.session
        session.rollback(0)
        session.prefill(example.tokens.tolist())
        first = example.start - kept.start
        return np.concatenate(heard.rows)[first : first + len(kept.tokens)]

    def _path(self, number: int) -> Path:
        return self._folder / f"rows-{number:05}.npy"


class _Recorder:
    """A listener that keeps all rows of a text that grows from its beginning."""

    def __init__(self) -> None:
        self.rows: list[npt.NDArray[np.float16]] = []

    def heard(self, start: int, tokens: Sequence[int], rows: Floats) -> None:
        if not start:
            self.rows = []
        self.rows.append(rows[: len(tokens)].astype(np.float16))

    def forget(self, length: int) -> None:
        self.rows = [np.concatenate(self.rows)[:length]] if length else []


def _damaged(path: Path) -> ModelFileError:
    return ModelFileError(f"{path} is damaged; delete it, and the same command computes it again")


def _put(path: Path, data: bytes) -> None:
    with atomic_file(path, len(data), force=True) as file:
        file.write(data)
