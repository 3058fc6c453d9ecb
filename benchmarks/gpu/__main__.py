"""python -m benchmarks.gpu: `pack` makes the kit, `page` writes the page of a run, `curves` feeds the simulator."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from ..simulator.cards import KEPT
from ..simulator.measured import kept_with, load
from . import page
from .curves import measured
from .packing import Wanted
from .packing import pack as make_kit
from .results import Results

_PATH = click.Path(path_type=Path)


@click.group()
def app() -> None:
    """The kit that measures edgespec on a graphics card: docs/gpu.md."""


@app.command()
@click.argument("output", type=_PATH)
@click.option(
    "--python", "pythons", multiple=True, default=("3.12",), show_default=True, help="Of the machine; repeatable"
)
@click.option("--without", "absent", multiple=True, help="A package that the machine has; repeatable")
@click.option("--bindings", type=_PATH, help="llama-cpp-python's source distribution  [default: it is downloaded]")
@click.option("--built", type=_PATH, multiple=True, help="built-*.tar.gz of an earlier run; repeatable")
def pack(
    output: Path, pythons: tuple[str, ...], absent: tuple[str, ...], bindings: Path | None, built: tuple[Path, ...]
) -> None:
    """Make the kit in the new folder OUTPUT."""
    sizes = make_kit(output, Wanted(pythons, absent, bindings, built))
    for name, size in sizes.items():
        click.echo(f"{size / 1e6:6.1f} MB  {name}")
    click.echo(f"{sum(sizes.values()) / 1e6:6.1f} MB  {output}")


@app.command("page")
@click.argument("work", type=_PATH)
def write_page(work: Path) -> None:
    """Write the page of the run in WORK from its results."""
    click.echo(page.write(work))


@app.command()
@click.argument("work", type=_PATH)
@click.argument("date")
@click.option("--out", type=_PATH, default=KEPT, show_default=True, help="The simulator's file")
def curves(work: Path, date: str, out: Path) -> None:
    """Add the price curves of the run in WORK, of DATE (2026-12-31), to those of the simulator."""
    lines = load(out) if out.exists() else []
    for new in measured(Results(work / "results.json").content, date):
        lines = kept_with(lines, new)
    out.write_text("".join(json.dumps(asdict(each)) + "\n" for each in lines), "utf-8")


if __name__ == "__main__":
    app()
