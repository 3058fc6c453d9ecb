"""The runtime: answers requested while others are cancelled, closing from several threads, forked processes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

import edgespec
from edgespec import Interrupt, Runtime, assemble
from edgespec.errors import BusyError, ClosedError

from .small_pair import SMALL_PAIR
from .toy_runtime import Recorded, opened, read

# --- answers asked for while others are cancelled, and while all is closed


class Hooked(Interrupt):
    """Does something else around the moment an answer that begins clears it."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], object] = bool
        self.after: Callable[[], object] = bool

    def clear(self) -> None:
        self.before()
        super().clear()
        self.after()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("act", ["cancel", "close"])
def test_an_answer_that_begins_meanwhile_is_cancelled_or_refused(act: str, moment: str) -> None:
    interrupt = Hooked()
    model = Recorded(interrupt=interrupt)
    runtime = assemble(model, interrupt=interrupt)
    actor = threading.Thread(target=getattr(runtime, act), daemon=True)

    def meanwhile() -> None:
        actor.start()
        actor.join(0.1)  # closing waits for the answer; it has said so by then

    setattr(interrupt, moment, meanwhile)
    stream = runtime.complete("abc", max_tokens=9)
    if act == "cancel":
        said, finished = read(stream)
        assert (said, finished.reason) == ([], "cancelled")
    else:
        with pytest.raises(ClosedError):
            next(stream)
    actor.join(20)
    assert not actor.is_alive()
    runtime.close()
    assert model.log == ["session closed", "model closed"]


def test_answers_may_be_asked_for_while_others_are_cancelled() -> None:
    """The set of streams once changed while a cancel went through it."""
    runtime, _ = opened()
    errors: list[BaseException] = []
    until = time.monotonic() + 0.5

    def work(act: Callable[[], object]) -> None:
        try:
            while time.monotonic() < until and not errors:
                act()
        except BaseException as error:  # noqa: BLE001 - the test wants to see it
            errors.append(error)

    unread = [runtime.complete("a", max_tokens=1) for _ in range(500)]  # the more there are, the longer a cancel takes

    def ask() -> None:
        unread.append(runtime.complete("a", max_tokens=1))
        del unread[0]

    threads = [threading.Thread(target=work, args=(act,), daemon=True) for act in (ask, ask, runtime.cancel)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    finally:
        sys.setswitchinterval(before)
    assert errors == []
    assert read(runtime.complete("b", max_tokens=3))[1].reason == "length"


def test_everything_is_freed_once_however_many_close_at_a_time() -> None:
    """While answers are asked for and begun on other threads."""
    for _ in range(8):
        runtime, model = opened(k=0, drafters=())
        errors: list[BaseException] = []

        def ask(runtime: Runtime = runtime, errors: list[BaseException] = errors) -> None:
            try:
                while True:
                    for _ in runtime.complete("a", max_tokens=2):
                        pass
            except (ClosedError, BusyError):
                return
            except BaseException as error:  # noqa: BLE001 - the test wants to see it
                errors.append(error)

        threads = [threading.Thread(target=work, daemon=True) for work in (ask, ask, runtime.close, runtime.close)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "it hangs"
        assert errors == []
        assert model.log == ["session closed", "model closed"]


def test_what_one_close_could_not_free_the_next_one_does() -> None:
    runtime, model = opened()
    pair = runtime._pair

    def fails() -> None:
        runtime._pair = pair
        raise ZeroDivisionError

    runtime._pair = dataclasses.replace(pair, close_sessions=fails)
    with pytest.raises(ZeroDivisionError):
        runtime.close()
    assert model.log == []
    runtime.close()
    assert model.log == ["session closed", "model closed"]
    runtime.close()
    assert model.log == ["session closed", "model closed"]


FORKED = """
import os, threading, warnings
warnings.simplefilter("ignore")  # that threads run while this forks is the point
from edgespec import Device, EdgespecError, Interrupt, Speculation, assemble, load, models
from edgespec.backends.toy import ToyModel
runtime = assemble(ToyModel(), device=Device(context=64), speculation=Speculation(k=0))
stream, early = runtime.complete("abc", max_tokens=9), runtime.complete("abc", max_tokens=9)
next(stream)
message = [{"role": "user", "content": "x"}]
uses = [lambda: runtime.complete("a"), lambda: runtime.chat(message), lambda: next(stream), lambda: next(early)]
uses += [lambda: runtime.vocabulary, lambda: runtime.session]
uses += [lambda: runtime.text([1]), lambda: runtime.prompt(message)]
MORE
stream._turn.acquire()  # as if a reader on another thread were in the middle of a pass
if (child := os.fork()) == 0:
    refused = 0
    for use in uses:
        try:
            use()
        except EdgespecError as error:
            refused += "fork" in str(error) and "spawn" in str(error)
    runtime.cancel()
    runtime.close()
    os._exit(refused)
stream._turn.release()
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == len(uses), status
assert sum(1 for _ in stream), "the answer goes on where it was loaded"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("engine", ["toy", "llama"])
def test_a_forked_process_is_told_that_it_cannot_use_what_was_loaded_before(engine: str) -> None:
    """It once waited for ever for threads that did not come along."""
    more = """
target = models.demo().target
loaded = load(target, "none", device=Device(64, 1), speculation=Speculation((), 0))
uses += [lambda: load(target, "none"), lambda: list(loaded.complete("a", max_tokens=2))]
"""
    code = FORKED.replace("MORE", more if engine == "llama" else "")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_use_after_close_of_whatever_was_kept() -> None:
    """A freed model's vocabulary once crashed the process."""
    pair = SMALL_PAIR
    runtime = edgespec.load(pair.target, "none")
    vocabulary = runtime.vocabulary
    session = runtime.session
    runtime.close()
    uses: list[Callable[[], object]] = [
        lambda: runtime.vocabulary,
        lambda: runtime.session,
        lambda: runtime.prompt([{"role": "user", "content": "x"}]),
        lambda: runtime.text([1]),
        lambda: vocabulary.tokenize("x"),
        vocabulary.specials,
        lambda: session.decode([1]),
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()


def test_cancel_before_the_first_event_counts() -> None:
    """A stop button pressed at once."""
    runtime, _ = opened()
    events = runtime.complete("abc", max_tokens=20)
    runtime.cancel()
    said, finished = read(events)
    assert (said, finished.reason) == ([], "cancelled")
    assert read(runtime.complete("abc", max_tokens=5))[0], "the next is not cancelled"
