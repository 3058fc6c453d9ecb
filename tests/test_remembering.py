"""Texts kept for look-ups in later runs."""

from __future__ import annotations

from pathlib import Path

from edgespec import Finished, Interrupt, Sampling, Speculation, assemble
from edgespec.backends import fingerprint
from edgespec.backends.toy import Bytes, ToyModel, scripted
from edgespec.runtime.earlier_texts import EarlierTexts, forget_all

from .helpers import decode_plain
from .toy_runtime import read

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
        assert said == decode_plain(scripted(Bytes.size, [*range(40, 256)]), list(prompt.encode()), Sampling(), n)
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
