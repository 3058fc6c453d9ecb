"""Price curves of the engines, measured on one machine and kept in `curves.jsonl`, a line for each model.

    python -m benchmarks.simulator.measured MODEL --backend openvino --of 417M --weights int8 --machine "Xeon ..."

Passes of all widths alternate, upwards and downwards by turns, after 256 tokens and, where the model's context is long
enough, after 4096. The first sweep warms up; kept is the median of the others. A run beside other programs is refused.
A second run of the same model measures it again: the line keeps both, so that their difference shows how far the
figures can be trusted.
"""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import numpy as np

from edgespec.backends import TITLES, Device, Interrupt, OtherPrograms, Session, open_model

from ..dialogues import FILE
from ..report import table
from .world import Curve

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXTS = {256: 9, 4096: 5}  # tokens in the cache, and the sweeps that count
KEPT = Path(__file__).parent / "curves.jsonl"
PACKAGES = {
    "llama": ("llama-cpp-python",),
    "onnx": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
}

#: Milliseconds by tokens in the cache and width of the pass.
Passes = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Measured:
    """One model in one engine. `runs` are in the order in which they were measured."""

    model: str
    engine: str
    weights: str
    version: str
    machine: str
    threads: int
    date: str
    runs: Sequence[Passes]

    @property
    def name(self) -> str:
        return f"{TITLES[self.engine]} {self.weights}"

    def has(self, context: int) -> bool:
        """Whether it was measured after `context` tokens."""
        return str(context) in self.runs[0]

    def widths(self, context: int) -> tuple[int, ...]:
        """The widths of the passes that every run measured after `context` tokens."""
        return tuple(
            n for n in map(int, self.runs[0][str(context)]) if all(str(n) in r[str(context)] for r in self.runs)
        )

    def milliseconds(self, context: int, width: int) -> float:
        """The least of the runs: nothing makes a pass faster than it is."""
        return min(run[str(context)][str(width)] for run in self.runs)

    def differs(self, context: int) -> str:
        """The greatest difference between runs, as a share of the least; empty for one run."""
        if len(self.runs) < 2:
            return ""
        most = {n: max(run[str(context)][str(n)] for run in self.runs) for n in self.widths(context)}
        return f"{max(most[n] / self.milliseconds(context, n) - 1 for n in most):.1%}"

    def cells(self, context: int) -> list[str]:
        """Milliseconds of a plain step, then passes over `WIDTHS` in plain steps; empty where not measured."""
        plain, known = self.milliseconds(context, 1), self.widths(context)
        ratios = (f"{self.milliseconds(context, n) / plain:.2f}" if n in known else "" for n in WIDTHS[1:])
        return [f"{plain:.1f}", *ratios, self.differs(context)]

    def curve(self, context: int) -> Curve:
        """The prices for the simulator, in plain steps."""
        plain, widths = self.milliseconds(context, 1), self.widths(context)
        prices = tuple(self.milliseconds(context, n) / plain for n in widths)
        return Curve(f"{self.model} {self.name}, {context}", widths, prices)


def load(path: Path = KEPT) -> list[Measured]:
    """What was measured."""
    return [Measured(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def flat(context: int = 256) -> list[Curve]:
    """The curves of the 1B model in OpenVINO, int8 and int4."""
    return [
        each.curve(context)
        for each in load()
        if (each.model, each.engine) == ("1.07B", "openvino") and each.weights in ("int8", "int4")
    ]


def passes(session: Session, widths: Sequence[int] = WIDTHS, contexts: Mapping[int, int] = CONTEXTS) -> Passes:
    """Measure an empty session."""
    random = np.random.default_rng(0)

    def some(n: int) -> list[int]:
        return [int(token) for token in random.integers(0, session.vocab, n)]

    found: dict[str, Mapping[str, float]] = {}
    for context, sweeps in sorted(contexts.items()):
        session.prefill(some(context - len(session.tokens)))
        times: dict[int, list[float]] = {width: [] for width in widths}
        for sweep in range(sweeps + 1):
            for width in widths if sweep % 2 else reversed(widths):
                tokens = some(width)
                started = time.perf_counter()
                session.decode(tokens)
                times[width].append(time.perf_counter() - started)
                session.rollback(context)
        found[str(context)] = {str(n): round(1e3 * statistics.median(ts[1:]), 3) for n, ts in times.items()}
    return found


def kept_with(known: Sequence[Measured], new: Measured) -> list[Measured]:
    """The lines with a new one: a further run of a line with the same model, engine, machine and version."""
    known, line = list(known), replace(new, runs=(), date="")
    for i, each in enumerate(known):
        if replace(each, runs=(), date="") == line:
            known[i] = replace(new, runs=[*each.runs, *new.runs])
            return known
    return [*known, new]


def _version(engine: str) -> str:
    for package in PACKAGES[engine]:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return "unknown"


def shown(lines: Sequence[Measured], context: int) -> str:
    """The curves after `context` tokens: milliseconds of a plain step, then passes in plain steps."""
    rows = [[f"{each.model} {each.name}", *each.cells(context)] for each in lines if each.has(context)]
    return table([f"after {context} tokens", "1, ms", *map(str, WIDTHS[1:]), "runs differ by"], rows)


@click.command()
@click.argument("path", metavar="MODEL", type=FILE)
@click.option("--backend", type=click.Choice(list(PACKAGES)), required=True, help="The engine")
@click.option("--of", "model", required=True, help="What the model is called, such as 417M")
@click.option("--weights", required=True, help="Its quantization")
@click.option("--machine", required=True, help="What the machine is called")
@click.option("--threads", default=2, show_default=True)
@click.option("--out", default=KEPT, type=click.Path(path_type=Path), help="The file to add to")
def main(path: Path, backend: str, model: str, weights: str, machine: str, threads: int, out: Path) -> None:
    """Measure MODEL and add its price curves to those known."""
    device = Device(context=max(CONTEXTS) + 2 * max(WIDTHS), threads=threads, backend=backend)
    with ExitStack() as opened:
        loaded = opened.enter_context(closing(open_model(path, device, Interrupt())))
        session = opened.enter_context(closing(loaded.session(device.context)))
        with OtherPrograms() as others:
            run = passes(session, contexts={c: n for c, n in CONTEXTS.items() if c + max(WIDTHS) <= session.context})
    if others.busy:
        raise click.ClickException(
            f"other programs used {others.share:.0%} of the processor; close them and measure again"
        )
    today = datetime.datetime.now().astimezone().date().isoformat()
    new = Measured(model, backend, weights, _version(backend), machine, threads, today, [run])
    lines = kept_with(load(out) if out.exists() else [], new)
    out.write_text("".join(json.dumps(asdict(each)) + "\n" for each in lines), "utf-8")
    click.echo("\n".join(shown([new], context) for context in CONTEXTS))


if __name__ == "__main__":
    main()
