"""The comparison of engines that `edgespec tune` reports: price curves as a table, a plot in text and an SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..backends import TITLES, EngineChoice
from ..errors import OptionError
from ..extras import require
from ..prices import BASE
from ..prices.draft_length import TYPICAL, best, speedup
from ..storage.leftovers import put
from ..tools.tuning import plausible

Curves = Mapping[str, Sequence[float]]

_COLUMNS = (4, 8, 16)  # widths of passes in the table
_MARKERS = "ox+*"
_BOTH = "="  # where the lines of several engines meet
_ROWS = 12  # of the plot
_CELL = 3  # characters of a token in the plot


def text(target: EngineChoice, draft: EngineChoice | None) -> str:
    """The comparison for people."""
    lines = [f"Engines that open the target, after {BASE} tokens; passes over several tokens in plain steps"]
    lines += [*_table(target), "", *plot(target.curves), "", _why(target)]
    if draft is not None:
        steps = [f"{1e3 * curve[0]:.3g} ms in {TITLES[name]}" for name, curve in draft.curves.items()]
        lines.append(f"A step of the draft model takes {', '.join(steps)}; {TITLES[draft.engine]} runs it.")
    doubtful = {*target.busy, *(name for name, curve in target.curves.items() if not plausible(curve))}
    if doubtful:
        names = " and ".join(TITLES[name] for name in target.curves if name in doubtful)
        verb = "were" if len(doubtful) > 1 else "was"
        lines.append(f"Other programs were running while {names} {verb} measured; close them and tune again.")
    return "\n".join(lines)


def as_json(choice: EngineChoice | None) -> dict[str, Any] | None:
    """The comparison for programs; times in seconds."""
    if choice is None:
        return None
    return {
        "chosen": choice.engine,
        "speeds": dict(choice.speeds),
        "prices": {name: list(curve) for name, curve in choice.curves.items()},
        "busy": sorted(choice.busy),
    }


def _table(choice: EngineChoice) -> Iterator[str]:
    widths = [n for n in _COLUMNS if n <= min(map(len, choice.curves.values()))]
    name = max(map(len, TITLES.values()))
    head = "".join(f"{f'{n} tokens':>11}" for n in widths)
    yield f"{'':{name}}  plain step{head}  plain tokens/s  with 70% accepted"
    for engine, curve in choice.curves.items():
        cells = "".join(f"{curve[n - 1] / curve[0]:11.2f}" for n in widths)
        k, gain = best(curve, 0.0, TYPICAL)
        used = "  <- used" if engine == choice.engine else ""
        yield (
            f"{TITLES[engine]:{name}}  {f'{1e3 * curve[0]:.2f} ms':>10}{cells}  {1 / curve[0]:14.1f}"
            f"  {gain / curve[0]:.1f} (K = {k}){used}"
        )


def plot(curves: Curves) -> Iterator[str]:
    """The curves in a grid of characters, a marker for each engine: milliseconds by tokens of the pass."""
    widest, top = max(map(len, curves.values())), max(map(max, curves.values()))
    grid = [[" "] * (_CELL * widest + 1) for _ in range(_ROWS)]
    for marker, curve in zip(_MARKERS, curves.values(), strict=False):
        for n, seconds in enumerate(curve, 1):
            row, column = _ROWS - 1 - min(_ROWS - 1, int(_ROWS * seconds / top)), _CELL * n
            grid[row][column] = marker if grid[row][column] == " " else _BOTH
    label = max(len(f"{1e3 * top:.3g}"), 2)
    yield f"{'ms':>{label}}"
    for row, cells in enumerate(grid):
        value = f"{1e3 * top * (_ROWS - row) / _ROWS:.3g}" if row % 4 == 0 else ""
        yield f"{value:>{label}} |{''.join(cells)}".rstrip()
    yield f"{'0':>{label}} +{'-' * (_CELL * widest + 1)}"
    yield " " * (label + 2) + "".join(f"{n if n % 4 == 0 or n == 1 else '':>{_CELL}}" for n in range(1, widest + 1))
    names = [f"{marker} {TITLES[engine]}" for marker, engine in zip(_MARKERS, curves, strict=False)]
    yield " " * (label + 3) + "tokens of the pass; " + ", ".join(names) + (f", {_BOTH} both" if len(names) > 1 else "")


def _why(choice: EngineChoice) -> str:
    """Which engine is used, and by what."""
    used = TITLES[choice.engine]
    others = [name for name in choice.curves if name != choice.engine]
    if not others:
        return f"{used} is used: no other engine that is installed loads this model."
    plain = min(choice.curves, key=lambda name: choice.curves[name][0])
    reason = f"{used} is used: the most tokens/s with 70% of the drafted tokens accepted"
    if plain != choice.engine:
        steps = f"{1e3 * choice.curves[plain][0]:.3g} ms, {1e3 * choice.curves[choice.engine][0]:.3g} ms"
        reason += f", though plain steps take less time in {TITLES[plain]} ({steps})"
    return f"{reason}. With --backend {others[0]} {TITLES[others[0]]} runs it."


def svg(curves: Curves, chosen: str) -> str:
    """The curves, and what they give by the number of drafted tokens, as an SVG document.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    from ..bench.report.charts.price_curves import Panel, drawing  # noqa: PLC0415 - only plots need it

    names = {engine: TITLES.get(engine, engine) + (" (used)" if engine == chosen else "") for engine in curves}
    passes = {names[e]: {n: 1e3 * s for n, s in enumerate(curve, 1)} for e, curve in curves.items()}
    speeds = {
        names[engine]: {k: speedup(curve, 0.0, TYPICAL, k) / curve[0] for k in range(len(curve))}
        for engine, curve in curves.items()
    }
    lengths = {names[engine]: best(curve, 0.0, TYPICAL).k for engine, curve in curves.items()}
    return drawing(
        [
            Panel(f"What a pass takes, after {BASE} tokens", "tokens of the pass", "ms", passes),
            Panel("With 70% of the drafted tokens accepted", "K, tokens drafted", "tokens a second", speeds, lengths),
        ]
    )


def require_plot(path: Path) -> None:
    """Check, before anything is measured, that a plot can be written to `path`.

    Raises:
        MissingPackage: matplotlib is not installed.
        OptionError: there is no such folder, or `path` is a folder.
    """
    require("matplotlib", "--plot")
    if path.is_dir() or not path.parent.is_dir():
        raise OptionError(f"--plot is {path}; it must be the name of a file in a folder that exists")


def write_svg(path: Path, curves: Curves, chosen: str) -> None:
    """Write the drawing to `path`.

    Raises:
        OptionError: it cannot be written.
    """
    try:
        put(path, svg(curves, chosen))
    except OSError as error:
        raise OptionError(
            f"the plot cannot be written to {path}: {error.strerror or error}; give another file"
        ) from error
