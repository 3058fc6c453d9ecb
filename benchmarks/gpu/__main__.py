"""python -m benchmarks.gpu pack OUT: make the kit. python -m benchmarks.gpu page WORK: write the page of a run anew."""

from __future__ import annotations

from pathlib import Path

import click

from . import page
from .packing import Wanted
from .packing import pack as make_kit

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


if __name__ == "__main__":
    app()
