"""The runtime: answers, one at a time, and what it owns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from edgespec import Event, Interrupt, Sampling, Started, Text, assemble
from edgespec.backends.toy import END, Bytes, blend, ngram_rule
from edgespec.errors import BusyError, ClosedError, Interrupted
from edgespec.prices import recall

from .helpers import decode_plain
from .toy_runtime import TALK, USER, AtWork, Recorded, is_eog, opened, read


def test_complete_streams_what_plain_decoding_says() -> None:
    prompt = list(b"abc abc")
    runtime, _ = opened(draft=blend(TALK, ngram_rule(Bytes.size, seed=6), 0.3))
    with runtime:
        for sampling in (Sampling(), Sampling(temperature=0.8, top_k=20, seed=4)):
            said, finished = read(runtime.complete("abc abc", sampling, max_tokens=40))
            assert said == decode_plain(TALK, prompt, sampling, 40, is_eog)
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
