"""Models and pairs by name: those of the package (registry.toml), and the user's own, which take precedence."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from edgespec.backends.recurrent_state import Copies
from edgespec.errors import OptionError, printable
from edgespec.storage.files import regular
from edgespec.values import shown, whole

from . import draft_head
from .sizes import Sizes, estimated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SHIPPED = Path(__file__).parent / "registry.toml"
_LARGEST = 1 << 50  # bytes of a file
_TEXTS = ("title", "licence", "vocabulary", "needs", "verified", "notes")
_FLAGS = ("newest", "pictures")
_KEYS = ("target", "draft", "memory", *_TEXTS, *_FLAGS)
_FILE = {"repo": str, "file": str, "quantization": str, "size": int, "sha256": str, "revision": str}
_MEMORY = {"architecture": str} | dict.fromkeys(("cache", "state", "vocabulary", "windowed", "window"), int)
_IN_TARGET = draft_head.HEAD  # the value of `draft` where the target's file holds a head
_PATTERNS = {
    "quantization": (r"[\w.-]+", "a name such as Q4_K_M"),
    "sha256": (r"[0-9a-f]{64}", "64 hexadecimal digits"),
    "revision": (r"[0-9a-f]{40}", "a commit, 40 hexadecimal digits"),
}


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of the memory that a model takes besides its weights.

    Args:
        architecture: its name in the file, if the model is a hybrid; else empty.
        cache: bytes of one token in its cache, without layers that have a sliding window; None where not known.
        windowed: bytes of one token in the caches of layers with a sliding window.
        window: tokens of that window; 0 if it has none, or where not known.
        state: bytes of one copy of its recurrent state; 0 where not known.
        vocabulary: tokens; 0 where not known.
    """

    architecture: str = ""
    cache: int | None = None
    state: int = 0
    vocabulary: int = 0
    windowed: int = 0
    window: int = 0


_UNKNOWN = Memory()


@dataclass(frozen=True, slots=True)
class HubFile:
    """A GGUF file in a repository of the hub, the first of its parts if it has several.

    Args:
        repo: its repository.
        file: its path there; empty where `quantization` chooses it.
        size: bytes, about; 0 where not known.
        quantization: of the file, where its name is not known.
        sha256: its checksum; empty where not known.
        revision: the commit that has it; empty for the newest.
        memory: what it takes besides.
    """

    repo: str
    file: str
    size: int
    quantization: str = ""
    sha256: str = ""
    revision: str = ""
    memory: Memory = _UNKNOWN

    @property
    def sizes(self) -> Sizes:
        """What it takes in memory, as far as it is known."""
        known = self.memory
        copies = Copies.of(known.architecture, known.state, drafts=False) if known.state else None
        windows = {"windowed": known.windowed, "window": known.window}
        return estimated(self.size, known.cache, copies, known.vocabulary, **windows)


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head of this kind (`draft_head.KINDS`) that drafts for a target: in a file of its own, or in the target's."""

    kind: str
    file: HubFile | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A target, with its draft model or head. `verified` says what of the entry was checked, and where.

    Args:
        newest: whether no later generation of its family is known at its size.
        pictures: whether the model is made to read pictures, too.
    """

    name: str
    target: HubFile
    draft: HubFile | None
    title: str
    licence: str
    vocabulary: str
    needs: str
    verified: str
    notes: str = ""
    head: DraftHead | None = None
    newest: bool = False
    pictures: bool = False

    @property
    def drafting(self) -> HubFile | None:
        """The file of the draft model, or of a head that this version uses; None if no file is fetched for drafts."""
        used = self.head is not None and draft_head.is_used(self.head.kind)
        return self.head.file if used and self.head is not None else self.draft

    @property
    def size(self) -> int:
        """Bytes of the files that are fetched, about."""
        return self.target.size + (self.drafting.size if self.drafting else 0)


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
    if unknown := sorted(table.keys() - set(_KEYS)):
        raise OptionError(f"{where} has the unknown key {shown(unknown[0])}; known are {', '.join(_KEYS)}")
    if not name.isprintable():
        raise OptionError(f"{where} has control characters in its name; use letters, digits and signs")
    values = {key: _typed(where, key, table.get(key, ""), str) for key in _TEXTS}
    texts = {key: printable(text) for key, text in values.items()}
    newest, pictures = (_typed(where, key, table.get(key, False), bool) for key in _FLAGS)
    memory = _memory(f"{where}.memory", table.get("memory", {}))
    target = replace(_file(f"{where}.target", table["target"]), memory=memory)
    draft, head = _draft(f"{where}.draft", table["draft"]) if "draft" in table else (None, None)
    return Entry(name, target, draft, **texts, head=head, newest=newest, pictures=pictures)


def _typed(where: str, key: str, value: Any, kind: type) -> Any:
    """`value`, if it is of this kind. Raises OptionError."""
    names = {str: "text in quotes", bool: "true or false", int: "a number"}
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise OptionError(f"{where} has {key} = {shown(value)}; it must be {names[kind]}")
    return value


def _draft(where: str, table: Any) -> tuple[HubFile | None, DraftHead | None]:
    """The draft model, or the head."""
    if table == _IN_TARGET:
        return None, DraftHead(_IN_TARGET)
    if not isinstance(table, dict) or "kind" not in table:
        return _file(where, table), None
    rest = {key: value for key, value in table.items() if key != "kind"}
    kind = _typed(where, "kind", table["kind"], str)
    if kind not in draft_head.KINDS:
        raise OptionError(f"{where} has kind = {shown(kind)}; it must be {' or '.join(draft_head.KINDS)}, or left out")
    return None, DraftHead(kind, _file(where, rest))


def _memory(where: str, table: Any) -> Memory:
    if not isinstance(table, dict) or table.keys() - _MEMORY.keys():
        numbers = ", ".join(f"{key} = 123" for key, kind in _MEMORY.items() if kind is int)
        raise OptionError(f'{where} must be {{ architecture = "name", {numbers} }}')
    for key, value in table.items():
        _typed(where, key, value, _MEMORY[key])
        if _MEMORY[key] is int:
            whole(f"{where}.{key}", value, 0, _LARGEST)
    return Memory(**{**table, "architecture": printable(table.get("architecture", ""))})


def _file(where: str, table: Any) -> HubFile:
    known = isinstance(table, dict) and not table.keys() - _FILE.keys()
    if not known or "repo" not in table or ("file" in table) == ("quantization" in table):
        raise OptionError(f'{where} must be {{ repo = "org/name", file = "x.gguf", size = 123 }}')
    for key, value in table.items():
        _typed(where, key, value, _FILE[key])
    file, size = table.get("file", ""), whole(f"{where} has a size that", table.get("size", 0), 0, _LARGEST)
    names = table["repo"] + file
    if table["repo"].count("/") != 1 or ("file" in table and not file.endswith(".gguf")) or not names.isprintable():
        raise OptionError(f"{where} names {shown(table['repo'])} and {shown(file)}; it takes org/name and a .gguf file")
    for key, (pattern, form) in _PATTERNS.items():
        if key in table and re.fullmatch(pattern, table[key]) is None:
            raise OptionError(f"{where} has {key} = {shown(table[key])}; it must be {form}")
    return HubFile(**{"file": "", **table, "size": size})
