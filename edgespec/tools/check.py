"""Is speculative output the same as plain? Run both and compare, token by token.

Plain output is computed here, token by token from the logits, and not by the engine that is checked. Of speculation all
is tried whatever it costs: chains of several lengths and trees, by every drafter, with wrong tokens among them.

Engines compute a token's logits a little differently in passes of different width, so where the two best tokens are
all but equal either may come out, speculation or not. So they do where trees of tokens left the context in the cache
in another order. Such a near tie is told from a fault by measuring that difference at the very place: the same
context, computed in several ways.
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
_LATELY = 8  # tokens that are computed in wider passes, to see what that does to the next
_BRANCHES = (1, 2, 3, 5, 7)  # of a tree, that are dropped
_LENGTHS = (1, 3, 7)  # tokens of the drafts that are forced, where none was asked for
TEXT, WRONG = "text", "wrong"  #: who guesses what is expected, and what is not


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two outputs part.

    Args:
        position: the index of the first token that differs, counted from the end of the prompt.
        gap: by how much the plain token leads the other, in logits (with temperature: of the scores, noise included,
            times the temperature).
        shift: by how much the engine's own logits move there with the width of the pass, and behind trees.
        flips: whether one of the ways to compute that place picks the other token, without any speculation; or would
            where rounding moves one of the two over the edge of a filter.
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
    for prompt in prompts:
        expected = _plainly(runtime, prompt, sampling, max_tokens)
        tokens, finished = _speculatively(runtime, prompt, sampling, max_tokens, expected)
        divergence = None
        if tokens != expected:
            divergence = _diverge(runtime, prompt, expected, tokens, sampling)
        yield Verdict(len(expected), finished.stats.drafted, finished.stats.accepted, divergence)


class Forced:
    """Drafts in every round: not what pays but what may go wrong.

    By all drafters in turn, and by the text that is expected. Of each a tree whose wrong branches come first, a chain
    with a wrong token at its end, which must be taken back, and a chain.

    Args:
        lengths: tokens of the drafts.
        vocab: how many tokens there are.
        deepest: tokens that a tree may be deep; 0 where the session takes none.
        text: what is expected, prompt and answer.
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
        deep = min(length, self._deepest, limit // 2)  # there must be room for the wrong branches, too
        if kind == 0 and deep:
            return self._tree(tokens[:deep], name)
        return self._wrong_end(tokens, name) if kind == 1 else Draft.chain(tokens, name)

    def _guessed(self, turn: int, round_context: RoundContext, length: int) -> tuple[list[int], str]:
        """Tokens to draft, at least one, and who guesses them."""
        first = turn % (len(self.drafters) + 1)
        for drafter in self.drafters[first:]:
            drafter.begin(round_context)
            if guesses := straight(drafter, round_context, length):
                return [guess.token for guess in guesses], drafter.name
        at = len(round_context.tokens)
        known = self._text[at : at + length] if self._text[:at] == list(round_context.tokens) else []
        return (known, TEXT) if known else ([self._other(round_context.tokens[-1])], WRONG)

    def observe(self, round: Round) -> None:  # noqa: A002
        """It never changes its mind."""

    def _wrong_end(self, tokens: Sequence[int], drafter: str) -> Draft:
        parents = tuple(range(-1, len(tokens) - 1))
        return Draft((*tokens[:-1], self._other(tokens[-1])), parents, (*[drafter] * (len(tokens) - 1), WRONG))

    def _tree(self, tokens: Sequence[int], drafter: str) -> Draft:
        """The chain, each of its tokens behind a wrong one."""
        nodes, parents, at = list[int](), list[int](), -1
        for token in tokens:
            nodes += [self._other(token), token]
            parents += [at, at]
            at = len(nodes) - 1
        return Draft(tuple(nodes), tuple(parents), (WRONG, drafter) * len(tokens))

    def _other(self, token: int) -> int:
        return (token + 1) % self._vocab


def _plainly(runtime: Runtime, prompt: Sequence[int], sampling: Sampling, max_tokens: int) -> list[int]:
    """What is said without speculation."""
    # An answer is begun and left: options are checked, a cancel of an earlier one is over, the prompt is in the cache.
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
    """What is said with drafts in every round; without any where drafts of no token were asked for."""
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
    raise Interrupted  # half an output says nothing about the whole


def _diverge(
    runtime: Runtime, prompt: Sequence[int], expected: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> Divergence:
    shorter = min(len(expected), len(tokens))
    at = next((i for i in range(shorter) if expected[i] != tokens[i]), shorter)
    if at == shorter:  # one is cut short of the other: no tie explains that
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
    room = session.context - len(context)
    widths = [width for width in _WIDTHS if width <= min(session.widest, room)]
    for width in (1, *widths):
        rows.append(session.decode([context[-1]] * width)[0].copy())
        session.rollback(len(context) - 1)
    rows += [_behind_passes(session, context, len(prompt) - 1, width) for width in widths]
    most = min(session.leaves - 1, session.widest - 2, room) if session.can_tree else 0
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


def _shift(rows: Sequence[Floats]) -> float:
    """By how much the logits of a token move, of those that are not banned."""
    kept = np.isfinite(rows[0])
    return float(max(np.abs(row[kept] - rows[0][kept]).max() for row in rows))


def _pushed(row: Floats, above: npt.NDArray[np.bool_], by: float) -> Floats:
    """`row` as rounding may have it at worst for a filter (top_p, min_p, top_k): the logits `above` a token moved by
    `by`, and that token's with all others the other way."""
    return (row + np.where(above, by, -by)).astype(np.float32)


def _gap(row: Floats, expected: int, other: int, sampling: Sampling, context: Sequence[int]) -> float:
    """The lead of `expected` over `other` by what picks a token; infinite where `other` was filtered out."""
    if sampling.greedy:
        row = adjusted(row, sampling, sampling.recent(context))
        return float(row[expected] - row[other])
    choices = distribution(row, sampling, sampling.recent(context))
    scores = np.log(choices.probs) + gumbel(sampling.seed, len(context), choices.tokens, SHARED)
    by_token = dict(zip(choices.tokens.tolist(), scores.tolist(), strict=True))
    lead = by_token.get(expected, -np.inf) - by_token.get(other, -np.inf)
    return float(lead * sampling.temperature)
