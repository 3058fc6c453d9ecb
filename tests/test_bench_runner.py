"""The runs of a benchmark: order, failures, replayed answers, rounds, energy and memory."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgespec.backends import HiddenRows, Model
from edgespec.backends.toy import ToySession, ngram_rule
from edgespec.bench import edgespec_contender, rounds
from edgespec.bench.contender import AnswerRequest, Chunk, ContenderFailed, Done
from edgespec.bench.meter import Meter, peak_memory
from edgespec.bench.records import AnswerRecord, Burst, Depth, Problem, Stretch
from edgespec.bench.replay import ReplaySession, SharedModel
from edgespec.bench.runner import RequestSettings, Runner, order
from edgespec.bench.suites import Question, Suite
from edgespec.errors import EdgespecError
from edgespec.sampling import Sampling
from edgespec.text.template import Message
from edgespec.types import Draft, Round

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
        self.asked: list[AnswerRequest] = []
        self._log, self._dies, self._fails = log, dies, fails

    def answer(self, ask: AnswerRequest) -> Iterator[Chunk | Done]:
        asked = text(ask.prompt)
        self.asked.append(ask)
        yield Chunk("ab", (1, 2), 2)
        if self._dies and self._dies in asked:
            raise ContenderFailed(f"{self.name} fell over")
        if self._fails and self._fails in asked:
            raise EdgespecError("this one is too much")
        self._log.append(f"{self.name}:{asked[-1]}")
        yield Chunk("c", (3,), 1)
        yield Chunk("", (), 0)
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


TERMS = RequestSettings(Sampling(), 10, 20, prompt, tokens, text)


def suite(*questions: Question) -> Suite:
    return Suite("made up", "0", questions, ())


def course(asked: Suite, *actors: Actor, known: Sequence[AnswerRecord] = ()) -> Runner:
    return Runner(asked, actors, TERMS, known, Meter(NOTHING), Clock())


def test_turns_alternate_and_history_is_what_plain_decoding_said() -> None:
    log: list[str] = []
    actors = [Actor("plain", log), Actor("ours", log), Actor("third", log)]
    found = list(course(suite(Question("1", "a", ("x", "y")), Question("2", "a", ("z",))), *actors).run())
    assert log[:3] == ["plain:x", "ours:x", "third:x"], "the warm-up, which does not count"
    assert [text(ask.prompt) for ask in actors[1].asked] == ["x", "x", "x/abc/y", "z"]
    answered = [(each.question, each.turn) for each in found if isinstance(each, AnswerRecord)]
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
    names = [each.contender for each in found if isinstance(each, AnswerRecord)]
    pairs = Counter((a, b) for i, (a, b) in enumerate(itertools.pairwise(names), 1) if i % 4)
    assert len(pairs) == 12
    assert set(pairs.values()) == {2}


def test_an_answer_in_figures() -> None:
    (answer,) = course(suite(Question("1", "a", ("x",))), Actor("plain", [])).run()
    assert isinstance(answer, AnswerRecord)
    assert (answer.text, answer.tokens, answer.prompt) == ("abc", 3, 1)
    assert answer.bursts == (Burst(1.0, 2), Burst(2.0, 1)), "an empty burst is none"
    assert (answer.seconds, answer.prompt_seconds, answer.decoding) == (5.0, 0.5, 4.5)
    assert answer.first == 1.0
    assert answer.gaps == [0.0, 1.0]
    assert answer.joules is None
    assert AnswerRecord.of(json.loads(json.dumps(answer.as_dict()))) == answer


def test_where_an_engine_does_not_tell_the_prompt_takes_until_the_first_token_but_one_gap() -> None:
    found = list(course(suite(Question("1", "a", ("x",))), Actor("plain", []), Actor("peer", [])).run())
    (peer,) = (each for each in found if isinstance(each, AnswerRecord) and each.contender == "peer")
    assert peer.prompt_seconds == 0.0  # the first token after one second, the others one apart


def test_of_a_peer_that_says_all_at_once_it_is_not_known_what_the_prompt_took() -> None:
    class AtOnce(Actor):
        def answer(self, ask: AnswerRequest) -> Iterator[Chunk | Done]:
            self.asked.append(ask)
            yield Chunk("abc", (1, 2, 3), 3)
            yield Done(None)

    found = list(course(suite(Question("1", "a", ("x",))), Actor("plain", []), AtOnce("peer", [])).run())
    (peer,) = (each for each in found if isinstance(each, AnswerRecord) and each.contender == "peer")
    assert (peer.prompt_seconds, peer.decoding) == (None, None)
    assert AnswerRecord.of(json.loads(json.dumps(peer.as_dict()))) == peer


def test_one_that_breaks_down_is_left_out_and_the_rest_goes_on() -> None:
    dying = Actor("peer", [], dies="y")
    questions = [Question(str(i), "a", (asked,)) for i, asked in enumerate("xyz")]
    found = list(course(suite(*questions), Actor("plain", []), dying).run())
    assert [each for each in found if isinstance(each, Problem)] == [
        Problem("peer", "peer fell over; it is left out from question 1 on")
    ]
    answered = [(each.question, each.contender) for each in found if isinstance(each, AnswerRecord)]
    assert sorted(answered) == [("0", "peer"), ("0", "plain"), ("1", "plain"), ("2", "plain")]
    assert dying.closed
    assert len(dying.asked) == 3, "the warm-up, and two questions"


def test_one_that_breaks_down_in_the_warm_up() -> None:
    found = list(course(suite(Question("0", "a", ("x",))), Actor("plain", []), Actor("peer", [], dies="x")).run())
    assert [type(each) for each in found] == [Problem, AnswerRecord]


def test_a_question_that_one_cannot_answer_is_told_and_asked_of_the_others() -> None:
    questions = [Question("0", "a", ("x",)), Question("1", "a", ("y",)), Question("2", "a", ("z",))]
    found = list(course(suite(*questions), Actor("plain", []), Actor("ours", [], fails="y")).run())
    assert [each for each in found if isinstance(each, Problem)] == [
        Problem("ours, question 1", "this one is too much")
    ]
    assert sum(isinstance(each, AnswerRecord) for each in found) == 5


def test_a_prompt_longer_than_the_context_is_told_once_and_the_rest_goes_on() -> None:
    questions = [Question("1", "a", ("x" * 20, "y")), Question("2", "a", ("x",))]
    actors = Actor("plain", []), Actor("ours", [])
    found = list(course(suite(*questions), *actors).run())
    problems = [each for each in found if isinstance(each, Problem)]
    assert [each.where for each in problems] == ["question 1, turn 1"]
    assert "20 tokens, but the context holds 20" in problems[0].what
    assert [each.question for each in found if isinstance(each, AnswerRecord)] == ["2", "2"]


def test_an_answer_has_the_room_that_is_left() -> None:
    actor = Actor("plain", [])
    list(course(suite(Question("1", "a", ("x" * 15,)), Question("2", "a", ("x",))), actor).run())
    assert [ask.max_tokens for ask in actor.asked] == [5, 5, 10]


def test_replayed_turns_are_for_those_that_can_and_make_the_history() -> None:
    plain, peer = Actor("plain", []), Actor("peer", [], replays=False)
    asked = suite(Question("1", "a", ("x", "y"), ("said", "more")), Question("2", "b", ("z",)))
    found = [each for each in course(asked, plain, peer).run() if isinstance(each, AnswerRecord)]
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
    first = [
        each for each in course(asked, Actor("plain", []), Actor("ours", [])).run() if isinstance(each, AnswerRecord)
    ]
    known = [each for each in first if (each.turn, each.contender) != (1, "ours")]
    ours = Actor("ours", [])
    again = course(asked, Actor("plain", []), ours, known=known)
    assert again.total == 4
    (answer,) = (each for each in again.run() if isinstance(each, AnswerRecord))
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
    session = ReplaySession(ToySession(lambda _context: np.array([0, 5, 0, 0, 0, 0], np.float32), 32))
    session.text = (2, 3, 4, 5, 2, 1)
    session.prefill([2, 3])
    rows = session.decode([4, 5, 0, 2], [-1, 0, 0, 1])
    assert rows.argmax(1).tolist() == [5, 2, 1, 1]
    session.rollback(2, (0, 1, 3))
    assert session.decode([1]).argmax(1).tolist() == [1], "the text is over, and its own choice is left"
    session.text = ()
    session.rollback(3)
    assert session.decode([5]).argmax(1).tolist() == [1]


def test_rows_off_the_replayed_text_stay_the_models_own() -> None:
    """They taught recycling that the text follows whatever was rejected."""
    session = ReplaySession(ToySession(ngram_rule(9, order=1, seed=3), 9))
    session.text = (2, 3, 4, 5, 4, 5)
    session.prefill([2])
    # Wrong from the root on, wrong below a right one, and right tokens below a wrong one, which do not make it right.
    tokens, parents = [3, 4, 7, 4, 6, 5, 5], [-1, 0, 0, 2, 1, 3, 1]
    own = [row.copy() for row in session.inner.decode(tokens, parents)]
    rows = session.decode(tokens, parents)
    said = {0: 4, 1: 5, 6: 4}
    for node, row in enumerate(rows):
        if node in said:
            assert row.argmax() == said[node]
        else:
            assert np.array_equal(row, own[node])
    chain = session.decode([3, 7, 5])
    assert chain[0].argmax() == 4
    assert max(chain[1].max(), chain[2].max()) < 100
    wrong = session.decode([9 - 1, 4])
    assert wrong.max() < 100


def test_a_replayed_session_gives_hidden_rows(small_target: Model) -> None:
    """Medusa heads were refused beside one, and so in every benchmark."""
    inner = small_target.session(64)
    session = ReplaySession(inner)
    assert isinstance(inner, HiddenRows)
    assert isinstance(session, HiddenRows)
    assert (session.layer_width, session.layers) == (inner.layer_width, inner.layers) == (512, 4)
    session.close()


def test_a_lent_model_stays_open(small_target: Model) -> None:
    lent = SharedModel(small_target)
    session = lent.session(64)
    assert lent.sessions == [session]
    session.close()
    lent.close()
    assert small_target.session(64).decode([1, 2]).shape == (2, lent.vocabulary.size)


def test_names_of_our_own() -> None:
    assert all(map(edgespec_contender.is_name, ("plain", "edgespec", "lookup", "recycling", "model", "k=1", "k=16")))
    assert not any(map(edgespec_contender.is_name, ("", "k=0", "k=", "k=x", "wrong", "K=3")))


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
