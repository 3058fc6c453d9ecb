"""Random steps with a recurrent state, or with layers that have a sliding window: what a session computes after them is
what a new one computes.

As a program, 2,000 steps for each architecture and use: `python -m tests.hybrid_steps [steps] [architecture ...]`. The
name "onnx/lfm2" is that of a family converted for ONNX Runtime.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgespec import Device, Interrupt
from edgespec.backends import Session, open_model
from edgespec.converters import convert
from edgespec.errors import Interrupted
from edgespec.types import Floats

from . import family_checkpoints, hybrids, windowed

#: Logits of one text in passes of other widths differ by this much at most, for the cache has 16-bit numbers. Another
#: last token changes them by more than 1.
ROUNDING = 2e-2
_CONTEXT = 512
_WIDTHS = (1, 1, 2, 3, 4, 5, 9, 17, 40)


class Done(NamedTuple):
    """What happened: decodes compared, those and those rollbacks to another length after which tokens were owed, and
    the greatest difference."""

    decodes: int
    owed: int
    lost: int
    worst: float


def random_steps(
    path: Path,
    steps: int,
    *,
    seed: int = 0,
    context: int = _CONTEXT,
    rounding: float = ROUNDING,
    beyond: float = 0.0,
    new: AbstractContextManager[None] | None = None,
    **device: Any,
) -> Done:
    """Decode, roll back, prefill and cancel at random, and compare with a new session and with a twin.

    The twin does the same with other rejected tokens, so all its logits must be equal to the last bit: nothing of
    rejected tokens may remain. Raises AssertionError if any differ, those of the new session by more than `rounding`.

    Args:
        rounding: by how much logits may differ from those of a new session.
        beyond: share of the passes that may differ by more. A router near a tie takes another expert.
        new: within which the new session is opened.
        device: options of `Device`.
    """
    flag = Interrupt()
    with ExitStack() as opened:
        model = opened.enter_context(closing(open_model(path, Device(threads=1, **device), flag)))
        sessions = [opened.enter_context(closing(model.session(context))) for _ in range(2)]
        with new or nullcontext():
            other = opened.enter_context(closing(model.session(context, Interrupt())))
        allowed = _Allowed(rounding, beyond)
        return _Steps(random.Random(seed), sessions, other, flag, allowed).run(steps)  # noqa: S311 - no secret


class _Allowed(NamedTuple):
    """By how much logits may differ from those of a new session, and in which share of passes by more."""

    rounding: float
    beyond: float


class _Steps:
    def __init__(
        self, rng: random.Random, sessions: Sequence[Session], fresh: Session, flag: Interrupt, allowed: _Allowed
    ) -> None:
        self._rng = rng
        self._sessions, self._fresh, self._flag, self._allowed = sessions, fresh, flag, allowed
        self._context = sessions[0].context
        self._prefills = [1, 3, 7, 30, 100] + [300] * (self._context > _CONTEXT)
        self._decodes = self._owed = self._lost = 0
        self._beyond = 0
        self._worst = 0.0

    def run(self, steps: int) -> Done:
        actions = [self._decode] * 7 + [self._prefill] * 2 + [self._back] * 2 + [self._far, self._cancel]
        for _ in range(steps):
            self._rng.choice(actions)()
            session, twin = self._sessions
            assert list(session.tokens) == list(twin.tokens)
            assert session.owed == twin.owed
        most = self._allowed.beyond * self._decodes
        assert self._beyond <= most, f"{self._beyond} of {self._decodes} passes are off, at most by {self._worst}"
        return Done(self._decodes, self._owed, self._lost, self._worst)

    @property
    def _held(self) -> list[int]:
        return list(self._sessions[0].tokens)

    def _words(self, n: int) -> list[int]:
        return [self._rng.randrange(5, len(hybrids.TOKENS)) for _ in range(n)]

    def _decode(self) -> None:
        held = self._held
        width = min(self._context - len(held), self._sessions[0].widest, self._rng.choice(_WIDTHS))
        if not width:
            return
        tokens = self._words(width)
        keep = self._rng.choice([width, self._rng.randrange(width + 1), self._rng.randrange(width + 1)])
        rows: list[Floats] = []
        for session in self._sessions:
            judged = tokens if not rows else [*tokens[:keep], *self._words(width - keep)]
            rows.append(session.decode(judged).copy())
            session.rollback(len(held), range(keep))
        self._fresh.rollback(0)
        self._fresh.prefill(held)
        right = self._fresh.decode(tokens)
        assert np.array_equal(rows[0][:keep], rows[1][:keep]), f"a trace of rejected tokens after {len(held)}"
        worst = float(np.abs(rows[0] - right).max())
        if worst >= self._allowed.rounding:
            assert self._allowed.beyond, f"off by {worst} after {len(held)} tokens"
            self._beyond += 1
        self._worst = max(self._worst, worst)
        self._decodes += 1
        self._owed += self._sessions[0].owed > 0

    def _prefill(self) -> None:
        tokens = self._words(min(self._context - len(self._held), self._rng.choice(self._prefills)))
        for session in self._sessions:
            session.prefill(tokens)

    def _back(self) -> None:
        self._roll(max(0, len(self._held) - self._rng.randrange(1, 6)))

    def _far(self) -> None:
        self._roll(self._rng.randrange(len(self._held) + 1))

    def _roll(self, length: int) -> None:
        for session in self._sessions:
            session.rollback(length)
        self._lost += self._sessions[0].owed > 0

    def _cancel(self) -> None:
        """Set the interrupt before a pass; in the middle of one it is not deterministic."""
        held = self._held
        if len(held) + 10 > self._context:
            return
        tokens = self._words(10)
        self._flag.set()
        for session in self._sessions:
            for call in (session.decode, session.prefill):
                try:
                    call(tokens)
                except Interrupted:
                    pass
                else:
                    raise AssertionError("it was not interrupted")
            assert list(session.tokens) == held
        self._flag.clear()


def written(folder: Path, name: str) -> Path:
    """A model of an architecture in `folder`, or of a family for ONNX Runtime."""
    kind, _, family = name.partition("/")
    if kind != "onnx":
        return hybrids.write(folder / f"{name}.gguf", name)
    source = family_checkpoints.make(folder / "source" / family, family)
    for _ in convert(source, folder / family, fmt="onnx", quantization="fp32"):
        pass
    return folder / family / "model.onnx"


def main() -> None:
    """Run the steps for the architectures named, by default for all."""
    steps, *named = sys.argv[1:] or ["2000"]
    converted = (f"onnx/{family}" for family in family_checkpoints.RECURRENT)
    known = (*hybrids.ARCHITECTURES, *windowed.ARCHITECTURES, *converted)
    with tempfile.TemporaryDirectory() as folder:
        for architecture in named or known:
            if architecture in windowed.ARCHITECTURES:
                _windowed_steps(Path(folder), architecture, int(steps))
                continue
            path = written(Path(folder), architecture)
            for drafts in (False, True):
                done = random_steps(path, int(steps), drafts=drafts)
                use = "draft" if drafts else "target"
                sys.stdout.write(f"{architecture} {use}: {steps} steps, {done}\n")
                sys.stdout.flush()


def _windowed_steps(folder: Path, architecture: str, steps: int) -> None:
    path = windowed.write(folder / f"{architecture}.gguf", architecture)
    for exact in (0, 32):
        with windowed.short_passes():
            done = random_steps(
                path,
                steps,
                context=windowed.CONTEXT,
                rounding=windowed.ROUNDING[architecture],
                new=windowed.whole_cache(),
                exact=exact,
            )
        sys.stdout.write(f"{architecture} exact={exact}: {steps} steps, {done}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
