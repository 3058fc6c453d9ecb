"""The rounds of an answer, and its stream of events.

    choose   the controller expands a draft tree with the drafters and selects a draft, which may be empty
    verify   one pass of the target over the last committed token and the draft
    accept   the verifier accepts a path of the draft, and one more token
    commit   the KV cache is rolled back to the accepted tokens; the context grows
    emit     an event, only after the commit: a consumer may stop after any event, and the caches are consistent

The target's KV cache always lacks the last committed token only: it is the first token of the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .backends import MOST_OWED, Interrupt, Pieces, Session, common_prefix, require_numbers
from .constraint import Begins, Constraint, MaskedRows
from .controller import Budgeted, Controller
from .drafters import Follower, top_of
from .errors import ContextOverflow, Interrupted, OptionError
from .logprobs import TokenLogprobs, token_logprobs
from .prices import Prices
from .sampling import Sampling, likeliest
from .stats import Stats, Tally
from .text.reasoning import Reasoning
from .text.stream import Span, TextStream
from .types import Acceptance, Draft, Evaluated, Floats, Passengers, Round
from .values import instance, texts, whole
from .verify import RoundContext, Verifier


class Started(NamedTuple):
    """The prompt is in the KV cache.

    Args:
        prompt: its length in tokens.
        cached: how many of these tokens were in the cache before.
        dropped: how many of the oldest messages were dropped so that the prompt fits.
    """

    prompt: int
    cached: int
    dropped: int = 0


class Text(NamedTuple):
    """A round was committed.

    Args:
        text: the text of the tokens, without reasoning. It may lag behind them: incomplete characters and the possible
            beginning of a stop string or of a marker of reasoning are held back. If an answer is cancelled while such a
            beginning is held back, one more event has that text and no tokens. All texts joined are the text of all
            tokens without the reasoning, the stop string and the bytes of an incomplete character at the end.
        tokens: the tokens that the round committed.
        round: the draft, the accepted path and the times.
        spans: the text and the reasoning in order, in parts that were drafted and parts that were not.
        reasoning: the text of the model's reasoning, which comes before the answer, without its markers. Only chats
            separate it; a round may have both.
        logprobs: the log probability of each of `tokens`, if `Request.logprobs` asks for them. A wider pass may compute
            them in another order, which moves the last digits.
    """

    text: str
    tokens: tuple[int, ...]
    round: Round
    spans: tuple[Span, ...]
    reasoning: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()


class Finished(NamedTuple):
    """The last event of an answer.

    Args:
        reason: "end" (the model ended its turn, or the grammar ended), "stop" (a stop string), "length" (`max_tokens`),
            "context" (the context is full) or "cancelled".
        stats: the statistics of the answer.
        notices: messages for the user about failures that did not change the text, such as that of a drafter.
    """

    reason: str
    stats: Stats
    notices: tuple[str, ...] = ()


Event = Started | Text | Finished


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate.

    Args:
        prompt: tokens.
        sampling: how tokens are sampled.
        max_tokens: tokens to generate; None continues until the context is full.
        stop: texts that end the answer.
        dropped: messages dropped from the prompt, for `Started`.
        reasoning: how reasoning is marked in the answer; None leaves it in the text. Stop texts do not end it.
        grammar: what the answer may be; None for any text. The answer ends where the grammar does.
        logprobs: how many alternatives `Text.logprobs` has for each token; None leaves it empty.
        shown: bytes of special tokens that are part of the text, such as markers of tool calls.

    Raises:
        OptionError: an empty prompt, or an invalid option.
    """

    prompt: Sequence[int]
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    dropped: int = 0
    reasoning: Reasoning | None = None
    grammar: Begins | None = None
    logprobs: int | None = None
    shown: Mapping[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise OptionError("the prompt is empty; give at least one token of text")
        instance("sampling", self.sampling, Sampling)
        object.__setattr__(self, "stop", texts("stop", self.stop))
        if self.max_tokens is not None:
            object.__setattr__(self, "max_tokens", whole("max_tokens", self.max_tokens, 1))
        if self.logprobs is not None:
            object.__setattr__(self, "logprobs", whole("logprobs", self.logprobs, 0))


class Engine:
    """Speculative decoding with one target session.

    Args:
        target: the session of the target.
        vocabulary: the target's tokens.
        controller: chooses the drafts.
        verifier: accepts them.
        interrupt: ends an answer between and inside passes.
        prices: predicts the time of passes for the baseline, and learns from them; None for neither.
    """

    def __init__(
        self,
        target: Session,
        vocabulary: Pieces,
        controller: Controller,
        verifier: Verifier,
        interrupt: Interrupt,
        prices: Prices | None = None,
    ) -> None:
        self._target = target
        self._vocabulary = vocabulary
        self._controller = controller
        self._verifier = verifier
        self._interrupt = interrupt
        self._prices = prices
        tops = [(each, top_of(each)) for each in controller.drafters]
        self._followers = [each for each, top in tops if top is not None and isinstance(each, Follower)]
        self._top = max((top or 0 for _, top in tops), default=0)
        self._budgeted = controller if isinstance(controller, Budgeted) else None
        #: Seconds that drafters and controller took to learn from the last round.
        self._observing = 0.0
        self._streak = (1, 0)  # the width of the last pass, and how many of that width there were in a row
        self._passes = 0  # since the prompt

    def generate(self, request: Request) -> Iterator[Event]:
        """Generate the continuation of the prompt.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer; raised before anything is computed.
            OptionError: the logit bias has a token outside the vocabulary, or bans all tokens.
        """
        request.sampling.check(self._target.vocab)
        size, context = len(request.prompt), self._target.context
        if size >= context:
            # A prompt that is much longer was not tokenized to its end, see `tokens_up_to`.
            known = f"{size}" if size <= 2 * context else f"more than {2 * context}"
            raise ContextOverflow(
                f"the prompt has {known} tokens, but the context holds {context} with the answer; shorten it, or give "
                "a larger context (--ctx)"
            )
        return self._generate(request)

    def _generate(self, request: Request) -> Iterator[Event]:
        context = list(request.prompt)
        splitter = request.reasoning.splitter() if request.reasoning is not None else None
        text = TextStream(request.stop, splitter, request.shown)
        same = common_prefix(self._target.tokens, context[:-1])
        self._target.rollback(same)
        self._streak = (1, self._target.settling)  # plain decoding pays for what follows a prompt, too
        self._passes = 0
        tally = Tally(len(context), same - self._target.owed)
        constraint = request.grammar.begin() if request.grammar is not None else None
        reason = None
        try:
            started = time.perf_counter()
            self._prefill(context, same)
            tally.prompt_seconds = time.perf_counter() - started
            yield Started(tally.prompt, tally.cached, request.dropped)
            while reason is None:
                if self._interrupt.is_set:
                    raise Interrupted
                event, reason = self._round(request, context, text, tally, constraint)
                yield event
        except Interrupted:
            reason = "cancelled"
        if reason == "cancelled" and (spans := text.flush()):
            yield _text((), Round(Draft(), (), (), 0.0), spans)
        yield Finished(reason, tally.stats())

    def _prefill(self, context: Sequence[int], held: int) -> None:
        prompt = tuple(context[held:-1])
        if prompt or self._target.owed:
            self._target.prefill(prompt)
        if prompt:
            self._notify(Evaluated(held, prompt, tuple(range(-1, len(prompt) - 1)), tuple(range(len(prompt)))))

    def _notify(self, what: Evaluated) -> None:
        for follower in self._followers:
            follower.evaluated(what)

    def _round(
        self, request: Request, context: list[int], text: TextStream, tally: Tally, constraint: Constraint | None
    ) -> tuple[Text, str | None]:
        began = time.perf_counter()
        if self._target.owed > MOST_OWED:  # a decode would compute them in a pass of its own, at another price
            self._target.prefill(())
        owed = self._target.owed
        is_eog = self._vocabulary.is_eog
        round_context = RoundContext(self._verifier, request.sampling, context, is_eog, owed, constraint=constraint)
        draft = self._fitting(self._controller.choose(round_context, self._limit(request, context, tally)))
        drafting, held = self._speculating(began), len(self._target.tokens)
        acceptance, rows, seconds = self._verify(draft, round_context)
        started = time.perf_counter()
        # Now: the next pass may overwrite the rows.
        top = likeliest(rows, self._top) if self._top and not self._is_paused else None
        learning = self._speculating(started)
        output = (*(draft.tokens[node] for node in acceptance.path), acceptance.token)
        drafters = [draft.drafters[node] for node in acceptance.path]
        tokens, spans, reason = self._cut(output, drafters, request, text, tally.tokens, constraint)
        kept = (0, *(node + 1 for node in acceptance.path[: len(tokens) - 1]))
        logprobs = self._logprobs(rows, kept, tokens, request)
        self._target.rollback(held, kept)  # the only one of the round: it drops all rejected tokens
        evaluated = Evaluated(held, draft.pass_tokens(context[-1]), draft.pass_parents, kept, top)
        context.extend(tokens)
        lost = drafting + learning + self._observing
        settled = self._settled(owed + len(draft.pass_parents))
        round_ = Round(draft, acceptance.path, tokens, seconds, lost, held, owed, settled)
        if reason is None and len(context) > self._target.context:
            reason = "context"
        if reason is not None and not text.stopped:
            spans += text.flush()
        prices = self._prices
        price, plain_price = (prices.price(round_.width, held), prices.plain(held)) if prices else (None, None)
        self._observing = self._observe(round_, evaluated)
        speculating = drafting + learning + self._observing
        tally.add(round_, time.perf_counter() - began, speculating, price, plain_price)
        tally.reasoning_tokens = text.reasoning_tokens
        return _text(tokens, round_, spans)._replace(logprobs=logprobs), reason

    def _logprobs(
        self, rows: Floats, kept: Sequence[int], tokens: Sequence[int], request: Request
    ) -> tuple[TokenLogprobs, ...]:
        """Those of the committed `tokens`: each follows the node of the pass that `kept` has in its place."""
        if request.logprobs is None:
            return ()
        return token_logprobs(rows[list(kept)], tokens, request.logprobs, self._vocabulary.token_bytes)

    def _limit(self, request: Request, context: Sequence[int], tally: Tally) -> int:
        """The longest useful draft: it must fit the context, each round commits one token more than it accepts, and
        rolling it back should not leave the whole text to be computed again."""
        room = self._target.context - len(context)
        remaining = request.max_tokens - tally.tokens - 1 if request.max_tokens is not None else room
        reach = room if self._target.reach is None else self._target.reach
        return max(0, min(room, remaining, reach))

    def _fitting(self, draft: Draft) -> Draft:
        """`draft`, without its passengers where the session cannot take them: it takes no trees, this one does not fit,
        or tokens are owed, which take a pass of their own before a tree."""
        if not draft.passengers.tokens:
            return draft
        target, tree = self._target, draft.pass_parents
        leaves = len(tree) - len(set(tree) - {-1})
        room = min(target.widest, target.context - len(target.tokens))
        if target.can_tree and not target.owed and len(tree) <= room and leaves <= target.leaves:
            return draft
        return replace(draft, passengers=Passengers())

    @property
    def _is_paused(self) -> bool:
        return self._budgeted is not None and self._budgeted.is_paused

    def _verify(self, draft: Draft, round_context: RoundContext) -> tuple[Acceptance, Floats, float]:
        """The acceptance of `draft`, the rows of the pass, and its seconds."""
        started = time.perf_counter()
        tree = None if draft.is_chain else draft.pass_parents
        rows = self._target.decode(draft.pass_tokens(round_context.tokens[-1]), tree)
        seconds = time.perf_counter() - started
        require_numbers(rows, "target")
        own, constraint = rows[: 1 + len(draft)], round_context.constraint
        judged = own if constraint is None else MaskedRows(own, draft, constraint)
        acceptance = self._verifier.accept(draft, judged, round_context.sampling, round_context.tokens)
        return acceptance, rows, seconds

    def _cut(
        self,
        output: Sequence[int],
        drafters: Sequence[str],
        request: Request,
        text: TextStream,
        before: int,
        constraint: Constraint | None,
    ) -> tuple[tuple[int, ...], list[Span], str | None]:
        """The tokens of `output` up to the end of the answer, their text, and the reason if the answer ends.

        Args:
            drafters: the names of those that guessed the tokens of `output`, but for its last one.
        """
        spans: list[Span] = []
        for i, (token, drafter) in enumerate(zip(output, (*drafters, ""), strict=True), 1):
            spans += text.push(self._vocabulary.token_bytes(token), token, drafter=drafter)
            if self._vocabulary.is_eog(token):
                return tuple(output[:i]), spans, "end"
            if constraint is not None:
                constraint.commit(token)
            if text.stopped:
                return tuple(output[:i]), spans, "stop"
            if constraint is not None and constraint.ended():
                return tuple(output[:i]), spans, "end"
            if before + i == request.max_tokens:
                return tuple(output[:i]), spans, "length"
        return tuple(output), spans, None

    def _observe(self, round: Round, evaluated: Evaluated) -> float:  # noqa: A002
        """Update prices, drafters and controller; returns the seconds that plain decoding would not have spent."""
        started = time.perf_counter()
        self._notify(evaluated)
        self._controller.observe(round)
        for drafter in self._controller.drafters:
            drafter.observe(round)
        speculating = self._speculating(started)
        # Last: the controller weighs the round at the prices at which it was chosen. They are those of passes in a row
        # of their width, which one just after another width or a prompt does not show: it may wait for the prompt, too.
        in_a_row = round.settled and self._passes > self._target.settling
        if self._prices is not None and round.draft.is_chain and in_a_row:
            self._prices.observe(round.width, round.held, round.verify_seconds)
        return speculating

    def _settled(self, width: int) -> bool:
        """Whether a pass of that width, just made, had the price that it has in a row of its kind."""
        self._passes += 1
        last, before = self._streak
        self._streak = (width, before + 1 if width == last else 1)
        return self._streak[1] > self._target.settling

    def _speculating(self, started: float) -> float:
        """Seconds since `started` if there are drafters; without any, plain decoding would have spent them, too."""
        return time.perf_counter() - started if self._controller.drafters else 0.0


def _text(tokens: tuple[int, ...], round: Round, spans: Sequence[Span]) -> Text:  # noqa: A002
    text, reasoning = ("".join(span.text for span in spans if span.reasoning is part) for part in (False, True))
    return Text(text, tokens, round, tuple(spans), reasoning)
