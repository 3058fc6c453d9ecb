"""The losslessness check: decode with and without speculation, and compare the outputs token by token.

The plain output is computed here, token by token from the logits, not by the engine under test. Speculation uses chains
of several lengths and trees in every round, by every drafter and with wrong tokens among them, regardless of cost.

Engines compute slightly different logits in passes of different width, and if trees left the context in the cache in
another order. So if the two best tokens are nearly tied, either may be chosen, with or without speculation. Such a near
tie is distinguished from a fault by measuring the difference at that position: the logits of the same context are
computed in several ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..backends import Session
from ..controller.fixed import straight
from ..drafters import Drafter
from ..engine import Finished, Started, Text
from ..errors import Interrupted, OptionError
from ..runtime.runtime import Runtime
from ..sampling import SHARED, Sampling, adjusted, distribution, gumbel, pick
from ..types import Draft, Floats, Round
from ..verify import RoundContext

_WIDTHS = (2, 3, 4, 6, 8, 12, 16)
_LATELY = 8  # last tokens of the context that are computed in wider passes
_BRANCHES = (1, 2, 3, 5, 7)  # rejected branches of a tree
_LENGTHS = (1, 3, 7)  # draft lengths, unless `Speculation.k` is given
TEXT, WRONG = "text", "wrong"  #: names for guesses of the expected tokens, and of wrong ones


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two outputs.

    Args:
        position: the index of the first token that differs, counted from the end of the prompt.
        gap: the difference of the logits of the plain token and the other one (with temperature: of the scores with
            noise, times the temperature).
        shift: the greatest difference of logits at this position between several ways to compute them.
        flips: whether plain decoding would choose the other token by one of these logits, or if rounding moved one of
            the two tokens over the limit of a filter.
    """

    position: int
    gap: float
    shift: float
    flips: bool

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the difference: both logits may move by `shift`, towards each other."""
        return self.flips or self.gap <= 2 * self.shift


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one prompt.

    Args:
        tokens: tokens of the plain output.
        drafted: tokens drafted.
        accepted: of these, tokens accepted.
        divergence: the first difference of the outputs; None if they are equal.
    """

    tokens: int
    drafted: int
    accepted: int
    divergence: Divergence | None


def check(runtime: Runtime, prompts: Sequence[Sequence[int]], sampling: Sampling, max_tokens: int) -> Iterator[Verdict]:
    """Decode each of `prompts` (tokens) with and without speculation; yields a verdict per prompt.

    Raises:
        Interrupted: an answer was cancelled.
        OptionError: the runtime's verifier preserves the distribution but not the text, which cannot be compared.
    """
    if runtime.speculation.verifier != "match" and not sampling.greedy:
        raise OptionError(
            f"the verifier {runtime.speculation.verifier!r} preserves the distribution, not the text; check it at "
            "--temp 0, or check --verifier match"
        )
    for prompt in prompts:
        expected = _plainly(runtime, prompt, sampling, max_tokens)
        tokens, finished = _speculatively(runtime, prompt, sampling, max_tokens, expected)
        divergence = None
        if tokens != expected:
            divergence = _diverge(runtime, prompt, expected, tokens, sampling)
        yield Verdict(len(expected), finished.stats.drafted, finished.stats.accepted, divergence)


class Forced:
    """A controller that drafts in every round, to test all kinds of drafts.

    Drafts are from all drafters in turn, and from the expected text. For each there are a tree with wrong branches
    first, a chain with a wrong last token, which must be rolled back, and a chain.

    Args:
        lengths: the draft lengths.
        vocab: the size of the vocabulary.
        deepest: the greatest depth of a tree; 0 for no trees.
        text: the tokens of the prompt and the expected answer.
    """

    def __init__(
        self, drafters: Sequence[Drafter], lengths: Sequence[int], vocab: int, deepest: int, text: Sequence[int]
    ) -> None:
        self.drafters = tuple(drafters)
        self._lengths = lengths
        self._vocab = vocab
        self._deepest = deepest
        self._text = list(text)
        self._rounds = 0

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        turn, kind = divmod(self._rounds, 3)
        self._rounds += 1
        turn, which = divmod(turn, len(self._lengths))
        length = min(self._lengths[which], limit)
        if length < 1:
            return Draft()
        tokens, name = self._guessed(turn, round_context, length)
        deep = min(length, self._deepest, limit // 2)  # the wrong branches need room, too
        if kind == 0 and deep:
            return self._tree(tokens[:deep], name)
        return self._wrong_end(tokens, name) if kind == 1 else Draft.chain(tokens, name)

    def _guessed(self, turn: int, round_context: RoundContext, length: int) -> tuple[list[int], str]:
        """At least one token to draft, and the name of the drafter."""
        first = turn % (len(self.drafters) + 1)
        for drafter in self.drafters[first:]:
            drafter.begin(round_context)
            if guesses := straight(drafter, round_context, length):
                return [guess.token for guess in guesses], drafter.name
        at = len(round_context.tokens)
        known = self._text[at : at + length] if self._text[:at] == list(round_context.tokens) else []
        return (known, TEXT) if known else ([self._other(round_context.tokens[-1])], WRONG)

    def observe(self, round: Round) -> None:  # noqa: A002
        """It does not learn."""

    def _wrong_end(self, tokens: Sequence[int], drafter: str) -> Draft:
        parents = tuple(range(-1, len(tokens) - 1))
        return Draft((*tokens[:-1], self._other(tokens[-1])), parents, (*[drafter] * (len(tokens) - 1), WRONG))

    def _tree(self, tokens: Sequence[int], drafter: str) -> Draft:
        """The chain, with a wrong sibling before each token."""
        nodes, parents, at = list[int](), list[int](), -1
        for token in tokens:
            nodes += [self._other(token), token]
            parents += [at, at]
            at = len(nodes) - 1
        return Draft(tuple(nodes), tuple(parents), (WRONG, drafter) * len(tokens))

    def _other(self, token: int) -> int:
        return (token + 1) % self._vocab


def _plainly(runtime: Runtime, prompt: Sequence[int], sampling: Sampling, max_tokens: int) -> list[int]:
    """The output without speculation."""
    # Begin an answer and drop it: this checks options, clears an earlier cancel, and puts the prompt into the cache.
    if not isinstance(next(runtime.complete(prompt, sampling, max_tokens=max_tokens)), Started):
        raise Interrupted
    session, ends, context = runtime.session, runtime.vocabulary.is_eog, list(prompt)
    while len(context) - len(prompt) < max_tokens and len(context) <= session.context:
        row = session.decode(context[-1:])[0]
        context.append(pick(row, sampling, len(context), sampling.recent(context)))
        if ends(context[-1]):
            break
    return context[len(prompt) :]


def _speculatively(
    runtime: Runtime, prompt: Sequence[int], sampling: Sampling, max_tokens: int, expected: Sequence[int]
) -> tuple[list[int], Finished]:
    """The output with a draft in every round, or without drafts if `Speculation.k` is 0."""
    session, k = runtime.session, runtime.speculation.k
    widest = session.widest - 1
    # A tree of n tokens and as many wrong ones has n + 1 leaves.
    deepest = min(widest // 2, session.leaves - 1) if session.can_tree else 0
    lengths = [min(n, widest) for n in (_LENGTHS if k is None else (k,))]

    def forced(drafters: Sequence[Drafter]) -> Forced:
        return Forced(drafters, lengths, session.vocab, deepest, [*prompt, *expected])

    tokens: list[int] = []
    for event in runtime.complete(prompt, sampling, max_tokens=max_tokens, controlled=forced):
        if isinstance(event, Text):
            tokens += event.tokens
        if isinstance(event, Finished) and event.reason != "cancelled":
            return tokens, event
    raise Interrupted  # an incomplete output cannot be compared


def _diverge(
    runtime: Runtime, prompt: Sequence[int], expected: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> Divergence:
    shorter = min(len(expected), len(tokens))
    at = next((i for i in range(shorter) if expected[i] != tokens[i]), shorter)
    if at == shorter:  # one is a prefix of the other, which rounding does not explain
        return Divergence(at, float("inf"), 0.0, flips=False)
    context = [*prompt, *expected[:at]]
    recent = sampling.recent(context)
    rows = _several_ways(runtime, prompt, expected[:at])
    gap = _gap(rows[0], expected[at], tokens[at], sampling, context)
    moved = [adjusted(row, sampling, recent) for row in rows]
    shift = _shift(moved)
    for token, by in ((expected[at], shift), (tokens[at], -shift)):
        rows.append(_pushed(rows[0], moved[0] > moved[0][token], by))
    picks = {pick(row, sampling, len(context), recent) for row in rows}
    return Divergence(at, gap, shift, flips=tokens[at] in picks and expected[at] in picks)


def _several_ways(runtime: Runtime, prompt: Sequence[int], answer: Sequence[int]) -> list[Floats]:
    """The logits after `prompt` and `answer` in several ways: token by token, with the context in one prefill, in wider
    passes, after tokens that were computed in wider passes, and after trees."""
    session = runtime.session
    session.rollback(0)
    session.prefill(prompt[:-1])
    for token in (prompt[-1], *answer):
        row = session.decode([token])[0]
    rows = [row.copy()]
    context = [*prompt, *answer]
    session.rollback(0)
    session.prefill(context[:-1])
    room = session.context - len(context)
    widths = [width for width in _WIDTHS if width <= min(session.widest, room)]
    for width in (1, *widths):
        rows.append(session.decode([context[-1]] * width)[0].copy())
        session.rollback(len(context) - 1)
    rows += [_behind_passes(session, context, len(prompt) - 1, width) for width in widths]
    most = min(session.leaves - 1, session.widest - 2, room) if session.can_tree else 0
    return [*rows, *(_behind_trees(session, prompt, answer, branches) for branches in _BRANCHES if branches <= most)]


def _behind_passes(session: Session, context: Sequence[int], least: int, width: int) -> Floats:
    """The logits after `context`, of which the last tokens, but none of the first `least`, are each computed in a pass
    of `width` tokens, whose other tokens are rolled back like rejected drafts."""
    start = max(least, len(context) - _LATELY)
    session.rollback(0)
    session.prefill(context[:start])
    for token in context[start:-1]:
        held = len(session.tokens)
        session.decode([token] * width)
        session.rollback(held, (0,))
    row: Floats = session.decode([context[-1]])[0].copy()
    return row


def _behind_trees(session: Session, prompt: Sequence[int], answer: Sequence[int], branches: int) -> Floats:
    """The logits after `prompt` and `answer`, computed two tokens per pass: the second is the last branch of a tree,
    whose other branches are rolled back."""
    session.rollback(0)
    session.prefill(prompt[:-1])
    rest = [prompt[-1], *answer]
    while len(rest) > 2:
        first, second, *rest = rest
        held = len(session.tokens)
        session.decode([first, *[first] * branches, second], [-1, *[0] * (branches + 1)])
        session.rollback(held, (0, branches + 1))
    for token in rest:
        rows = session.decode([token])
    row: Floats = rows[0].copy()
    return row


def _shift(rows: Sequence[Floats]) -> float:
    """The greatest difference of a token's logits, banned tokens excluded."""
    kept = np.isfinite(rows[0])
    return float(max(np.abs(row[kept] - rows[0][kept]).max() for row in rows))


def _pushed(row: Floats, above: npt.NDArray[np.bool_], by: float) -> Floats:
    """`row` with the worst rounding for a filter (top_p, min_p, top_k): the logits `above` a token plus `by`, all
    others minus `by`."""
    return (row + np.where(above, by, -by)).astype(np.float32)


def _gap(row: Floats, expected: int, other: int, sampling: Sampling, context: Sequence[int]) -> float:
    """The score of `expected` minus that of `other`; infinite if `other` was filtered out."""
    if sampling.greedy:
        row = adjusted(row, sampling, sampling.recent(context))
        return float(row[expected] - row[other])
    choices = distribution(row, sampling, sampling.recent(context))
    scores = np.log(choices.probs) + gumbel(sampling.seed, len(context), choices.tokens, SHARED)
    by_token = dict(zip(choices.tokens.tolist(), scores.tolist(), strict=True))
    lead = by_token.get(expected, -np.inf) - by_token.get(other, -np.inf)
    return float(lead * sampling.temperature)
