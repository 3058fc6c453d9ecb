"""Text on a terminal, its lines broken between words."""

from __future__ import annotations

import re
from collections.abc import Callable

_PIECE = re.compile(r"\x1b\[[0-9;]*m|\n|[ \t]+|[^ \t\n\x1b]+|\x1b")
_TAB = 8


class Wrapping:
    """Passes text on to `out`; where a word would cross the terminal's edge, a new line begins before it.

    A word is held back until its end has come. Colours pass and take no room.

    Args:
        columns: the terminal's width now; 0 passes everything on unchanged and at once.
    """

    def __init__(self, out: Callable[[str], None], columns: Callable[[], int]) -> None:
        self._out, self._columns = out, columns
        self._column = 0
        self._space = self._word = ""
        self._width = 0  # of the word

    def __call__(self, text: str) -> None:
        columns = self._columns()
        if columns <= 0:
            self.flush()
            self._out(text)
            return
        for piece in _PIECE.findall(text):
            self._add(piece, columns)

    def flush(self) -> None:
        """Pass on what is held back."""
        self._place(self._columns())
        if self._space:
            self._out(self._space)
            self._column += self._gap()
            self._space = ""

    def _add(self, piece: str, columns: int) -> None:
        if piece == "\n":
            self.flush()
            self._out("\n")
            self._column = 0
        elif piece[0] in " \t":
            self._place(columns)
            self._space += piece
        elif piece[0] == "\x1b":
            self._word += piece
        else:
            self._lengthen(piece, columns)

    def _lengthen(self, piece: str, columns: int) -> None:
        """Add to the word. Scripts without spaces may be broken before and after each wide character."""
        from rich.cells import cell_len  # noqa: PLC0415 - only terminals need it

        for part in [piece] if piece.isascii() else piece:
            width = cell_len(part)
            if width == 2 and len(part) == 1:
                self._place(columns)
            self._word += part
            self._width += width
            if (width == 2 and len(part) == 1) or self._width >= columns:
                self._place(columns)

    def _place(self, columns: int) -> None:
        """Pass the word on, on this line or the next."""
        if not self._word:
            return
        gap = self._gap()
        if self._column and columns > 0 and self._column + gap + self._width > columns:
            self._out(f"\n{self._word}")
            self._column = self._width
        else:
            self._out(f"{self._space}{self._word}")
            self._column += gap + self._width
        if columns > 0 and self._column > columns:  # a word longer than a line: the terminal broke it
            self._column %= columns
        self._space = self._word = ""
        self._width = 0

    def _gap(self) -> int:
        """Columns that the held space takes."""
        column = self._column
        for character in self._space:
            column += _TAB - column % _TAB if character == "\t" else 1
        return column - self._column
