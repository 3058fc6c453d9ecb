"""Completion in a shell: the script that turns it on, and the names of models."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem, get_completion_class

from ..errors import EdgespecError

if TYPE_CHECKING:
    import click

SHELLS = ("bash", "zsh", "fish")


def script(app: click.Command, shell: str) -> str:
    """The script that completes commands and options of `app` in one of `SHELLS`."""
    completion = get_completion_class(shell)
    if completion is None:
        raise LookupError(shell)
    # click's base class asks bash for its version, which need not be installed here.
    return completion.source_template % completion(app, {}, "edgespec", "_EDGESPEC_COMPLETE").source_vars()


def model_names(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the registry that begin with `incomplete`; where there are none, files."""
    from ..models.registry import entries  # noqa: PLC0415 - only completion needs it

    with suppress(EdgespecError):  # a file of the user's that is malformed: chat says so
        if found := [name for name in entries() if name.startswith(incomplete)]:
            return [CompletionItem(name) for name in found]
    return [CompletionItem(incomplete, type="file")]
