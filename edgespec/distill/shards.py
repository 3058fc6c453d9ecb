"""Answers on disk, in files that appear whole or not at all."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.converters.atomic_file import atomic_file

from ..errors import ModelFileError, OptionError
from ..storage.files import contents, regular
from .example import Example

_PLAN = "plan.json"
_VERSION = 1


class Shards:
    """The files of a collection in one folder, which is created.

    Args:
        folder: of the files.
        plan: what the answers depend on: the target, the prompts, the options. Files of another plan are not used.
        force: delete answers of another plan.

    Raises:
        OptionError: the folder holds answers of another plan.
        ConversionError: it cannot be written.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], *, force: bool = False) -> None:
        self._folder = folder
        wanted = json.dumps({"version": _VERSION, **plan}, sort_keys=True).encode()
        known = contents(folder / _PLAN)
        if force and known != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            known = None
        folder.mkdir(parents=True, exist_ok=True)
        if known is None:
            _put(folder / _PLAN, wanted)
        elif known != wanted:
            raise OptionError(
                f"{folder} holds answers of another target, to other prompts or with other options; choose another "
                "--out, or --force to delete them"
            )

    def holds(self, number: int) -> bool:
        """Whether there is a shard of this number."""
        return self._path(number).is_file()

    def write(self, number: int, examples: Sequence[Example]) -> None:
        """Write a shard. Raises ConversionError if it cannot be written."""
        buffer = io.BytesIO()
        np.savez(
            buffer,
            tokens=np.concatenate([each.tokens for each in examples]),
            lengths=np.asarray([len(each.tokens) for each in examples], np.int64),
            starts=np.asarray([each.start for each in examples], np.int64),
            likely=np.concatenate([each.likely for each in examples]),
            logprobs=np.concatenate([each.logprobs for each in examples]),
            temperatures=np.asarray([each.temperature for each in examples], np.float64),
            held_out=np.asarray([each.held_out for each in examples], np.bool_),
        )
        _put(self._path(number), buffer.getvalue())

    def read(self, number: int) -> list[Example]:
        """The examples of a shard. Raises ModelFileError if it is damaged."""
        path = self._path(number)
        try:
            with regular(path).open("rb") as file, np.load(file, allow_pickle=False) as kept:
                return list(_examples(kept))
        except (OSError, ValueError, KeyError, EOFError, IndexError, zipfile.BadZipFile) as error:
            raise ModelFileError(
                f"{path} is damaged ({error}); delete it, and the same command answers its prompts again"
            ) from error

    def _path(self, number: int) -> Path:
        return self._folder / f"answers-{number:05}.npz"


def _examples(kept: Mapping[str, Any]) -> Iterator[Example]:
    names = ("lengths", "starts", "temperatures", "held_out")
    lengths, starts, temperatures, held_out = (kept[name].tolist() for name in names)
    tokens, likely, logprobs = kept["tokens"], kept["likely"], kept["logprobs"]
    at = place = 0
    for length, start, temperature, kept_back in zip(lengths, starts, temperatures, held_out, strict=True):
        rows = slice(place, place + length - start)
        yield Example(tokens[at : at + length], start, likely[rows], logprobs[rows], temperature, kept_back)
        at, place = at + length, place + length - start


def _put(path: Path, data: bytes) -> None:
    with atomic_file(path, len(data), force=True) as file:
        file.write(data)
