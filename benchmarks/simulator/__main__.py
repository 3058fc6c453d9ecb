"""Controllers compared: `python -m benchmarks.simulator [--out docs/simulator.md]`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import click

from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.calibration import Calibration
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup

from .clairvoyant import clairvoyant
from .peers import ConfidenceThreshold, Ema, Heuristic, HillClimbing, PlusTwoMinusOne
from .trace import Trace
from .world import CURVES, Curve, Outcome, World

TRACES = ("chat", "copy", "hard", "mix")
_LONGEST = 16
_CLIMBS = "hill climbing"  # by time, alone among them

Make = Callable[[World], Controller]
#: The rules of others, each with the draft model alone and with our look-up asked first.
_RULES: dict[str, Callable[..., Controller]] = {
    "llama.cpp, n_max 3": lambda drafters: Heuristic(drafters, 3),
    "llama.cpp, n_max 16": lambda drafters: Heuristic(drafters, 16),
    "llama.cpp, n_max 3, p_min 0.75": lambda drafters: Heuristic(drafters, 3, 0.75),
    "llama.cpp, n_max 16, p_min 0.75": lambda drafters: Heuristic(drafters, 16, 0.75),
    "transformers, +2/-1": PlusTwoMinusOne,
    "transformers, confidence": ConfidenceThreshold,
    "exllamav3, EMA": Ema,
    f"ONNX Runtime GenAI, {_CLIMBS}": HillClimbing,
}


class Row(NamedTuple):
    """One trace at one curve: speedups over plain decoding."""

    trace: str
    curve: str
    chain: float
    tree: float
    #: With a calibration that has seen the very trace.
    calibrated: float
    fixed: float
    fixed_name: str
    clairvoyant: float
    peers: dict[str, float]


def peers() -> dict[str, Make]:
    """The rules of others by name."""
    makes: dict[str, Make] = {}
    for name, rule in _RULES.items():
        makes[name] = partial(_alone, rule)
        makes[f"{name}, look-up first"] = partial(_behind_look_up, rule)
    return makes


def _alone(rule: Callable[..., Controller], world: World) -> Controller:
    return rule([world.model])


def _behind_look_up(rule: Callable[..., Controller], world: World) -> Controller:
    return rule([Lookup(), world.model])


def fixed(trace: Trace) -> dict[str, Outcome]:
    """Every fixed choice of drafters and K. What they do does not depend on prices."""
    outcomes = {}
    for k in range(1, _LONGEST + 1):
        for name in ("model", "look-up", "look-up, else model"):
            world = World(trace, CURVES[0])
            alone: dict[str, list[Drafter]] = {"model": [world.model], "look-up": [Lookup()]}
            drafters = alone.get(name, [Lookup(), world.model])
            outcomes[f"{name}, K={k}"] = world.run(Fixed(drafters, k))
    return outcomes


@cache
def untimed(trace: Trace, name: str) -> Outcome:
    """What a rule does that looks at no clock: the same at all prices."""
    world = World(trace, CURVES[0])
    return world.run(peers()[name](world))


def others(trace: Trace, curve: Curve) -> dict[str, Outcome]:
    """The rules of others."""
    outcomes = {}
    for name, make in peers().items():
        world = World(trace, curve)
        outcomes[name] = world.run(make(world)) if _CLIMBS in name else untimed(trace, name)
    return outcomes


def ours(trace: Trace, curve: Curve, calibration: Calibration | None = None, *, trees: bool = False) -> float:
    """The speedup that `Adaptive` reaches."""
    world = World(trace, curve)
    drafters: list[Drafter] = [Lookup(), world.model]
    return world.run(Adaptive(drafters, world.prices, calibration, trees=trees, clock=world.clock)).speedup(curve)


def compared(trace: Trace, curve: Curve, known: dict[str, Outcome]) -> Row:
    """One row; `known` are the fixed choices' outcomes."""
    best = max(known, key=lambda name: known[name].speedup(curve))
    speedup = known[best].speedup(curve)
    calibration = Calibration()
    chain = ours(trace, curve, calibration)
    return Row(
        trace.name,
        curve.name,
        chain,
        ours(trace, curve, trees=True),
        ours(trace, curve, calibration),
        max(1.0, speedup),
        best if speedup > 1 else "plain",
        clairvoyant(trace, curve),
        {name: outcome.speedup(curve) for name, outcome in others(trace, curve).items()},
    )


def report(rows: Sequence[Row]) -> str:
    """The comparison in Markdown."""
    head = "trace | prices | ours: chains | trees | well calibrated | best fixed in hindsight | ours / it | clairvoyant"
    lines = [f"| {head} | ours / it |", "|---|---|---|---|---|---|---|---|---|"]
    lines += [
        f"| {row.trace} | {row.curve} | {row.chain:.3f} | {row.tree:.3f} | {row.calibrated:.3f} "
        f"| {row.fixed:.3f} ({row.fixed_name}) | **{row.chain / row.fixed:.3f}**, {row.tree / row.fixed:.3f} "
        f"| {row.clairvoyant:.3f} | {row.chain / row.clairvoyant:.3f}, {row.tree / row.clairvoyant:.3f} |"
        for row in rows
    ]
    lines += ["", "| controller | mean speedup | worst speedup | mean share of the clairvoyant |", "|---|---|---|---|"]
    for name, speedups in _columns(rows).items():
        share = statistics.mean(s / row.clairvoyant for s, row in zip(speedups, rows, strict=True))
        lines.append(f"| {name} | {statistics.mean(speedups):.3f} | {min(speedups):.3f} | {share:.3f} |")
    return "\n".join(lines)


def _columns(rows: Sequence[Row]) -> dict[str, list[float]]:
    columns = {
        "**edgespec**": [row.chain for row in rows],
        "edgespec with trees": [row.tree for row in rows],
        "edgespec, well calibrated": [row.calibrated for row in rows],
        "best fixed in hindsight, trace by trace": [row.fixed for row in rows],
        "clairvoyant": [row.clairvoyant for row in rows],
    }
    return columns | {name: [row.peers[name] for row in rows] for name in rows[0].peers}


_HEAD = """# The controller against others, simulated

Made by `python -m benchmarks.simulator --out docs/simulator.md`; no clock, no noise, the same figures every time.

Traces of the demo pair, recorded by `python -m benchmarks.simulator.record` on held-out dialogues: *chat* is answered
by the target itself; *copy* (repeat or rewrite a dialogue), *hard* (the words of answers in random order) and the
pieces of *mix* (60 tokens of each of the three in turn) are texts that the target is made to say. A guess of the
draft model costs {step:g} of a plain step. Every figure is tokens per plain step's time: the speedup over plain
decoding. *Trees* are grown only where passes of 8 tokens are cheap: elsewhere they are chains. *Well calibrated* is our
controller with a calibration that has seen the very trace. The *best fixed* choice is picked with hindsight among the
draft model, our look-up, and the look-up with the draft model where it has nothing, at K = 0 to {longest}. The
*clairvoyant* knows the text and drafts only what is right; nobody can reach it.

"""


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Write the report here [default: print it]")
@click.option("--trace", "names", multiple=True, default=TRACES, help="Traces to replay [default: all]")
def main(out: Path | None, names: tuple[str, ...]) -> None:
    """Replay our controller, others' rules, every fixed choice and a clairvoyant on recorded traces."""
    rows = []
    with click.progressbar([Trace.load(name) for name in names], label="replaying") as traces:
        for trace in traces:
            known = fixed(trace)
            rows += [compared(trace, curve, known) for curve in CURVES]
    text = _HEAD.format(step=CURVES[0].step, longest=_LONGEST) + report(rows) + "\n"
    if out is None:
        click.echo(text)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)


if __name__ == "__main__":
    main()
