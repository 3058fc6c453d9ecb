"""The draft length K over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...figures import Stage, course
from ...records import Run
from ...scopes import Scope, categories
from ..tables import LENGTHS
from .chart import Chart, ChartText, drawn, legend, legend_height
from .svg_figure import BLUE, GREEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CAPTION = (
    "Over time: tokens drafted in a round (K) and, of them, accepted, from the first round of a kind of question to "
    "its last. Each step is the average of some rounds; the difference between the lines was rejected."
)
_STAGES, _PANEL = 40, 105  # steps; pixels of a kind of question

Courses = Mapping[Scope, Sequence[Stage]]


def chart(run: Run) -> Chart | None:
    found = {scope: stages for scope in categories(run) if (stages := course(run, scope, stages=_STAGES))}
    if not found:
        return None
    ends = [f"{scope.label} from {each[0].drafted:.1f} to {each[-1].drafted:.1f}" for scope, each in found.items()]
    words = ChartText(LENGTHS, _CAPTION, f"Tokens drafted in a round, first and last: {'; '.join(ends)}.")
    return drawn(
        "lengths",
        words,
        lambda width: 40 + legend_height(width, 2) + _PANEL * len(found),
        lambda figure: _draw(figure, found),
    )


def _draw(figure: Figure, found: Courses) -> None:
    panels = figure.subplots(len(found), sharey=True, squeeze=False)[:, 0]
    drawings: Mapping[str, object] = {}
    for axes, (scope, stages) in zip(panels, found.items(), strict=True):
        drawings = _draw_stages(axes, stages)
        axes.set_title(scope.label)
        axes.set_ylabel("tokens")
    top = max(stage.drafted for stages in found.values() for stage in stages)
    panels[0].set_ylim(0, 1.1 * top or 1)
    panels[-1].set_xlabel("rounds")
    legend(figure, drawings)


def _draw_stages(axes: Axes, stages: Sequence[Stage]) -> Mapping[str, object]:
    edges = np.cumsum([0, *(stage.rounds for stage in stages)])
    accepted, drafted = [stage.accepted for stage in stages], [stage.drafted for stage in stages]
    area = axes.stairs(accepted, edges, color=GREEN, fill=True, alpha=0.4, linewidth=0)
    line = axes.stairs(drafted, edges, color=BLUE, baseline=None, linewidth=1.8)
    axes.set_xlim(0, edges[-1])
    return {"drafted (K): line": line, "accepted: area": area}
