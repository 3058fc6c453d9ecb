"""The acceptance rate of guesses by drafter and depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...figures import figures
from ...records import OURS, Depth, Run
from ...scopes import FREE, REPLAYED, Scope
from ..tables import ACCEPTANCE
from .chart import MOST, NARROW, Chart, ChartText, LineStyle, drawn, is_narrow, legend, legend_height, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = 20  # guesses: a rate of fewer says nothing
_CAPTION = (
    "How often a drafter's guess was accepted, by how far ahead it was made. Depths with fewer than "
    f"{_FEW} guesses are left to the table."
)
_PANEL = 210  # pixels

Points = Sequence[tuple[int, float]]  # depth, percent


def chart(run: Run) -> Chart | None:
    found = {scope: _points(figures(run, OURS, scope).depths) for scope in (FREE, REPLAYED)}
    found = {scope: drafters for scope, drafters in found.items() if drafters}
    names = dict.fromkeys(name for drafters in found.values() for name in drafters)
    looks = {name: look(i) for i, name in enumerate([*names][:MOST])}
    if not looks:
        return None
    words = ChartText(ACCEPTANCE, _CAPTION, _alt(found))
    return drawn(
        "acceptance",
        words,
        lambda width: 40 + legend_height(width, len(looks)) + _PANEL * (len(found) if width == NARROW else 1),
        lambda figure: _draw(figure, found, looks),
    )


def _points(depths: Mapping[str, Sequence[Depth]]) -> Mapping[str, Points]:
    found = {
        name: [(i, 100 * accepted / drafted) for i, (drafted, accepted) in enumerate(rows, 1) if drafted >= _FEW]
        for name, rows in depths.items()
    }
    return {name: points for name, points in found.items() if points}


def _alt(found: Mapping[Scope, Mapping[str, Points]]) -> str:
    said = [
        f"{name}, {_kind(scope)}, {points[0][1]:.0f}% at depth {points[0][0]}, {points[-1][1]:.0f}% at {points[-1][0]}"
        for scope, drafters in found.items()
        for name, points in drafters.items()
    ]
    return f"Accepted: {'; '.join(said)}."


def _kind(scope: Scope) -> str:
    return "replayed" if scope.replayed else "free answers"


def _draw(figure: Figure, found: Mapping[Scope, Mapping[str, Points]], looks: Mapping[str, LineStyle]) -> None:
    shape = (len(found), 1) if is_narrow(figure) else (1, len(found))
    panels = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False).flat
    for axes, (scope, drafters) in zip(panels, found.items(), strict=True):
        for name, points in drafters.items():
            if name in looks:
                colour, marker, dash = looks[name]
                axes.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=dash)
        _label(axes, _kind(scope))
    shown = {name: panels[0].plot([], [], color=c, marker=m, linestyle=d)[0] for name, (c, m, d) in looks.items()}
    legend(figure, shown)


def _label(axes: Axes, title: str) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - only reports need it

    axes.set_title(title)
    axes.set_ylim(0, 105)
    axes.set_xlabel("depth")
    axes.set_ylabel("% accepted")
    axes.label_outer()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
