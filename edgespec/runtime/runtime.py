"""The face for apps: stream answers, cancel, close."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ..backends import Session, Vocabulary, tokens_up_to
from ..backends.token_ids import checked_tokens
from ..controller import Controller
from ..controller.calibration import Share
from ..drafters import Drafter
from ..engine import Engine, Event, Finished, Request
from ..errors import BusyError, ClosedError, Interrupted, OptionError, printable
from ..prices import Prices
from ..sampling import Sampling
from ..stats import Tally
from ..text.stream import to_text
from ..text.template import ChatTemplate, Message, checked
from ..values import instance, texts, whole
from ..verify import verifier
from .answer import Answer
from .loaded_pair import LoadedPair
from .speculation import Speculation
from .turns import Turns

#: Roles of a first message that is kept whatever is dropped.
_LEADING = ("system", "developer")

#: Makes a controller of the drafters of a runtime.
Controlled = Callable[[Sequence[Drafter]], Controller]


class Runtime:
    """A target with its drafters. One answer at a time; `cancel` and `close` may come from any thread. `another` opens
    further ones over the same weights.

    It belongs to the process that loaded it: one that is forked from that can neither use nor free it, and is told so.
    Where ONNX Runtime is loaded such a process must end by `os._exit`, as multiprocessing's do: it waits for threads
    that it lacks when the interpreter is shut down.
    """

    def __init__(self, pair: LoadedPair, speculation: Speculation) -> None:
        self.speculation = speculation
        self._pair = pair
        self._controller = pair.controller(speculation)
        self._template: ChatTemplate | None = None
        self._notices: list[str] = []
        #: Held by the answer under way; others stand in line for it.
        self._turns = Turns()
        #: That answer's stream. Weak, so that a stream its reader forgets is closed at once.
        self._under_way: Callable[[], Answer | None] = _nothing
        #: Replaced by every cancel: answers asked for before it are cancelled.
        self._era = object()
        self._closed = False
        self._freed = False
        self._process = os.getpid()

    @property
    def vocabulary(self) -> Vocabulary:
        self._check_open()
        return self._pair.models[0].vocabulary

    @property
    def prices(self) -> Prices:
        """The price of a pass by width, as measured and corrected since."""
        return self._pair.prices

    @property
    def session(self) -> Session:
        """The target's session, for measurements between answers."""
        self._check_open()
        return self._pair.session

    @property
    def trained_context(self) -> int:
        """Tokens that the target was trained to see together."""
        return self._pair.models[0].trained_context

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._pair.session.context

    @property
    def description(self) -> str:
        """The models by name."""
        return printable(" with draft ".join(model.description for model in self._pair.models))

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know: where the models are not loaded as asked for, and which drafters failed since."""
        return [*self._notices, *self._pair.notices]

    def add_notice(self, notice: str) -> None:
        """Let `notices` say this, too."""
        self._notices.append(notice)

    @property
    def step_prices(self) -> dict[str, float]:
        """By drafter, the seconds that a guess takes; 0 for those that cost nothing to speak of."""
        return {drafter.name: drafter.step_price for drafter in self._pair.drafters}

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafters by name."""
        return tuple(drafter.name for drafter in self._pair.drafters)

    @property
    def acceptance(self) -> dict[str, Share]:
        """By drafter, how often its likeliest guess was right of late, in earlier runs too; those that agree are named
        together."""
        return self._pair.calibration(self.speculation).summary()

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling that the model's file recommends: `Sampling` fields by name."""
        return dict(self._pair.models[0].sampling)

    def complete(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        speculation: Speculation | None = None,
        controlled: Controlled | None = None,
        wait: bool = False,
    ) -> Answer:
        """Stream what follows `prompt`: text, in which nothing becomes a special token, or tokens.

        Args:
            stop: texts that end the answer; they are not part of it.
            speculation: for this answer only; plain decoding, say, to compare.
            controlled: makes what chooses the drafts of this answer, of the drafters there are; for measurements.
            wait: if another answer is under way when the first event is asked for, wait until it has ended, and until
                those that waited before have. `cancel` ends the wait as it ends an answer, and `close` ends it with
                ClosedError. A thread that has read only a part of the answer under way would wait for itself.

        Raises:
            ContextOverflow: the prompt does not fit; nothing was done.
            OptionError: an empty prompt, or options that make no sense.
            BusyError: another answer is under way, and this one does not `wait`; raised when the first event is asked
                for.
            ClosedError: the runtime was closed.
        """
        self._check_open()
        place, vocabulary = _Place(self._era, wait), self.vocabulary
        given = tokens_up_to(vocabulary, prompt, self._most, start=True) if isinstance(prompt, str) else prompt
        tokens = checked_tokens(given, vocabulary.size)
        request = Request(tokens, Sampling() if sampling is None else sampling, max_tokens, _stops(stop))
        return self._generate(request, speculation, place, controlled)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        speculation: Speculation | None = None,
        wait: bool = False,
    ) -> Answer:
        """Stream the answer to `messages`, each with "role" and "content", and what else the template reads.

        Where they do not fit the context the oldest turns are left out, never a leading system message nor the last
        turn; `Started.dropped` says how many messages. What the context holds of an earlier call is not computed again.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages, or it takes more time or memory
                than they can need.
            and as `complete`.
        """
        self._check_open()
        place = _Place(self._era, wait)
        messages = _messages(messages)
        most = None if max_tokens is None else whole("max_tokens", max_tokens, 1)
        try:
            tokens, dropped = self._fit(messages, most, place)
        except Interrupted:
            return Answer(lambda _own: _only(_cancelled(0)), self._check_process, lambda: None)
        request = Request(tokens, Sampling() if sampling is None else sampling, most, _stops(stop), dropped)
        return self._generate(request, speculation, place)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens that `chat` gives the model for `messages`, all of them.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
            OptionError: these are no messages.
        """
        return self._chat_template().tokens(_messages(messages))

    def cancel(self) -> None:
        """End the answer under way, inside a pass where the engine allows it; it finishes as `cancelled`. So do those
        that were asked for and not begun. `Answer.cancel` ends a single one."""
        self._era = object()
        if os.getpid() == self._process:  # what is locked after a fork stays so
            self._pair.interrupt.set()
            self._wake()

    def another(self, speculation: Speculation | None = None) -> Runtime:
        """A further runtime over the same weights, with a cache of its own, for a conversation beside this one.

        Both may answer at the same time, on different threads: they take turns by the round, and the prompt of one is
        computed before the other goes on. Prices and what is learned of the drafters are common to them. Each is
        closed by itself, and the last one to close frees the weights.

        Args:
            speculation: its own; None takes this runtime's.

        Raises:
            ClosedError: this runtime was closed.
            OptionError: a drafter that this pair lacks.
            EngineError: there is no memory for a further cache.
        """
        self._check_open()
        chosen = self.speculation if speculation is None else instance("speculation", speculation, Speculation)
        pair = self._pair.another(chosen)
        try:
            return Runtime(pair, chosen)
        except BaseException:
            pair.close()
            raise

    def text(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`.

        Raises:
            OptionError: one of them is no token of the vocabulary.
        """
        vocabulary = self.vocabulary
        return to_text(checked_tokens(tokens, vocabulary.size), vocabulary.token_bytes)

    def close(self) -> None:
        """End the answer under way and free everything. Closing twice does no harm.

        In a process that was forked from the one that loaded it this does nothing: the engine's threads are not there.
        """
        self._closed = True
        if os.getpid() != self._process:
            return
        self._pair.interrupt.set()
        self._wake()
        # An answer that is not under way yet sees `_closed` before it does anything.
        if (stream := self._under_way()) is not None:
            stream.close()
        with self._turns.turn():
            if not self._freed:
                self._pair.close()
                self._freed = True

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _most(self) -> int:
        """Tokens of a prompt after which it need not be tokenized to its end: it does not fit by far."""
        return 2 * self.context + 1024

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise ClosedError("this runtime is closed; load it again")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ClosedError(
                "this runtime was loaded before this process was forked, and the engine's threads stayed behind; start "
                "processes by the method 'spawn', or load it after the fork"
            )

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            self._template = ChatTemplate(self.vocabulary)
        return self._template

    def _fit(self, messages: Sequence[Message], max_tokens: int | None, place: _Place) -> tuple[list[int], int]:
        """The prompt, without as many of the oldest turns as it takes to leave room for an answer.

        A turn is a user's message with all that follows up to the next: templates insist that the user speaks first,
        and a tool's result is nothing without the call. Several turns are dropped at a time: while the same ones are
        left out, the next prompt begins as this one does, and the cache is of use.

        Raises:
            Interrupted: `cancel` or `close` was called meanwhile.
        """
        room = self.context - min(max_tokens or self.context, self.context // 4)
        first = 1 if messages[0].get("role") in _LEADING else 0
        starts = [first, *(i for i in range(first + 1, len(messages)) if messages[i].get("role") == "user")]
        turns = len(starts) - 1  # that may be dropped
        template = self._chat_template()

        def without(dropped: int) -> list[int]:
            kept = [*messages[:first], *messages[starts[dropped] :]]
            return template.tokens(kept, lambda: self._is_over(place), self._most)

        tokens = without(0)
        if len(tokens) <= room or not turns:
            return tokens, 0
        fewest = bisect_left(range(turns), True, key=lambda dropped: len(without(dropped)) <= room)
        block = 1 << max(0, ((turns - fewest) // 3).bit_length() - 1)
        dropped = min(turns, -(-fewest // block) * block)
        return without(dropped), starts[dropped] - first

    def _generate(
        self, request: Request, speculation: Speculation | None, place: _Place, controlled: Controlled | None = None
    ) -> Answer:
        pair = self._pair
        chosen = self.speculation if speculation is None else instance("speculation", speculation, Speculation)
        controller = self._controller if speculation is None else pair.controller(speculation)
        if controlled is not None:
            controller = controlled(controller.drafters)
        rule = verifier(chosen.verifier)
        engine = Engine(pair.session, self.vocabulary, controller, rule, pair.interrupt, pair.prices)
        events = engine.generate(request)
        never = _cancelled(len(request.prompt))

        def guarded(own: Callable[[], Answer | None]) -> Generator[Event, None, None]:
            return self._guarded(events, place, own, never, remember=chosen.remember)

        return Answer(guarded, self._check_process, lambda: self._cancel(place))

    def _begin(self, place: _Place) -> bool:
        """Have the turn; False where the answer was cancelled while it waited."""
        if self._turns.take_at_once(place):
            return True
        if not place.waits:
            raise BusyError(
                "this runtime is answering already; wait for it (wait=True does), cancel it, or open `another` one"
            )
        if self._turns.take(place, lambda: self._is_over(place)):
            return True
        self._check_open()
        return False

    def _is_over(self, place: _Place) -> bool:
        return self._closed or place.cancelled or self._era is not place.era

    def _cancel(self, place: _Place) -> None:
        """End this answer alone."""
        place.cancelled = True
        if os.getpid() == self._process:
            self._turns.if_holder(place, self._pair.interrupt.set)
            self._wake()

    def _wake(self) -> None:
        """Let answers that wait see that they are over."""
        self._turns.wake()
        self._pair.turns.wake()

    def _guarded(
        self,
        events: Iterator[Event],
        place: _Place,
        own: Callable[[], Answer | None],
        never: Finished,
        *,
        remember: bool,
    ) -> Generator[Event, None, None]:
        """`events`, of which `own` is the stream, while no others are under way; `never` if they never begin."""
        if not self._begin(place):
            yield never
            return
        try:
            self._under_way = own
            self._pair.interrupt.clear()
            # In this order: a close or a cancel in between is seen here, or is heard as an interrupt.
            self._check_open()
            if self._is_over(place):
                self._pair.interrupt.set()
            known = self.notices
            while not isinstance(event := self._next(events), Finished):
                yield event
            event = event._replace(notices=tuple(notice for notice in self.notices if notice not in known))
            # Cancelled before its first word, it is half a prompt.
            if remember and self._pair.earlier_texts is not None and event.stats.tokens:
                self._pair.earlier_texts.add(self._pair.session.tokens)
        finally:
            self._under_way = _nothing
            self._turns.leave(place)
        yield event  # nothing is under way any more, whether or not the reader goes on to the end

    def _next(self, events: Iterator[Event]) -> Event:
        """The next event, computed while no other runtime over these models computes."""
        turns, interrupt, who = self._pair.turns, self._pair.interrupt, object()
        if not turns.take(who, lambda: interrupt.is_set):
            return next(events)  # interrupted before anything is computed
        try:
            return next(events)
        finally:
            turns.leave(who)


def _nothing() -> None:
    """No stream."""


def _cancelled(prompt: int) -> Finished:
    """The end of an answer to so many tokens that never began."""
    return Finished("cancelled", Tally(prompt, 0).stats())


def _only(event: Event) -> Generator[Event, None, None]:
    yield event


@dataclass(eq=False, slots=True)
class _Place:
    """An answer's place in the queue. It is over once it is cancelled, or all of its era are."""

    era: object
    waits: bool
    cancelled: bool = False


def _messages(messages: Any) -> Sequence[Message]:
    """Raises OptionError."""
    if not messages or not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise OptionError('no messages to answer; give a list of them, the last {"role": "user", "content": ...}')
    return [checked(message) for message in messages]


def _stops(stop: Sequence[str] | str) -> tuple[str, ...]:
    """Raises OptionError."""
    return texts("stop", (stop,) if isinstance(stop, str) else stop)
