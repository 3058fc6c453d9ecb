"""The course of a benchmark: turns, breakdowns, what is replayed; and the command."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from edgespec.backends import Device, Model
from edgespec.backends.toy import ToySession
from edgespec.bench import edgespec_contender, report, rounds
from edgespec.bench.contender import Ask, ContenderFailed, Done, Said
from edgespec.bench.journal import Journal, holds_run
from edgespec.bench.meter import Meter, peak_memory
from edgespec.bench.output_folder import prepared
from edgespec.bench.records import Answer, Burst, Depth, Problem, Run, Stretch
from edgespec.bench.replay import Lent, Replayed
from edgespec.bench.runner import Course, Terms, order
from edgespec.bench.suites import Question, Suite
from edgespec.errors import EdgespecError, OptionError
from edgespec.sampling import Sampling
from edgespec.terminal.bench import settings
from edgespec.text.template import Message
from edgespec.types import Draft, Round

from .benchruns import run as made_up

EDGESPEC = str(Path(sys.executable).parent / "edgespec")
NOTHING = Path("no such folder")


class Clock:
    """Every look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


class Actor:
    """Says the words of a script, in bursts, and breaks down where it is told to."""

    def __init__(self, name: str, log: list[str], *, dies: str = "", fails: str = "", replays: bool = True) -> None:
        self.name, self.title, self.replays = name, name.upper(), replays
        self.closed = False
        self.asked: list[Ask] = []
        self._log, self._dies, self._fails = log, dies, fails

    def answer(self, ask: Ask) -> Iterator[Said | Done]:
        asked = text(ask.prompt)
        self.asked.append(ask)
        yield Said("ab", (1, 2), 2)
        if self._dies and self._dies in asked:
            raise ContenderFailed(f"{self.name} fell over")
        if self._fails and self._fails in asked:
            raise EdgespecError("this one is too much")
        self._log.append(f"{self.name}:{asked[-1]}")
        yield Said("c", (3,), 1)
        yield Said("", (), 0)
        yield Done(0.5 if self.name == "plain" else None)

    def memory(self) -> int:
        return 1

    def close(self) -> None:
        self.closed = True


def text(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def tokens(said: str) -> list[int]:
    return list(map(ord, said))


def prompt(messages: Sequence[Message]) -> list[int]:
    return tokens("/".join(message["content"] for message in messages))


TERMS = Terms(Sampling(), 10, 20, prompt, tokens, text)


def suite(*questions: Question) -> Suite:
    return Suite("made up", "0", questions, ())


def course(asked: Suite, *actors: Actor, known: Sequence[Answer] = ()) -> Course:
    return Course(asked, actors, TERMS, known, Meter(NOTHING), Clock())


def test_turns_alternate_and_history_is_what_plain_decoding_said() -> None:
    log: list[str] = []
    actors = [Actor("plain", log), Actor("ours", log), Actor("third", log)]
    found = list(course(suite(Question("1", "a", ("x", "y")), Question("2", "a", ("z",))), *actors).run())
    assert log[:3] == ["plain:x", "ours:x", "third:x"], "the warm-up, which does not count"
    assert [text(ask.prompt) for ask in actors[1].asked] == ["x", "x", "x/abc/y", "z"]
    answered = [(each.question, each.turn) for each in found if isinstance(each, Answer)]
    assert answered == [("1", 0)] * 3 + [("1", 1)] * 3 + [("2", 0)] * 3
    assert len(answered) == len(found)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9])
def test_each_comes_as_often_after_each_other_and_at_each_place(n: int) -> None:
    turns = n * (1 + n % 2)
    rows = [order(n, turn) for turn in range(3 * turns, 4 * turns)]
    followers = Counter(pair for row in rows for pair in itertools.pairwise(row))
    assert len(followers) == n * (n - 1)
    assert set(followers.values()) == {turns // n}
    places = Counter((place, each) for row in rows for place, each in enumerate(row))
    assert set(places.values()) == {turns // n}


def test_the_first_of_a_turn_does_not_always_follow_the_same() -> None:
    """Nor is it the same in every cycle."""
    rows = [order(4, turn) for turn in range(400)]
    across = Counter((before[-1], after[0]) for before, after in itertools.pairwise(rows))
    assert len(across) == 16
    assert max(across.values()) < 50, "of some 100 times that each is the first"


def test_nobody_takes_part_and_one_alone() -> None:
    assert [order(0, 5), order(1, 5)] == [[], [0]]


def test_in_a_run_nobody_always_follows_the_same_neighbour() -> None:
    actors = [Actor(name, []) for name in ("plain", "ours", "third", "fourth")]
    found = course(suite(*(Question(str(i), "a", ("x",)) for i in range(8))), *actors).run()
    names = [each.contender for each in found if isinstance(each, Answer)]
    pairs = Counter((a, b) for i, (a, b) in enumerate(itertools.pairwise(names), 1) if i % 4)
    assert len(pairs) == 12
    assert set(pairs.values()) == {2}


def test_an_answer_in_figures() -> None:
    (answer,) = course(suite(Question("1", "a", ("x",))), Actor("plain", [])).run()
    assert isinstance(answer, Answer)
    assert (answer.text, answer.tokens, answer.prompt) == ("abc", 3, 1)
    assert answer.bursts == (Burst(1.0, 2), Burst(2.0, 1)), "an empty burst is none"
    assert (answer.seconds, answer.prompt_seconds, answer.decoding) == (5.0, 0.5, 4.5)
    assert answer.first == 1.0
    assert answer.gaps == [0.0, 1.0]
    assert answer.joules is None
    assert Answer.of(json.loads(json.dumps(answer.as_dict()))) == answer


def test_where_an_engine_does_not_tell_the_prompt_takes_until_the_first_token_but_one_gap() -> None:
    found = list(course(suite(Question("1", "a", ("x",))), Actor("plain", []), Actor("peer", [])).run())
    (peer,) = (each for each in found if isinstance(each, Answer) and each.contender == "peer")
    assert peer.prompt_seconds == 0.0  # the first token after one second, the others one apart


def test_of_a_peer_that_says_all_at_once_it_is_not_known_what_the_prompt_took() -> None:
    class AtOnce(Actor):
        def answer(self, ask: Ask) -> Iterator[Said | Done]:
            self.asked.append(ask)
            yield Said("abc", (1, 2, 3), 3)
            yield Done(None)

    found = list(course(suite(Question("1", "a", ("x",))), Actor("plain", []), AtOnce("peer", [])).run())
    (peer,) = (each for each in found if isinstance(each, Answer) and each.contender == "peer")
    assert (peer.prompt_seconds, peer.decoding) == (None, None)
    assert Answer.of(json.loads(json.dumps(peer.as_dict()))) == peer


def test_one_that_breaks_down_is_left_out_and_the_rest_goes_on() -> None:
    dying = Actor("peer", [], dies="y")
    questions = [Question(str(i), "a", (asked,)) for i, asked in enumerate("xyz")]
    found = list(course(suite(*questions), Actor("plain", []), dying).run())
    assert [each for each in found if isinstance(each, Problem)] == [
        Problem("peer", "peer fell over; it is left out from question 1 on")
    ]
    answered = [(each.question, each.contender) for each in found if isinstance(each, Answer)]
    assert sorted(answered) == [("0", "peer"), ("0", "plain"), ("1", "plain"), ("2", "plain")]
    assert dying.closed
    assert len(dying.asked) == 3, "the warm-up, and two questions"


def test_one_that_breaks_down_in_the_warm_up() -> None:
    found = list(course(suite(Question("0", "a", ("x",))), Actor("plain", []), Actor("peer", [], dies="x")).run())
    assert [type(each) for each in found] == [Problem, Answer]


def test_a_question_that_one_cannot_answer_is_told_and_asked_of_the_others() -> None:
    questions = [Question("0", "a", ("x",)), Question("1", "a", ("y",)), Question("2", "a", ("z",))]
    found = list(course(suite(*questions), Actor("plain", []), Actor("ours", [], fails="y")).run())
    assert [each for each in found if isinstance(each, Problem)] == [
        Problem("ours, question 1", "this one is too much")
    ]
    assert sum(isinstance(each, Answer) for each in found) == 5


def test_a_prompt_longer_than_the_context_is_told_once_and_the_rest_goes_on() -> None:
    questions = [Question("1", "a", ("x" * 20, "y")), Question("2", "a", ("x",))]
    actors = Actor("plain", []), Actor("ours", [])
    found = list(course(suite(*questions), *actors).run())
    problems = [each for each in found if isinstance(each, Problem)]
    assert [each.where for each in problems] == ["question 1, turn 1"]
    assert "20 tokens, but the context holds 20" in problems[0].what
    assert [each.question for each in found if isinstance(each, Answer)] == ["2", "2"]


def test_an_answer_has_the_room_that_is_left() -> None:
    actor = Actor("plain", [])
    list(course(suite(Question("1", "a", ("x" * 15,)), Question("2", "a", ("x",))), actor).run())
    assert [ask.max_tokens for ask in actor.asked] == [5, 5, 10]


def test_replayed_turns_are_for_those_that_can_and_make_the_history() -> None:
    plain, peer = Actor("plain", []), Actor("peer", [], replays=False)
    asked = suite(Question("1", "a", ("x", "y"), ("said", "more")), Question("2", "b", ("z",)))
    found = [each for each in course(asked, plain, peer).run() if isinstance(each, Answer)]
    assert sorted((each.question, each.contender, each.replayed, each.text) for each in found) == [
        ("1", "plain", True, ""),
        ("1", "plain", True, ""),
        *[("2", name, False, "abc") for name in ("peer", "plain")],
    ]
    assert [text(ask.replay or ()) for ask in plain.asked[1:]] == ["said", "more", ""]
    assert text(plain.asked[2].prompt) == "x/said/y"
    assert plain.asked[1].max_tokens == 4


def test_what_was_answered_before_is_not_asked_again() -> None:
    asked = suite(Question("1", "a", ("x", "y")))
    first = [each for each in course(asked, Actor("plain", []), Actor("ours", [])).run() if isinstance(each, Answer)]
    known = [each for each in first if (each.turn, each.contender) != (1, "ours")]
    ours = Actor("ours", [])
    again = course(asked, Actor("plain", []), ours, known=known)
    assert again.total == 4
    (answer,) = (each for each in again.run() if isinstance(each, Answer))
    assert (answer.turn, answer.contender) == (1, "ours")
    assert text(ours.asked[-1].prompt) == "x/abc/y"


def joined(numbers: Sequence[int]) -> str:
    return "".join(map(str, numbers))


def test_rounds_in_figures() -> None:
    #      a   b        the drafters agree on the first, the second is a sibling of the third
    draft = Draft((1, 2, 3, 4), (-1, 0, 0, 2), ("x", "x", "y", "y"))
    found = [Round(draft, (0, 2), (1, 3, 9), 0.1, 0.1, 5), Round(Draft(), (), (7,), 0.1, 0.0, 8)]
    assert rounds.depths(found) == {"x": (Depth(1, 1), Depth(1, 0)), "y": (Depth(0, 0), Depth(1, 1), Depth(1, 0))}
    assert rounds.passes((each, 0.5) for each in found) == ((4, 2, 3, 0.5), (0, 0, 1, 0.5))
    said = rounds.strip(found, joined)
    assert said == (
        Stretch("13", "accepted"),
        Stretch("24", "rejected"),
        Stretch("9", "own"),
        Stretch("7", "own"),
    )


def test_a_round_that_was_cut_inside_its_draft() -> None:
    """The end of the text came in the accepted draft: what follows was accepted and not said."""
    (stretch,) = rounds.strip([Round(Draft.chain([1, 2, 3], "x"), (0, 1, 2), (1, 2), 0.1, 0.1, 5)], joined)
    assert stretch == Stretch("12", "accepted")


def test_a_replayed_session_says_the_text_in_chains_and_trees() -> None:
    session = Replayed(ToySession(lambda _context: np.array([0, 5, 0, 0, 0, 0], np.float32), 32))
    session.text = (2, 3, 4, 5, 2, 1)
    session.prefill([2, 3])
    rows = session.decode([4, 5, 0, 2], [-1, 0, 0, 1])
    assert rows.argmax(1).tolist() == [5, 2, 2, 1]
    session.rollback(2, (0, 1, 3))
    assert session.decode([1]).argmax(1).tolist() == [1], "the text is over, and its own choice is left"
    session.text = ()
    session.rollback(3)
    assert session.decode([5]).argmax(1).tolist() == [1]


def test_a_lent_model_stays_open(demo_target: Model) -> None:
    lent = Lent(demo_target)
    session = lent.session(64)
    assert lent.sessions == [session]
    session.close()
    lent.close()
    assert demo_target.session(64).decode([1, 2]).shape == (2, lent.vocabulary.size)


def test_names_of_our_own() -> None:
    assert all(map(edgespec_contender.is_name, ("plain", "edgespec", "lookup", "model", "k=1", "k=16")))
    assert not any(map(edgespec_contender.is_name, ("", "k=0", "k=", "k=x", "wrong", "K=3")))


# What is kept


def kept(path: Path, *, resume: bool, **terms: str) -> Journal:
    return Journal(path, {"suite": "s", **terms}, resume=resume)


def an_answer(question: str) -> Answer:
    return Answer(question, "a", 0, "plain", False, 1, "x", 1, "d", 1.0, 0.5, (Burst(1.0, 1),))


def test_a_journal_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "new" / "answers.jsonl"
    for n, resume in enumerate((False, True, True)):
        journal = kept(path, resume=resume)
        assert [each.question for each in journal.answers] == [str(i) for i in range(n)]
        journal.add(an_answer(str(n)))
        journal.close()
    journal = kept(path, resume=False)
    journal.close()
    assert not journal.answers
    assert len(path.read_text().splitlines()) == 1


def test_half_a_line_is_not_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    journal = kept(path, resume=False)
    journal.add(an_answer("1"))
    journal.add(an_answer("2"))
    journal.close()
    path.write_bytes(path.read_bytes()[:-20])
    journal = kept(path, resume=True)
    journal.add(an_answer("3"))
    journal.close()
    journal = kept(path, resume=True)
    assert [each.question for each in journal.answers] == ["1", "3"]
    journal.close()


def test_a_damaged_line_costs_one_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    journal = kept(path, resume=False)
    for question in "123":
        journal.add(an_answer(question))
    journal.close()
    terms, first, _, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(terms + first + b'{"question": \xff\n' + third)
    journal = kept(path, resume=True)
    journal.close()
    assert [each.question for each in journal.answers] == ["1", "3"]


class Full(io.RawIOBase):
    """A file on a disk with room for so many bytes."""

    def __init__(self, file: IO[bytes], room: int) -> None:
        super().__init__()
        self._file, self.room = file, room

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = min(len(data), self.room)
        self.room -= taken
        return self._file.write(bytes(data[:taken]))

    def close(self) -> None:
        self._file.close()
        super().close()


def test_a_full_disk_costs_no_answer_that_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answers.jsonl"
    journal = kept(path, resume=False)
    journal.add(an_answer("1"))
    monkeypatch.setattr(journal, "_file", Full(journal._file, 20))
    with pytest.raises(EdgespecError, match=r"No space left on device; make room and go on with --resume"):
        journal.add(an_answer("2"))
    journal.close()
    held = path.read_bytes()
    assert not held.endswith(b"\n")

    journal = kept(path, resume=True)
    monkeypatch.setattr(journal, "_file", Full(journal._file, 0))
    with pytest.raises(EdgespecError, match="No space left on device"):
        journal.add(an_answer("2"))
    journal.close()
    journal = kept(path, resume=True)
    assert [each.question for each in journal.answers] == ["1"]
    journal.add(an_answer("2"))
    journal.close()
    journal = kept(path, resume=True)
    journal.close()
    assert [each.question for each in journal.answers] == ["1", "2"]


@pytest.mark.parametrize("begun", [b"", b'{"sui', b'{"suite": "s", "targ'])
def test_a_journal_whose_first_line_was_not_written_is_begun_anew(begun: bytes, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(begun)
    assert not holds_run(path)
    for resume in (False, True):
        assert prepared(tmp_path, resume=resume, force=False) == path
    journal = kept(path, resume=True)
    journal.add(an_answer("1"))
    journal.close()
    journal = kept(path, resume=True)
    journal.close()
    assert [each.question for each in journal.answers] == ["1"]


def test_answers_on_other_terms_are_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    kept(path, resume=False, target="a").close()
    with pytest.raises(OptionError, match="whose target was 'a', and now it is 'b'"):
        kept(path, resume=True, target="b")
    path.write_text("no JSON\n")
    with pytest.raises(OptionError, match="cannot be gone on with"):
        kept(path, resume=True)
    path.write_text("[1]\n")
    with pytest.raises(OptionError, match="cannot be gone on with"):
        kept(path, resume=True)
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot be written"):
        kept(tmp_path / "file" / "answers.jsonl", resume=False)


WRONG: dict[str, tuple[Any, ...]] = {
    "question": (None, 1),
    "replayed": (None, 1, "no"),
    "tokens": (None, "3", -1, 1.5, True, 10**400, float("nan"), [1]),
    "seconds": (None, "3", True, 10**400, float("nan"), float("inf"), {}),
    "joules": ("3", 10**400, [], float("nan")),
    "bursts": (None, 3, [3], [[1.0]], [[1.0, 2, 3]], [["a", 1]], [[10**400, 1]], [[1.0, 10**400]], {"1": 2}),
    "passes": (None, [[1, 1, 1]], [[1, 1, 1, "x"]], [[1, 1, -1, 1.0]]),
    "depths": (None, 3, [], [[1, 2]], {"model": 3}, {"model": [[1]]}, {"model": [[1, 10**400]]}),
    "strip": (None, [["a"]], [["a", 1]], [1]),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_line_that_is_no_answer_is_left_out_and_written_anew(tmp_path: Path, name: str, value: Any) -> None:
    """And what stands behind it: whoever wrote it, it was not this run."""
    path = tmp_path / "answers.jsonl"
    journal = kept(path, resume=False)
    journal.add(an_answer("1"))
    journal.close()
    line = json.dumps(an_answer("2").as_dict() | {name: value})
    with path.open("a") as file:
        file.write(f"{line}\n")
    journal = kept(path, resume=True)
    assert [each.question for each in journal.answers] == ["1"]
    journal.add(an_answer("3"))
    journal.close()
    journal = kept(path, resume=True)
    assert list(journal.answers) == [an_answer("1"), an_answer("3")]
    journal.close()


@pytest.mark.parametrize(
    "line", ["3", "[]", "{}", "null", "[" * 100_000, "1" * 10_000, json.dumps(an_answer("2").as_dict() | {"more": 1})]
)
def test_a_line_of_another_form_is_left_out(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    kept(path, resume=False).close()
    with path.open("a") as file:
        file.write(f"{line}\n")
    journal = kept(path, resume=True)
    journal.close()
    assert not journal.answers
    path.write_text(f"{line}\n")
    with pytest.raises(OptionError, match=r"cannot be gone on with|whose suite was None") as caught:
        kept(path, resume=True)
    assert len(str(caught.value)) < 600


# The folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that a run was written to."""
    journal = kept(tmp_path / "answers.jsonl", resume=False)
    journal.add(an_answer("1"))
    journal.close()
    report.write(made_up(), tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["answers.jsonl", "bench.json", "report.md", "report.html"])
@pytest.mark.parametrize("text", ["# My report\n", '{"version": "2"}\n', "<!doctype html>\n<title>mine</title>"])
def test_files_of_others_are_not_overwritten(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text)
    for resume in (False, True):
        with pytest.raises(
            OptionError, match=rf"{name} was not written by `edgespec bench`.*another --out, or --force"
        ):
            prepared(folder, resume=resume, force=False)
    assert (folder / name).read_text() == text
    assert prepared(folder, resume=False, force=True)


def test_a_folder_with_a_file_of_another_alone(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("# Quarterly report\n")
    (tmp_path / "notes.txt").write_text("in nobody's way")
    with pytest.raises(OptionError, match=r"report.md was not written by"):
        prepared(tmp_path, resume=False, force=False)
    (tmp_path / "report.md").unlink()
    assert prepared(tmp_path, resume=False, force=False) == tmp_path / "answers.jsonl"


def test_what_is_no_file_is_in_the_way_whatever_is_said(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OptionError, match=r"report.html is in the way"):
        prepared(tmp_path, resume=False, force=True)


def test_a_run_of_ours_is_gone_on_with_or_begun_anew_where_that_is_said(folder: Path) -> None:
    with pytest.raises(OptionError, match="holds a run; --resume goes on with it"):
        prepared(folder, resume=False, force=False)
    for resume, force in ((True, False), (False, True)):
        assert prepared(folder, resume=resume, force=force) == folder / "answers.jsonl"
    (folder / "answers.jsonl").unlink()
    for resume in (False, True):
        with pytest.raises(OptionError, match=r"holds the report of a run without its answers, answers.jsonl"):
            prepared(folder, resume=resume, force=False)
    assert prepared(folder, resume=False, force=True)


def test_settings_are_what_a_run_that_is_gone_on_with_must_share() -> None:
    usual = settings(Device(threads=2), 512, 128, Sampling())
    assert usual == "2 threads, context 512, at most 128 tokens, temperature 0"
    places: list[dict[str, Any]] = [{}, {"gpu_layers": 3}, {"draft_gpu_layers": 0}, {"provider": "cpu"}]
    places.append({"backend": "onnx"})
    told = {settings(Device(threads=2, **place), 512, 128, Sampling(seed=1)) for place in places}
    assert len(told) == 5
    assert "2 threads, context 512, at most 128 tokens, provider cpu, temperature 0, seed 1" in told


def domain(folder: Path, name: str, microjoules: int) -> Path:
    (folder / name).mkdir()
    (folder / name / "max_energy_range_uj").write_text("1000000\n")
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    return folder / name / "energy_uj"


def test_energy_is_that_of_whole_processors(tmp_path: Path) -> None:
    first, second = domain(tmp_path, "intel-rapl:0", 100), domain(tmp_path, "intel-rapl:1", 999_999)
    part = domain(tmp_path, "intel-rapl:0:0", 0)
    meter = Meter(tmp_path)
    start = meter.start()
    first.write_text("600100\n")
    second.write_text("9\n")  # it began anew
    part.write_text("500000\n")
    assert meter.joules(start) == pytest.approx(0.600011)
    second.unlink()
    assert meter.joules(start) is None
    assert Meter(NOTHING).joules([]) is None


def test_memory_is_told_in_bytes() -> None:
    assert 20e6 < peak_memory() < 1e12


# The command


def bench(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [EDGESPEC, "bench", "--out", folder, "--max-tokens", "8", "--threads", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def run_of(folder: Path) -> Run:
    found: dict[str, Any] = json.loads((folder / "bench.json").read_text("utf-8"))
    del found["version"]
    return Run.of(found)


def test_the_demo_pair_on_both_suites(tmp_path: Path) -> None:
    done = bench(tmp_path / "a", "--limit", "1", "--compare", "lookup,k=2,llama-server", "--llama-server", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Left out: llama-server: " in done.stderr
    said, *paths = done.stdout.splitlines()
    assert said.startswith("edgespec came to ")
    assert [Path(path).name for path in paths] == ["bench.json", "report.md", "report.html"]
    run = run_of(tmp_path / "a")
    assert [each.name for each in run.contenders if not each.skipped] == ["plain", "edgespec", "lookup", "k=2"]
    assert [each.name for each in run.contenders if each.skipped] == ["llama-server"]
    plain = {(each.question, each.turn): each.digest for each in run.by("plain")}
    assert len(plain) == 7
    for name in ("edgespec", "lookup", "k=2"):
        assert {(each.question, each.turn): each.digest for each in run.by(name)} == plain
    assert any(each.passes and each.depths for each in run.by("k=2"))
    assert run.prices is not None
    assert "edgespec bench --out" in run.about["command"]


def test_replayed_answers(tmp_path: Path) -> None:
    done = bench(tmp_path / "a", "--limit", "1", "--suite", "replay")
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path / "a")
    assert run.categories == ["edit", "summary", "passage"]
    assert all(each.replayed and each.tokens == 8 for each in run.answers)
    assert len({each.digest for each in run.answers}) == 3
    assert "replayed" in (tmp_path / "a" / "report.md").read_text("utf-8")


def test_broken_lines_and_long_prompts_are_in_the_report_and_the_exit_status(tmp_path: Path) -> None:
    questions = [
        {"question_id": 1, "category": "a", "turns": ["Book a table."]},
        {"question_id": 2, "category": "a", "turns": ["table " * 2100]},
    ]
    suite = tmp_path / "mine.jsonl"
    suite.write_text("\n".join([json.dumps(questions[0]), "{broken", json.dumps(questions[1])]))
    done = bench(tmp_path / "a", "--suite", suite)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    run = run_of(tmp_path / "a")
    assert [each.where for each in run.problems] == [f"{suite}, line 2", "question 2, turn 1"]
    assert {each.question for each in run.answers} == {"1"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--suite", "none"), "no suite none"),
        (("--compare", "vllm"), "--compare has 'vllm'"),
        (("--limit", "0"), "--limit is 0"),
        (("--max-tokens", "0"), "--max-tokens is 0"),
        (("no-such.gguf",), "no model at"),
        (("--draft", "none", "--compare", "model"), "no drafter 'model'"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = bench(tmp_path / "a", *arguments)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "a").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT is sent as Unix has it")
def test_ctrl_c_leaves_a_report_and_resume_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "a"
    command = [EDGESPEC, "bench", "--out", str(out), "--threads", "2", "--max-tokens", "24", "--limit", "3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = out / "answers.jsonl"
    _until(process, lambda: journal.is_file() and journal.read_text().count("\n") > 5)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.strip() == "Error: interrupted"
    early = run_of(out)
    assert early.interrupted
    assert 5 <= len(early.answers) < 42
    assert "nterrupted" in (out / "report.md").read_text("utf-8")
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert again.returncode in (1, 2)
    assert f"{out} holds a run; --resume goes on with it, --force begins anew" in again.stderr
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False, timeout=120)
    assert resumed.returncode == 0, resumed.stderr
    whole = run_of(out)
    assert not whole.interrupted
    assert list(whole.answers[: len(early.answers)]) == list(early.answers)
    asked = [(each.question, each.turn, each.contender) for each in whole.answers]
    assert len(asked) == len(set(asked))
    assert re.search(r"same text as plain", (out / "report.md").read_text("utf-8"))


@pytest.mark.skipif(sys.platform == "win32", reason="sizes of files are limited as Unix has it")
def test_a_run_on_a_full_disk_stops_with_a_line_and_resume_goes_on(tmp_path: Path) -> None:
    """A limit on the size of files fills the disk in the middle of an answer."""
    import resource  # noqa: PLC0415 - not on Windows

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))

    out = tmp_path / "a"
    command = [EDGESPEC, "bench", "--out", str(out), "--threads", "2", "--max-tokens", "8", "--limit", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, preexec_fn=limited)
    assert done.returncode == 1
    assert re.fullmatch(r"Error: .*answers.jsonl cannot be written: File too large; .* --resume.*\n", done.stderr)
    kept = (out / "answers.jsonl").read_bytes()
    assert len(kept) == 5000
    whole = kept[: kept.rindex(b"\n") + 1]
    assert whole.count(b"\n") > 2
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (out / "answers.jsonl").read_bytes().startswith(whole)
    asked = [(each.question, each.turn, each.contender) for each in run_of(out).answers]
    assert len(asked) == len(set(asked)) == 14


def test_a_run_is_begun_anew_only_where_that_is_said(tmp_path: Path) -> None:
    suite, out = tmp_path / "one.jsonl", tmp_path / "a"
    suite.write_text(json.dumps({"question_id": 1, "category": "a", "turns": ["Book a table."]}))
    done = bench(out, "--suite", suite, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"{out} holds no run to go on with: this is a new one" in done.stderr
    before = (out / "answers.jsonl").read_bytes()
    assert bench(out, "--suite", suite, "--force", "--resume").returncode == 1
    assert bench(out, "--suite", suite).returncode == 1
    assert (out / "answers.jsonl").read_bytes() == before
    done = bench(out, "--suite", suite, "--force")
    assert done.returncode == 0, done.stderr
    assert (out / "answers.jsonl").read_bytes() != before


def _until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    while not reached():
        if process.poll() is not None:
            pytest.fail(f"it ended early: {process.communicate()[1]}")
