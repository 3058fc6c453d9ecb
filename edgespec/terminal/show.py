"""Answers and figures as text on a terminal, with and without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ..engine import Text
from ..runtime.runtime import Runtime
from ..stats import Stats
from ..text.stream import Span
from ..types import Draft

ROUGH = 0.1  #: relative standard error of a speedup from which on it is shown with one digit, as rough
_PLAIN_ROUNDS = 8  # plain rounds of an answer from which on the speed of plain decoding counts as measured
_BARS = "▁▂▃▄▅▆▇█"
# A model's text must not control the terminal: control characters are replaced by their Unicode pictures.
_CONTROL = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {
    0x7F: "\u2421",
    **dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), "�"),  # C1 controls and lone surrogates
}


def printable(text: str) -> str:
    """`text` without control characters other than newlines and tabs."""
    return text.translate(_CONTROL)


class PlainText:
    """Shows only the text. Calls return the reasoning of an event, which is dimmed, and its part of the answer."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, event: Text) -> tuple[str, str]:
        reasoning = printable(event.reasoning)
        return click.style(reasoning, dim=True) if reasoning and self._colour else reasoning, printable(event.text)


class MarkedText:
    """Marks the origin of the text: accepted draft tokens, rejected ones, and the target's own.

    Green and red are from the terminal's palette, so they suit its background; underline and strike-through mark the
    same without relying on colour. Without colour, accepted text is in [brackets] and rejected text in {-braces-}.
    Calls return what those of `PlainText` do.
    """

    def __init__(self, runtime: Runtime, *, colour: bool) -> None:
        self._runtime = runtime
        self._colour = colour
        self._thinks = False  # whether the last text was reasoning

    def __call__(self, event: Text) -> tuple[str, str]:
        shown = {True: "", False: ""}
        for span in _joined(event.spans):
            shown[span.reasoning] += self._span(span)
            self._thinks = span.reasoning
        shown[self._thinks] += self._rejected(event)
        return shown[True], shown[False]

    def legend(self) -> str:
        """One line that explains the marks."""
        return f"{self._accept('accepted draft tokens')}, {self._reject('rejected ones')}, the target's own"

    def _span(self, span: Span) -> str:
        text = printable(span.text)
        if span.drafted and text.strip():
            return self._accept(text, dim=span.reasoning)
        return click.style(text, dim=True) if span.reasoning and self._colour else text

    def _rejected(self, event: Text) -> str:
        branches = map(self._runtime.text, rejected_branches(event.round.draft, event.round.path))
        text = "|".join(printable(branch).replace("\n", "⏎") for branch in branches if branch)
        return self._reject(text, dim=self._thinks) if text else ""

    def _accept(self, text: str, *, dim: bool = False) -> str:
        return click.style(text, fg="green", underline=True, dim=dim or None) if self._colour else f"[{text}]"

    def _reject(self, text: str, *, dim: bool = False) -> str:
        return click.style(text, fg="red", strikethrough=True, dim=dim or None) if self._colour else f"{{-{text}-}}"


def rejected_branches(draft: Draft, path: Sequence[int]) -> list[list[int]]:
    """The tokens of `draft` that are not on the accepted `path`, by branch of the tree.

    A node continues the branch that ends with its parent. Further children of that parent begin branches of their own.
    """
    branches: dict[int, list[int]] = {}  # by their last node
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if node not in path:
            branches[node] = [*branches.pop(parent, ()), token]
    return list(branches.values())


def _joined(spans: tuple[Span, ...]) -> Iterator[Span]:
    """Merge adjacent spans that are marked alike."""
    held: Span | None = None
    for span in spans:
        if held is not None and (held.drafted, held.reasoning) == (span.drafted, span.reasoning):
            held = held._replace(text=held.text + span.text)
            continue
        if held is not None:
            yield held
        held = span
    if held is not None:
        yield held


def figures(stats: Stats) -> str:
    """The statistics of an answer, in lines."""
    lines = [_speed(stats)]
    passes = f"{stats.tokens} tokens in {stats.rounds} passes of the target"
    lines.append(f"mean accepted length {stats.mean_accepted_length:.2f} ({passes})")
    if stats.reasoning_tokens:
        lines.append(f"thinking took {stats.reasoning_tokens} of {stats.tokens} tokens")
    rates = [f"{name} {n / of:.0%} ({n} of {of})" for name, (of, n) in stats.by_drafter.items()]
    lines.append(f"drafts accepted: {', '.join(rates) or 'nothing was drafted'}")
    lines.append(f"draft length K: {_histogram(stats.k_histogram)}")
    if stats.passengers:
        lines.append(f"{stats.passengers} tokens were computed beside drafts, for n-grams")
    lines.append(f"prompt {stats.prompt} tokens, {stats.cached} of them cached, {stats.prompt_seconds:.2f} s")
    return "\n".join(lines)


def _speed(stats: Stats) -> str:
    plain, speedup = stats.plain_tokens_per_second, stats.speedup
    speed = f"{stats.tokens_per_second:.1f} tokens/s"
    if plain is None or speedup is None:
        return speed
    if stats.plain_error > ROUGH:
        return f"{speed}, roughly {speedup:.1f}x plain decoding: the time of passes varied (other programs are busy?)"
    measured = "measured" if stats.k_histogram.get(0, 0) >= _PLAIN_ROUNDS else "about"
    return f"{speed}, {measured} {speedup:.2f}x plain decoding ({plain:.1f} tokens/s)"


def _histogram(lengths: dict[int, int]) -> str:
    most = max(lengths.values(), default=1)
    return "  ".join(f"{k} {_BARS[(len(_BARS) - 1) * n // most]} {n}" for k, n in lengths.items())
