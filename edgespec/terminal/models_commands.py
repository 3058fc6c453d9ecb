"""The commands `edgespec models ...`."""

from __future__ import annotations

import click

from .printing import print_lines
from .remarks import App

# Modules are imported where they are used: `--help` must not import a converter, nor an engine.


@click.group(cls=App)
def models() -> None:
    """List, inspect, fetch and pair models."""


@models.command("list")
def list_models() -> None:
    """List the pairs by name, whether they are in the cache of the Hugging Face tools, and the other models there."""
    from .models import listed  # noqa: PLC0415

    print_lines(listed())


@models.command()
@click.argument("name")
@click.option("--ctx", default=0, metavar="N", help="Context in tokens  [default: at most 4096]")
def show(name: str, ctx: int) -> None:
    """Show the files and sizes of NAME, and how it fits into memory; also before it is downloaded."""
    from ..library import quietly  # noqa: PLC0415
    from .models import shown  # noqa: PLC0415

    with quietly():
        print_lines(shown(name, ctx))


@models.command()
@click.argument("name")
@click.option("--quant", default="", metavar="NAME", help="Quantization of the target, of a repository with several")
@click.option("--revision", default="", metavar="NAME", help="Branch, tag or commit of its repository  [default: main]")
def pull(name: str, quant: str, revision: str) -> None:
    """Download NAME, a pair of the list, or org/repo[:QUANTIZATION] on the hub, to the cache of the Hugging Face tools.

    Files in the cache are not downloaded again; an interrupted download is resumed.
    """
    from ..library import pull as fetched  # noqa: PLC0415
    from .terminal_job import terminal_job  # noqa: PLC0415

    with terminal_job() as job:
        pulled = fetched(name, job, quant, revision)
    for found in pulled:
        click.echo(f"{found.paths[0]}  (commit {found.commit[:12]})")


@models.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Delete without asking")
def rm(name: str, yes: bool) -> None:
    """Delete the model NAME from the cache of the Hugging Face tools: a name of the list, or org/repo[:QUANTIZATION].

    Other tools that use this cache lose it, too. Its draft stays, for other models may use it.
    """
    from .removing import remove  # noqa: PLC0415

    remove(name, yes=yes)


@models.command()
@click.argument("target")
@click.argument("draft", required=False)
@click.option("--exit-layers", is_flag=True, help="Measure TARGET's own first layers as its draft")
def pair(target: str, draft: str | None, exit_layers: bool) -> None:
    """Show whether TARGET and DRAFT make a pair, and the expected speedup: files, names, or org/repo on the hub.

    Without DRAFT, search for a draft on this machine and, by the target's family, on the hub. Nothing is downloaded.

    With --exit-layers, measure the acceptance and the price of TARGET's own first layers, and offer them if they pay.
    """
    from ..library import quietly  # noqa: PLC0415
    from .models import paired, with_own_layers  # noqa: PLC0415

    if exit_layers and draft is not None:
        raise click.UsageError("--exit-layers measures TARGET's own layers; leave DRAFT out")
    with quietly():
        if exit_layers:
            print_lines(with_own_layers(target))
            return
        print_lines(paired(target, draft))


@models.command()
@click.argument("pair")
@click.option("--to", "server", required=True, metavar="SERVER", help="vllm, sglang or llama-server")
@click.option("--draft", multiple=True, default=("auto",), metavar="PATH|auto|none", help="As in chat")
@click.option("--checkpoint", metavar="ORG/NAME", help="What the target was made of [default: what pair.json says]")
@click.option("--draft-checkpoint", metavar="ORG/NAME", help="Likewise of the draft")
@click.option("--k", type=int, metavar="N", help="Tokens to draft [default: as measured for the pair, else 4]")
def export(
    pair: str,
    server: str,
    draft: tuple[str, ...],
    checkpoint: str | None,
    draft_checkpoint: str | None,
    k: int | None,
) -> None:
    """Print the command that starts another server with the models of PAIR and the same kind of draft.

    PAIR is a folder with a pair.json, or what `chat` takes; nothing is downloaded. What the server cannot do is refused
    by name.
    """
    from ..library import quietly  # noqa: PLC0415
    from .export import ExportOptions  # noqa: PLC0415

    with quietly():
        click.echo(ExportOptions(pair, server, draft, checkpoint, draft_checkpoint, k).line())
