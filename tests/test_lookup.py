"""The look-up drafter: what it guesses, how sure it is, and what it does when the text is another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgespec.drafters.lookup import Lookup
from edgespec.drafters.suffix_automaton import Automaton, SuffixMatch
from edgespec.errors import OptionError
from edgespec.sampling import Sampling
from edgespec.types import Draft, Guess, Round
from edgespec.verify import RoundContext, verifier

from .beginnings import Beginnings, Text
from .helpers import never


def round_context(context: Sequence[int], is_eog: Callable[[int], bool] = never) -> RoundContext:
    return RoundContext(verifier("match"), Sampling(), context, is_eog)


def chain(lookup: Lookup, context: Sequence[int], most: int) -> list[int]:
    """The likeliest guesses, each after the one before."""
    lookup.begin(round_context(context))
    path: list[int] = []
    while len(path) < most and (guesses := lookup.guess(path, 1)):
        path.append(guesses[0].token)
    return path


def first(lookup: Lookup, context: Sequence[int], most: int = 1) -> list[int]:
    lookup.begin(round_context(context))
    return [guess.token for guess in lookup.guess((), most)]


def by_hand(everything: Beginnings, said: Text, min_match: int, most: int) -> list[Guess]:
    """The definition: two matches blended, of each the tokens that followed last."""
    if len(said) < min_match:
        return []
    shorter = everything.shorter(said)
    matches = [match for match in (shorter, said) if len(match) >= min_match]
    tokens = list(everything.after(said))[: max(2, most)]
    if most > 1 and len(shorter) >= min_match:
        tokens += [token for token in list(everything.after(shorter))[: max(2, most)] if token not in tokens]
    guesses = []
    for token in tokens:
        share = 0.0
        for match in matches:
            after = everything.after(match)
            n = sum(after.values())
            weight = (1 + int(np.log2(n))) / len(match)
            share = (after.get(token, 0) + weight * share) / (n + weight)
        guesses.append(Guess(token, share))
    return sorted(guesses, key=lambda guess: -guess.confidence)[:most]


@pytest.mark.parametrize("min_match", [1, 2, 3])
@pytest.mark.parametrize("alphabet", [2, 4])
def test_guesses_are_what_a_search_finds(alphabet: int, min_match: int) -> None:
    """Over contexts that grow, part and start anew, at the end of the text and along drafts."""
    random = np.random.default_rng(alphabet)
    lookup, everything = Lookup(min_match), Beginnings()
    context: list[int] = []
    found = 0
    for _ in range(30):
        if random.random() < 0.2:
            context = context[: int(random.integers(0, len(context) + 1))]
        context = [*context, *random.integers(0, alphabet, random.integers(1, 5)).tolist()]
        everything.rewind(0)
        for token in context:
            everything.append(token)
        lookup.begin(round_context(context))
        for path in ((), *map(tuple, random.integers(0, alphabet, (4, 3)).tolist())):
            for most in (1, 2, 4):
                got = lookup.guess(path, most)
                want = by_hand(everything, everything.longest(path), min_match, most)
                assert [guess.token for guess in got] == [guess.token for guess in want]
                assert [guess.confidence for guess in got] == pytest.approx([guess.confidence for guess in want])
                assert all(guess.q is None for guess in got)
                found += len(got)
    assert found > 150


def test_the_longest_match_goes_before_a_newer_shorter_one() -> None:
    assert first(Lookup(), [1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 2) == [7, 8]


def test_of_equals_the_newest() -> None:
    assert first(Lookup(), [1, 2, 7, 5, 1, 2, 8, 6, 1, 2], 2) == [8, 7]


def test_what_came_oftener_goes_before_what_came_last() -> None:
    assert first(Lookup(), [1, 2, 7, 1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2], 2) == [7, 8]


def test_drafts_run_over_the_end_of_the_text() -> None:
    assert chain(Lookup(), [5, 1, 2, 1, 2], 6) == [1, 2, 1, 2, 1, 2]
    assert chain(Lookup(), [9, 4, 4, 4], 5) == [4] * 5
    assert chain(Lookup(), [3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]


def test_surer_the_longer_the_match() -> None:
    lookup = Lookup()
    lookup.begin(round_context([1, 2, 3, 4, 5, 6, 7, 1]))
    sure = [lookup.guess(range(2, 2 + n), 1)[0].confidence for n in range(6)]
    assert sure == sorted(sure)
    assert sure == pytest.approx([1 / 2, 2 / 3, 3 / 4, 4 / 5, 5 / 6, 6 / 7])


def test_never_surer_than_sure() -> None:
    """Where many matches lie within each other, counts of the shorter fall short."""
    lookup = Lookup()
    deep = [*range(40)]
    ends = [token for n in range(1, 40) for token in (100 + n, *deep[-n:], 50)]
    often = [token for n in range(100) for token in (*deep, 51, 200 + n)]
    for text in ([7] * 500, [1, 2] * 200, [*ends, *often, 39]):
        lookup.begin(round_context(text))
        path: list[int] = []
        for _ in range(20):
            guesses = lookup.guess(path, 4)
            assert guesses
            assert all(0 <= guess.confidence <= 1 for guess in guesses)
            path.append(guesses[-1].token)


def test_nothing_to_say() -> None:
    lookup = Lookup()
    for context in ([], [1], [1, 2, 3, 4]):
        assert first(lookup, context) == []
    lookup.begin(round_context([1, 2, 1]))
    assert lookup.guess((), 1)
    assert lookup.guess((), 0) == ()
    assert lookup.guess((9,), 1) == ()
    assert first(Lookup(min_match=2), [1, 2, 9, 1, 3, 4, 1]) == []
    assert first(Lookup(min_match=2), [1, 2, 9, 1, 2]) == [9]


def test_a_shorter_match_than_asked_for_has_no_say() -> None:
    """After 2, 3 came 9; after 3 alone came 8."""
    context = [1, 2, 3, 9, 5, 3, 8, 2, 3]
    assert first(Lookup(), context, 4) == [9, 8]
    assert first(Lookup(min_match=2), context, 4) == [9]


def test_nothing_follows_an_end() -> None:
    lookup = Lookup()
    lookup.begin(round_context([1, 2, 3, 4, 1], is_eog=lambda token: token == 3))
    assert [guess.token for guess in lookup.guess((2,), 1)] == [3]
    assert lookup.guess((2, 3), 1) == ()


def test_another_chat_is_remembered() -> None:
    lookup = Lookup()
    assert first(lookup, [1, 2, 3, 4]) == []
    assert chain(lookup, [9, 1, 2], 3) == [3, 4]
    assert chain(lookup, [1, 2], 3) == [3, 4], "the answer is asked for again"


def test_a_history_that_comes_again_counts_once() -> None:
    """Two chats in turns, with one beginning: what the first said is not likelier each time it is sent."""
    lookup, fresh = Lookup(), Lookup()
    one, two = [1, 2, 3, 4, 5, 3, 4, 6], [1, 2, 8, 9, 3, 4, 5]
    for _ in range(3):
        lookup.begin(round_context(one))
        lookup.begin(round_context(two))
    fresh.begin(round_context(one))
    fresh.begin(round_context(two))
    assert lookup.guess((3, 4), 4) == fresh.guess((3, 4), 4) != ()


def test_it_trusts_no_list_to_stay_as_it_was() -> None:
    """The same list, as long as before, with another token in the middle, or shorter."""
    lookup = Lookup()
    context = [1, 2, 3, 4, 5]
    lookup.begin(round_context(context))
    context[2] = 7
    assert first(lookup, [*context, 2]) == [7]
    context[:] = [3]
    assert first(lookup, context) == [4]
    assert first(lookup, tuple(context)) == [4]


def test_a_context_that_grew_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    append = Automaton.append

    def terminal_job(automaton: Automaton, token: int) -> None:
        read.append(token)
        append(automaton, token)

    monkeypatch.setattr(Automaton, "append", terminal_job)
    lookup, context = Lookup(earlier=[[9]]), [1, 2, 3]
    for more in ([4], [], [5, 6]):
        context += more
        lookup.begin(round_context(context))
    lookup.begin(round_context([1, 2, 3, 4, 8]))
    assert read == [9, 1, 2, 3, 4, 5, 6, 8]


def test_a_tree_takes_one_step_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    step = Automaton.step

    def terminal_job(automaton: Automaton, match: SuffixMatch, token: int) -> SuffixMatch:
        nonlocal steps
        steps += 1
        return step(automaton, match, token)

    monkeypatch.setattr(Automaton, "step", terminal_job)
    lookup = Lookup()
    context = np.random.default_rng(0).integers(0, 3, 300).tolist()
    lookup.begin(round_context(context))
    nodes: list[tuple[int, ...]] = [()]
    for path in nodes:
        if len(nodes) < 64:
            nodes += [(*path, guess.token) for guess in lookup.guess(path, 3)]
    for path in nodes:
        lookup.guess(list(path), 1)
    assert steps == len(nodes) - 1
    assert max(map(len, nodes)) > 2


def test_old_texts_go_when_there_are_too_many() -> None:
    """7 tokens in all, of which the present text has 3."""
    for limit, left in ((1, []), (6, []), (7, [2])):
        lookup = Lookup(limit=limit)
        assert first(lookup, [1, 2, 3, 4]) == []
        assert first(lookup, [9, 8, 1]) == left
    assert first(lookup, [9, 8, 9]) == [8], "8 tokens: what is left is the present text"
    assert first(lookup, [9, 8, 1]) == []


def test_a_text_of_half_of_all_is_no_reason_to_forget() -> None:
    lookup = Lookup(limit=1)
    lookup.begin(round_context([1, 2, 3]))
    assert first(lookup, [9, 8, 1]) == [2]


def test_a_text_longer_than_the_limit_is_kept_whole() -> None:
    context = list(range(100))
    assert first(Lookup(limit=10), [*context, 3]) == [4]


def test_earlier_texts_are_known_from_the_start() -> None:
    lookup = Lookup(earlier=[[1, 2, 3], [1, 2, 4], [5, 6]])
    assert first(lookup, [8, 1, 2], 2) == [4, 3], "the newest is the last"
    assert first(lookup, [8, 1, 2, 5]) == [6]
    assert chain(lookup, [2, 5], 3) == [6], "texts are not read as one"


def test_closed_it_remembers_nothing() -> None:
    lookup = Lookup(earlier=[[1, 2, 3]])
    lookup.close()
    assert first(lookup, [9, 1]) == []
    lookup.begin(round_context([1, 2, 3]))
    lookup.close()
    assert lookup.guess((), 1) == ()
    assert first(lookup, [9, 1]) == []


def test_a_round_teaches_nothing_new() -> None:
    lookup = Lookup()
    lookup.begin(round_context([1, 2, 1]))
    before = lookup.guess((), 3)
    lookup.observe(Round(Draft(), (), (2,), 0.0))
    assert lookup.guess((), 3) == before
    assert (lookup.name, lookup.step_price) == ("lookup", 0.0)


def test_options_that_make_no_sense() -> None:
    for min_match, limit in ((0, 9), (1, 0), (-1, 9)):
        with pytest.raises(OptionError, match="must be 1 or more"):
            Lookup(min_match, limit=limit)
