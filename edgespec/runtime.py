"""The face for apps: stream answers, cancel, close."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType

from .backends import Session, Vocabulary, tokens_up_to
from .calibration import Share
from .engine import Engine, Event, Finished, Request
from .errors import BusyError, ClosedError, OptionError
from .pair import Pair, Speculation
from .prices import Prices
from .sampling import Sampling
from .template import ChatTemplate, Message, checked
from .text import to_text
from .verify import verifier


class Runtime:
    """A target with its drafters. One answer at a time; `cancel` and `close` may come from any thread."""

    def __init__(self, pair: Pair, speculation: Speculation) -> None:
        self.speculation = speculation
        self._pair = pair
        self._controller = pair.controller(speculation)
        self._template: ChatTemplate | None = None
        self._busy = threading.Lock()
        #: Weak, so that a stream its reader forgets is closed at once.
        self._streams: weakref.WeakSet[_Stream] = weakref.WeakSet()
        self._closed = False

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
        return " with draft ".join(model.description for model in self._pair.models)

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know of how the models were loaded: where that is not as asked for."""
        return [notice for model in self._pair.models for notice in model.notices]

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
    ) -> Iterator[Event]:
        """Stream what follows `prompt`: text, in which nothing becomes a special token, or tokens.

        Args:
            stop: texts that end the answer; they are not part of it.
            speculation: for this answer only; plain decoding, say, to compare.

        Raises:
            ContextOverflow: the prompt does not fit; nothing was done.
            OptionError: an empty prompt, or options that make no sense.
            BusyError: another answer is under way; raised when the first event is asked for.
            ClosedError: the runtime was closed.
        """
        self._check_open()
        vocabulary = self.vocabulary
        tokens = tokens_up_to(vocabulary, prompt, self._most, start=True) if isinstance(prompt, str) else list(prompt)
        if strange := [token for token in tokens if not 0 <= token < vocabulary.size]:
            raise OptionError(f"no token {strange[0]}: the vocabulary has tokens 0 to {vocabulary.size - 1}")
        request = Request(tokens, sampling or Sampling(), max_tokens, _stops(stop))
        return self._generate(request, speculation)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling | None = None,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] | str = (),
        speculation: Speculation | None = None,
    ) -> Iterator[Event]:
        """Stream the answer to `messages`, each with "role" and "content".

        Where they do not fit the context the oldest turns are left out, never a leading system message nor the last
        message; `Started.dropped` says how many. What the context holds of an earlier call is not computed again.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
            and as `complete`.
        """
        self._check_open()
        if not messages or isinstance(messages, str):
            raise OptionError('no messages to answer; give a list of them, the last {"role": "user", "content": ...}')
        for message in messages:
            checked(message)
        tokens, dropped = self._fit(messages, max_tokens)
        request = Request(tokens, sampling or Sampling(), max_tokens, _stops(stop), dropped)
        return self._generate(request, speculation)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens that `chat` gives the model for `messages`, all of them.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
        """
        return self._chat_template().tokens(messages)

    def cancel(self) -> None:
        """End the answer under way, inside a pass where the engine allows it; it finishes as `cancelled`. So does one
        that was asked for and not begun."""
        for stream in list(self._streams):
            stream.cancelled.set()
        self._pair.interrupt.set()

    def text(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`."""
        return to_text(tokens, self.vocabulary.piece)

    def close(self) -> None:
        """End the answer under way and free everything. Closing twice does no harm."""
        already, self._closed = self._closed, True
        self._pair.interrupt.set()
        for stream in list(self._streams):
            stream.close()
        with self._busy:
            if not already:
                self._pair.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            self._template = ChatTemplate(self.vocabulary)
        return self._template

    @property
    def _most(self) -> int:
        """Tokens of a prompt after which it need not be tokenized to its end: it does not fit by far."""
        return 2 * self.context + 1024

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this runtime is closed; load it again")

    def _fit(self, messages: Sequence[Message], max_tokens: int | None) -> tuple[list[int], int]:
        """The prompt, without as many of the oldest turns as it takes to leave room for an answer.

        Turns go in pairs, for templates insist that the user speaks first, and several at a time: while the same
        ones are left out, the next prompt begins as this one does, and the cache is of use.
        """
        room = self.context - min(max_tokens or self.context, self.context // 4)
        first = 1 if messages[0].get("role") == "system" else 0
        pairs = (len(messages) - first - 1) // 2

        def without(dropped: int) -> list[int]:
            return self._chat_template().tokens([*messages[:first], *messages[first + 2 * dropped :]], self._most)

        tokens = without(0)
        if len(tokens) <= room or not pairs:
            return tokens, 0
        fewest = bisect_left(range(pairs), True, key=lambda dropped: len(without(dropped)) <= room)
        block = 1 << max(0, ((pairs - fewest) // 3).bit_length() - 1)
        dropped = min(pairs, -(-fewest // block) * block)
        return without(dropped), 2 * dropped

    def _generate(self, request: Request, speculation: Speculation | None) -> Iterator[Event]:
        pair = self._pair
        controller = self._controller if speculation is None else pair.controller(speculation)
        chosen = speculation or self.speculation
        rule = verifier(chosen.verifier)
        engine = Engine(pair.session, self.vocabulary, controller, rule, pair.interrupt, pair.prices)
        cancelled = threading.Event()
        events = self._guarded(engine.generate(request), cancelled, remember=chosen.remember)
        stream = _Stream(events, cancelled)
        self._streams.add(stream)
        return stream

    def _guarded(
        self, events: Iterator[Event], cancelled: threading.Event, *, remember: bool
    ) -> Generator[Event, None, None]:
        if not self._busy.acquire(blocking=False):
            raise BusyError("this runtime is answering already; wait for it, cancel it, or load a second one")
        try:
            self._pair.interrupt.clear()
            # In this order: a close or a cancel in between is seen here, or is heard as an interrupt.
            self._check_open()
            if cancelled.is_set():
                self._pair.interrupt.set()
            while not isinstance(event := next(events), Finished):
                yield event
            # Cancelled before its first word, it is half a prompt.
            if remember and self._pair.memory is not None and event.stats.tokens:
                self._pair.memory.add(self._pair.session.tokens)
        finally:
            self._busy.release()
        yield event  # nothing is under way any more, whether or not the reader goes on to the end


def _stops(stop: Sequence[str] | str) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


class _Stream(Iterator[Event]):
    """Events that may be read on one thread and closed from another."""

    def __init__(self, events: Generator[Event, None, None], cancelled: threading.Event) -> None:
        self.cancelled = cancelled
        self._events = events
        self._turn = threading.Lock()
        self._begun = False

    def __next__(self) -> Event:
        with self._turn:
            self._begun = True
            return next(self._events)

    def close(self) -> None:
        """End the stream between two events. One that was never begun is left to say for itself why it cannot."""
        with self._turn:
            if self._begun:
                self._events.close()
