"""What each heuristic of the controller is worth: the traces are replayed with one of them off at a time.

    python -m benchmarks.simulator.ablation [--out docs/ablation.md] [--jobs 2]

A heuristic that changes no figure by more than replaying other dialogues would has no reason to stay.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import product
from operator import truediv
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import click

from edgespec.controller import (
    adaptive,
    budget,
    calibration,
    expansion,
    exploration,
    priced_drafter,
    prompt_groups,
    recent_rounds,
    shadow,
)
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.controller.time_value import TimeValue
from edgespec.drafters import Drafter
from edgespec.prices import RunningPrice, pace, prices

from .clairvoyant import clairvoyant
from .measured import flat
from .noise import SILENCE, Noise, Recorded
from .trace import Trace
from .world import CURVES, Curve, Deciding, World

TRACES = ("chat", "copy", "hard", "mix", "kinds", "chat-0.8", "copy-0.8", "hard-0.8", "mix-0.8")
ALL_CURVES = (*CURVES, *flat())
#: Measured by `benchmarks.overhead` on the 417M pair, q8_0.
DECIDING = Deciding(round=0.004, look_up=0.0004)

Off = Callable[[], Any]


class Setting(NamedTuple):
    """A machine on which the traces are replayed; `dear` as in `World`."""

    name: str
    noise: Callable[[], Noise]
    deciding: Deciding
    trees: bool = False
    dear: float = 1.0


SETTINGS = (
    Setting("ideal", lambda: SILENCE, Deciding()),
    Setting("noise", Recorded.load, DECIDING),
    Setting("contention", lambda: Recorded.load(spells=True), DECIDING),
    Setting("drift", lambda: Recorded.load(drift=True), DECIDING),
    Setting("trees", lambda: SILENCE, DECIDING, trees=True),
    Setting("dear", lambda: SILENCE, DECIDING, dear=2.0),
)


def _constant(where: Any, **values: Any) -> Off:
    return lambda: patch.multiple(where, **values)


@contextmanager
def _weighing(**fixed: float) -> Iterator[None]:
    weigh = calibration.Guesses._weigh

    def weighed(self: calibration.Guesses) -> None:
        weigh(self)
        for name, value in fixed.items():
            setattr(self, name, value)

    with patch.object(calibration.Guesses, "_weigh", weighed):
        yield


def _ignore(*_given: object) -> None:
    """In place of a method."""


HEURISTICS: Mapping[str, Off] = {
    "trust shared by cells": lambda: _weighing(_trust=calibration._TRUST),
    "groups of prompts": lambda: patch.object(prompt_groups.GroupMean, "given", lambda _self, mean: mean),
    "worth of time": lambda: patch.multiple(TimeValue, average=lambda _self: 1.0, ahead=lambda *_given: 1.0),
    "worth of time by what is offered": lambda: patch.object(
        TimeValue, "ahead", lambda self, offer: max(offer, self.average())
    ),
    "asking by what it brought": lambda: patch.object(priced_drafter.PricedDrafter, "worth", 0.0),
    "probes of silent drafters": lambda: patch.object(priced_drafter.PricedDrafter, "due", lambda *_given: False),
    "patience": _constant(priced_drafter, _PATIENCE=(1, 1)),
    "prices of drafters relearned": lambda: patch.object(RunningPrice, "observe", _ignore),
    "what a guess opens the way to": _constant(expansion, _FURTHER=1),
    "budget of losses": lambda: patch.multiple(budget.Budget, is_left=True, is_left_for_priced=True),
    "budget: part of drafters with a price": _constant(budget, _PRICED=1.0),
    "rounds compared again": lambda: patch.object(recent_rounds.Compared, "gained", lambda *_given: 0.0),
    "shadow drafts": lambda: patch.object(shadow.Shadow, "is_due", lambda *_given: False),
    "explorer": lambda: patch.object(exploration.Explorer, "due", False),
    "plain step every 64 rounds": _constant(adaptive, _PLAIN_EVERY=10**9),
    "hiccups cut in the record": _constant(adaptive, _HICCUP=1e9),
    "prices: pace": lambda: patch.object(pace.Pace, "observe", lambda *_given: 0.0),
    "prices: pace of narrow widths": lambda: patch.object(
        pace.Pace, "narrowest", property(lambda _self: 1, _ignore), create=True
    ),
    "prices: narrow hiccups forgotten": lambda: patch.object(pace.Pace, "forget_narrower", _ignore),
    "prices: plain steps cost no more than wider passes": lambda: patch.object(
        prices, "_plain_price", lambda curve, _measured: curve[0]
    ),
    "prices: first pass corrects others": lambda: patch.object(prices.Prices, "_confirm", _ignore),
    "prices: slow correction": _constant(prices, _MOST=0.0),
    "prices: learning at all": lambda: patch.object(prices.Prices, "observe", _ignore),
    "trees only where flat": _constant(adaptive, _FLAT=1e9),
    "tree surcharge": _constant(adaptive, _SURCHARGE=0.0),
    "tree reluctance": _constant(expansion, _RELUCTANCE=0.0),
}


_HEAD = """# What each part of the controller is worth, simulated

Made by `python -m benchmarks.simulator.ablation`, on the traces {traces} at seven price curves: the speedup over plain
decoding on the same machine with each part off in turn, its mean (and the change by switching the part off), the worst
of them, and the mean share of what a clairvoyant reaches. The same figures every time. What the settings are, and what
follows: [controller.md](controller.md#ablation).

"""


class Run(NamedTuple):
    """A trace, replayed."""

    heuristic: str
    setting: str
    trace: str
    curve: str
    speedup: float


@cache
def _trace(name: str) -> Trace:
    return Trace.load(name)


@cache
def _plain_seconds(trace: Trace, curve: Curve, setting: Setting) -> float:
    return World(trace, curve, setting.noise(), setting.deciding).run(Fixed([], 0)).seconds


def replay(trace: Trace, curve: Curve, setting: Setting) -> float:
    """The speedup of `Adaptive` over plain decoding on the same machine."""
    world = World(trace, curve, setting.noise(), setting.deciding, setting.dear)
    drafters: list[Drafter] = [world.look_up, world.model]
    controller = Adaptive(drafters, world.prices, trees=setting.trees, clock=world.clock)
    return _plain_seconds(trace, curve, setting) / world.run(controller).seconds


def _replayed(job: tuple[str, str, str, int]) -> Run:
    heuristic, name, trace, place = job
    setting = next(each for each in SETTINGS if each.name == name)
    curve = ALL_CURVES[place]
    with ExitStack() as stack:
        if heuristic:
            stack.enter_context(HEURISTICS[heuristic]())
        return Run(heuristic, name, trace, curve.name, replay(_trace(trace), curve, setting))


def section(runs: Sequence[Run], setting: str) -> str:
    """A setting's table: for each heuristic the speedups without it."""
    found = {(run.heuristic, run.trace, run.curve): run.speedup for run in runs if run.setting == setting}
    keys = sorted({key[1:] for key in found})
    curves = {curve.name: curve for curve in ALL_CURVES}
    limits = [clairvoyant(_trace(trace), curves[curve]) for trace, curve in keys]
    columns = {
        name: [found[name, trace, curve] for trace, curve in keys]
        for name in dict.fromkeys(run.heuristic for run in runs)
    }
    full = statistics.mean(columns[""])
    rows = []
    for name in sorted(columns, key=["", *HEURISTICS].index):
        own = columns[name]
        mean, share = statistics.mean(own), statistics.mean(map(truediv, own, limits))
        change = f"{100 * (mean / full - 1):+.1f}%" if name else ""
        rows.append(f"| {name or '**all on**'} | {mean:.3f} | {change} | {min(own):.3f} | {share:.3f} |")
    head = "| without | mean | change | worst | share |\n|---|---|---|---|---|"
    return "\n".join((f"## {setting}\n", head, *rows))


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Write the report here [default: print it]")
@click.option("--jobs", default=2, show_default=True, help="Processes")
@click.option("--heuristic", "heuristics", multiple=True, type=click.Choice(list(HEURISTICS)), help="[default: all]")
@click.option("--setting", "settings", multiple=True, type=click.Choice([s.name for s in SETTINGS]), help="[all]")
@click.option("--trace", "traces", multiple=True, default=TRACES, help="Traces to replay [default: all]")
def main(
    out: Path | None, jobs: int, heuristics: Sequence[str], settings: Sequence[str], traces: Sequence[str]
) -> None:
    """Replay the traces with each heuristic off in turn."""
    heuristics = heuristics or tuple(HEURISTICS)
    settings = settings or tuple(setting.name for setting in SETTINGS)
    work = list(product(("", *heuristics), settings, traces, range(len(ALL_CURVES))))
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool, click.progressbar(length=len(work), label="replaying") as bar:
        runs = []
        for run in pool.imap_unordered(_replayed, work, chunksize=4):
            runs.append(run)
            bar.update(1)
    text = "\n\n".join(section(runs, name) for name in settings) + "\n"
    if out is None:
        click.echo(text)
        return
    out.write_text(_HEAD.format(traces=", ".join(traces)) + text, "utf-8")


if __name__ == "__main__":
    main()
