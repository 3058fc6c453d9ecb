"""Is speculative output the same as plain? Run both and compare, token by token.

Engines compute a token's logits a little differently in passes of different width, so where the two best tokens are
all but equal either may come out, speculation or not. So they do where trees of tokens left the context in the cache
in another order. Such a near tie is told from a fault by measuring that difference at the very place: the same
context, computed in several ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .backends import Session
from .engine import Finished, Text
from .errors import Interrupted, OptionError
from .pair import Speculation
from .runtime import Runtime
from .sampling import SHARED, Sampling, distribution, gumbel, pick
from .types import Floats

_WIDTHS = (2, 3, 4, 6, 8, 12, 16)
_LATELY = 8  # tokens that are computed in wider passes, to see what that does to the next
_BRANCHES = (1, 2, 3, 5, 7)  # of a tree, that are dropped


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two outputs part.

    Args:
        position: the index of the first token that differs, counted from the end of the prompt.
        gap: by how much the plain token leads the other, in logits (with temperature: of the scores, noise included,
            times the temperature).
        shift: by how much the engine's own logits move there with the width of the pass, and behind trees.
        flips: whether one of the ways to compute that place picks the other token, without any speculation.
    """

    position: int
    gap: float
    shift: float
    flips: bool

    @property
    def near_tie(self) -> bool:
        """Whether the engine's own rounding explains it: both logits may move by `shift`, towards each other."""
        return self.flips or self.gap <= 2 * self.shift


@dataclass(frozen=True, slots=True)
class Verdict:
    """One prompt, decoded both ways; `divergence` None means token for token the same."""

    tokens: int
    drafted: int
    accepted: int
    divergence: Divergence | None


def check(runtime: Runtime, prompts: Sequence[Sequence[int]], sampling: Sampling, max_tokens: int) -> Iterator[Verdict]:
    """Decode each of `prompts` (tokens) plainly and speculatively; yields a verdict a prompt.

    Raises:
        Interrupted: an answer was cancelled.
        OptionError: the runtime's verifier keeps the distribution but not the text, so there is nothing to compare.
    """
    if runtime.speculation.verifier != "match" and not sampling.greedy:
        raise OptionError(
            f"the verifier {runtime.speculation.verifier!r} promises the distribution, not the text; check it at "
            "--temp 0, or check --verifier match"
        )
    plain = Speculation(k=0, drafters=())
    for prompt in prompts:
        expected, _ = _decode(runtime, prompt, sampling, max_tokens, plain)
        tokens, finished = _decode(runtime, prompt, sampling, max_tokens, None)
        divergence = None
        if tokens != expected:
            divergence = _diverge(runtime, prompt, expected, tokens, sampling)
        yield Verdict(len(expected), finished.stats.drafted, finished.stats.accepted, divergence)


def _decode(
    runtime: Runtime, prompt: Sequence[int], sampling: Sampling, max_tokens: int, speculation: Speculation | None
) -> tuple[list[int], Finished]:
    tokens: list[int] = []
    for event in runtime.complete(prompt, sampling, max_tokens=max_tokens, speculation=speculation):
        if isinstance(event, Text):
            tokens += event.tokens
        if isinstance(event, Finished) and event.reason != "cancelled":
            return tokens, event
    raise Interrupted  # half an output says nothing about the whole


def _diverge(
    runtime: Runtime, prompt: Sequence[int], expected: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> Divergence:
    shorter = min(len(expected), len(tokens))
    at = next((i for i in range(shorter) if expected[i] != tokens[i]), shorter)
    if at == shorter:  # one is cut short of the other: no tie explains that
        return Divergence(at, float("inf"), 0.0, flips=False)
    rows = _several_ways(runtime, prompt, expected[:at])
    context = [*prompt, *expected[:at]]
    recent = sampling.recent(context)
    picks = {pick(row, sampling, len(context), recent) for row in rows}
    gap = _gap(rows[0], expected[at], tokens[at], sampling, context)
    shift = float(max(np.abs(row - rows[0]).max() for row in rows))
    return Divergence(at, gap, shift, flips=tokens[at] in picks and expected[at] in picks)


def _several_ways(runtime: Runtime, prompt: Sequence[int], said: Sequence[int]) -> list[Floats]:
    """The logits after `prompt` and `said`: computed token by token, all at once, in wider passes, behind tokens that
    were in wider passes, and behind trees."""
    session = runtime.session
    session.rollback(0)
    session.prefill(prompt[:-1])
    for token in (prompt[-1], *said):
        row = session.decode([token])[0]
    rows = [row.copy()]
    context = [*prompt, *said]
    session.rollback(0)
    session.prefill(context[:-1])
    widths = [width for width in _WIDTHS if width <= min(session.widest, session.context - len(context))]
    for width in (1, *widths):
        rows.append(session.decode([context[-1]] * width)[0].copy())
        session.rollback(len(context) - 1)
    rows += [_behind_passes(session, context, len(prompt) - 1, width) for width in widths]
    most = min(session.leaves - 1, session.context - len(context)) if session.can_tree else 0
    return [*rows, *(_behind_trees(session, prompt, said, branches) for branches in _BRANCHES if branches <= most)]


def _behind_passes(session: Session, context: Sequence[int], least: int, width: int) -> Floats:
    """The logits after `context`, whose last tokens, but none of the first `least`, come in a pass of `width` each: the
    first of it, whose others are dropped as drafts are that were wrong."""
    start = max(least, len(context) - _LATELY)
    session.rollback(0)
    session.prefill(context[:start])
    for token in context[start:-1]:
        held = len(session.tokens)
        session.decode([token] * width)
        session.rollback(held, (0,))
    row: Floats = session.decode([context[-1]])[0].copy()
    return row


def _behind_trees(session: Session, prompt: Sequence[int], said: Sequence[int], branches: int) -> Floats:
    """The logits after `prompt` and `said`, two tokens of which come in each pass: the second as the last branch of a
    tree, whose others are dropped."""
    session.rollback(0)
    session.prefill(prompt[:-1])
    rest = [prompt[-1], *said]
    while len(rest) > 2:
        first, second, *rest = rest
        held = len(session.tokens)
        session.decode([first, *[first] * branches, second], [-1, *[0] * (branches + 1)])
        session.rollback(held, (0, branches + 1))
    for token in rest:
        rows = session.decode([token])
    row: Floats = rows[0].copy()
    return row


def _gap(row: Floats, expected: int, other: int, sampling: Sampling, context: Sequence[int]) -> float:
    """The lead of `expected` over `other` by what picks a token; infinite where `other` was filtered out."""
    if sampling.greedy:
        return float(row[expected] - row[other])
    choices = distribution(row, sampling, sampling.recent(context))
    scores = np.log(choices.probs) + gumbel(sampling.seed, len(context), choices.tokens, SHARED)
    by_token = dict(zip(choices.tokens.tolist(), scores.tolist(), strict=True))
    lead = by_token.get(expected, -np.inf) - by_token.get(other, -np.inf)
    return float(lead * sampling.temperature)
