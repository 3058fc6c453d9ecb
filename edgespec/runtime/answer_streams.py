"""The event streams of a runtime's answers, of which one at a time is under way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from ..controller import Controller
from ..engine import Engine, Event, Finished, Request
from ..stats import Tally
from ..verify import Verifier
from .answer import Answer
from .answer_queue import AnswerQueue, QueuePlace
from .loaded_pair import LoadedPair


class AnswerStreams:
    """Opens the streams of answers.

    Args:
        pair: what computes them.
        queue: decides which answer is under way.
    """

    def __init__(self, pair: LoadedPair, queue: AnswerQueue) -> None:
        self._pair = pair
        self._queue = queue
        #: Returns the answer under way, by a weak reference, so that a stream is closed as soon as its reader drops it.
        self._under_way: Callable[[], Answer | None] = _nothing

    @property
    def under_way(self) -> Answer | None:
        """The answer under way."""
        return self._under_way()

    def answer(
        self, request: Request, controller: Controller, rule: Verifier, place: QueuePlace, *, remember: bool
    ) -> Answer:
        """An answer at `place` of the queue.

        Args:
            remember: whether its text is stored for look-ups in later runs.

        Raises:
            ContextOverflow, OptionError: as `Engine.generate`.
        """
        pair = self._pair
        engine = Engine(pair.session, pair.models[0].vocabulary, controller, rule, pair.interrupt, pair.prices)
        events = engine.generate(request)
        cancelled = _cancelled(len(request.prompt))

        def guarded(own: Callable[[], Answer | None]) -> Generator[Event, None, None]:
            return self._guarded(events, place, own, cancelled, remember=remember)

        return Answer(guarded, self._queue.check_process, lambda: self._queue.cancel(place))

    def cancelled_answer(self) -> Answer:
        """An answer that was cancelled while its prompt was made."""

        def events(_own: object) -> Generator[Event, None, None]:
            yield _cancelled(0)

        return Answer(events, self._queue.check_process, lambda: None)

    def _guarded(
        self,
        events: Iterator[Event],
        place: QueuePlace,
        own: Callable[[], Answer | None],
        cancelled: Finished,
        *,
        remember: bool,
    ) -> Generator[Event, None, None]:
        """`events` while no other answer is under way, or only `cancelled` if the answer is cancelled before it begins.
        `own` returns the answer."""
        pair = self._pair
        if not self._queue.enter(place):
            yield cancelled
            return
        try:
            self._under_way = own
            pair.interrupt.clear()
            # After `clear`: a `close` or `cancel` before it is seen here, and a later one sets the interrupt again.
            self._queue.check_open()
            if self._queue.is_cancelled(place):
                pair.interrupt.set()
            known = pair.notices
            while not isinstance(event := self._next(events), Finished):
                yield event
            event = event._replace(notices=tuple(notice for notice in pair.notices if notice not in known))
            # An answer that was cancelled before its first token may have only a part of the prompt in the cache.
            if remember and pair.earlier_texts is not None and event.stats.tokens:
                pair.earlier_texts.add(pair.session.tokens)
        finally:
            self._under_way = _nothing
            self._queue.leave(place)
        yield event  # after `leave`: a reader that stops at `Finished` does not keep the others waiting

    def _next(self, events: Iterator[Event]) -> Event:
        """The next event. No other runtime over these models computes at the same time."""
        turns, interrupt, who = self._pair.turns, self._pair.interrupt, object()
        if not turns.take(who, lambda: interrupt.is_set):
            return next(events)  # this computes nothing: the engine sees the interrupt first
        try:
            return next(events)
        finally:
            turns.leave(who)


def _nothing() -> None:
    """No answer is under way."""


def _cancelled(prompt: int) -> Finished:
    """The end of an answer that was cancelled before it began; `prompt` is the number of tokens of its prompt."""
    return Finished("cancelled", Tally(prompt, 0).stats())
