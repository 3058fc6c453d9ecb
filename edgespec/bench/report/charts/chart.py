"""The elements that all charts share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...records import OURS, PLAIN, Run
from ...speedups import best_configurations
from ..tables import taking_part
from .svg_figure import BLUE, GREEN, INK, ORANGE, PURPLE, PX, RED, SKY, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE, NARROW = 720, 328  # pixels: a page, and a phone of 360 without its margins

_COLOURS = (BLUE, ORANGE, RED, GREEN, PURPLE, SKY)
_MARKERS = "osD^vP"
_DASHES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 1)))
_LINE = 18  # pixels of a line of a legend
_COLUMNS = 3  # of a wide legend


class ChartText(NamedTuple):
    """The texts of a chart. `alt` describes it for readers who cannot see it."""

    title: str
    caption: str
    alt: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing in two widths, as elements for a page."""

    words: ChartText
    wide: str
    narrow: str


class LineStyle(NamedTuple):
    """The colour, marker and dash pattern of a series, which is distinguishable without colour."""

    colour: str
    marker: str
    dash: Any


MOST = len(_COLOURS)  #: that one drawing tells apart


def look(i: int) -> LineStyle:
    """The style of series `i`, from 0."""
    return LineStyle(_COLOURS[i], _MARKERS[i], _DASHES[i])


def drawn(name: str, words: ChartText, height: Callable[[int], int], draw: Callable[[Figure], None]) -> Chart:
    """Draw a chart. `height` gives its pixels by its width; `name` is unique on the page."""
    wide, narrow = (svg(f"{name}-{size}", size, height(size), draw) for size in (WIDE, NARROW))
    return Chart(words, wide, narrow)


def is_narrow(figure: Figure) -> bool:
    return figure.get_figwidth() * PX < (WIDE + NARROW) / 2


def legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Add a legend above all axes."""
    columns = 1 if is_narrow(figure) else _COLUMNS
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns)


def legend_height(width: int, names: int) -> int:
    """The pixels of a legend with this number of names."""
    return _LINE * -(-names // (1 if width == NARROW else _COLUMNS))


def leading(run: Run) -> dict[str, LineStyle]:
    """The contenders of charts with their styles: edgespec, each engine's best configuration, edgespec's others."""
    best = [each.configuration for each in best_configurations(run)]
    own = [each.name for each in run.contenders if not each.peer and each.name != PLAIN and "=" not in each.name]
    said = taking_part(run)
    names = [name for name in dict.fromkeys((OURS, *best, *own)) if name in said][:MOST]
    return {name: look(i) for i, name in enumerate(names)}


PLAIN_STYLE = LineStyle(INK, "o", "-")
