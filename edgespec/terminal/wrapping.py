"""Word wrapping of streamed text."""

from __future__ import annotations

import re
from collections.abc import Callable

_PIECE = re.compile(r"\x1b\[[0-9;]*m|\n|[ \t]+|[^ \t\n\x1b]+|\x1b")
_TAB = 8


class Wrapping:
    """Passes text to `out`, with a line break before a word that would cross the edge of the terminal.

    A word is buffered until it is complete. Escape sequences of colours have no width.

    Args:
        out: receives the wrapped text.
        columns: returns the current width of the terminal; 0 passes all text unchanged and immediately.
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
        """Write the buffered text."""
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
        """Extend the word. Lines may be broken before and after each wide character: their scripts have no spaces."""
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
        """Write the word, on this line or the next."""
        if not self._word:
            return
        gap = self._gap()
        if self._column and columns > 0 and self._column + gap + self._width > columns:
            self._out(f"\n{self._word}")
            self._column = self._width
        else:
            self._out(f"{self._space}{self._word}")
            self._column += gap + self._width
        if columns > 0 and self._column > columns:  # the terminal itself broke a word longer than a line
            self._column %= columns
        self._space = self._word = ""
        self._width = 0

    def _gap(self) -> int:
        """Columns of the buffered spaces and tabs."""
        column = self._column
        for character in self._space:
            column += _TAB - column % _TAB if character == "\t" else 1
        return column - self._column
