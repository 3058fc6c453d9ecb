"""The face for apps: stream answers, cancel, close."""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType

from .backends import Session, Vocabulary
from .calibration import Share
from .control import Controller
from .drafters import Drafter
from .engine import Engine, Event, Finished, Request
from .errors import BusyError, ClosedError, OptionError
from .pair import Pair, Speculation
from .prices import Prices
from .sampling import Sampling
from .template import ChatTemplate, Message, checked
from .text import to_text
from .values import instance, texts, whole
from .verify import verifier

#: Makes a controller of the drafters of a runtime.
Controlled = Callable[[Sequence[Drafter]], Controller]


class Runtime:
    """A target with its drafters. One answer at a time; `cancel` and `close` may come from any thread.

    It belongs to the process that loaded it: one that is forked from that can neither use nor free it, and is told so.
    Where ONNX Runtime is loaded such a process must end by `os._exit`, as multiprocessing's do: it waits for threads
    that it lacks when the interpreter is shut down.
    """

    def __init__(self, pair: Pair, speculation: Speculation) -> None:
        self.speculation = speculation
        self._pair = pair
        self._controller = pair.controller(speculation)
        self._template: ChatTemplate | None = None
        self._notices: list[str] = []
        #: Held by the answer under way.
        self._busy = threading.Lock()
        #: That answer's stream. Weak, so that a stream its reader forgets is closed at once.
        self._under_way: Callable[[], _Stream | None] = _nothing
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
        return " with draft ".join(model.description for model in self._pair.models)

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
    ) -> Iterator[Event]:
        """Stream what follows `prompt`: text, in which nothing becomes a special token, or tokens.

        Args:
            stop: texts that end the answer; they are not part of it.
            speculation: for this answer only; plain decoding, say, to compare.
            controlled: makes what chooses the drafts of this answer, of the drafters there are; for measurements.

        Raises:
            ContextOverflow: the prompt does not fit; nothing was done.
            OptionError: an empty prompt, or options that make no sense.
            BusyError: another answer is under way; raised when the first event is asked for.
            ClosedError: the runtime was closed.
        """
        self._check_open()
        era, vocabulary = self._era, self.vocabulary
        tokens = vocabulary.tokenize(prompt, start=True) if isinstance(prompt, str) else list(prompt)
        if strange := [token for token in tokens if not 0 <= token < vocabulary.size]:
            raise OptionError(f"no token {strange[0]}: the vocabulary has tokens 0 to {vocabulary.size - 1}")
        request = Request(tokens, Sampling() if sampling is None else sampling, max_tokens, _stops(stop))
        return self._generate(request, speculation, era, controlled)

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
        era = self._era
        if not messages or isinstance(messages, str):
            raise OptionError('no messages to answer; give a list of them, the last {"role": "user", "content": ...}')
        for message in messages:
            checked(message)
        most = None if max_tokens is None else whole("max_tokens", max_tokens, 1)
        tokens, dropped = self._fit(messages, most)
        request = Request(tokens, Sampling() if sampling is None else sampling, most, _stops(stop), dropped)
        return self._generate(request, speculation, era)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens that `chat` gives the model for `messages`, all of them.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
        """
        if self._template is None:
            self._template = ChatTemplate(self.vocabulary)
        return self._template.tokens(messages)

    def cancel(self) -> None:
        """End the answer under way, inside a pass where the engine allows it; it finishes as `cancelled`. So does one
        that was asked for and not begun."""
        self._era = object()
        self._pair.interrupt.set()

    def text(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`."""
        return to_text(tokens, self.vocabulary.piece)

    def close(self) -> None:
        """End the answer under way and free everything. Closing twice does no harm.

        In a process that was forked from the one that loaded it this does nothing: the engine's threads are not there.
        """
        self._closed = True
        if os.getpid() != self._process:
            return
        self._pair.interrupt.set()
        # An answer that is not under way yet sees `_closed` before it does anything.
        if (stream := self._under_way()) is not None:
            stream.close()
        with self._busy:
            if not self._freed:
                self._pair.close()
                self._freed = True

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def _fit(self, messages: Sequence[Message], max_tokens: int | None) -> tuple[list[int], int]:
        """The prompt, without as many of the oldest turns as it takes to leave room for an answer.

        Turns go in pairs, for templates insist that the user speaks first, and several at a time: while the same
        ones are left out, the next prompt begins as this one does, and the cache is of use.
        """
        room = self.context - min(max_tokens or self.context, self.context // 4)
        first = 1 if messages[0].get("role") == "system" else 0
        pairs = (len(messages) - first - 1) // 2

        def without(dropped: int) -> list[int]:
            return self.prompt([*messages[:first], *messages[first + 2 * dropped :]])

        tokens = without(0)
        if len(tokens) <= room or not pairs:
            return tokens, 0
        fewest = bisect_left(range(pairs), True, key=lambda dropped: len(without(dropped)) <= room)
        block = 1 << max(0, ((pairs - fewest) // 3).bit_length() - 1)
        dropped = min(pairs, -(-fewest // block) * block)
        return without(dropped), 2 * dropped

    def _generate(
        self, request: Request, speculation: Speculation | None, era: object, controlled: Controlled | None = None
    ) -> Iterator[Event]:
        pair = self._pair
        chosen = self.speculation if speculation is None else instance("speculation", speculation, Speculation)
        controller = self._controller if speculation is None else pair.controller(speculation)
        if controlled is not None:
            controller = controlled(controller.drafters)
        rule = verifier(chosen.verifier)
        engine = Engine(pair.session, self.vocabulary, controller, rule, pair.interrupt, pair.prices)
        events = engine.generate(request)
        return _Stream(lambda own: self._guarded(events, era, own, remember=chosen.remember), self._check_process)

    def _guarded(
        self, events: Iterator[Event], era: object, own: Callable[[], _Stream | None], *, remember: bool
    ) -> Generator[Event, None, None]:
        """`events`, of which `own` is the stream, while no others are under way; cancelled if `era` is over."""
        if not self._busy.acquire(blocking=False):
            raise BusyError("this runtime is answering already; wait for it, cancel it, or load a second one")
        try:
            self._under_way = own
            self._pair.interrupt.clear()
            # In this order: a close or a cancel in between is seen here, or is heard as an interrupt.
            self._check_open()
            if self._era is not era:
                self._pair.interrupt.set()
            known = self.notices
            while not isinstance(event := next(events), Finished):
                yield event
            event = event._replace(notices=tuple(notice for notice in self.notices if notice not in known))
            # Cancelled before its first word, it is half a prompt.
            if remember and self._pair.memory is not None and event.stats.tokens:
                self._pair.memory.add(self._pair.session.tokens)
        finally:
            self._under_way = _nothing
            self._busy.release()
        yield event  # nothing is under way any more, whether or not the reader goes on to the end


def _nothing() -> None:
    """No stream."""


def _stops(stop: Sequence[str] | str) -> tuple[str, ...]:
    """Raises OptionError."""
    return texts("stop", (stop,) if isinstance(stop, str) else stop)


class _Stream(Iterator[Event]):
    """Events that may be read on one thread and closed from another.

    Args:
        events: makes them, given a weak reference to this.
        check: raises where they must not be read.
    """

    def __init__(
        self, events: Callable[[Callable[[], _Stream | None]], Generator[Event, None, None]], check: Callable[[], None]
    ) -> None:
        self._events = events(weakref.ref(self))
        self._check = check
        self._turn = threading.Lock()

    def __next__(self) -> Event:
        self._check()  # first: after a fork somebody else may hold the lock for ever
        with self._turn:
            return next(self._events)

    def close(self) -> None:
        """End the stream between two events."""
        with self._turn:
            self._events.close()
