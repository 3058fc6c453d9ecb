"""`edgespec tune`: measures the prices of passes, and reports what follows from them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..backends import Device, EngineChoice, Interrupt, engines
from ..backends.machine import physical_cores
from ..errors import VocabularyMismatch
from ..prices.draft_length import TYPICAL, best, break_even, ceiling, speedup
from ..prices.engine_comparison import PairEngines, with_engines
from ..tools.tuning import Measured, fastest, opener, plausible, thread_counts, tune
from . import background, engine_report
from .options import MachineOptions
from .progress import Tell, progress
from .remarks import remark
from .terminal_job import terminal_job

_ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
_LENGTHS = (1, 2, 3, 4, 5, 7, 11, 15)
MIN_SPEEDUP = 1.05  #: speedups below are reported as none
_BUSY = (
    "These figures are implausible: wide passes took less time than narrow ones, or far more than their tokens one by "
    "one, so other programs were running. Close them and tune again; these figures are not kept."
)
EXPENSIVE_STEP = 0.25  #: the price of a draft model's step in plain steps, above which a cheaper one is suggested
_BAR = 24  # characters of the longest bar
_MARK = "~"  # before interpolated times


class Comparison(NamedTuple):
    """The engine that runs the target, and what the engines that open the target or the first draft were measured at;
    None where only one opens it, or one was asked for."""

    engine: str
    target: EngineChoice | None = None
    draft: EngineChoice | None = None


def measured(machine: MachineOptions, budget: float, on_engines: Callable[[Comparison], None]) -> Iterator[Measured]:
    """Measure with a progress bar. Ctrl-C raises Interrupted after the models are closed.

    Args:
        on_engines: called with the comparison of engines, before anything is yielded.
    """
    with terminal_job(yes=machine.yes) as job:
        files, device = machine.resolved(job)
    threads = [machine.threads] if machine.threads else thread_counts(physical_cores())
    with progress("measuring this machine") as tell:

        def run(drafts: Sequence[Path]) -> Iterator[Measured]:
            interrupt = Interrupt()
            found = _engines(files.target, drafts, device, interrupt, tell)
            engine = engines(files.target)[0] if found.device.backend == "auto" else found.device.backend
            on_engines(Comparison(engine, found.target, next(iter(found.drafts), None)))
            places = dict(zip(drafts, found.draft_devices, strict=True))
            opened = opener(files.target, places, found.device, interrupt)
            figures = tune(opened, threads, budget=budget, on_progress=lambda what, share: tell(what, share, 1.0))
            return background.stream(figures, interrupt.set)

        try:
            yield from run(files.drafts)
        except VocabularyMismatch as error:
            if machine.draft != ("auto",):
                raise
            found = ", ".join(map(str, files.drafts))
            remark(f"{found}, found beside the model, is left out: {error}")
            yield from run(())


def _engines(target: Path, drafts: Sequence[Path], device: Device, interrupt: Interrupt, tell: Tell) -> PairEngines:
    """The engines that are fastest for these models, measured again and reported."""

    def show(what: str, share: float) -> None:
        tell(f"measuring the {what}", share, 1.0)

    found = with_engines(target, drafts, device, interrupt, again=True, on_progress=show)
    for role, choice in (("target", found.target), *(("draft", choice) for choice in found.drafts)):
        if choice is not None:
            remark(f"engine of the {role}: {choice}")
    return found


class TuneReport:
    """The measurements by thread count, and what follows from them."""

    def __init__(self, default: int | None = None) -> None:
        self._default = physical_cores() if default is None else default
        self._by_threads: dict[int, Measured] = {}
        self._engines = Comparison("")

    def __bool__(self) -> bool:
        return bool(self._by_threads)

    def add(self, found: Measured) -> None:
        self._by_threads[found.threads] = found

    def compared(self, engines: Comparison) -> None:
        """Report these engines, too."""
        self._engines = engines

    @property
    def chosen(self) -> Measured:
        return fastest(list(self._by_threads.values()))

    @property
    def _implausible(self) -> bool:
        return not all(plausible(row) for each in self._by_threads.values() for row in each.rows.values())

    def text(self) -> str:
        """The report for people."""
        comparison = self._comparison()
        if self._implausible:  # nothing follows from these prices
            return "\n\n".join(part for part in (comparison, prices(self.chosen), _BUSY) if part)
        parts = [comparison, self._threads(), prices(self.chosen), gains(self.chosen), meaning(self.chosen)]
        return "\n\n".join(part for part in parts if part)

    def as_json(self) -> str:
        """The report for programs; times in seconds. What would follow from implausible prices is null."""
        curve, step, good = self.chosen.curve, self.chosen.drafting, not self._implausible
        return json.dumps(
            {
                "threads": {"best": self.chosen.threads if good else None, "default": self._default},
                "measured": [
                    {
                        "threads": each.threads,
                        "step": each.step,
                        "steps": list(each.steps),
                        "prices": {str(c): list(r) for c, r in each.rows.items()},
                        "interpolated": {str(c): sorted(widths) for c, widths in each.between.items()},
                    }
                    for each in self._by_threads.values()
                ],
                "best": {str(a): best(curve, step, a)._asdict() for a in _ACCEPTANCES} if good else None,
                "implausible": not good,
                "ceiling": ceiling(curve, step)._asdict() if good else None,
                "break_even": break_even(curve, step) if good else None,
                "engines": {
                    "target": engine_report.as_json(self._engines.target),
                    "draft": engine_report.as_json(self._engines.draft),
                },
            }
        )

    def write_plot(self, path: Path) -> None:
        """Write the price curves of all engines that open the target to `path`, as SVG.

        Raises:
            MissingPackage: matplotlib is not installed.
            OptionError: the file cannot be written.
        """
        engine, choice, _ = self._engines
        curves = choice.curves if choice is not None else {engine: self.chosen.curve}
        engine_report.write_svg(path, curves, engine)

    def _comparison(self) -> str:
        if self._engines.target is None:
            return ""
        return engine_report.text(self._engines.target, self._engines.draft)

    def _threads(self) -> str:
        lines = ["threads  plain tokens/s  with 70% of drafted tokens accepted"]
        lines += [
            f"{each.threads:7}  {1 / each.curve[0]:14.1f}  {each.speed:.1f} (K = {self._k(each)})"
            for each in sorted(self._by_threads.values(), key=lambda each: each.threads)
        ]
        chosen = self.chosen.threads
        if len(self._by_threads) > 1 and chosen != self._default:
            lines.append(f"Best: {chosen}. The default here is {self._default}, so add --threads {chosen}.")
        elif len(self._by_threads) > 1:
            lines.append(f"Best: {chosen}, which is the default here.")
        return "\n".join(lines)

    def _k(self, each: Measured) -> int:
        return best(each.curve, each.drafting, TYPICAL).k


def prices(found: Measured) -> str:
    """The curve as a table with bars, a column for each cache length."""
    timed, guessed = _bars(sys.stdout.encoding)
    top = max(found.curve) / found.curve[0]
    contexts = sorted(found.rows)
    lines = [
        f"What a pass takes with {found.threads} thread{'s' * (found.threads > 1)}, in milliseconds",
        "tokens  " + "".join(f"{f'after {c}':>14}" for c in contexts) + "   in plain steps",
    ]
    for n, seconds in enumerate(found.curve, 1):
        cells = "".join(f"{_milliseconds(found, c, n):>14}" for c in contexts)
        ratio = seconds / found.curve[0]
        bar = guessed if n in found.between.get(contexts[0], ()) else timed
        lines.append(f"{n:6}  {cells}   {ratio:5.2f} {bar * max(1, round(_BAR * ratio / top))}")
    if any(found.between.values()):
        lines.append(f"{_MARK} and {guessed}: interpolated, not measured; a larger --budget measures more.")
    return "\n".join(lines)


def _milliseconds(found: Measured, context: int, n: int) -> str:
    row = found.rows[context]
    if n > len(row):
        return ""
    return f"{_MARK * (n in found.between.get(context, ()))}{1e3 * row[n - 1]:.2f}"


def gains(found: Measured) -> str:
    """Speedups by acceptance rate and draft length K, with the best K."""
    lengths = [k for k in _LENGTHS if k < len(found.curve)]
    if not lengths:
        return ""
    free = " look-ups, at best" if found.step else ""
    lines = [
        "Speedup over plain decoding, by the share of drafted tokens that is accepted",
        "accepted" + "".join(f"{f'K = {k}':>8}" for k in lengths) + "   best" + (" " * 12 + free if free else ""),
    ]
    for acceptance in _ACCEPTANCES:
        cells = "".join(f"{speedup(found.curve, found.drafting, acceptance, k):8.2f}" for k in lengths)
        line = f"{acceptance:6.0%}  {cells}   {_best(best(found.curve, found.drafting, acceptance)):16}"
        lines.append((line + (_best(best(found.curve, 0.0, acceptance)) if free else "")).rstrip())
    return "\n".join(lines)


def meaning(found: Measured) -> str:
    """What the prices mean for speculation, in sentences."""
    curve, step = found.curve, found.drafting
    most, least = ceiling(curve, step), break_even(curve, step)
    drafter = "this draft model" if found.step else "a drafter that costs nothing"
    if most.speedup < MIN_SPEEDUP or least is None:
        return (
            f"Speculation cannot pay here: if every token of {drafter} were accepted, it would give "
            f"{most.speedup:.2f}x plain decoding. edgespec decodes plainly in this case."
        )
    typical = best(curve, step, TYPICAL)
    n = 1 + (typical.k or most.k)
    lines = [f"This machine verifies {n} tokens for the price of {max(1.0, curve[n - 1] / curve[0]):.1f} plain steps."]
    if found.step:
        steps = ", ".join(f"{step / curve[0]:.2f}" for step in found.steps)
        others = " (each draft model; the figures here are for the first)" * (len(found.steps) > 1)
        lines.append(f"Drafting a token takes {steps} of a plain step{others}.")
    if typical.k:
        lines.append(f"An acceptance rate of 70% gives {typical.speedup:.2f}x, at K = {typical.k}.")
    lines.append(f"Drafts pay above an acceptance rate of {least:.0%}.")
    lines.append(f"The maximum, if every drafted token were accepted: {most.speedup:.2f}x, at K = {most.k}.")
    if found.step and found.step > EXPENSIVE_STEP * curve[0]:
        lines.append(
            "The draft model is slow for this target: a smaller one, or a coarser quantization, would pay more."
        )
    lines.append("edgespec chooses K in every round by these prices, which are kept.")
    return "\n".join(lines)


def _best(found: tuple[int, float]) -> str:
    k, gain = found
    return f"{gain:.2f} at K = {k}" if k else "plain decoding"


def _bars(encoding: str | None) -> tuple[str, str]:
    """The characters of bars, for measured and for interpolated times."""
    return ("█", "░") if "utf" in (encoding or "").lower() else ("#", "-")
