"""The face for apps: threads, cancelling, closing, chats that outgrow the context, options."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec import (
    DRAFTERS,
    Device,
    Event,
    Finished,
    Interrupt,
    Runtime,
    Sampling,
    Speculation,
    Started,
    Text,
    assemble,
    models,
)
from edgespec.backends import fingerprint, tokens_up_to
from edgespec.backends.toy import END, Bytes, Rule, ToyModel, ToySession, blend, ngram_rule, scripted
from edgespec.errors import (
    BusyError,
    ClosedError,
    ContextOverflow,
    EngineError,
    Interrupted,
    OptionError,
    TemplateError,
    VocabularyMismatch,
)
from edgespec.prices import Prices, recall
from edgespec.runtime.earlier_texts import EarlierTexts, forget_all
from edgespec.types import Floats

from .helpers import plainly

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


def test_complete_streams_what_plain_decoding_says() -> None:
    prompt = list(b"abc abc")
    runtime, _ = opened(draft=blend(TALK, ngram_rule(Bytes.size, seed=6), 0.3))
    with runtime:
        for sampling in (Sampling(), Sampling(temperature=0.8, top_k=20, seed=4)):
            said, finished = read(runtime.complete("abc abc", sampling, max_tokens=40))
            assert said == plainly(TALK, prompt, sampling, 40, is_eog)
            assert read(runtime.complete(prompt, sampling, max_tokens=40))[0] == said
            assert finished.stats.prompt == 7
            assert finished.stats.plain_tokens_per_second


def test_text_typed_into_complete_spells_no_special_token() -> None:
    runtime, _ = opened()
    started = next(runtime.complete(END, max_tokens=1))
    assert isinstance(started, Started)
    assert started.prompt == len(END)


def test_everything_public_is_there() -> None:
    for name in edgespec.__all__:
        assert getattr(edgespec, name) is not None


# --- one answer at a time


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


@pytest.fixture
def at_work() -> Iterator[tuple[Runtime, Recorded, Gate, Reader]]:
    """A runtime in the middle of the target's pass over the 120th token, in another thread."""
    gate = Gate(ngram_rule(250, order=2, seed=5), 120)  # it never says an end

    def rule(context: Sequence[int]) -> Floats:
        row: Floats = np.full(Bytes.size, -20, dtype=np.float32)
        row[:250] = gate(context)
        return row

    runtime, model = opened(rule, context=200, drafters=(), k=0)
    reader = Reader(lambda: runtime.complete("a" * 100))
    assert gate.reached.wait(20)
    yield runtime, model, gate, reader
    gate.go_on.set()
    reader.join(20)


AtWork = tuple[Runtime, Recorded, Gate, Reader]


def test_a_second_answer_is_refused_while_the_first_goes_on(at_work: AtWork) -> None:
    runtime, _, gate, reader = at_work
    second = runtime.complete("b")
    with pytest.raises(BusyError, match="computing an answer already"):
        next(second)
    gate.go_on.set()
    assert reader.finished() == "context", "the first is not disturbed"
    assert read(runtime.complete("b", max_tokens=3))[1].reason == "length"


def test_a_second_answer_in_the_same_thread_is_refused_until_the_first_is_left() -> None:
    runtime, _ = opened()
    first = runtime.complete("a", max_tokens=5)
    next(first)
    with pytest.raises(BusyError):
        next(runtime.complete("b"))
    del first  # a stream that is forgotten is closed at once
    assert read(runtime.complete("b", max_tokens=3))[1].reason == "length"


def test_an_answer_never_started_holds_nothing() -> None:
    runtime, _ = opened()
    _unread = runtime.complete("a")
    assert read(runtime.complete("b", max_tokens=3))[1].reason == "length"


def test_cancel_from_another_thread(at_work: AtWork) -> None:
    runtime, model, gate, reader = at_work
    runtime.cancel()
    gate.go_on.set()
    assert reader.finished() == "cancelled"
    said = [token for event in reader.events if isinstance(event, Text) for token in event.tokens]
    assert 0 < len(said) < 40
    held = list(model.sessions[0].tokens)
    assert held == [*b"a" * 100, *said][: len(held)]
    again, finished = read(runtime.complete("a" * 100, max_tokens=len(said)))
    assert again == said, "and the next answer is not cancelled too"
    assert finished.reason == "length"


def test_close_while_another_thread_generates(at_work: AtWork) -> None:
    """Closing waits for the pass, ends the answer, and only then frees what the pass is using."""
    runtime, model, gate, reader = at_work
    closer = threading.Thread(target=runtime.close, daemon=True)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    assert model.log == []
    gate.go_on.set()
    closer.join(20)
    assert not closer.is_alive()
    reader.join(20)
    assert not reader.is_alive()
    assert reader.error is None
    assert model.log == ["session closed", "model closed"]
    with pytest.raises(ClosedError):
        runtime.complete("b")


def test_close_with_a_stream_that_waits_for_its_reader() -> None:
    """In the same thread: waiting for the reader would wait for ever."""
    runtime, model = opened()
    stream = runtime.complete("a", max_tokens=9)
    next(stream)
    next(stream)
    runtime.close()
    assert model.log == ["session closed", "model closed"]
    assert list(stream) == []


def test_use_after_close_is_refused() -> None:
    runtime, _ = opened()
    early = runtime.complete("a")
    runtime.close()
    runtime.close()
    for use in (lambda: runtime.complete("a"), lambda: runtime.chat([USER]), lambda: next(early)):
        with pytest.raises(ClosedError, match="closed; load it again"):
            use()


def test_the_context_manager_closes_after_an_error() -> None:
    runtime, model = opened(draft=TALK)

    def fail(answer: Iterator[Event]) -> None:
        next(answer)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), runtime:
        fail(runtime.complete("a"))
    assert model.log == ["session closed", "model closed"]


def test_everything_is_freed_once_sessions_before_models() -> None:
    log: list[str] = []
    target, draft = Recorded(name="one"), Recorded(name="two")
    target.log = draft.log = log
    runtime = assemble(target, draft)
    runtime.close()
    runtime.close()
    assert log == ["session closed", "session closed", "model closed", "model closed"]


def test_a_pair_that_fails_to_assemble_leaves_no_session_open() -> None:
    target, draft = Recorded(), Recorded()
    interrupt = Interrupt()
    draft._interrupt = interrupt  # as if the loading were given up while the draft is measured
    interrupt.set()
    with pytest.raises(Interrupted):
        assemble(target, draft, interrupt=interrupt)
    assert target.log == ["session closed"], "the models stay the caller's"
    assert draft.log == ["session closed"]


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


# --- chats


def chat(n: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": f"message {i:03}"} for i in range(n)]


def dropped(runtime: Runtime, messages: Sequence[Mapping[str, Any]], **options: Any) -> tuple[int, int]:
    started = next(runtime.chat(messages, **options))
    assert isinstance(started, Started)
    return started.dropped, started.prompt


def test_the_oldest_turns_are_dropped_in_pairs_until_an_answer_fits() -> None:
    runtime, model = opened(context=200)
    assert dropped(runtime, chat(3))[0] == 0
    for n in (9, 11, 31):
        count, length = dropped(runtime, chat(n))
        assert count > 0
        assert count % 2 == 0, "the first that is left must be a user's"
        assert length <= 150, "a quarter of the context is left for the answer"
        held = bytes(token for token in model.sessions[0].tokens if token < 256).decode()
        assert f"message {n - 1:03}" in held
        assert f"message {count:03}" in held
        assert f"message {count - 1:03}" not in held


def test_no_more_is_dropped_than_a_short_answer_needs() -> None:
    runtime, _ = opened(context=200)
    assert dropped(runtime, chat(9), max_tokens=1)[0] < dropped(runtime, chat(9))[0]


def test_a_leading_system_message_stays() -> None:
    runtime, model = opened(context=200)
    count, _ = dropped(runtime, [{"role": "system", "content": "Be brief"}, *chat(15)])
    held = bytes(token for token in model.sessions[0].tokens if token < 256).decode()
    assert count > 0
    assert held.startswith("system\nBe brief")


def test_whole_turns_are_dropped_with_their_tool_messages() -> None:
    """Turns once went in pairs of messages, and a tool's result came first, without its call."""
    call = {"role": "assistant", "content": "calls", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    turn: list[dict[str, Any]] = [chat(1)[0], call, {"role": "tool", "content": "result"}, chat(2)[1]]
    for extra in range(4):
        runtime, _ = opened(context=400)
        messages = [*turn, *turn, *turn[:2], *[turn[2]] * extra, *turn * 3, chat(1)[0]]
        count, _ = dropped(runtime, messages)
        assert count > 0
        assert messages[count]["role"] == "user"


def test_a_turn_that_tools_make_long_is_not_torn() -> None:
    runtime, _ = opened(context=200)
    tool = {"role": "tool", "content": "result"}
    with pytest.raises(ContextOverflow):
        next(runtime.chat([*chat(2), chat(1)[0], *[chat(2)[1], tool] * 9]))


def test_a_leading_developer_message_stays() -> None:
    runtime, model = opened(context=200)
    dropped(runtime, [{"role": "developer", "content": "Be brief"}, *chat(15)])
    held = bytes(token for token in model.sessions[0].tokens if token < 256).decode()
    assert held.startswith("developer\nBe brief")


class Cancelling(dict[str, str]):
    """A message that ends the answer to it while its prompt is rendered, as another thread may."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__(USER)
        self._end = end

    def items(self) -> Any:
        self._end()
        return super().items()


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancelling_ends_a_prompt_that_is_being_rendered(end: str) -> None:
    """A template may take its time; nothing heard a cancel then."""
    runtime, model = opened()
    model.vocabulary.template = "{% for i in range(999) %}{% set x = i %}{% endfor %}{{ messages[0].content }}"
    (finished,) = runtime.chat([Cancelling(getattr(runtime, end))])
    assert isinstance(finished, Finished)
    assert finished.reason == "cancelled"
    assert finished.stats.tokens == 0
    if end == "cancel":
        assert read(runtime.chat([USER], max_tokens=2))[1].reason == "length", "the next one is answered"


def test_a_cancel_before_the_chat_is_none_of_its_own() -> None:
    runtime, _ = opened()
    runtime.cancel()
    assert read(runtime.chat([USER], max_tokens=2))[1].reason == "length"


def test_the_caller_s_messages_are_not_touched() -> None:
    runtime, _ = opened(context=200)
    messages = chat(15)
    dropped(runtime, messages)
    assert messages == chat(15)


def test_a_last_message_too_long_for_the_context_is_refused() -> None:
    runtime, _ = opened(context=100)
    with pytest.raises(ContextOverflow):
        runtime.chat([*chat(4), {"role": "user", "content": "x" * 100}])


def test_a_chat_computes_only_what_is_new() -> None:
    script = [*Bytes().tokenize("Fine." + END, special=True)]
    prompt = len(Bytes().tokenize("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", special=True))
    runtime, _ = opened(scripted(Bytes.size, [*[0] * prompt, *script]))
    _, finished = read(runtime.chat([USER]))
    assert (finished.reason, finished.stats.tokens, finished.stats.cached) == ("end", len(script), 0)
    turns = [USER, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Bye"}]
    started = next(runtime.chat(turns))
    assert isinstance(started, Started)
    assert started.cached == prompt + len("Fine.")


def test_chats_that_make_no_sense_are_refused() -> None:
    runtime, _ = opened()
    strange: list[Any] = [[], iter([{"role": "user", "content": "x"}]), 5, "x", {"role": "user", "content": "x"}]
    for messages in strange:
        for ask in (runtime.chat, runtime.prompt):
            with pytest.raises(OptionError, match="no messages"):
                ask(messages)
    with pytest.raises(OptionError, match="a message is"):
        runtime.chat([{"role": "user"}])
    with pytest.raises(OptionError, match="prompt is empty"):
        runtime.complete("")
    with pytest.raises(OptionError, match="max_tokens is 0"):
        runtime.complete("a", max_tokens=0)


def test_a_model_without_a_template_completes_but_does_not_chat() -> None:
    model = Recorded()
    model.vocabulary.template = None
    runtime = assemble(model)
    with pytest.raises(TemplateError, match="no chat template"):
        runtime.chat([USER])
    assert read(runtime.complete("a", max_tokens=2))[1].reason == "length"


# --- options


def test_speculation_for_one_answer_only() -> None:
    runtime, _ = opened(draft=TALK, k=4, drafters=("model",))

    def lengths(speculation: Speculation | None = None) -> dict[int, int]:
        said, finished = read(runtime.complete("abc", max_tokens=21, speculation=speculation))
        assert said == plainly(TALK, list(b"abc"), Sampling(), 21, is_eog)
        return finished.stats.k_histogram

    assert set(lengths(Speculation(k=0))) == {0}
    assert max(lengths()) == 4
    assert max(lengths(Speculation(k=2, drafters=("model",)))) == 2
    assert set(lengths(Speculation(k=3, drafters=()))) == {0}
    assert max(lengths()) == 4, "the runtime's own is as it was"


def test_all_drafters_that_the_pair_allows_are_the_default() -> None:
    runtime, _ = opened(draft=blend(TALK, ngram_rule(Bytes.size, seed=6), 0.3), k=2)
    used = read(runtime.complete("xyxyxyxyxy", max_tokens=20))[1].stats.by_drafter
    assert set(used) == {"lookup", "model"} == set(runtime.drafters)
    assert set(used) < set(DRAFTERS)


# --- a drafter that fails


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


@pytest.mark.parametrize("k", [None, 4])
@pytest.mark.parametrize("verifier", ["match", "rejection", "block"])
@pytest.mark.parametrize("error", [EngineError("no memory left"), RuntimeError("no\nmemory left")])
def test_an_answer_goes_on_without_a_drafter_that_fails(
    k: int | None, verifier: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap = {"target": 1e-2, "draft": 1e-4}  # so that the adaptive controller asks it
    monkeypatch.setattr("edgespec.runtime.loading._priced", lambda _session, role, _tell: Prices([cheap[role]] * 16))
    measured = Failing(TALK, 10**9, error)
    interrupt = Interrupt()
    target = Recorded(interrupt=interrupt)
    speculation = Speculation(("model",), k, verifier)
    with assemble(target, measured, speculation=speculation, interrupt=interrupt) as runtime:
        measured._at = measured.decodes + (1 if k is None else 3)  # the latter in the middle of a draft
        said, finished = read(runtime.complete("abc abc", max_tokens=40))
        assert said == plainly(TALK, list(b"abc abc"), Sampling(), 40, is_eog)
        (notice,) = finished.notices
        assert "'model' failed" in notice
        assert "no memory left" in notice
        assert runtime.notices == [notice]
        asked = measured.decodes
        said, finished = read(runtime.complete("abc abc", max_tokens=40))
        assert said == plainly(TALK, list(b"abc abc"), Sampling(), 40, is_eog)
        assert (finished.notices, measured.decodes) == ((), asked), (
            "it is told once, and the drafter is not asked again"
        )


def test_a_drafter_that_is_interrupted_has_not_failed() -> None:
    draft = Failing(TALK, 10**9, Interrupted())
    with assemble(Recorded(), draft, speculation=Speculation(("model",), 4)) as runtime:
        draft._at = draft.decodes + 3
        _, finished = read(runtime.complete("abc abc", max_tokens=40))
        assert (finished.reason, finished.notices, runtime.notices) == ("cancelled", (), [])
        draft._at = 10**9
        said, finished = read(runtime.complete("abc abc", max_tokens=40))
        assert said == plainly(TALK, list(b"abc abc"), Sampling(), 40, is_eog)
        assert finished.stats.drafted > 0


def test_cancelling_loses_no_text_that_was_held_back_for_a_stop_string() -> None:
    """Its tokens were in the events already, so a chat that kept the text parted from the cache."""
    interrupt = Interrupt()
    script = [*b"ab END OF"]
    model = Recorded(scripted(Bytes.size, [0, *script]), interrupt)
    with assemble(model, speculation=Speculation(k=0), interrupt=interrupt) as runtime:
        tokens, text, events = list[int](), "", list[Event]()
        for event in runtime.complete("!", stop="END OF ALL", max_tokens=40):
            events.append(event)
            if isinstance(event, Text):
                tokens += event.tokens
                text += event.text
                if len(tokens) == len(script):
                    runtime.cancel()
        last = events[-1]
        assert isinstance(last, Finished)
        assert last.reason == "cancelled"
        assert bytes(tokens).decode() == text == "ab END OF"
        assert isinstance(events[-2], Text)
        assert (events[-2].tokens, events[-2].text) == ((), "END OF")
        assert [span.text for span in events[-2].spans] == [*"END OF"]


# --- what is kept of what was said


class Speaking(ToyModel):
    """A toy whose text never repeats itself: only memory can make a look-up right."""

    def __init__(self, interrupt: Interrupt | None = None) -> None:
        super().__init__(scripted(Bytes.size, [*range(40, 256)]), interrupt)


def remembering(*, remember: bool = True, prompt: str = "!!", n: int = 60, once: Speculation | None = None) -> int:
    """An answer of a runtime of its own; how many tokens of it were looked up."""
    speculation = Speculation(k=4, drafters=("lookup",), remember=remember)
    with assemble(Speaking(), speculation=speculation) as runtime:
        said, finished = read(runtime.complete(prompt, max_tokens=n, speculation=once))
        assert said == plainly(scripted(Bytes.size, [*range(40, 256)]), list(prompt.encode()), Sampling(), n)
        return finished.stats.accepted


def remembered() -> list[list[int]]:
    vocabulary = Bytes()
    return EarlierTexts(fingerprint(vocabulary), vocabulary.size).texts()


def test_what_was_said_is_looked_up_by_a_later_runtime(own_cache: Path) -> None:
    assert remembering() == 0
    assert remembered() == [[*b"!!", *range(42, 101)]], "prompt and answer, short of the token that was not decoded"
    assert remembering() > 40
    assert len(remembered()) == 1, "the same text is kept once"
    assert remembering(remember=False) == 0, "nor is it looked up where nothing is to be remembered"


def test_nothing_is_kept_unless_it_is_asked_for(own_cache: Path) -> None:
    remembering(remember=False)
    assert not (own_cache / "memory").exists()
    remembering(once=Speculation(k=0))
    assert not (own_cache / "memory").exists(), "not this answer"
    remembering(remember=False, once=Speculation(k=0, remember=True))
    assert not (own_cache / "memory").exists(), "nor one of a runtime that was not loaded for it"


def test_what_was_forgotten_is_not_looked_up(own_cache: Path) -> None:
    remembering()
    assert forget_all() == 1
    assert remembered() == []
    assert remembering() == 0


def test_of_a_cancelled_answer_what_was_said_is_kept(own_cache: Path) -> None:
    interrupt = Interrupt()
    speculation = Speculation(k=0, remember=True)
    with assemble(Speaking(interrupt), speculation=speculation, interrupt=interrupt) as runtime:
        reasons = []
        for n, event in enumerate(runtime.complete("!!", max_tokens=60)):
            if n == 5:
                runtime.cancel()
            reasons += [event.reason] if isinstance(event, Finished) else []
        assert reasons == ["cancelled"]
        assert remembered() == [[*b"!!", *range(42, 46)]]


def test_a_cancelled_answer_that_said_nothing_is_not_kept(own_cache: Path) -> None:
    """The session holds a part of the prompt, which is no text."""
    interrupt = Interrupt()
    speculation = Speculation(k=0, remember=True)
    with assemble(Speaking(interrupt), speculation=speculation, interrupt=interrupt) as runtime:
        read(runtime.complete("secret", max_tokens=20, speculation=Speculation(k=0)))
        stream = runtime.complete("secret", max_tokens=20)
        runtime.cancel()
        assert read(stream)[1].reason == "cancelled"
        assert list(runtime.session.tokens) == [*b"secre"]
    assert remembered() == []


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(OptionError, match="no drafter 'medusa'; there are lookup, model"):
        assemble(Recorded(), speculation=Speculation(drafters=("lookup", "medusa")))
    with pytest.raises(OptionError, match="no verifier 'hope'; there are match, rejection, block"):
        Speculation(verifier="hope")
    with pytest.raises(OptionError, match="k is -1"):
        Speculation(k=-1)
    for name, value in (
        ("context", -1),
        ("threads", -1),
        ("threads", 100_000),
        ("gpu_layers", -2),
        ("context", 1 << 33),
    ):
        given: dict[str, Any] = {name: value}
        with pytest.raises(OptionError, match=f"{name} is {value}; it must be from"):
            Device(**given)


WRONG: dict[str, Sequence[Any]] = {
    "max_tokens": ("10", 1.5, True, float("nan"), float("inf"), 0, -3, 10**400, [5], b"5"),
    "stop": (5, [5], b"x", ["a", None], {"a": 1}, True, [["a"]]),
    "sampling": ({"temperature": 1}, "greedy", 0.7, Sampling, Device()),
    "speculation": ({"k": 4}, "auto", 4, Speculation, Device()),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_options_of_another_kind_are_refused_on_one_line(name: str, value: Any) -> None:
    runtime, _ = opened()
    asks: list[Callable[[], object]] = [
        lambda: runtime.complete("a", **{name: value}),
        lambda: runtime.chat([USER], **{name: value}),
    ]
    for ask in asks:
        with pytest.raises(OptionError, match=f"{name} is .*; it must be") as caught:
            ask()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (Speculation, "k", ("4", "auto", 1.5, True, float("nan"), 10**400, [4])),
        (Speculation, "drafters", ("lookup", 5, [5], (None,), {"lookup": 1}, [["lookup"]])),
        (Speculation, "verifier", (None, 5, ["match"], {})),
        (Device, "context", ("512", 1.5, True, None, float("inf"), 10**400)),
        (Device, "threads", ("2", 0.5, False, None)),
        (Device, "gpu_layers", ("all", 1.5, None)),
        (Device, "draft_gpu_layers", ("all", float("nan"))),
        (Device, "exact", ("4", 3, 4.5, None, True, [4])),
        (Device, "provider", (None, 5, ["cpu"])),
        (Device, "backend", (None, 5, ["llama"])),
    ],
)
def test_values_of_another_kind_are_refused_on_one_line(kind: type, name: str, values: Sequence[Any]) -> None:
    for value in values:
        with pytest.raises(OptionError, match=name) as caught:
            kind(**{name: value})
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 250


def test_options_that_say_the_same_are_taken() -> None:
    runtime, _ = opened()
    given: dict[str, Any] = {"max_tokens": 3.0, "stop": ["\0\0"], "speculation": Speculation(["lookup"], 4.0)}  # type: ignore[arg-type]
    assert read(runtime.complete("a", **given))[1].stats.tokens == 3
    numpy: Any = np.int64(2)
    assert Speculation(k=numpy).k == 2
    assert (Device(512.0, numpy).context, Device(exact=4.0).exact) == (512, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [None, 5, b"model.gguf", ["a"], object()])
def test_a_model_that_is_no_path_is_refused(model: Any) -> None:
    for arguments in ((model,), ("no such file.gguf", model)):
        with pytest.raises(edgespec.EdgespecError) as caught:
            edgespec.load(*arguments)
        assert "\n" not in str(caught.value)
    wrong: list[dict[str, Any]] = [{"device": "cpu"}, {"speculation": {"k": 4}}]
    for options in wrong:
        with pytest.raises(OptionError, match="it must be a"):
            edgespec.load("x.gguf", **options)
        with pytest.raises(OptionError, match="it must be a"):
            assemble(Recorded(), **options)


def test_a_logit_bias_that_cannot_be_is_refused_before_any_work() -> None:
    runtime, model = opened()
    for bias, said in (
        (((Bytes.size, 1.0),), f"logit bias for token {Bytes.size}"),
        (((-1, 1.0),), "logit bias for token -1"),
        (tuple((token, -np.inf) for token in range(Bytes.size)), "bans them all"),
    ):
        with pytest.raises(OptionError, match=said):
            runtime.complete("abc", Sampling(logit_bias=bias))
    assert list(model.sessions[0].tokens) == []
    banned = tuple((token, -np.inf) for token in range(Bytes.size) if token != 65)
    assert read(runtime.complete("abc", Sampling(1.0, logit_bias=banned), max_tokens=5))[0] == [65] * 5


def test_the_model_drafter_needs_a_draft_model() -> None:
    says = r"no drafter 'model', only lookup: 'model' needs a draft model \(--draft\) with the target's vocabulary"
    with pytest.raises(OptionError, match=says):
        assemble(Recorded(), speculation=Speculation(drafters=("model",)))
    runtime, _ = opened()
    with pytest.raises(OptionError, match=says):
        runtime.complete("a", speculation=Speculation(drafters=("lookup", "model")))


class Others(Bytes):
    """Bytes by other names: another vocabulary."""

    def label(self, token: int) -> str:
        return f"{token}"


def test_a_draft_of_another_family_drafts_through_text_or_is_refused() -> None:
    def draft() -> Recorded:
        model = Recorded()
        model.vocabulary = Others()
        return model

    with assemble(Recorded(), draft(), speculation=Speculation(k=3)) as runtime:
        assert runtime.drafters == ("lookup", "cross-vocabulary")
        said, finished = read(runtime.complete("abc", max_tokens=40))
        assert said == plainly(TALK, list(b"abc"), Sampling(), 40, is_eog)
        assert finished.stats.by_drafter["cross-vocabulary"][1] > 0
        with pytest.raises(
            OptionError,
            match=r"no drafter 'model', only lookup, cross-vocabulary: .* 'cross-vocabulary' one with another",
        ):
            runtime.complete("abc", speculation=Speculation(drafters=("model",)))
    with pytest.raises(VocabularyMismatch, match="token 0"):
        assemble(Recorded(), draft(), speculation=Speculation(through_text=False))
    with assemble(Recorded(), Recorded()) as runtime:
        assert runtime.drafters == ("lookup", "model"), "text is a way round, and a longer one"


def test_prices_are_measured_once_and_told(own_cache: Path) -> None:
    target, draft = Recorded(), Recorded()
    told: list[tuple[str, float]] = []
    first = assemble(target, draft, on_progress=lambda what, share: told.append((what, share)))
    assert {what for what, _ in told} == {"target", "draft"}
    assert told[-1][1] == 1.0
    assert len(list((own_cache / "prices").iterdir())) == 2
    kept = recall(target.sessions[0])
    assert kept is not None
    assert kept.rows() == first.prices.rows()
    told.clear()
    second = assemble(target, draft, on_progress=lambda what, share: told.append((what, share)))
    assert told == []
    ratios = {round(now / then, 6) for now, then in zip(second.prices.curve(), kept.curve(), strict=True)}
    assert len(ratios) == 1, "only brought up to date, by the plain step of today"


def test_what_the_rounds_taught_of_prices_is_kept_at_closing(own_cache: Path) -> None:
    target = Recorded()
    with assemble(target) as runtime:
        before = recall(target.sessions[0])
        for _ in range(9):
            runtime.prices.observe(1, 1000, 77.0)
            runtime.prices.observe(2, 1000, 99.0)
    after = recall(target.sessions[0])
    assert before is not None
    assert after is not None
    assert after.rows().keys() - before.rows().keys() == {1024}


def test_a_context_that_was_not_asked_for_is_the_model_s_own_and_not_too_large() -> None:
    for trained, want in ((512, 512), (4096, 4096), (131072, 4096)):
        model = Recorded()
        model.trained_context = trained
        assert assemble(model).context == want
    assert opened(context=100)[0].context == 100


def test_description_and_text() -> None:
    runtime, _ = opened(draft=TALK)
    assert runtime.description == "toy with draft toy"
    assert runtime.text([*b"h\xc3", *b"\xa9", 258]) == "hé"
    assert runtime.sampling == {}


def test_use_after_close_of_whatever_was_kept() -> None:
    """A freed model's vocabulary once crashed the process."""
    pair = models.demo()
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


def test_a_long_conversation_keeps_its_cache() -> None:
    """Turns were once dropped one by one, so that each prompt began otherwise and nothing cached was of use."""
    runtime, _ = opened(context=400)
    messages: list[dict[str, str]] = []
    dropped, cached = [], []
    for turn in range(60):
        messages.append({"role": "user", "content": f"question {turn}"})
        events = list(runtime.chat(messages, max_tokens=4))
        assert isinstance(events[0], edgespec.Started)
        dropped.append(events[0].dropped)
        cached.append(events[0].cached > events[0].prompt // 2)
        messages.append({"role": "assistant", "content": "answer"})
    assert max(dropped) > 60
    assert len(set(dropped)) < 40
    assert sum(cached[-40:]) >= 20, "at least every other turn finds its beginning in the cache"


def test_tokens_and_messages_that_are_none() -> None:
    runtime, _ = opened()
    for tokens in ([99999], [-1]):
        with pytest.raises(OptionError, match="no token"):
            runtime.complete(tokens)
    for messages in ("hi", [1], [{"role": "user"}]):
        with pytest.raises(OptionError):
            runtime.chat(messages)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="pairs"):
        Sampling(logit_bias={5: 1.0})  # type: ignore[arg-type]


def test_a_prompt_that_is_far_too_long_is_not_tokenized_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten megabytes took two gigabytes and a minute before they were refused."""
    sizes: list[int] = []
    tokenize = Bytes.tokenize

    def noted(self: Bytes, text: str, **options: bool) -> list[int]:
        sizes.append(len(text))
        return tokenize(self, text, **options)

    monkeypatch.setattr(Bytes, "tokenize", noted)
    runtime, _ = opened(context=256)
    long = "0123456789" * 4_000
    history = [{"role": role, "content": long} for role in ("user", "assistant")] * 3
    with runtime:
        with pytest.raises(ContextOverflow, match="the prompt has more than 512 tokens, but the context holds 256"):
            runtime.complete(long)
        with pytest.raises(ContextOverflow, match="the prompt has more than 512 tokens"):
            runtime.chat([*history, {"role": "user", "content": long}])
        assert max(sizes) < 30_000
        tokens, _ = read(runtime.chat([*history, USER], max_tokens=8))
        assert len(tokens) == 8, "what does not fit is dropped as ever"
        assert len(runtime.prompt([{"role": "user", "content": long}])) > len(long), "this is all of it"


def test_a_text_of_long_tokens_is_tokenized_whole() -> None:
    """Where a beginning has few tokens nothing is left out."""

    class Words(Bytes):
        def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
            return [len(word) for word in text.split(" ")]

    text = " ".join(["x" * 200] * 300)
    assert tokens_up_to(Words(), text, 400) == [200] * 300
    found = tokens_up_to(Words(), text, 100)
    assert 100 < len(found) < 300
    assert tokens_up_to(Words(), "", 1) == [0]
