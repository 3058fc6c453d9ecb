"""`edgespec models rm`: what is deleted, the question, and the deletion."""

from __future__ import annotations

import sys

import click

from edgespec.models.hub import Hub
from edgespec.models.removal import removal
from edgespec.models.sizes import amount

from ..errors import OptionError
from .remarks import remark
from .show import printable


def remove(name: str, *, yes: bool) -> None:
    """Delete a model of the cache. Without `yes` it asks on a terminal.

    Raises:
        OptionError: as `removal`; or it was not allowed.
        HubError: a file cannot be deleted.
    """
    found = removal(name)
    size = found.size
    what = printable(f"{', '.join(found.names)} of {found.repo}, {amount(size)}, in {Hub().cache}")
    if not yes:
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
            raise OptionError(f"{what} would be deleted, also for other tools; allow it with --yes")
        if not click.confirm(f"Delete {what}? Other tools that use this cache lose it, too.", default=False, err=True):
            raise OptionError("nothing was deleted")
    found.carry_out()
    click.echo(f"deleted {what}")
    if found.draft:
        remark(f"its draft stays: edgespec models rm {found.draft}")
