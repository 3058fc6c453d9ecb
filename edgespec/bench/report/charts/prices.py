"""The prices of passes, and the draft lengths chosen at these prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ....tools.tuning import plausible
from ....types import Doubles
from ...figures import figures
from ...records import OURS, Run
from ...scopes import FREE, REPLAYED
from ..wording import three
from .chart import Chart, ChartText, drawn, legend
from .svg_figure import BLUE, INK, ORANGE, PAGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CAPTION = (
    "Above: what a pass of the target over K drafted tokens and one more costs; dots: what edgespec chose, larger the "
    "more often. Dashed: the same tokens in plain passes. Below: how often it drafted K tokens."
)
_HEIGHT, _NARROWEST = 400, 8  # pixels; widths of passes that are drawn at least

Lengths = Mapping[int, int]


def chart(run: Run) -> Chart | None:
    if run.prices is None or not plausible(run.prices.passes):
        return None
    free, replayed = (figures(run, OURS, scope).lengths for scope in (FREE, REPLAYED))
    shown = max(_NARROWEST, 2 + max([*free, *replayed], default=0))
    curve = 1e3 * np.array(run.prices.passes[:shown])
    step = run.prices.step
    drafting = f" A step of the draft model took {three(step, 1e3)} ms." if step else ""
    words = ChartText(
        "What passes cost, and the draft lengths chosen", _CAPTION + drafting, _alt(curve, free, replayed)
    )
    return drawn("prices", words, lambda _width: _HEIGHT, lambda figure: _draw(figure, curve, free, replayed))


def _alt(curve: Doubles, free: Lengths, replayed: Lengths) -> str:
    passes = f"A pass over 1 token costs {three(curve[0])} ms, over {len(curve)} tokens {three(curve[-1])} ms."
    common = (Counter(free) + Counter(replayed)).most_common(1)
    return passes + (f" The draft length chosen most often was {common[0][0]}." if common else "")


def _draw(figure: Figure, curve: Doubles, free: Lengths, replayed: Lengths) -> None:
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    _draw_curve(above, curve, Counter(free) + Counter(replayed))
    bars = _draw_lengths(below, {"free answers": (free, BLUE, ""), "replayed": (replayed, ORANGE, "///")})
    below.set_xlim(-0.6, max(len(curve), 1 + max([*free, *replayed], default=0)) - 0.4)
    legend(figure, bars)


def _draw_curve(axes: Axes, curve: Doubles, lengths: Lengths) -> None:
    drafted = np.arange(len(curve))
    axes.plot(drafted, curve, "-", color=INK, linewidth=1.4)
    axes.plot(drafted, curve[0] * (drafted + 1), "--", color=INK, linewidth=1)
    most = max(lengths.values(), default=1)
    for k, n in lengths.items():
        if k < len(curve):
            axes.plot(k, curve[k], "o", color=BLUE, markersize=3 + 11 * (n / most) ** 0.5, markeredgecolor=PAGE)
    axes.set_ylim(0, 1.2 * curve.max())
    axes.set_ylabel("ms a pass")


def _draw_lengths(axes: Axes, kinds: Mapping[str, tuple[Lengths, str, str]]) -> Mapping[str, object]:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - only reports need it

    rounds = sum(sum(lengths.values()) for lengths, _, _ in kinds.values())
    height: Counter[int] = Counter()
    bars = {}
    for name, (lengths, colour, hatch) in kinds.items():
        if lengths:
            shares = [100 * n / rounds for n in lengths.values()]
            bottom = [100 * height[k] / rounds for k in lengths]
            bars[name] = axes.bar(list(lengths), shares, bottom=bottom, color=colour, hatch=hatch, width=0.7)
            height.update(lengths)
    axes.set_ylabel("% of rounds")
    axes.set_xlabel("K, tokens drafted")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return bars
