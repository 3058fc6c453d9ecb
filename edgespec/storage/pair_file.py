"""Pair files, and draft models in the folder of their target.

A pair file is JSON that a person can edit: target, draft, their sources, and measurements. Only `target` and `draft`
are required, as paths relative to the file; `draft` may be a list of several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelFileError
from ..values import shown
from .files import contents

NAME = "pair.json"  #: the name of the pair file in the folder of a pair

_ORIGIN = {"source": str, "commit": str, "quantization": str}
_MEASURED = {
    "acceptance": list, "tries": list, "prompts": str, "tokens": int, "temperature": float,
    "k": int, "speedup": float, "mean_accepted_length": float,
}  # fmt: skip
#: The value of each key: a table of keys, or a type. `list` is a list of numbers, `tuple` a text or a list of texts.
_FORM: Mapping[str, Any] = {
    "target": str,
    "draft": tuple,
    "made_of": {"target": _ORIGIN, "draft": _ORIGIN},
    "measured": _MEASURED,
    "distilled": {"draft": str, "answers": int, "tokens": int, "temperatures": list, "before": _MEASURED},
    "date": str,
    "versions": {"edgespec": str, "engine": str},
}
_GRAPHS = ("model.onnx", "openvino_model.xml")  # what a folder with a model holds
_LARGEST = 1e15  # the greatest number: JSON may have NaN, and numbers beyond the range of a float
_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list of numbers",
    tuple: "a text or a list of texts",
}
_WAY_OUT = "correct it, or write it again with `edgespec convert --pair TARGET DRAFT --out FOLDER --force`"


@dataclass(frozen=True, slots=True)
class PairFile:
    """The content of a pair file: the files of the models, which exist, and all other values in `about`."""

    target: Path
    drafts: tuple[Path, ...]
    about: Mapping[str, Any]


def at(path: Path) -> Path | None:
    """The pair file at `path`, a .json file or a folder with a pair file; None for other paths."""
    try:
        inside = path / NAME
        if path.is_dir():
            return inside if inside.is_file() else None
    except OSError:  # the error is reported when the path is opened
        return None
    return path if path.suffix.lower() == ".json" else None


def beside(target: Path) -> Path | None:
    """The draft model in the folder of the model `target`, by its name; None if there is none.

    For `NAME.gguf` that is `NAME.draft.gguf` or `draft.gguf`; for a folder `NAME`, the folder `NAME.draft` or `draft`
    with a model.onnx or an openvino_model.xml.
    """
    if not target.name:
        return None
    stem, suffix = (target.name, "") if _holds(Path.is_dir, target) else (target.stem, target.suffix)
    named = (target.with_name(f"{stem}.draft{suffix}"), target.with_name(f"draft{suffix}"))
    return next((path for path in named if _is_model(path) and path != target), None)


def read(path: Path) -> PairFile:
    """The pair file at `path`.

    Raises:
        ModelFileError: it is missing or damaged, has an unknown key, or names a model that does not exist.
    """
    try:
        data = contents(path)
        if data is None:
            raise ModelFileError(f"no pair file at {path}; `edgespec convert --pair` writes one")
        given = json.loads(data.decode("utf-8-sig"))  # some editors write a byte order mark
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}; give a pair file that can") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {error}; {_WAY_OUT}") from error
    _require(path, "it", given, _FORM)
    for key in ("target", "draft"):
        if key not in given:
            raise ModelFileError(f'{path} has no {key}; add "{key}": "{key}.gguf", a path relative to the file')
    target, draft = _there(path, "target", given.pop("target")), given.pop("draft")
    drafts = tuple(_there(path, "draft", name) for name in ([draft] if isinstance(draft, str) else draft))
    return PairFile(target, drafts, given)


def content(given: Mapping[str, Any]) -> bytes:
    """The content of a pair file with these values.

    Raises:
        ModelFileError: `read` would refuse it.
    """
    _require(Path(NAME), "it", given, _FORM)
    text = json.dumps(given, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")  # for paths that are not Unicode, the escapes of JSON


def _require(path: Path, where: str, value: Any, form: Any) -> None:
    """Raises ModelFileError unless `value` has the form `form`."""
    if isinstance(form, Mapping):
        if not isinstance(value, dict):
            raise ModelFileError(f"{path}: {where} is not a table of {', '.join(form)}; {_WAY_OUT}")
        if unknown := sorted(value.keys() - form.keys()):
            raise ModelFileError(
                f"{path}: {shown(unknown[0])} is not a known key; {where} has {', '.join(form)}; {_WAY_OUT}"
            )
        for key, each in value.items():
            _require(path, key if where == "it" else f"{where}.{key}", each, form[key])
    elif not _is(value, form):
        limit = "" if form in (str, tuple) else f" below {_LARGEST:g}"
        raise ModelFileError(f"{path}: {where} is {shown(value)}; it must be {_WORDS[form]}{limit}")


def _is(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(_is(each, float) for each in value)
    if kind is tuple:
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
    if kind is str:
        return isinstance(value, str)
    number = isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
    return number and abs(value) < _LARGEST


def _there(path: Path, key: str, name: str) -> Path:
    found = path.parent / name
    try:
        there = bool(name) and found.exists()
    except (OSError, ValueError):  # a name too long, or one that no file can have
        there = False
    if not there:
        raise ModelFileError(
            f"{path} names {shown(name)} as its {key}, which does not exist; correct it, or convert again"
        )
    return found


def _is_model(path: Path) -> bool:
    folder = any(_holds(Path.is_file, path / name) for name in _GRAPHS)
    return folder or (_holds(Path.is_file, path) and bool(path.suffix))


def _holds(kind: Callable[[Path], bool], path: Path) -> bool:
    try:
        return kind(path)
    except OSError:  # the error is reported when the target is opened
        return False
