"""The round, and the stream of events.

    choose   the controller asks drafters and buys a draft, perhaps an empty one
    verify   one pass of the target over the last committed token and the draft
    accept   the draft's longest path that the target agrees with, and one token more
    commit   the cache goes back to what was accepted; the context grows
    emit     only now: between events the caches are in step, and a consumer may leave at any

The target's cache always lacks just the last committed token: it is the first of the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .backends import Interrupt, Pieces, Session, common_prefix, require_numbers
from .controller import Controller
from .drafters import Follower, top_of
from .errors import ContextOverflow, Interrupted, OptionError
from .prices import Prices
from .sampling import Sampling, likeliest
from .stats import Stats, Tally
from .text.stream import Span, TextStream
from .types import Acceptance, Draft, Evaluated, Round, Top
from .values import instance, texts, whole
from .verify import RoundContext, Verifier


class Started(NamedTuple):
    """The prompt is in the cache: its length in tokens, how many of them were there already, and how many of the
    oldest messages were dropped so that it fits."""

    prompt: int
    cached: int
    dropped: int = 0


class Text(NamedTuple):
    """A round was committed. `text` may lag behind `tokens`: half a character, or half a stop string, is held back.

    `spans` is the same text by origin. If an answer is cancelled while text is held back because it may begin a stop
    string, one more comes with that text and no tokens: all texts together are the text of all tokens, less a stop
    string and the bytes of an unfinished character at the end.
    """

    text: str
    tokens: tuple[int, ...]
    round: Round
    spans: tuple[Span, ...]


class Finished(NamedTuple):
    """No more follows. `reason`: end (the model ended its turn), stop (a stop string), length (`max_tokens`),
    context (the context is full) or cancelled.

    `notices` tell the user what went wrong meanwhile without any effect on the text: a drafter that failed.
    """

    reason: str
    stats: Stats
    notices: tuple[str, ...] = ()


Event = Started | Text | Finished


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate: a prompt in tokens, and when to stop. `max_tokens` None goes on to the context's end."""

    prompt: Sequence[int]
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    dropped: int = 0

    def __post_init__(self) -> None:
        if not self.prompt:
            raise OptionError("the prompt is empty; give at least one token of text")
        instance("sampling", self.sampling, Sampling)
        object.__setattr__(self, "stop", texts("stop", self.stop))
        if self.max_tokens is not None:
            object.__setattr__(self, "max_tokens", whole("max_tokens", self.max_tokens, 1))


class Engine:
    """Speculative decoding of one target session."""

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
        wanted = [(each, top_of(each)) for each in controller.drafters]
        self._followers = [each for each, top in wanted if top is not None and isinstance(each, Follower)]
        self._top = max((top or 0 for _, top in wanted), default=0)

    def generate(self, request: Request) -> Iterator[Event]:
        """Follow the prompt.

        Raises:
            ContextOverflow: the prompt leaves no room for an answer; before any work.
            OptionError: the logit bias names a token that is not there, or bans all.
        """
        request.sampling.check(self._target.vocab)
        size, context = len(request.prompt), self._target.context
        if size >= context:
            # A text that is longer by far was not tokenized to its end, see `tokens_up_to`.
            known = f"{size}" if size <= 2 * context else f"more than {2 * context}"
            raise ContextOverflow(
                f"the prompt has {known} tokens, but the context holds {context} with the answer; shorten it, or give "
                "a larger context (--ctx)"
            )
        return self._generate(request)

    def _generate(self, request: Request) -> Iterator[Event]:
        context = list(request.prompt)
        text = TextStream(request.stop)
        tally = Tally(len(context), self._cached(context))
        reason = None
        try:
            started = time.perf_counter()
            self._prefill(context, tally.cached)
            tally.prompt_seconds = time.perf_counter() - started
            yield Started(tally.prompt, tally.cached, request.dropped)
            while reason is None:
                if self._interrupt.is_set:
                    raise Interrupted
                event, reason = self._round(request, context, text, tally)
                yield event
        except Interrupted:
            reason = "cancelled"
        if reason == "cancelled" and (spans := text.flush()):
            yield _text((), Round(Draft(), (), (), 0.0), spans)
        yield Finished(reason, tally.stats())

    def _cached(self, context: Sequence[int]) -> int:
        """How many tokens of `context` need not be computed again."""
        held = self._target.tokens
        same = common_prefix(held, context[:-1])
        return same if same == len(held) or self._target.reach is None else 0

    def _prefill(self, context: Sequence[int], cached: int) -> None:
        self._target.rollback(cached)
        if len(context) - 1 > cached:
            prompt = tuple(context[cached:-1])
            self._target.prefill(prompt)
            self._tell(Evaluated(cached, prompt, tuple(range(-1, len(prompt) - 1)), tuple(range(len(prompt)))))

    def _tell(self, what: Evaluated) -> None:
        for follower in self._followers:
            follower.evaluated(what)

    def _round(self, request: Request, context: list[int], text: TextStream, tally: Tally) -> tuple[Text, str | None]:
        started = time.perf_counter()
        round_context = RoundContext(self._verifier, request.sampling, context, self._vocabulary.is_eog)
        draft = self._controller.choose(round_context, self._limit(request, context, tally))
        drafting, held = self._speculating(started), len(self._target.tokens)
        acceptance, top, seconds = self._verify(draft, round_context)
        said = (*(draft.tokens[node] for node in acceptance.path), acceptance.token)
        tokens, spans, reason = self._cut(said, request, text, tally.tokens)
        kept = (0, *(node + 1 for node in acceptance.path[: len(tokens) - 1]))
        if len(kept) <= len(draft):  # one rollback at the most: what became text stays, as after plain decoding
            self._target.rollback(held, kept)
        evaluated = Evaluated(held, (context[-1], *draft.tokens), _parents(draft), kept, top)
        context.extend(tokens)
        round_ = Round(draft, acceptance.path, tokens, seconds, drafting, held)
        if reason is None and len(context) > self._target.context:
            reason = "context"
        if reason is not None and not text.stopped:
            spans += text.flush()
        prices = self._prices
        price, plain_price = (prices.price(round_.width, held), prices.plain(held)) if prices else (None, None)
        observing = self._observe(round_, evaluated)
        tally.add(round_, time.perf_counter() - started, drafting + observing, price, plain_price)
        return _text(tokens, round_, spans), reason

    def _limit(self, request: Request, context: Sequence[int], tally: Tally) -> int:
        """The longest draft that is any use: the context must hold it, one token more always comes, and the cache must
        be able to go back over it."""
        room = self._target.context - len(context)
        wanted = request.max_tokens - tally.tokens - 1 if request.max_tokens is not None else room
        reach = room if self._target.reach is None else self._target.reach
        return max(0, min(room, wanted, reach))

    def _verify(self, draft: Draft, round_context: RoundContext) -> tuple[Acceptance, Top | None, float]:
        """What the target accepts of `draft`, what it holds likeliest where, and the seconds that its pass took."""
        started = time.perf_counter()
        tree = None if draft.is_chain else _parents(draft)
        rows = self._target.decode((round_context.tokens[-1], *draft.tokens), tree)
        seconds = time.perf_counter() - started
        require_numbers(rows, "target")
        acceptance = self._verifier.accept(draft, rows, round_context.sampling, round_context.tokens)
        return acceptance, likeliest(rows, self._top) if self._top else None, seconds

    def _cut(
        self, said: Sequence[int], request: Request, text: TextStream, before: int
    ) -> tuple[tuple[int, ...], list[Span], str | None]:
        """The tokens of `said` up to where the text ends, their text, and the reason if it ends."""
        spans: list[Span] = []
        for i, token in enumerate(said, 1):
            spans += text.push(self._vocabulary.token_bytes(token), drafted=i < len(said))
            if self._vocabulary.is_eog(token):
                return tuple(said[:i]), spans, "end"
            if text.stopped:
                return tuple(said[:i]), spans, "stop"
            if before + i == request.max_tokens:
                return tuple(said[:i]), spans, "length"
        return tuple(said), spans, None

    def _observe(self, round: Round, evaluated: Evaluated) -> float:  # noqa: A002
        """Learn from a round; the seconds that plain decoding would not have spent on it."""
        started = time.perf_counter()
        self._tell(evaluated)
        self._controller.observe(round)
        for drafter in self._controller.drafters:
            drafter.observe(round)
        speculating = self._speculating(started)
        # Last: the controller weighs the round at the prices at which it was chosen.
        if self._prices is not None and round.draft.is_chain:
            self._prices.observe(round.width, round.held, round.verify_seconds)
        return speculating

    def _speculating(self, started: float) -> float:
        """Seconds since `started` if there is a drafter to ask; without one they are plain decoding's own."""
        return time.perf_counter() - started if self._controller.drafters else 0.0


def _parents(draft: Draft) -> tuple[int, ...]:
    """Those of a pass: its first token is the text's last, and the draft's nodes are below it."""
    return (-1, *(parent + 1 for parent in draft.parents))


def _text(tokens: tuple[int, ...], round: Round, spans: Sequence[Span]) -> Text:  # noqa: A002
    return Text("".join(span.text for span in spans), tokens, round, tuple(spans))
