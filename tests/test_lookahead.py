"""Lookahead: its window against the algorithm written out plainly, the n-grams it keeps, and its guesses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from edgespec.backends.toy import Rule, ToySession, blend
from edgespec.drafters import Drafter
from edgespec.drafters.lookahead import Lookahead
from edgespec.engine import Request, Text
from edgespec.errors import OptionError
from edgespec.sampling import Sampling
from edgespec.types import Evaluated, Guess, Passengers, Top
from edgespec.verify import RoundContext

from .engine_runs import OTHER, PROMPT, TARGET, VOCAB, engine
from .helpers import RuleDrafter, TreeController, WrongFirstDrafter, round_context


class PlainWindow:
    """The algorithm without trees, passes and rows: each token of the window is the rule's, after all that it follows.

    The window is a list of levels; column 0 of the first is the last token of the text.
    """

    def __init__(self, rule: Rule, width: int, length: int) -> None:
        self.rule, self.width, self.length = rule, width, length
        self.levels: list[list[int]] = []
        self.ngrams: list[tuple[int, ...]] = []
        self.random = random.Random(0)  # noqa: S311 - no secret

    def step(self, text: Sequence[int], longer: Sequence[int]) -> None:
        """A pass over a text, which was `longer` after it."""
        if not self.levels:
            self.levels = [self.random.choices(text, k=self.width)]
        self.levels[0][0] = text[-1]
        before = [*text[:-1]]
        new = []
        for column in range(self.width):
            seen = [*before, *self.levels[0][: column + 1], *(level[column] for level in self.levels[1:])]
            new.append(int(self.rule(seen).argmax()))
        self.levels.append(new)
        if len(self.levels) < self.length:
            self.levels = [[*level[1:], *self.random.choices(longer, k=1)] for level in self.levels]
            return
        self.ngrams += zip(*self.levels, strict=True)
        del self.levels[0]


class Steps(Lookahead):
    """Writes down after which texts it was asked for passengers."""

    def __init__(self, window: int, length: int) -> None:
        super().__init__(window, length, kept=10_000)
        self.texts: list[list[int]] = []

    def begin(self, round_context: RoundContext) -> None:
        super().begin(round_context)
        self.now = list(round_context.tokens)

    def passengers(self, most: int) -> Passengers:
        carried = super().passengers(most)
        if carried.tokens:
            self.texts.append(self.now)
        return carried


@pytest.mark.parametrize(("window", "length"), [(3, 3), (2, 2), (5, 2), (4, 4), (2, 5)])
@pytest.mark.parametrize("drafted", [0, 6])
def test_the_window_is_that_of_the_algorithm(window: int, length: int, drafted: int) -> None:
    """With rounds of one token, and of several."""
    drafter = Steps(window, length)
    others: list[Drafter] = [WrongFirstDrafter(blend(TARGET, OTHER, 0.3))] if drafted else []
    target = ToySession(TARGET, VOCAB)
    speaker = engine(target, TreeController([*others, drafter], drafted))
    events = [event for event in speaker.generate(Request(PROMPT, max_tokens=99)) if isinstance(event, Text)]
    said = [token for event in events for token in event.tokens]
    assert any(len(event.tokens) > 2 for event in events) == bool(drafted)
    plain = PlainWindow(TARGET, window, length)
    for text, longer in pairwise([*drafter.texts, [*PROMPT, *said]]):
        plain.step(text, longer)
    kept = [ngram for own in drafter.ngrams.values() for ngram in own]
    assert sorted(kept) == sorted(set(plain.ngrams))
    assert len(kept) > 30
    newest = {ngram[0]: ngram for ngram in plain.ngrams}
    assert {first: own[-1] for first, own in drafter.ngrams.items()} == newest


def test_n_grams_are_what_the_model_says() -> None:
    """The longer the text, the more of them are: the last token is the model's after those before it."""
    drafter = Lookahead(4, 3, kept=100)
    list(engine(ToySession(TARGET, VOCAB), TreeController([drafter], 0)).generate(Request(PROMPT, max_tokens=200)))
    kept = [ngram for own in drafter.ngrams.values() for ngram in own]
    assert len(kept) > 50
    for first, second, third in kept:  # what follows depends on two tokens here
        assert int(TARGET([first, second]).argmax()) == third


def pass_of(drafter: Lookahead, text: Sequence[int], rows: Sequence[int], drafted: Sequence[int] = ()) -> Passengers:
    """A pass that carries the passengers after `text`; `rows` are the likeliest tokens after its nodes."""
    drafter.begin(round_context(text))
    carried = drafter.passengers(99)
    top = Top(np.array(rows)[:, None], np.ones((len(rows), 1)))
    first = 1 + len(drafted)
    parents = (*range(-1, len(drafted)), *(parent + first if parent >= 0 else 0 for parent in carried.parents))
    tokens = (text[-1], *drafted, *carried.tokens)
    assert len(tokens) == len(rows)
    drafter.evaluated(Evaluated(len(text) - 1, tokens, parents, (0,), top))
    return carried


def guesses(drafter: Lookahead, context: Sequence[int], path: Sequence[int] = (), most: int = 8) -> Sequence[Guess]:
    drafter.begin(round_context(context))
    return drafter.guess(path, most)


def test_the_levels_of_the_window_come_one_a_pass() -> None:
    drafter = Lookahead(3, 3)
    first = pass_of(drafter, [7, 7, 7], rows=[1, 2, 3])
    assert first == Passengers((7, 7), (-1, 0)), "tokens of the text, at first"
    second = pass_of(drafter, [7, 7, 7, 1], rows=[9, 9, 9, 4, 5, 6])
    assert second == Passengers((7, 7, 2, 3, 7), (-1, 0, -1, 0, 1)), "the rows of the pass before, a place further"
    assert drafter.ngrams == {1: [(1, 2, 4)], 7: [(7, 3, 5), (7, 7, 6)]}
    third = pass_of(drafter, [7, 7, 7, 1, 8], rows=[9, 9, 9, 11, 12, 13])
    assert third == Passengers((3, 7, 4, 5, 6), (-1, 0, -1, 0, 1))
    assert drafter.ngrams[8] == [(8, 4, 11)]
    assert drafter.ngrams[3] == [(3, 5, 12)]


def test_a_window_below_a_draft_is_found_in_its_pass() -> None:
    drafter = Lookahead(2, 2)
    pass_of(drafter, [*[5] * 20, 6], rows=[1, 90, 91, 2], drafted=[8, 9])
    assert drafter.ngrams == {6: [(6, 1)], 5: [(5, 2)]}


def test_a_pass_that_did_not_carry_it_changes_nothing() -> None:
    drafter = Lookahead(3, 2)
    drafter.begin(round_context([1, 2]))
    offered = drafter.passengers(99)
    assert len(offered.tokens) == drafter.most_passengers == 2
    drafter.evaluated(Evaluated(1, (2,), (-1,), (0,), Top(np.array([[4]]), np.ones((1, 1)))))
    assert drafter.ngrams == {}
    drafter.begin(round_context([1, 2]))
    assert drafter.passengers(99) == offered
    assert drafter.passengers(1) == Passengers(), "all of it or nothing"
    drafter.evaluated(Evaluated(0, (1, 2), (-1, 0), (0, 1)))
    assert drafter.ngrams == {}


def test_a_shorter_text_begins_another_window() -> None:
    drafter = Lookahead(3, 3)
    for text in ([7, 7, 7], [7, 7, 7, 1]):
        pass_of(drafter, text, rows=[1, 2, 3, *([4, 5, 6] if text[-1] == 1 else [])])
    drafter.begin(round_context([9, 9]))
    assert drafter.passengers(99) == Passengers((9, 9), (-1, 0))
    assert drafter.ngrams, "what it knows it keeps"


def test_guesses_are_by_the_longest_match_and_then_the_newest() -> None:
    drafter = Lookahead(2, 3)
    for ngram in ((1, 2, 3), (1, 2, 4), (2, 5, 6), (1, 7, 3)):
        drafter._keep(ngram)
    third = 1 / 3
    assert guesses(drafter, [0, 1]) == [Guess(7, third), Guess(2, third)]
    assert guesses(drafter, [1, 2]) == [Guess(4, 2 * third), Guess(3, 2 * third), Guess(5, third)]
    assert guesses(drafter, [1, 2], most=1) == [Guess(4, 2 * third)]
    assert guesses(drafter, [0], [1, 2]) == guesses(drafter, [1], [2]) == guesses(drafter, [1, 2])
    assert guesses(drafter, [9]) == guesses(drafter, [1, 3]) == []
    drafter._keep((1, 2, 3))
    assert guesses(drafter, [1, 2])[0].token == 3, "the newest is what was made again"
    drafter.close()
    assert guesses(drafter, [1, 2]) == []


def test_the_oldest_n_grams_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.drafters.lookahead._FIRST_TOKENS", 3)
    drafter = Lookahead(2, 2, kept=2)
    for last in range(5):
        drafter._keep((1, last))
    assert drafter.ngrams == {1: [(1, 3), (1, 4)]}
    for first in (2, 3, 1, 4):
        drafter._keep((first, 0))
    assert list(drafter.ngrams) == [3, 1, 4]


@pytest.mark.parametrize("wrong", [{"window": 1}, {"length": 1}, {"kept": 0}])
def test_sizes_that_make_no_window(wrong: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="the first two must be 2 or more, kept 1 or more"):
        Lookahead(**wrong)


def test_it_speeds_up_a_text_that_it_makes_itself() -> None:
    """In a model whose text is a loop of its own, the window finds the loop before the text has come to it."""
    drafter = Lookahead(4, 3)
    rule: Rule = lambda context: -np.abs(np.arange(VOCAB) - (context[-1] + 5) % VOCAB).astype(np.float32)  # noqa: E731
    prompt = [0, 3, 9, 14, 19, 2]
    stats = []
    for drafters in ([drafter], [RuleDrafter(TARGET)]):
        *_, last = engine(ToySession(rule, VOCAB), TreeController(drafters, 4)).generate(
            Request(prompt, Sampling(), 20)
        )
        stats.append(last.stats)  # type: ignore[union-attr]
    assert stats[0].accepted >= 8
    assert stats[0].rounds < stats[1].rounds
