"""Remarks to the user on stderr, the log, and the options that every command has for them.

Logs go to Python's logger "edgespec" and those below it. They have no prompts, no answers and no keys.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..errors import OptionError

LOG = logging.getLogger("edgespec")
LOG.addHandler(logging.NullHandler())  # or Python prints errors on stderr by itself
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Voice:
    """Whether remarks are printed; engines report from several threads, so this is not of click's context."""

    quiet = False


def quiet() -> bool:
    """Whether remarks and progress are left out."""
    return _Voice.quiet


def remark(text: str) -> None:
    """Print a line on stderr, unless `quiet`, and log it."""
    LOG.info("%s", click.unstyle(text))
    if not _Voice.quiet:
        click.echo(text, err=True)


class App(click.Group):
    """A group whose commands all have the options `--quiet`, `--verbose` and `--log-file`."""

    group_class = type  # a group in it is of this class, too

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, with these options."""
        if not isinstance(cmd, click.Group):
            cmd.params += [_option(*each) for each in _OPTIONS]
        super().add_command(cmd, name)


def _set_quiet(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    _Voice.quiet = value


def _log_to_stderr(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        _log_to(logging.StreamHandler(sys.stderr))


def _log_to_file(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        _log_to(logging.FileHandler(path.expanduser(), encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--log-file {path} cannot be written: {error.strerror}; name another file") from error


def _log_to(handler: logging.Handler) -> None:
    handler.setFormatter(logging.Formatter(_FORMAT))
    LOG.addHandler(handler)
    LOG.setLevel(logging.DEBUG)


_OPTIONS: tuple[tuple[tuple[str, ...], Callable[..., None], dict[str, Any]], ...] = (
    (("-q", "--quiet"), _set_quiet, {"is_flag": True, "help": "No remarks and no progress: output and errors only"}),
    (("-v", "--verbose"), _log_to_stderr, {"is_flag": True, "help": "Log to stderr, with the messages of llama.cpp"}),
    (
        ("--log-file",),
        _log_to_file,
        {"type": click.Path(path_type=Path), "metavar": "FILE", "help": "Append the log to FILE"},
    ),
)


def _option(names: tuple[str, ...], callback: Callable[..., None], how: dict[str, Any]) -> click.Option:
    return click.Option(names, expose_value=False, callback=callback, **how)
