"""Targets with heads for multi-token prediction by kind, and sessions with a head over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec import Device, Interrupt, Runtime, Sampling, Speculation, load
from edgespec.backends import Session, open_model
from edgespec.backends.llama import LlamaModel
from edgespec.backends.llama_head import LlamaHead
from edgespec.engine import Finished, Text
from edgespec.types import Floats

from . import heads
from .hybrid_steps import ROUNDING

KINDS = ("in the file", "qwen35moe", "apart", "gemma4")
PROMPT = [5 + 7 * n % 250 for n in range(60)]
RIGHT_PROMPT = [*PROMPT[:20], *heads.RING[:2]]
GREEDY = Sampling(temperature=0)
Files = tuple[Path, Path | None]


def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Files]:
    """The target and the file of its head, by kind, and whether the head knows the target."""
    found: dict[tuple[str, bool], Files] = {}
    for right in (False, True):
        folder = tmp_path_factory.mktemp("heads")
        found["in the file", right] = heads.qwen35(folder, right=right), None
        found["qwen35moe", right] = heads.qwen35(folder, right=right, architecture="qwen35moe"), None
        found["apart", right] = heads.qwen35_apart(folder, right=right)
        found["gemma4", right] = heads.gemma4(folder, right=right)
    return found


def runtime(files: Files, **options: Any) -> Runtime:
    speculation = options.pop("speculation", None) or Speculation(("mtp",))
    device = Device(context=options.pop("context", 256), threads=1)
    return load(files[0], files[1] or "none", device=device, speculation=speculation, **options)


class Over:
    """A session and the head over it."""

    def __init__(self, session: Session, head: LlamaHead, weights: LlamaModel) -> None:
        self.session, self.head, self.weights = session, head, weights

    def draft(self, last: int, n: int) -> list[int]:
        path: list[int] = []
        for _ in range(n):
            path.append(int(self.head.logits(last, path).argmax()))
        return path

    def rows(self, last: int, path: Sequence[int]) -> Floats:
        """The head's logits after `last` and each token of `path`."""
        return np.stack([self.head.logits(last, path[:n]).copy() for n in range(len(path) + 1)])


@contextmanager
def opened(files: Files, context: int = 256, flag: Interrupt | None = None) -> Iterator[Over]:
    flag = flag or Interrupt()
    with ExitStack() as stack:
        model = open_model(files[0], Device(threads=1, head=files[1] is None), flag)
        stack.callback(model.close)
        weights = model if files[1] is None else open_model(files[1], Device(threads=1, drafts=True), flag)
        if weights is not model:
            stack.callback(weights.close)
        assert isinstance(weights, LlamaModel)
        session = stack.enter_context(closing(model.session(context)))
        head = stack.enter_context(closing(weights.head(session)))
        yield Over(session, head, weights)


def fresh(files: Files, text: Sequence[int], path: Sequence[int]) -> Floats:
    """The logits of a head that has followed `text` from its beginning, without its last token."""
    with opened(files, 512) as over:
        over.session.prefill(text[:-1])
        return over.rows(text[-1], path)


def agrees(over: Over, files: Files, text: Sequence[int]) -> None:
    """Raises AssertionError unless the head drafts after `text` what one that is newly filled drafts."""
    path = [9, 30, 77]
    assert over.head.follows(text)
    np.testing.assert_allclose(over.rows(text[-1], path), fresh(files, text, path), atol=ROUNDING)


def acceptance(files: Files, temperature: float = 0.0, verifier: str = "match") -> float:
    """The share of drafted tokens that are accepted."""
    with runtime(files, speculation=Speculation(("mtp",), 3, verifier)) as speaker:
        sampling = Sampling(temperature=temperature, seed=3, top_k=0)
        *_, finished = speaker.complete(RIGHT_PROMPT, sampling, max_tokens=60)
        assert isinstance(finished, Finished)
        of, accepted = finished.stats.by_drafter["mtp"]
        return accepted / of


def tokens(speaker: Runtime, prompt: Sequence[int], speculation: Speculation) -> list[int]:
    events = speaker.complete(prompt, GREEDY, max_tokens=30, speculation=speculation)
    return [token for event in events if isinstance(event, Text) for token in event.tokens]
