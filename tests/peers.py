"""What tests of the benchmark's peers share: answers and processes that end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from edgespec.bench.contender import Chunk, Done


def said(answer: Iterator[Chunk | Done]) -> tuple[list[int | None], str, float | None]:
    """Tokens, None for each that was not told; text; and the seconds of the prompt."""
    *parts, done = list(answer)
    assert isinstance(done, Done)
    tokens: list[int | None] = []
    for part in parts:
        assert isinstance(part, Chunk)
        tokens += part.tokens if part.tokens is not None else [None] * part.count
        assert part.tokens is None or len(part.tokens) == part.count
    return tokens, "".join(part.text for part in parts if isinstance(part, Chunk)), done.prompt_seconds


def gone(pid: int) -> bool:
    """Whether a process ends soon."""
    with contextlib.suppress(psutil.NoSuchProcess):
        try:
            psutil.Process(pid).wait(20)
        except psutil.TimeoutExpired:
            return False
    return True


def intermediate(folder: Path) -> Path:
    """A folder that looks like OpenVINO's intermediate representation."""
    folder.mkdir()
    for name in ("model", "tokenizer", "detokenizer"):
        (folder / f"openvino_{name}.xml").touch()
    return folder
