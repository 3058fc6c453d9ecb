"""The charts of a report, each drawn twice: for a page, and for a phone."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..figures import course, figures, gaps
from ...types import Doubles
from ..records import OURS, PLAIN, Depth, Run
from ..scopes import FREE, REPLAYED, Scope, categories, totals
from ..speedups import Estimate, hindsight, speedup
from .ink import BLUE, GREEN, INK, ORANGE, PAGE, PURPLE, RED, RULE, SKY, svg
from .tables import taking_part
from .wording import counted, three, with_bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 720, 328  # pixels
_COLOURS = (BLUE, ORANGE, RED, GREEN, PURPLE, SKY)
_MARKERS = "osD^vP"
_DASHES = ("-", "--", "-.", ":", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 1)))
_FEW = 20  # guesses: a rate of fewer is not drawn


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing in two widths. `alt` says what it shows to those who do not see it."""

    title: str
    caption: str
    alt: str
    wide: str
    narrow: str


def charts(run: Run) -> list[Chart]:
    """Those that there are figures for."""
    return [chart for draw in (_speedups, _prices, _course, _acceptance, _latency) if (chart := draw(run)) is not None]


def _chart(name: str, text: tuple[str, str, str], height: Callable[[int], int], draw: Callable[[Figure], None]) -> Chart:
    """`text` is title, caption and alternative; `height` in pixels by the width."""
    wide, narrow = (
        svg(f"{name}-{size}", width, height(width), draw) for size, width in (("wide", WIDE), ("narrow", NARROW))
    )
    return Chart(*text, wide, narrow)


def _is_narrow(figure: Figure) -> bool:
    return figure.get_figwidth() < 0.75 * WIDE / 72


def leading(run: Run) -> list[str]:
    """Contenders worth a mark: ours, the best of each peer and of each family of configurations, then others."""
    best = [each.configuration for each in hindsight(run)]
    single = [each.name for each in run.contenders if not each.peer and each.name != PLAIN and "=" not in each.name]
    said = taking_part(run)
    return [name for name in dict.fromkeys((OURS, *best, *single)) if name in said][: len(_COLOURS)]


# Speedups ----------------------------------------------------------------------------------------------------------


def _speedups(run: Run) -> Chart | None:
    scopes, names = [*categories(run), *totals(run)], leading(run)
    found = {scope: [(name, speedup(run, name, scope).decoding) for name in names] for scope in scopes}
    rows = {scope: [(name, each) for name, each in marks if each] for scope, marks in found.items()}
    rows = {scope: marks for scope, marks in rows.items() if marks}
    if not rows:
        return None
    ours = [f"{scope.label} {with_bounds(each)}" for scope, marks in rows.items() for n, each in marks if n == OURS]
    left_out = len(taking_part(run)) - len({PLAIN, *names})
    caption = "Dots are times plain decoding, lines the 95% interval, the figure on the right is edgespec's; hollow: "
    caption += "replayed. Of engines with several configurations the best in hindsight is drawn"
    caption += "; all stand in the table below." if left_out else "."
    lines = sum(map(len, rows.values()))
    text = ("Speedup over plain decoding", caption, f"Speedup of edgespec over plain decoding: {'; '.join(ours)}.")

    def height(width: int) -> int:
        legend = len(names) if width == NARROW else 1 + len(names) // 4
        return 60 + 18 * legend + 15 * lines + 12 * len(rows)

    return _chart("speedup", text, height, lambda figure: _draw_speedups(figure, rows, names))


def _draw_speedups(figure: Figure, rows: dict[Scope, list[tuple[str, Estimate]]], names: Sequence[str]) -> None:
    axes = figure.subplots()
    y, middles = 0.0, []
    for scope, marks in rows.items():
        for i, (name, estimate) in enumerate(marks):
            _mark(axes, y + i, estimate, names.index(name), replayed=scope.replayed is True)
            if name == OURS:
                place = axes.get_yaxis_transform()
                axes.text(1.02, y + i, f"{estimate.value:.2f}", transform=place, va="center", fontweight="bold")
        middles.append(y + (len(marks) - 1) / 2)
        y += len(marks) + 0.8
        axes.axhline(y - 0.9, color=RULE, linewidth=0.6)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_ylim(y - 0.9, -0.9)
    axes.set_yticks(middles, [textwrap.fill(scope.label, 13) for scope in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("times plain decoding (line: 1)")
    handles = [axes.plot([], [], _MARKERS[i], color=_COLOURS[i], label=name)[0] for i, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside upper left", ncols=1 if _is_narrow(figure) else 4)


def _mark(axes: Axes, y: float, estimate: Estimate, i: int, *, replayed: bool) -> None:
    if estimate.interval:
        axes.plot(estimate.interval, [y, y], "-", color=_COLOURS[i], linewidth=2)
    axes.plot(
        estimate.value, y, _MARKERS[i], color=_COLOURS[i], markersize=7, markerfacecolor=PAGE if replayed else _COLOURS[i]
    )


# Prices, and the draft lengths chosen at them ------------------------------------------------------------------------


def _prices(run: Run) -> Chart | None:
    free, replayed = (figures(run, OURS, scope).lengths for scope in (FREE, REPLAYED))
    if run.prices is None or not run.prices.passes:
        return None
    curve = np.array(run.prices.passes) * 1e3
    used = max([*free, *replayed], default=0)
    shown = min(len(curve), max(8, used + 2))
    step = f" A step of the draft model took {three(run.prices.step, 1e3)} ms." if run.prices.step else ""
    caption = (
        "Above: what a pass of the target over so many tokens costs; dots: the passes that edgespec chose, larger the "
        f"more often. Dashed: so many plain passes. Below: how often it drafted K tokens, of all rounds.{step}"
    )
    common = max({**free, **replayed}, key=lambda k: free.get(k, 0) + replayed.get(k, 0), default=None)
    chosen = f" The draft length chosen most often was {common}." if common is not None else ""
    alt = f"A pass over 1 token costs {three(curve[0])} ms, over {shown} tokens {three(curve[shown - 1])} ms.{chosen}"

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
        _draw_curve(above, curve[:shown], {k: free.get(k, 0) + replayed.get(k, 0) for k in {**free, **replayed}})
        _draw_lengths(below, free, replayed)
        below.set_xlim(-0.6, max(shown, used + 1) - 0.4)
        if replayed:
            below.legend(loc="upper right")

    return _chart("prices", ("What passes cost, and the draft lengths chosen", caption, alt), lambda _: 380, draw)


def _draw_curve(axes: Axes, curve: Doubles, lengths: dict[int, int]) -> None:
    drafted = np.arange(len(curve))
    axes.plot(drafted, curve, "-", color=INK, linewidth=1.4)
    plain = curve[0] * (drafted + 1)
    fits = plain <= 1.3 * curve.max()
    axes.plot(drafted[fits], plain[fits], "--", color=INK, linewidth=1)
    most = max(lengths.values(), default=1)
    known = [(k, n) for k, n in lengths.items() if k < len(curve)]
    for k, n in known:
        axes.plot(k, curve[k], "o", color=BLUE, markersize=3 + 11 * (n / most) ** 0.5, markeredgecolor=PAGE)
    axes.set_ylim(0, 1.15 * curve.max())
    axes.set_ylabel("ms a pass")


def _draw_lengths(axes: Axes, free: dict[int, int], replayed: dict[int, int]) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    total = sum(free.values()) + sum(replayed.values()) or 1
    axes.bar(list(free), [100 * n / total for n in free.values()], color=BLUE, width=0.7, label="free answers")
    below = [100 * free.get(k, 0) / total for k in replayed]
    heights = [100 * n / total for n in replayed.values()]
    axes.bar(list(replayed), heights, bottom=below, color=ORANGE, hatch="///", width=0.7, label="replayed")
    axes.set_ylabel("% of rounds")
    axes.set_xlabel("K, tokens drafted (the pass is over one more)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


# Draft length over time ----------------------------------------------------------------------------------------------


def _course(run: Run) -> Chart | None:
    found = {scope: stages for scope in categories(run) if (stages := course(run, scope))}
    if not found:
        return None
    caption = (
        "Tokens drafted in a round (K) and, of them, accepted, from the first round of a kind of question to its last; "
        "each step is an average over as many rounds. What lies between the lines was drafted in vain."
    )
    ends = [f"{scope.label} from {each[0].drafted:.1f} to {each[-1].drafted:.1f}" for scope, each in found.items()]

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(found), sharey=True, squeeze=False)[:, 0]
        for axes, (scope, stages) in zip(rows, found.items(), strict=True):
            edges = np.cumsum([0, *(stage.rounds for stage in stages)])
            axes.stairs([stage.drafted for stage in stages], edges, color=BLUE, linewidth=1.8, label="drafted (K)")
            accepted = [stage.accepted for stage in stages]
            axes.stairs(accepted, edges, color=GREEN, fill=True, alpha=0.35, hatch="...", label="accepted")
            axes.set_title(scope.label)
            axes.set_ylim(bottom=0)
            axes.set_ylabel("tokens")
        rows[-1].set_xlabel("rounds")
        figure.legend(*rows[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)

    text = ("Draft length K over time", caption, f"Drafted tokens in a round on average: {'; '.join(ends)}.")
    return _chart("course", text, lambda _: 60 + 105 * len(found), draw)


# Acceptance ----------------------------------------------------------------------------------------------------------


def _acceptance(run: Run) -> Chart | None:
    found = {scope: _rates(figures(run, OURS, scope).depths) for scope in (FREE, REPLAYED)}
    found = {scope: rates for scope, rates in found.items() if rates}
    if not found:
        return None
    drafters = list(dict.fromkeys(name for rates in found.values() for name in rates))[: len(_COLOURS)]
    caption = (
        "How often a drafter's guess was accepted, by how far ahead it was made. Depths with fewer than "
        f"{_FEW} guesses are left to the table."
    )
    first = [
        f"{name} {rates[name][0][1]:.0%} at depth {rates[name][0][0]} ({scope.label})"
        for scope, rates in found.items()
        for name in rates
    ]

    def draw(figure: Figure) -> None:
        shape = (len(found), 1) if _is_narrow(figure) else (1, len(found))
        places = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False).flat
        for axes, (scope, rates) in zip(places, found.items(), strict=True):
            _draw_rates(axes, rates, drafters)
            axes.set_title("replayed" if scope.replayed else "free answers")
        figure.legend(*_handles(figure), loc="outside upper left", ncols=2)

    text = ("Acceptance by drafter and depth", caption, f"Acceptance: {'; '.join(first)}.")
    return _chart("acceptance", text, lambda width: 70 + 210 * (len(found) if width == NARROW else 1), draw)


def _rates(depths: dict[str, tuple[Depth, ...]]) -> dict[str, list[tuple[int, float]]]:
    """By drafter, depth and rate where there were guesses enough."""
    enough = {
        name: [(i, accepted / drafted) for i, (drafted, accepted) in enumerate(rows, 1) if drafted >= _FEW]
        for name, rows in depths.items()
    }
    return {name: rates for name, rates in enough.items() if rates}


def _draw_rates(axes: Axes, rates: dict[str, list[tuple[int, float]]], drafters: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    for i, name in enumerate(drafters):
        if name in rates:
            depth, rate = zip(*rates[name], strict=True)
            axes.plot(
                depth, 100 * np.array(rate), color=_COLOURS[i], marker=_MARKERS[i], linestyle=_DASHES[i], label=name
            )
    axes.set_ylim(0, 105)
    axes.set_ylabel("% accepted")
    axes.set_xlabel("depth")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _handles(figure: Figure) -> tuple[list[object], list[str]]:
    """What a legend of all axes holds, each name once."""
    found = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


# Latency -------------------------------------------------------------------------------------------------------------


def _latency(run: Run) -> Chart | None:
    for scope in totals(run):
        found = {name: _gaps(run, name, scope) for name in (PLAIN, *leading(run))}
        found = {name: each for name, each in found.items() if len(each)}
        if found:
            break
    else:
        return None
    together = {name: np.mean(each == 0) for name, each in found.items()}
    kind = "replayed answers" if scope.replayed else "free answers"
    caption = (
        f"Of {kind}: the share of tokens that came within so many milliseconds of the one before. A line that begins "
        "above 0 tells how many came together with it, in one burst."
    )
    bursts = [f"{name} {share:.0%}" for name, share in together.items()]
    text = ("Time between tokens", caption, f"Tokens that came together with the one before: {'; '.join(bursts)}.")
    limit = 1.05 * max(float(np.percentile(each, 98)) for each in found.values()) or 1.0

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, each in found.items():
            colour, dash = (INK, "-") if name == PLAIN else _look(leading(run).index(name))
            shares = np.linspace(0, 100, 201)
            places = np.percentile(each, shares)
            axes.plot(places, shares, color=colour, linestyle=dash, label=name, drawstyle="steps-post")
        axes.set_xlim(-0.01 * limit, limit)
        axes.set_ylim(0, 102)
        axes.set_xlabel("ms since the token before")
        axes.set_ylabel("% of tokens")
        figure.legend(loc="outside upper left", ncols=1 if _is_narrow(figure) else 4)

    lines = len(found)
    return _chart("latency", text, lambda width: 260 + 18 * (lines if width == NARROW else 1 + lines // 4), draw)


def _gaps(run: Run, contender: str, scope: Scope) -> Doubles:
    """In milliseconds."""
    return 1e3 * np.array(gaps(answer for answer in run.by(contender) if scope.holds(answer)))


def _look(i: int) -> tuple[str, object]:
    return _COLOURS[i], _DASHES[i]
