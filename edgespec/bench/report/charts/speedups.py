"""The speedup of each contender by category."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...records import OURS, PLAIN, Run
from ...scopes import Scope, categories, covers, totals
from ...speedups import FEWEST_QUESTIONS, Estimate, speedup
from ..tables import SPEEDUP, taking_part
from ..wording import ratio, with_bounds
from .chart import Chart, ChartText, LineStyle, drawn, leading, legend, legend_height
from .svg_figure import INK, PAGE, RULE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CAPTION = (
    "Marks are times plain decoding, lines their 95% intervals, on a logarithmic scale; fewer than "
    f"{FEWEST_QUESTIONS} questions have none. The figures on the right are those of edgespec. Hollow: replayed."
)
_SOME = " Of engines in several configurations the one that proved best is drawn; all stand in the table."
_ROW, _SPACE = 15, 0.8  # pixels of a mark's row; rows between kinds of questions
_TICKS = (1, 2, 0.5, 5, 10, 0.2, 20, 0.1, 50, 100, 1.5, 3, 0.8, 1.2, 0.9, 1.1)  # the more useful first
_MOST_TICKS = 9

Rows = Mapping[Scope, Mapping[str, Estimate]]


def chart(run: Run) -> Chart | None:
    looks = leading(run)
    rows = {scope: _estimates(run, scope, looks) for scope in (*totals(run), *categories(run))}
    rows = {scope: marks for scope, marks in rows.items() if marks}
    if not rows:
        return None
    ours = "; ".join(f"{scope.label} {with_bounds(marks[OURS])}" for scope, marks in rows.items() if OURS in marks)
    some = _SOME if len(taking_part(run)) > len({PLAIN, *looks}) else ""
    words = ChartText(SPEEDUP, _CAPTION + some, f"Times plain decoding, edgespec: {ours}.")
    lines = sum(len(marks) + _SPACE for marks in rows.values())
    height = round(50 + _ROW * lines)
    return drawn(
        "speedups", words, lambda width: height + legend_height(width, len(looks)), lambda f: _draw(f, rows, looks)
    )


def _estimates(run: Run, scope: Scope, names: Mapping[str, LineStyle]) -> Mapping[str, Estimate]:
    found = {name: speedup(run, name, scope).decoding for name in names if covers(run, name, scope)}
    return {name: each for name, each in found.items() if each is not None}


def _draw(figure: Figure, rows: Rows, looks: Mapping[str, LineStyle]) -> None:
    axes = figure.subplots()
    top, middles = 0.0, []
    for scope, marks in rows.items():
        for y, (name, estimate) in enumerate(marks.items()):
            _mark(axes, top + y, estimate, looks[name], hollow=scope.replayed is True)
        if OURS in marks:
            place = axes.get_yaxis_transform()
            axes.text(1.02, top, ratio(marks[OURS]), transform=place, va="center", fontweight="bold")
        middles.append(top + (len(marks) - 1) / 2)
        top += len(marks) + _SPACE
        axes.axhline(top - (1 + _SPACE) / 2, color=RULE, linewidth=0.6)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_ylim(top - (1 + _SPACE) / 2, -(1 + _SPACE) / 2)
    axes.set_yticks(middles, [textwrap.fill(scope.label, 13) for scope in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    _scale(axes)
    marks_of = {name: axes.plot([], [], each.marker, color=each.colour)[0] for name, each in looks.items()}
    legend(figure, marks_of)


def _scale(axes: Axes) -> None:
    """Set a logarithmic scale, on which 2 and 0.5 are equally far from 1, with ticks that do not overlap."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks: list[float] = []
    for tick in _TICKS:
        apart = (abs(math.log(tick / other)) for other in ticks)
        if low <= tick <= high and all(each > math.log(high / low) / _MOST_TICKS for each in apart):
            ticks.append(tick)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("times plain decoding")


def _mark(axes: Axes, y: float, estimate: Estimate, seen: LineStyle, *, hollow: bool) -> None:
    if estimate.interval:
        axes.plot(estimate.interval, [y, y], "-", color=seen.colour, linewidth=2)
    fill = PAGE if hollow else seen.colour
    axes.plot(
        estimate.value, y, seen.marker, color=seen.colour, markersize=7, markerfacecolor=fill, markeredgewidth=1.5
    )
