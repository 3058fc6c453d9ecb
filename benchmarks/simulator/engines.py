"""The price curves of the engines as a page of the docs, with what the controller makes of each of them.

    python -m benchmarks.simulator.engines --out docs/engines.md [--jobs 2]

Writes the drawing beside the page, too. The curves are those of `measured`; the controller is replayed on the recorded
traces at each of them.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click

from edgespec.backends import TITLES
from edgespec.bench.report.charts.price_curves import Panel, drawing
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import Calibration
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.types import Guess, Round
from edgespec.verify import RoundContext

from .__main__ import TRACES, fixed
from .measured import CONTEXTS, PACKAGES, WIDTHS, Measured, load
from .trace import Trace
from .world import Curve, Outcome, World

_NEVER = 1 << 20  # added to a token: one that no text has


class Wrong:
    """Guesses as a drafter does and then says something else: it costs the same and is never right."""

    name = "wrong"

    def __init__(self, drafter: Drafter) -> None:
        self.step_price = drafter.step_price
        self._drafter = drafter

    def begin(self, round_context: RoundContext) -> None:
        self._drafter.begin(round_context)

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        guesses = self._drafter.guess([token - _NEVER for token in path], most)
        return [Guess(guess.token + _NEVER, guess.confidence) for guess in guesses]

    def observe(self, round: Round) -> None:  # noqa: A002
        self._drafter.observe(round)

    def close(self) -> None:
        self._drafter.close()


class Replayed(NamedTuple):
    """One trace at one curve: tokens, and the time that each took in plain steps."""

    curve: str
    trace: str
    tokens: int
    ours: float
    #: With a calibration that has seen the very trace.
    calibrated: float
    wrong: float


def replayed(trace: Trace, curve: Curve) -> Replayed:
    """Replay the controller with the draft model and look-ups, and with a drafter that is always wrong."""
    calibration = Calibration()
    ours = _seconds(trace, curve, calibration)
    calibrated = _seconds(trace, curve, calibration)
    world = World(trace, curve)
    wrong = world.run(Adaptive([Wrong(world.model)], world.prices, clock=world.clock)).seconds
    return Replayed(curve.name, trace.name, trace.tokens, ours, calibrated, wrong)


def _seconds(trace: Trace, curve: Curve, calibration: Calibration) -> float:
    world = World(trace, curve)
    drafters: list[Drafter] = [Lookup(), world.model]
    return world.run(Adaptive(drafters, world.prices, calibration, clock=world.clock)).seconds


@cache
def _trace(name: str) -> Trace:
    return Trace.load(name)


def _replay(job: tuple[str, Curve]) -> Replayed:
    return replayed(_trace(job[0]), job[1])


def _fixed(name: str) -> dict[str, Outcome]:
    return fixed(_trace(name))


def _best_fixed(outcomes: Sequence[dict[str, Outcome]], curve: Curve) -> tuple[str, float]:
    """The one fixed choice that is the best over all traces, and the time that it takes."""

    def seconds(name: str) -> float:
        return sum(each[name].tokens / each[name].speedup(curve) for each in outcomes)

    best = min(outcomes[0], key=seconds)
    return best, seconds(best)


def summary(curve: Curve, rows: Sequence[Replayed], outcomes: Sequence[dict[str, Outcome]]) -> list[str]:
    """One curve: totals over all traces are tokens over time."""
    tokens = sum(row.tokens for row in rows)
    ours, calibrated, wrong = (sum(column) for column in zip(*(row[3:] for row in rows), strict=True))
    name, seconds = _best_fixed(outcomes, curve)
    by_trace = {row.trace: row.ours / row.calibrated - 1 for row in rows}
    return [
        curve.name,
        f"{curve.seconds[7]:.2f}",
        *(f"{row.tokens / row.ours:.2f}" for row in rows),
        f"**{tokens / ours:.3f}**",
        f"{tokens / seconds:.3f} ({name})",
        f"{tokens / calibrated:.3f}",
        f"{ours / calibrated - 1:.1%} ({', '.join(f'{share:.1%}' for share in by_trace.values())})",
        f"{tokens / wrong:.3f} ({min(row.tokens / row.wrong for row in rows):.3f})",
    ]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def prices(lines: Sequence[Measured], context: int) -> str:
    """The price curves after `context` tokens."""
    rows = [[each.model, each.name, *each.cells(context)] for each in lines if each.has(context)]
    return markdown(["model", f"after {context} tokens", "1, ms", *map(str, WIDTHS[1:]), "runs differ by"], rows)


def picture(lines: Sequence[Measured]) -> str:
    """The curves as an SVG document: a panel for each model, cache length and unit."""
    panels = []
    for model in dict.fromkeys(line.model for line in lines):
        for context in CONTEXTS:
            own = [line for line in lines if line.model == model and line.has(context)]
            if not own:
                continue
            title, across = f"{model}, after {context} tokens", "tokens of the pass"
            times = {each.name: {n: each.milliseconds(context, n) for n in each.widths(context)} for each in own}
            ratios = {name: {n: t / points[1] for n, t in points.items()} for name, points in times.items()}
            panels += [Panel(title, across, "ms", times), Panel(title, across, "plain steps", ratios)]
    return drawing(panels)


_HEAD = """# Price curves of the three engines, and what the controller makes of them

Made by `python -m benchmarks.simulator.engines --out docs/engines.md` of `benchmarks/simulator/curves.jsonl`, which
`benchmarks.simulator.measured` wrote.

## Measured

{machine}; {threads} threads; {dates}.
{versions}.{missing}
Llamas of 417M and 1.07B parameters (made by `benchmarks/enlarge.py`); the former is for 2048 tokens at most.
Each model ran in a process of its own with the machine to itself: medians of 9 sweeps over all widths (5 after 4096
tokens). Where one was measured twice, the lesser time counts, and the last column is the greatest difference.
Milliseconds of a pass over one token, then passes over more tokens in plain steps:

{tables}

![Price curves]({picture})

## Simulated

The controller replayed on the greedy traces of [simulator.md](simulator.md) at these curves, without noise; a step of
the draft model costs {step:g} of a plain one, deciding nothing. *t(8)* is the price of 8 tokens in plain steps.
*Total* is tokens over time of all traces. The *best fixed* choice is picked with hindsight on the total. *Well
calibrated* has seen the very trace; *loses* is the time lost for not having seen it, in total and by trace ({traces}).
*Always wrong* is a drafter that costs what the draft model costs, in total and on the worst trace.

{simulated}
"""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The page; the drawing is put beside it")
@click.option("--jobs", default=2, show_default=True, help="Processes")
def main(out: Path, jobs: int) -> None:
    """Write the page and the drawing."""
    lines = load()
    curves = [line.curve(context) for context in CONTEXTS for line in lines if line.has(context)]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        outcomes = pool.map(_fixed, TRACES, chunksize=1)
        rows = pool.map(_replay, [(trace, curve) for curve in curves for trace in TRACES], chunksize=4)
    head = ["curve", "t(8)", *TRACES, "total", "best fixed", "well calibrated", "loses", "always wrong"]
    found = [summary(curve, [row for row in rows if row.curve == curve.name], outcomes) for curve in curves]
    missing = [TITLES[engine] for engine in PACKAGES if engine not in {line.engine for line in lines}]
    drawn = out.with_suffix(".svg")
    out.write_text(
        _HEAD.format(
            machine="; ".join(dict.fromkeys(line.machine for line in lines)),
            threads=lines[0].threads,
            dates=", ".join(sorted({line.date for line in lines})),
            versions=", ".join(dict.fromkeys(line.version for line in lines)),
            missing=f" Not measured here yet: {', '.join(missing)}." if missing else "",
            tables="\n\n".join(prices(lines, context) for context in CONTEXTS),
            picture=drawn.name,
            step=curves[0].step,
            traces=", ".join(TRACES),
            simulated=markdown(head, found),
        ),
        "utf-8",
    )
    drawn.write_text(picture(lines), "utf-8")


if __name__ == "__main__":
    main()
