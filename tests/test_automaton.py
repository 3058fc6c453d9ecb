"""The suffix automaton against a search of everything."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from edgespec.drafters.suffix_automaton import NOWHERE, Automaton, SuffixMatch

from .beginnings import Beginnings, Text


def agree(automaton: Automaton, everything: Beginnings, match: SuffixMatch, said: Text, most: int) -> None:
    assert match[1] == len(said)
    if not said:
        assert match == NOWHERE
        assert automaton.followers(match, most) == []
        return
    after = everything.after(said)
    assert automaton.followers(match, most) == list(after)[:most]
    for token in (*after, 99):
        assert automaton.tally(match, token) == (after.get(token, 0), sum(after.values()))
    assert automaton.shorter(match)[1] == len(everything.shorter(said))


@pytest.mark.parametrize("alphabet", [2, 3, 6])
@pytest.mark.parametrize("seed", range(3))
def test_it_says_what_a_search_finds(alphabet: int, seed: int) -> None:
    """Texts that grow, go back, part and start anew; and walks from their ends."""
    random = np.random.default_rng(seed)
    automaton, everything = Automaton(), Beginnings()
    depths = set()
    for _ in range(40):
        if random.random() < 0.25:
            length = int(random.integers(0, 2) * random.integers(0, len(everything.text) + 1))
            automaton.rewind(length)
            everything.rewind(length)
        for token in random.integers(0, alphabet, random.integers(1, 6)).tolist():
            automaton.append(token)
            everything.append(token)
        assert len(automaton) == len(everything)
        match, said, path = automaton.here, everything.longest(), []
        agree(automaton, everything, match, said, 3)
        depths.add(len(said))
        for token in random.integers(0, alphabet + 1, 6).tolist():
            match = automaton.step(match, token)
            path.append(token)
            agree(automaton, everything, match, everything.longest(path), alphabet)
        shorter = automaton.shorter(automaton.here)
        if said and shorter[1]:
            agree(automaton, everything, shorter, everything.shorter(said), 2)
    assert len(depths) > 3


def test_real_repetition() -> None:
    """Long repeats, which random texts do not have."""
    random = np.random.default_rng(4)
    automaton, everything = Automaton(), Beginnings()
    phrases = [random.integers(0, 8, 7).tolist() for _ in range(4)]
    for _ in range(30):
        for token in [*phrases[int(random.integers(0, 4))], int(random.integers(0, 8))]:
            automaton.append(token)
            everything.append(token)
            match, said = automaton.here, everything.longest()
            agree(automaton, everything, match, said, 4)
    assert len(said) > 3


def test_nothing_was_said_yet() -> None:
    automaton = Automaton()
    assert automaton.here == NOWHERE
    assert automaton.step(NOWHERE, 5) == NOWHERE
    automaton.append(5)
    assert automaton.here == NOWHERE, "nothing followed the 5"
    assert automaton.step(NOWHERE, 5) == NOWHERE
    automaton.append(6)
    assert automaton.step(NOWHERE, 5)[1] == 1
    assert len(automaton) == 2


def test_a_text_read_again_counts_once() -> None:
    automaton = Automaton()
    for text in ([1, 2, 3, 1, 2, 4], [5, 1, 2], [1, 2, 3, 1, 2, 4], [1, 2, 3, 7]):
        automaton.rewind(0)
        for token in text:
            automaton.append(token)
    after = automaton.step(automaton.step(NOWHERE, 1), 2)
    assert {token: automaton.tally(after, token) for token in (3, 4, 7)} == {3: (1, 2), 4: (1, 2), 7: (0, 2)}
    assert len(automaton) == 6 + 3 + 1


def test_endless_repetition_is_read_in_linear_time() -> None:
    """Each end of "aaaa" is a state of its own: to count all of them at every token would be quadratic."""
    steps = 0

    class Watched(list[int]):
        def __setitem__(self, index: object, value: object) -> None:
            nonlocal steps
            steps += 1
            super().__setitem__(index, value)  # type: ignore[call-overload]

    automaton = Automaton()
    automaton._count = Watched(automaton._count)
    automaton._followed = Watched(automaton._followed)
    for _ in range(2000):
        automaton.append(7)
    assert steps < 2000 * 70
    assert automaton.here[1] == 1999
    assert automaton.followers(automaton.here, 3) == [7]
    assert automaton.step(automaton.here, 7)[1] == 1999


@pytest.mark.parametrize("alphabet", [2, 50, 5000])
def test_a_token_takes_few_bytes(alphabet: int) -> None:
    text = np.random.default_rng(1).integers(0, alphabet, 4000).tolist()
    tracemalloc.start()
    automaton = Automaton()
    for token in text:
        automaton.append(token)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(automaton) == 4000
    assert used < 700 * len(text)
