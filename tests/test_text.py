"""Streams of tokens to text: characters cut into bytes, stop strings cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product

import pytest

from edgespec.text.stream import Span, TextStream, to_text

EMOJI = "a😀é한👩‍🚀z"


def cuts(length: int) -> Iterator[list[int]]:
    """All ways to cut something of `length` into pieces, as the places to cut."""
    for n in range(length):
        for places in combinations(range(1, length), n):
            yield [0, *places, length]


def stream(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[str, list[str], bool]:
    """The whole text, the text after each piece and after the end, and whether a stop string came."""
    text = TextStream(stop)
    shown: list[str] = []
    for piece in pieces:
        shown.append("".join(span.text for span in text.push(piece)))
        if text.stopped:
            return "".join(shown), shown, True
    shown.append("".join(span.text for span in text.flush()))
    return "".join(shown), shown, False


def test_a_character_in_several_tokens_shows_when_it_is_whole() -> None:
    for places in cuts(len("😀é".encode())):
        whole = "😀é".encode()
        pieces = [whole[a:b] for a, b in pairwise(places)]
        text, shown, _ = stream(pieces)
        assert text == "😀é"
        assert all("\ufffd" not in part for part in shown)


@pytest.mark.parametrize("stop", [(), ("never",), ("z!",)])
def test_bytes_one_by_one(stop: tuple[str, ...]) -> None:
    text, shown, stopped = stream([bytes([byte]) for byte in EMOJI.encode()], stop)
    assert (text, stopped) == (EMOJI, False)
    assert "".join(shown[:2]) == "a", "it waits for the emoji, and not for longer"
    assert "".join(shown[:5]) == "a😀"


def test_bytes_that_are_no_utf_8_show_as_such_and_harm_nothing_else() -> None:
    assert stream([b"a\xffb"])[0] == "a\ufffdb"
    assert stream([b"a\xf0\x9f", b"b"])[0] == "a\ufffdb", "an emoji that breaks off"
    assert stream([b"\x80", b"ok"])[0] == "\ufffdok"


def test_half_a_character_at_the_end_is_dropped() -> None:
    assert stream([b"a", b"\xf0\x9f\x98"]) == ("a", ["a", "", ""], False)


def test_empty_pieces_are_nothing() -> None:
    """Special tokens have no text."""
    assert stream([b"", b"a", b"", b"\xc3", b"", b"\xa9"], ("x",))[0] == "aé"


@pytest.mark.parametrize("stop", ["a", "ab", "aa", "aab", "aba", "abab", "bb"])
def test_a_stop_string_is_found_wherever_it_is_cut(stop: str) -> None:
    """All texts of up to 6 letters over two, cut in all ways: as if the text were split at once."""
    for length in range(1, 7):
        texts = ["".join(letters) for letters in product("ab", repeat=length)]
        for text, places in product(texts, cuts(length)):
            pieces = [text[a:b].encode() for a, b in pairwise(places)]
            assert stream(pieces, [stop])[::2] == (text.split(stop)[0], stop in text)


def test_no_more_is_held_back_than_might_become_a_stop_string() -> None:
    _, shown, _ = stream([b"x", b"\n", b"U", b"ser", b"!", b"\n", b"Users"], ("\nUser:",))
    assert shown == ["x", "", "", "", "\nUser!", "", "\nUsers", ""]
    _, shown, _ = stream([b"aaab", b"aab", b"c"], ("aabc",))
    assert shown == ["a", "aab", ""], "the newest beginning counts"


def test_the_first_of_several_stop_strings_counts() -> None:
    assert stream([b"one two three"], ("three", "two"))[0] == "one "
    assert stream([b"one t", b"w", b"o"], ("three", "two"))[::2] == ("one ", True)
    assert stream([b"one t", b"e", b"n"], ("three", "two"))[::2] == ("one ten", False)


def test_a_stop_string_of_characters_cut_into_bytes() -> None:
    whole = "ab😀c".encode()
    assert stream([bytes([byte]) for byte in whole], ("😀",))[::2] == ("ab", True)


def test_empty_stop_strings_are_none() -> None:
    assert stream([b"abc"], ("",))[::2] == ("abc", False)


def test_nothing_comes_after_the_stop_string() -> None:
    text = TextStream(["b"])
    assert text.push(b"abc") == [Span("a")]
    assert text.stopped
    assert text.flush() == []


def test_spans_say_where_text_came_from() -> None:
    """By the token that completed it; a stop string parts a span, and one held back keeps its origin."""
    text = TextStream(["STOP"])
    assert text.push(b"a", drafter="lookup") == [Span("a", drafter="lookup")]
    assert text.push(b"bS") == [Span("b")]
    assert text.push(b"TO", drafter="lookup") == []
    assert text.push(b"x\xc3") == [
        Span("S"),
        Span("TO", drafter="lookup"),
        Span("x"),
    ]
    assert text.push(b"\xa9", drafter="lookup") == [Span("é", drafter="lookup")]


def test_to_text_reads_all_at_once() -> None:
    pieces = {1: b"\xc3", 2: b"\xa9", 3: b"", 4: b"\xff"}
    assert to_text([1, 2, 3], pieces.__getitem__) == "é"
    assert to_text([1, 4], pieces.__getitem__) == "\ufffd\ufffd"
