"""Fetching models while a person watches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import HubError, OptionError
from .progress import progress

if TYPE_CHECKING:
    from edgespec.models.finding import Source
    from edgespec.models.hub import Pulled


def fetched(target: Source, draft: Source | None = None) -> tuple[Path, Path | None]:
    """The files of a target and its draft; what is not here is announced with its size, then fetched.

    A draft that cannot be fetched is left out, and that is said. HubError if the target cannot.
    """
    here = {source: source.here() for source in (target, draft) if source is not None}
    lacking = [source for source, path in here.items() if path is None]
    if lacking:
        size = sum(source.size for source in lacking)
        about = f", {size / 1e9:.2f} GB" if all(source.size for source in lacking) else ""
        click.echo(f"Not here yet, so it is fetched{about}: {' and '.join(map(str, lacking))}", err=True)
    path = here[target] or pulled(target).paths[0]
    if draft is None:
        return path, None
    try:
        return path, here[draft] or pulled(draft).paths[0]
    except HubError as error:
        click.echo(f"The draft model is left out: {error}", err=True)
        return path, None


def pulled(source: Source) -> Pulled:
    """What `source` names, fetched with a progress bar."""
    quiet()
    with progress(f"fetching {source.repo}") as tell:
        return source.pull(tell)


def everything(name: str) -> list[Pulled]:
    """What `name` stands for, a pair or a single model, fetched or brought up to date."""
    from edgespec.models import finding  # noqa: PLC0415

    known = finding.named(name)
    if known is None:
        raise OptionError(f"{name} is a path; give a name of `edgespec models list`, or org/repo on the hub")
    return [pulled(source) for source in (known.target, known.draft) if source is not None]


def checkpoint(source: Path) -> Path:
    """The folder of a checkpoint: `source` itself, or fetched where it is none and written org/name."""
    if source.is_absolute() or len(source.parts) != 2 or _exists(source) or _exists(source.parent):
        return source
    from edgespec.models import hub, listing  # noqa: PLC0415

    repo, _ = listing.require_repo(source.as_posix())
    quiet()
    client = hub.Hub()
    with progress(f"fetching {repo}") as tell:
        click.echo(f"{source} is no folder here, so {repo} is fetched", err=True)
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
