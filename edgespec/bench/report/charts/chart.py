"""What a chart is, and what all have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...records import OURS, PLAIN, Run
from ...speedups import hindsight
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


class Words(NamedTuple):
    """What stands around a drawing. `alt` says what it shows to those who do not see it."""

    title: str
    caption: str
    alt: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing in two widths, as elements for a page."""

    words: Words
    wide: str
    narrow: str


class Look(NamedTuple):
    """How one of several is told from the others, in colour and without."""

    colour: str
    marker: str
    dash: Any


MOST = len(_COLOURS)  #: that one drawing tells apart


def look(i: int) -> Look:
    """That of the i-th, from 0."""
    return Look(_COLOURS[i], _MARKERS[i], _DASHES[i])


def drawn(name: str, words: Words, height: Callable[[int], int], draw: Callable[[Figure], None]) -> Chart:
    """A chart, `height` being its pixels by its width. `name` is its own on the page."""
    wide, narrow = (svg(f"{name}-{size}", size, height(size), draw) for size in (WIDE, NARROW))
    return Chart(words, wide, narrow)


def is_narrow(figure: Figure) -> bool:
    return figure.get_figwidth() * PX < (WIDE + NARROW) / 2


def legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Above all axes, by name: what is drawn so."""
    columns = 1 if is_narrow(figure) else _COLUMNS
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=columns)


def legend_height(width: int, names: int) -> int:
    """The pixels that a legend of so many names takes."""
    return _LINE * -(-names // (1 if width == NARROW else _COLUMNS))


def leading(run: Run) -> dict[str, Look]:
    """Contenders worth a mark, and their looks: ours; of engines in several configurations the best; other own ones."""
    best = [each.configuration for each in hindsight(run)]
    own = [each.name for each in run.contenders if not each.peer and each.name != PLAIN and "=" not in each.name]
    said = taking_part(run)
    names = [name for name in dict.fromkeys((OURS, *best, *own)) if name in said][:MOST]
    return {name: look(i) for i, name in enumerate(names)}


PLAIN_LOOK = Look(INK, "o", "-")
