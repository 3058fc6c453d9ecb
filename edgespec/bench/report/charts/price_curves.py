"""Price curves of several engines or formats in one drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .chart import MOST, LineStyle, look
from .svg_figure import svg_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (340, 300)  # pixels
_LINE = 18  # pixels of a line of the legend


_MORE = "X*<>hp"  # markers of further lines


class Panel(NamedTuple):
    """One pair of axes: by name, the points of a line. Lines of one name look alike in all panels."""

    title: str
    across: str
    up: str
    lines: Mapping[str, Mapping[int, float]]
    #: The points to be emphasized, by the name of the line.
    best: Mapping[str, int] = {}


def drawing(panels: Sequence[Panel], columns: int = 2) -> str:
    """An SVG document with the panels in rows of `columns`."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    rows = -(-len(panels) // columns)
    width, height = columns * _PANEL[0], rows * _PANEL[1] + _LINE * -(-len(names) // 3)

    def draw(figure: Figure) -> None:
        handles: dict[str, Any] = {}
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for panel, each in zip(panels, axes, strict=True):
            handles |= _draw(each, panel, names)
        figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=3)

    return svg_file(width, height, draw)


def style(i: int) -> LineStyle:
    """The style of line `i`: where colours repeat, markers and dashes differ."""
    if i < MOST:
        return look(i)
    again = look(i % MOST)
    return again._replace(marker=_MORE[(i - MOST) % len(_MORE)], dash=look((i + 1) % MOST).dash)


def _draw(axes: Axes, panel: Panel, names: Sequence[str]) -> Mapping[str, Any]:
    handles = {}
    for name, points in panel.lines.items():
        line = style(names.index(name))
        widths = list(points)
        (handles[name],) = axes.plot(
            widths,
            list(points.values()),
            color=line.colour,
            marker=line.marker,
            markersize=4,
            linestyle=line.dash,
        )
        if name in panel.best:
            at = panel.best[name]
            axes.plot(at, points[at], "o", markersize=12, markerfacecolor="none", markeredgecolor=line.colour)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.across)
    axes.set_ylabel(panel.up)
    axes.set_ylim(bottom=0)
    return handles
