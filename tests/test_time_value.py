"""What a plain step's time is worth in the text just ahead."""

from __future__ import annotations

import pytest

from edgespec.controller.time_value import TimeValue

NOTHING, LITTLE, MUCH = 1.0, 1.5, 4.0


def answer(value: TimeValue, group: int = 0) -> None:
    """Another answer begins, of a group of prompts."""
    value.enter(group, {0, 1})


def generated(value: TimeValue, offer: float, tokens: int, steps: float, rounds: int = 1) -> None:
    """Rounds with such an offer, which brought `tokens` each and took `steps`."""
    for _ in range(rounds):
        value.ahead(offer)
        value.observe(tokens, steps)


def test_the_average_is_what_rounds_earn_of_late_and_at_least_plain_decoding() -> None:
    value = TimeValue()
    assert value.average() == 1.0
    for _ in range(300):
        value.observe(6, 2.0)
    assert value.average() == pytest.approx(3.0)
    for _ in range(20):
        value.observe(1, 2.0)
    assert 1.5 < value.average() < 3.0, "a change is followed slowly"
    for _ in range(300):
        value.observe(1, 2.0)
    assert value.average() == 1.0


def test_text_after_an_offer_is_known_apart_from_the_average() -> None:
    """Copies by turns with text that nobody can guess: each has its own speed."""
    value = TimeValue()
    for _ in range(40):
        answer(value)
        generated(value, NOTHING, 1, 1.0, rounds=20)
        answer(value)
        generated(value, MUCH, 8, 2.0, rounds=10)
    assert 1.5 < value.average() < 4.0
    assert value.ahead(NOTHING) < 1.4
    assert value.ahead(MUCH) == pytest.approx(4.0, rel=0.1)


def test_an_offer_that_was_not_seen_yet_is_worth_the_average_at_first() -> None:
    value = TimeValue()
    generated(value, MUCH, 8, 2.0, rounds=100)
    assert value.ahead(NOTHING) == pytest.approx(4.0)
    generated(value, NOTHING, 1, 1.0, rounds=20)
    assert 1.0 < value.ahead(NOTHING) < 3.0


def test_what_follows_counts_and_not_the_round_alone() -> None:
    """Before a copy nothing is offered for one token; the seven after it come fast."""
    before_copies, before_slow = TimeValue(), TimeValue()
    for _ in range(60):
        generated(before_copies, NOTHING, 1, 1.0)
        generated(before_copies, MUCH, 9, 1.0)
        generated(before_slow, NOTHING, 1, 1.0, rounds=10)
    assert before_copies.ahead(NOTHING) > 3.0
    assert before_slow.ahead(NOTHING) == pytest.approx(1.0)


def test_the_next_answer_is_not_what_follows_the_last_round_of_one() -> None:
    value = TimeValue()
    for _ in range(100):
        answer(value)
        generated(value, LITTLE, 1, 1.0, rounds=8)
        generated(value, NOTHING, 1, 1.0)
        answer(value)
        generated(value, MUCH, 9, 1.0, rounds=8)
    known = value.average()
    assert value.ahead(NOTHING) == pytest.approx(known), "no round with this offer had 8 tokens after it"
    assert value.ahead(LITTLE) == pytest.approx(1.5), "and of those with this one, those of the slow answer count"


def test_time_is_worth_at_least_what_the_offer_itself_brings() -> None:
    value = TimeValue()
    generated(value, MUCH, 1, 1.0, rounds=100)
    assert value.ahead(6.5) == 6.5
    assert value.ahead(1.0) == 1.0


def test_the_speed_of_a_group_of_prompts_is_known_apart() -> None:
    """In one task nothing is offered before copies, in another one before slow text."""
    value = TimeValue()
    for _ in range(30):
        answer(value, 0)
        for _ in range(4):
            generated(value, NOTHING, 1, 1.0)
            generated(value, MUCH, 9, 1.0)
        answer(value, 1)
        generated(value, NOTHING, 1, 1.0, rounds=20)
    answer(value, 0)
    assert value.ahead(NOTHING) > 3.0
    answer(value, 1)
    assert value.ahead(NOTHING) < 1.5
