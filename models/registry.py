"""Pairs by name: those of the package (registry.toml), and the user's own, which take precedence."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from edgespec.errors import OptionError, printable
from edgespec.storage.files import regular
from edgespec.values import shown, whole

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SHIPPED = Path(__file__).parent / "registry.toml"
_LARGEST = 1 << 50  # bytes of a file
_TEXTS = ("title", "licence", "vocabulary", "needs", "verified")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A GGUF file in a repository of the hub, the first of its parts if it has several, and its approximate bytes."""

    repo: str
    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A target and its draft model. `verified` says what of the entry was checked, and where."""

    name: str
    target: HubFile
    draft: HubFile | None
    title: str
    licence: str
    vocabulary: str
    needs: str
    verified: str

    @property
    def size(self) -> int:
        """Bytes of both files, about."""
        return self.target.size + (self.draft.size if self.draft else 0)


def own_file() -> Path:
    """The path of the user's own pairs."""
    return user_config_path("edgespec", appauthor=False) / "models.toml"


def entries() -> dict[str, Entry]:
    """All pairs by name, in the files' order, the user's own last.

    Raises:
        OptionError: the user's file is malformed; the message says where.
    """
    return {**_read(_SHIPPED), **_read(own_file())}


def _read(path: Path) -> dict[str, Entry]:
    try:
        tables = tomllib.loads(regular(path).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}; correct or remove it") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise OptionError(f"{path} is not TOML: {' '.join(str(error).split())}; correct or remove it") from error
    return {name: _entry(path, name, table) for name, table in tables.items()}


def _entry(path: Path, name: str, table: Any) -> Entry:
    where = f"{path}: {' '.join(name.split())}"
    if not isinstance(table, dict) or "target" not in table:
        raise OptionError(f"{where} has no target; write target = {{ repo = ..., file = ..., size = ... }}")
    if unknown := sorted(table.keys() - {"target", "draft", *_TEXTS}):
        raise OptionError(
            f"{where} has the unknown key {shown(unknown[0])}; known are target, draft, {', '.join(_TEXTS)}"
        )
    if not name.isprintable():
        raise OptionError(f"{where} has control characters in its name; use letters, digits and signs")
    texts = {key: table.get(key, "") for key in _TEXTS}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise OptionError(f"{where} has {key} = {shown(text)}; it must be text in quotes")
        texts[key] = printable(text)
    draft = _file(f"{where}.draft", table["draft"]) if "draft" in table else None
    return Entry(name, _file(f"{where}.target", table["target"]), draft, **texts)


def _file(where: str, table: Mapping[str, Any] | Any) -> HubFile:
    form = {"repo": str, "file": str, "size": int}
    if not isinstance(table, dict) or set(table) != set(form):
        raise OptionError(f'{where} must be {{ repo = "org/name", file = "x.gguf", size = 123 }}')
    for key, kind in form.items():
        if not isinstance(table[key], kind) or isinstance(table[key], bool):
            raise OptionError(
                f"{where} has {key} = {shown(table[key])}; it must be {'a number' if kind is int else 'text'}"
            )
    size = whole(f"{where} has a size that", table["size"], 0, _LARGEST)
    names = table["repo"] + table["file"]
    if table["repo"].count("/") != 1 or not table["file"].endswith(".gguf") or not names.isprintable():
        raise OptionError(
            f"{where} names {shown(table['repo'])} and {shown(table['file'])}; it takes org/name and a .gguf file"
        )
    return HubFile(table["repo"], table["file"], size)
