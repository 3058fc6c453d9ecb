"""Fetching models while a person watches."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import HubError, OptionError
from .progress import progress

if TYPE_CHECKING:
    from edgespec.models.finding import Source
    from edgespec.models.hub import Pulled


@dataclass(frozen=True, slots=True)
class Fetching:
    """How models are fetched.

    Args:
        context: tokens of context that must fit into memory beside a file that is chosen here; 0 for the default.
        look: look on the hub for a draft for what is not here.
        yes: fetch without asking.
    """

    context: int = 0
    look: bool = False
    yes: bool = False


_ASKING = Fetching()


def fetched(target: Source, draft: Source | None = None, how: Fetching = _ASKING) -> tuple[Path, Path | None]:
    """The files of a target and its draft; what is not here is announced with its size, asked for on a terminal, and
    fetched.

    A draft that cannot be fetched is left out, and that is said.

    Raises:
        HubError: the target cannot be fetched.
        OptionError: the user does not want it.
    """
    if not target.file and target.here() is None:
        target, draft = _scouted(target, draft, how)
    here = {source: source.here() for source in (target, draft) if source is not None}
    lacking = [source for source, path in here.items() if path is None]
    if lacking:
        size = sum(source.size for source in lacking) if all(source.size for source in lacking) else 0
        _announce(" and ".join(map(str, lacking)), size)
        _warn(sum(source.size for source in here if source is not None))
        _require_consent(how)
    path = here[target] or pulled(target).paths[0]
    if draft is None:
        return path, None
    try:
        return path, here[draft] or pulled(draft).paths[0]
    except HubError as error:
        click.echo(f"The draft model is left out: {error}", err=True)
        return path, None


def _announce(what: str, size: int) -> None:
    """Say what is not here, how large it is, 0 where that is not known, and where it goes."""
    from edgespec.models.hub import Hub  # noqa: PLC0415
    from edgespec.models.sizes import amount  # noqa: PLC0415

    about = f", {amount(size)}" if size else ""
    click.echo(f"Not here yet, so it is fetched into {Hub().cache}{about}: {what}", err=True)


def _require_consent(how: Fetching) -> None:
    """Ask on a terminal whether to go on. Programs and pipes are not asked: they could not answer."""
    if how.yes or not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        return
    if not click.confirm("Fetch it?", default=True, err=True):
        raise OptionError("nothing was fetched; name a model that is here, or leave out the draft with --draft none")


def _warn(size: int) -> None:
    """Say it before gigabytes come that there is no memory for."""
    from edgespec.models import fit, memory  # noqa: PLC0415
    from edgespec.models.sizes import amount  # noqa: PLC0415

    room = fit.room(memory.memory())
    if size > room:
        click.echo(
            f"Its {amount(size)} are more than the {amount(room)} of memory that are free, so it may be very "
            "slow. Ctrl-C ends the fetching.",
            err=True,
        )


def _scouted(target: Source, draft: Source | None, how: Fetching) -> tuple[Source, Source | None]:
    """Which file of a repository, by what the hub holds, and a draft for it where none is given."""
    from edgespec.models import finding, scouting  # noqa: PLC0415

    quiet()
    seen = scouting.seen(target, how.context)
    if seen.instead_of:
        click.echo(f"{seen.instead_of} does not fit into memory, so it is {seen.source.file}.", err=True)
    limit = seen.source.size // finding.TENTH
    if draft is not None or not how.look or seen.head is None or finding.draft_here(seen.head.vocabulary, limit):
        return seen.source, draft
    try:
        match = scouting.draft_for(seen.source.repo, seen.head.vocabulary, seen.source.size)
    except HubError as error:
        click.echo(f"No draft model was looked for: {error}", err=True)
        return seen.source, None
    if match is not None:
        click.echo(f"The draft model is {match.source.repo}, {match.why}; --draft none leaves it out.", err=True)
    return seen.source, match.source if match is not None else None


def pulled(source: Source, revision: str = "main") -> Pulled:
    """What `source` names, fetched with a progress bar."""
    quiet()
    with progress(f"fetching {source.repo}") as tell:
        return source.pull(tell, revision)


def everything(name: str, quantization: str = "", revision: str = "main") -> list[Pulled]:
    """What `name` stands for, a pair or a single model, fetched or brought up to date.

    Args:
        quantization: of the target, instead of the one that the name means.
        revision: a branch, tag or commit of its repository.
    """
    from edgespec.models import finding  # noqa: PLC0415

    known = finding.named(name)
    if known is None:
        raise OptionError(f"{name} is a path; give a name of `edgespec models list`, or org/repo on the hub")
    if quantization and known.target.quantization:
        raise OptionError(f"{name} names a quantization already; leave out either it or --quant {quantization}")
    target = replace(known.target, file="", quantization=quantization) if quantization else known.target
    found = [pulled(_settled(target, revision), revision)]
    return found if known.draft is None else [*found, pulled(known.draft)]


def _settled(source: Source, revision: str) -> Source:
    """Which file it is to be, where that was left open and nothing of it is here."""
    from edgespec.models import scouting  # noqa: PLC0415

    if source.file or source.quantization or revision != "main" or source.here() is not None:
        return source
    quiet()
    return scouting.seen(source).source


def checkpoint(source: Path, how: Fetching = _ASKING) -> Path:
    """The folder of a checkpoint: `source` itself, or fetched where it is none and written org/name, or as a page of
    the hub. Raises as `fetched`."""
    from edgespec.models import listing  # noqa: PLC0415

    if _exists(source):
        return source
    page = listing.split_page(source.as_posix())
    if page is None and (source.is_absolute() or len(source.parts) != 2 or _exists(source.parent)):
        return source
    from edgespec.models import hub  # noqa: PLC0415

    repo = page.repo if page else listing.require_repo(source.as_posix())[0]
    quiet()
    client = hub.Hub()
    if client.find(repo, listing.checkpoint) is None:
        found = client.listing(repo)
        _announce(f"the checkpoint {repo}", client.missing(found, listing.checkpoint(found)))
        _require_consent(how)
    with progress(f"fetching {repo}") as tell:
        return client.pull(repo, listing.checkpoint, on_progress=tell).folder


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long: no repository either
        return True


def quiet() -> None:
    """Let the hub's package keep its warnings to itself: what matters comes as an error, in one line."""
    from huggingface_hub.utils import logging  # noqa: PLC0415

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
