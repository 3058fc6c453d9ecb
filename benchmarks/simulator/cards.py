"""The controller at the prices of graphics cards, where a pass of another width than the one before costs more.

    python -m benchmarks.simulator.cards

The prices are those of `cards.jsonl`, which `python -m benchmarks.gpu curves` writes: of the first, the second and
later passes in a row of each width. Prints, for each model and trace, the speedup of the adaptive controller over plain
decoding, and that of the best of some fixed K, chosen for each trace with hindsight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter

from ..report import table
from .measured import Measured, load
from .trace import Trace
from .world import Curve, Deciding, World

KEPT = Path(__file__).parent / "cards.jsonl"
TRACES = ("chat", "copy", "hard", "mix", "chat-0.8", "copy-0.8", "hard-0.8", "mix-0.8")
_FIXED = (1, 3, 5, 7, 12)
_CONTEXT = 256
#: Milliseconds of a guess of the draft model, of a tree beyond a chain, and of deciding: the first was measured beside
#: the prices (0.34 to 0.43), the others are assumed. With 0.13 for deciding in a round, chat came to 1.27 times plain
#: decoding in place of 1.35 at 1B in Q8_0, and to 1.55 in place of 1.57 at 8B in Q4_0.
_STEP, _TREE, _ROUND, _LOOK_UP = 0.36, 0.15, 0.03, 0.006


def curve(line: Measured, context: int = _CONTEXT) -> Curve:
    """The prices of a line in plain steps, with those of the first and the second pass in a row."""
    run, widths = line.runs[-1], line.widths(context)
    plain = run[str(context)]["1"]

    def ratios(name: str) -> tuple[float, ...]:
        return tuple(run[name][str(n)] / plain for n in widths)

    starts = tuple(ratios(f"{context}, {place}") for place in ("first", "second"))
    return Curve(
        f"{line.model} {line.weights}", widths, ratios(str(context)), _STEP / plain, _TREE / plain, starts=starts
    )


def speedup(trace: Trace, prices: Curve, plain_ms: float, *, k: int | None = None) -> float:
    """Over plain decoding at the same prices; `k` None is the adaptive controller."""
    deciding = Deciding(_ROUND / plain_ms, _LOOK_UP / plain_ms)
    world = World(trace, prices, deciding=deciding)
    drafters: list[Drafter] = [world.look_up, world.model]
    settling = len(world.curve.starts)
    adaptive = Adaptive(drafters, world.prices, trees=True, settling=settling, clock=world.clock)
    controller = adaptive if k is None else Fixed(drafters, k)
    plain = World(trace, prices).run(Fixed([], 0))
    return plain.seconds / world.run(controller).seconds


def rows(lines: Sequence[Measured], traces: Sequence[Trace]) -> Iterator[list[str]]:
    """For each line the speedups by trace: adaptive, and the best of fixed K."""
    for line in lines:
        prices, plain = curve(line), line.milliseconds(_CONTEXT, 1)
        cells = []
        for trace in traces:
            best = max(speedup(trace, prices, plain, k=k) for k in _FIXED)
            cells.append(f"{speedup(trace, prices, plain):.2f} ({best:.2f})")
        yield [prices.name, *cells]


@click.command()
def main() -> None:
    """Print the table."""
    click.echo(table(["adaptive (best fixed K)", *TRACES], list(rows(load(KEPT), [Trace.load(n) for n in TRACES]))))


if __name__ == "__main__":
    main()
