"""The user's defaults of options: a TOML file with a table for each command, which the command line overrides.

[chat]
model = "qwen3-8b"
temp = 0.5
threads = 4

[models.show]
ctx = 8192
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from platformdirs import user_config_path

from ..errors import OptionError
from ..storage.files import text
from ..values import shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VARIABLE = "EDGESPEC_CONFIG"  #: names another file; if it is empty, no file is read


def place() -> Path | None:
    """The path of the file; None where none is to be read."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return user_config_path("edgespec", appauthor=False) / "config.toml"
    return Path(named).expanduser() if named else None


def defaults(app: click.Group) -> dict[str, Any]:
    """The defaults for the commands of `app`, as click's `default_map`; empty if there is no file.

    Raises:
        OptionError: the file that the variable names is missing, or a file is malformed; the message has the key.
    """
    path = place()
    tables = _tables(path) if path is not None else {}
    return _of_group(str(path), app, tables)


def _tables(path: Path) -> dict[str, Any]:
    try:
        found = text(path)
        if found is not None:
            tables: dict[str, Any] = tomllib.loads(found)
            return tables
    except NotADirectoryError:
        found = None
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}; correct it, or set {VARIABLE}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise OptionError(f"{path} is not TOML: {' '.join(str(error).split())}; correct or remove it") from error
    if VARIABLE in os.environ:
        raise OptionError(f"there is no file {path}, which {VARIABLE} names; create it, or unset the variable")
    return {}


def _of_group(where: str, group: click.Group, tables: Any) -> dict[str, Any]:
    if not isinstance(tables, dict):
        raise OptionError(f"{where} is {shown(tables)}; it must be a table of commands")
    found = {}
    for name, table in tables.items():
        command = group.commands.get(name)
        if command is None:
            known = ", ".join(group.commands)
            raise OptionError(f"{where} has {shown(name)}, which is no command; tables are {known}")
        if isinstance(command, click.Group):
            found[name] = _of_group(f"{where}: {name}", command, table)
        else:
            found[name] = _of_command(f"{where}: {name}", command, table)
    return found


def _of_command(where: str, command: click.Command, table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise OptionError(f"{where} is {shown(table)}; it must be a table, [{command.name}]")
    known = dict(_keys(command))
    found = {}
    for key, value in table.items():
        parameter = known.get(key.replace("_", "-"))
        if parameter is None or parameter.name is None:
            raise OptionError(f"{where} has the unknown key {shown(key)}; known are {', '.join(known)}")
        found[parameter.name] = _checked(f"{where}.{key}", command, parameter, value)
    return found


def _keys(command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    """The keys of a command's table: the long names of its options, and its optional arguments."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield max(parameter.opts, key=len).removeprefix("--"), parameter
        elif not parameter.required and parameter.name is not None:
            yield parameter.name, parameter


def _checked(where: str, command: click.Command, parameter: click.Parameter, value: Any) -> Any:
    """`value`, if the command line could have given it. Lists are for options that may be repeated."""
    several = parameter.multiple if isinstance(parameter, click.Option) else False
    listed = several or parameter.nargs != 1
    each = value if isinstance(value, list) else [value]
    flag = isinstance(parameter, click.Option) and parameter.is_flag
    kinds: tuple[type, ...] = (bool,) if flag else (str, int, float)
    if isinstance(value, list) != listed or not all(isinstance(one, kinds) for one in each):
        raise OptionError(f"{where} is {shown(value)}; it must be {_form(parameter, flag=flag, listed=listed)}")
    if not flag and any(isinstance(one, bool) for one in each):
        raise OptionError(f"{where} is {shown(value)}; it must be {_form(parameter, flag=flag, listed=listed)}")
    given = [one if flag else str(one) for one in each]  # as the command line gives it
    try:
        parameter.type_cast_value(click.Context(command), given if listed else given[0])
    except click.BadParameter as error:
        raise OptionError(f"{where} is {shown(value)}: {error.message}") from error
    return given if listed else given[0]


def _form(parameter: click.Parameter, *, flag: bool, listed: bool) -> str:
    form = "true or false" if flag else f"a value as --{parameter.name} takes it"
    return f"a list, [{form}, ...]" if listed else form
