"""The reasoning of an answer on a terminal: dimmed, folded into a line, or hidden."""

from __future__ import annotations

import time
from collections.abc import Callable

#: "show": dimmed, before the answer; "fold": one line with its time and length; "hide": not at all.
THOUGHTS = ("show", "fold", "hide")


class AnswerDisplay:
    """Writes an answer and, before it, its reasoning.

    Args:
        thoughts: one of `THOUGHTS`.
        out: receives the answer, and the reasoning that is shown.
        note: receives the lines about reasoning that is folded.
        colour: whether reasoning is dimmed; otherwise lines mark where it begins and ends.
    """

    def __init__(self, thoughts: str, out: Callable[[str], None], note: Callable[[str], None], *, colour: bool) -> None:
        self._thoughts = thoughts
        self._out, self._note = out, note
        self._colour = colour
        self._began: float | None = None  # the time when the reasoning under way began
        self._tokens = 0  # of the reasoning under way
        self._answered = False

    def show(self, reasoning: str, answer: str, tokens: int) -> None:
        """Write the next reasoning and the answer after it, either may be empty; `tokens` of them."""
        if reasoning:
            if self._began is None:
                self._begin()
            self._tokens += tokens
            if self._thoughts == "show":
                self._out(reasoning)
        if answer:
            if self._began is not None:
                self._end()
            self._answered = True
            self._out(answer)

    def close(self) -> None:
        """End the answer."""
        if self._began is not None and self._thoughts == "fold":
            self._fold(self._began)
        self._out("\n")

    def _begin(self) -> None:
        self._began, self._tokens = time.perf_counter(), 0
        if self._answered and self._thoughts != "hide":
            self._out("\n")
        if self._thoughts == "fold":
            self._note("(thinking)")
        elif self._thoughts == "show" and not self._colour:
            self._out("(thinking)\n")

    def _end(self) -> None:
        began, self._began = self._began, None
        if self._thoughts == "fold":
            self._fold(began or 0.0)
        elif self._thoughts == "show":
            self._out("\n\n" if self._colour else "\n(answer)\n")

    def _fold(self, began: float) -> None:
        self._note(f"(thought for {time.perf_counter() - began:.1f} s, {self._tokens} tokens)")
