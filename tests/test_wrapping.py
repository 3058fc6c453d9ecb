"""Lines on a terminal break between words."""

from __future__ import annotations

import random
import re

import pytest

from edgespec.terminal.wrapping import Wrapping

TEXT = "A table for two, at half past seven, in Oakland tonight.\n\n  - one\n  - two and three\n\tfour\nend"


def wrapped(pieces: list[str], columns: int) -> str:
    said: list[str] = []
    out = Wrapping(said.append, lambda: columns)
    for piece in pieces:
        out(piece)
    out.flush()
    return "".join(said)


@pytest.mark.parametrize("columns", [9, 12, 20, 33, 80])
def test_words_stay_whole_however_the_text_comes(columns: int) -> None:
    draw = random.Random(columns)  # noqa: S311
    whole = wrapped([TEXT], columns)
    assert whole.split() == TEXT.split()
    for line in whole.expandtabs(8).splitlines():
        assert len(line) <= columns or " " not in line.strip()
    for _ in range(20):
        cuts = sorted(draw.sample(range(len(TEXT)), 15))
        pieces = [TEXT[i:j] for i, j in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
        assert wrapped(pieces, columns) == whole


def test_where_there_is_no_edge_nothing_changes_and_nothing_waits() -> None:
    said: list[str] = []
    out = Wrapping(said.append, lambda: 0)
    out("half a wo")
    assert said == ["half a wo"]
    out("rd \n")
    assert "".join(said) == "half a word \n"
    assert wrapped([TEXT], 1000) == TEXT


def test_a_word_that_fits_exactly_stays() -> None:
    assert wrapped(["aaaa bbbbb c"], 10) == "aaaa bbbbb\nc"
    assert wrapped(["aaaa bbbbbb c"], 10) == "aaaa\nbbbbbb c"


def test_colours_take_no_room() -> None:
    green, end = "\x1b[32m\x1b[4m", "\x1b[0m"
    text = f"{green}aaaa bb{end}bbb {green}c{end}"
    assert wrapped([text], 10) == f"{green}aaaa bb{end}bbb\n{green}c{end}"


def test_a_word_longer_than_a_line_is_not_held_back() -> None:
    said: list[str] = []
    out = Wrapping(said.append, lambda: 10)
    out("x" * 25)
    assert "".join(said) == "x" * 25
    out(" yyyyyyy")
    out.flush()
    assert "".join(said) == "x" * 25 + "\nyyyyyyy"


def test_scripts_without_spaces_are_not_held_back() -> None:
    said: list[str] = []
    out = Wrapping(said.append, lambda: 10)
    out("你好世界你好世界")
    shown = "".join(said)
    assert shown.replace("\n", "") == "你好世界你好世界"
    assert re.fullmatch(r".{5}\n.{3}", shown)
