"""Figures as inline SVG: with text as text, colours of the page, and reproducible bytes.

The palette is that of M. Okabe and K. Ito, Color Universal Design, 2008. No information is in colour alone.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....extras import require
from ....terminal.show import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
#: They stand for what the page's style sheet says, and nothing else is drawn in them.
INK, RULE, PAGE = "#010101", "#020202", "#030303"

PX = 72  # of SVG, an inch

_PAGE_COLOURS = {INK: "currentColor", RULE: "var(--rule)", PAGE: "var(--page)"}
_FIXED_COLOURS = {INK: "#222222", RULE: "#d8d8d8", PAGE: "#ffffff"}
_SIZE = 11.5
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "edgespec",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",  # what texts are measured by; it is wider than most
    "font.size": _SIZE,
    "axes.labelsize": _SIZE,
    "axes.titlesize": _SIZE,
    "axes.titlelocation": "left",
    "xtick.labelsize": _SIZE,
    "ytick.labelsize": _SIZE,
    "legend.fontsize": _SIZE,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": RULE,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.6,
    "hatch.linewidth": 0.8,
    "hatch.color": PAGE,
}


def svg(name: str, width: int, height: int, draw: Callable[[Figure], None]) -> str:
    """Draw a figure of `width` and `height` pixels with `draw`, as an SVG element. `name`, unique on the page, is the
    prefix of its ids."""
    return _inline(_document(width, height, draw, "none"), name, width, height)


def svg_file(width: int, height: int, draw: Callable[[Figure], None]) -> str:
    """A figure as an SVG document of its own, on white."""
    document = printable(_document(width, height, draw, PAGE))
    for length in (width, height):  # matplotlib counts in points
        document = document.replace(f'="{length}pt"', f'="{length}"', 1)
    for colour, fixed in _FIXED_COLOURS.items():
        document = document.replace(colour, fixed)
    return document


def _document(width: int, height: int, draw: Callable[[Figure], None], background: str) -> str:
    written = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its font, which only measures, lacks a character
        require("matplotlib", "drawing charts")
        from matplotlib import style  # noqa: PLC0415 - only reports need it
        from matplotlib.figure import Figure  # noqa: PLC0415

        with style.context(_STYLE, after_reset=True):
            figure = Figure(figsize=(width / PX, height / PX), layout="constrained", facecolor=background)
            draw(figure)
            figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return written.getvalue()


def _inline(document: str, name: str, width: int, height: int) -> str:
    """The root element of an SVG document, with ids that are unique on the page."""
    body = printable(document[document.index(">", document.index("<svg")) + 1 :])
    body = re.sub(r"<!--.*?-->\s*|<style.*?</style>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", body)
    for colour, meaning in _PAGE_COLOURS.items():
        body = body.replace(colour, meaning)
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">{body}'
