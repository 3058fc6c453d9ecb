"""The acceptance rate of a draft at all places of its target's answers: how much the two distributions overlap.

At a place with the target's distribution p and the draft's q a guess is accepted with the chance sum(min(p, q)), at
temperature 0 if both have the same likeliest token. Its mean over the places of answers is the rate alpha of Leviathan
et al. (2023). Rounds begin where a guess was wrong, so the first guesses of rounds meet the harder places
(`benchmarks.acceptance`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from edgespec import Device, Interrupt, Runtime, Sampling, Text
from edgespec.backends import Session, open_model
from edgespec.types import Doubles, Floats

_CONTEXT = 2048


def answers(runtime: Runtime, prompts: Sequence[Sequence[int]], temperature: float, most: int) -> list[list[int]]:
    """The answer to each prompt, tokens, at most `most` of them."""
    sampling = Sampling(temperature=temperature, seed=1)
    told = (runtime.complete(prompt, sampling, max_tokens=most) for prompt in prompts)
    return [[token for event in events if isinstance(event, Text) for token in event.tokens] for events in told]


def overlap(
    target: Path,
    draft: Path,
    prompts: Sequence[Sequence[int]],
    said: Sequence[Sequence[int]],
    temperature: float,
) -> float:
    """The mean chance, 0 to 1, that a guess of `draft` is accepted, over all tokens of the answers `said`."""
    device = Device(_CONTEXT, 2)
    with ExitStack() as opened:
        models = [opened.enter_context(closing(open_model(path, device, Interrupt()))) for path in (target, draft)]
        p, q = (opened.enter_context(closing(model.session(_CONTEXT))) for model in models)
        chances = [
            accepted(ours, theirs, temperature)
            for prompt, answer in zip(prompts, said, strict=True)
            for ours, theirs in zip(_rows(p, prompt, answer), _rows(q, prompt, answer), strict=True)
        ]
    return float(np.mean(chances))


def accepted(p: Floats, q: Floats, temperature: float) -> float:
    """The chance that the draft's guess is accepted.

    Args:
        p: logits of the target, float32 [vocab].
        q: logits of the draft, float32 [at least vocab]; more columns are padding.
    """
    q = q[: len(p)]
    if temperature == 0:
        return float(p.argmax() == q.argmax())
    return float(np.minimum(_distribution(p, temperature), _distribution(q, temperature)).sum())


def _distribution(logits: Floats, temperature: float) -> Doubles:
    weights = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    return np.asarray(weights / weights.sum())


def _rows(session: Session, prompt: Sequence[int], answer: Sequence[int]) -> Iterator[Floats]:
    """The logits at each token of `answer`, float32 [vocab]."""
    session.rollback(0)
    session.prefill(prompt[:-1])
    for token in (prompt[-1], *answer[:-1]):
        yield session.decode([token])[0].copy()
