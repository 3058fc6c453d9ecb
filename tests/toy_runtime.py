"""Runtimes over toy models for tests: models that record what is opened and closed, answers on other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from edgespec import Device, Event, Finished, Interrupt, Runtime, Speculation, Text, assemble
from edgespec.backends.toy import Bytes, Rule, ToyModel, ToySession, ngram_rule
from edgespec.types import Floats

TALK = ngram_rule(Bytes.size, order=2, seed=5)
USER = {"role": "user", "content": "Hello"}
NUMBERS = count()


class Recorded(ToyModel):
    """A toy that notes what is opened and closed, in order."""

    def __init__(self, rule: Rule | None = None, interrupt: Interrupt | None = None, name: str = "toy") -> None:
        super().__init__(rule or TALK, interrupt)
        self.name = name
        self.number = next(NUMBERS)
        self.log: list[str] = []
        self.sessions: list[ToySession] = []

    def session(self, context: int, interrupt: Interrupt | None = None) -> ToySession:
        session = super().session(context, interrupt)
        session.identity = f"{self.name} {self.number}"
        close = session.close

        def noted() -> None:
            self.log.append("session closed")
            close()

        session.close = noted  # type: ignore[method-assign]
        self.sessions.append(session)
        return session

    def close(self) -> None:
        self.log.append("model closed")


class Failing(Recorded):
    """A draft model whose engine fails from its `at`-th decode on, as one that ran out of memory."""

    def __init__(self, rule: Rule, at: int, error: Exception) -> None:
        super().__init__(rule, name="failing")
        self.decodes = 0
        self._at, self._error = at, error

    def session(self, context: int, interrupt: Interrupt | None = None) -> ToySession:
        session = super().session(context, interrupt)
        decode = session.decode

        def failing(tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
            self.decodes += 1
            if self.decodes >= self._at:
                raise self._error
            return decode(tokens, tree)

        session.decode = failing  # type: ignore[method-assign]
        return session


class Others(Bytes):
    """Bytes by other names: another vocabulary."""

    def label(self, token: int) -> str:
        return f"{token}"


def opened(
    rule: Rule | None = None, draft: Rule | None = None, *, context: int = 256, **speculation: Any
) -> tuple[Runtime, Recorded]:
    interrupt = Interrupt()
    target = Recorded(rule, interrupt)
    second = Recorded(draft, interrupt, "draft") if draft is not None else None
    return (
        assemble(
            target,
            second,
            device=Device(context=context),
            speculation=Speculation(**speculation),
            interrupt=interrupt,
        ),
        target,
    )


def read(events: Iterator[Event]) -> tuple[list[int], Finished]:
    tokens: list[int] = []
    for event in events:
        if isinstance(event, Text):
            tokens += event.tokens
        if isinstance(event, Finished):
            return tokens, event
    raise AssertionError("no Finished")


def is_eog(token: int) -> bool:
    return Bytes().is_eog(token)


class Gate:
    """A rule that waits where it is told to, so that another thread can act in the middle of a pass."""

    def __init__(self, rule: Rule, at: int) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._rule = rule
        self._at = at

    def __call__(self, context: Sequence[int]) -> Floats:
        """The rule's row, when the gate is open."""
        if len(context) == self._at:
            self.reached.set()
            assert self.go_on.wait(20), "nobody opened the gate"
        return self._rule(context)


class Reader(threading.Thread):
    """Reads an answer in a thread of its own."""

    def __init__(self, events: Callable[[], Iterator[Event]]) -> None:
        super().__init__(daemon=True)
        self._open = events
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.events.extend(self._open())
        except BaseException as error:  # noqa: BLE001 - the test wants to see it
            self.error = error

    def finished(self) -> str:
        self.join(20)
        assert not self.is_alive(), "it hangs"
        assert self.error is None
        assert isinstance(self.events[-1], Finished)
        return self.events[-1].reason


AtWork = tuple[Runtime, Recorded, Gate, Reader]
