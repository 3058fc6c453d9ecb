"""The distribution of the time between tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ....types import Doubles
from ...figures import gaps
from ...records import PLAIN, Run
from ...scopes import FREE, REPLAYED, Scope
from .chart import PLAIN_STYLE, Chart, ChartText, LineStyle, drawn, leading, legend, legend_height

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT = 250  # pixels
_TAIL = 98  # percent of the tokens that must be seen of each

Gaps = Mapping[str, Doubles]  # milliseconds, by contender


def chart(run: Run) -> Chart | None:
    looks = {PLAIN: PLAIN_STYLE, **leading(run)}
    free, replayed = (_gaps(run, scope, looks) for scope in (FREE, REPLAYED))
    found = free or replayed
    if not found:
        return None
    caption = (
        f"Of {'free answers' if free else 'replayed answers'}: how many tokens had come so many milliseconds after the "
        "one before. A line that rises at 0 tells how many came together with it, in a burst."
    )
    bursts = "; ".join(f"{name} {np.mean(each == 0):.0%}" for name, each in found.items())
    words = ChartText("Time between tokens", caption, f"Tokens that came together with the one before: {bursts}.")
    return drawn(
        "latency",
        words,
        lambda width: _HEIGHT + legend_height(width, len(found)),
        lambda figure: _draw(figure, found, looks),
    )


def _gaps(run: Run, scope: Scope, names: Mapping[str, LineStyle]) -> Gaps:
    found = {name: gaps(answer for answer in run.by(name) if scope.holds(answer)) for name in names}
    return {name: 1e3 * np.array(each) for name, each in found.items() if each}


def _draw(figure: Figure, found: Gaps, looks: Mapping[str, LineStyle]) -> None:
    axes = figure.subplots()
    shares = np.linspace(0, 100, 201)
    lines = {}
    for name, each in found.items():
        colour, _, dash = looks[name]
        (lines[name],) = axes.plot(np.percentile(each, shares), shares, color=colour, linestyle=dash)
    most = max(float(np.percentile(each, _TAIL)) for each in found.values()) or 1.0
    axes.set_xlim(-0.01 * most, 1.05 * most)
    axes.set_ylim(0, 102)
    axes.set_xlabel("ms since the token before")
    axes.set_ylabel("% of tokens")
    legend(figure, lines)
