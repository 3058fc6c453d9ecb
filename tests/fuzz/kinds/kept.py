"""Files that edgespec keeps or is given beside models: prices, what was learned, what was said, pairs, prompts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import edgespec
from edgespec import Device, Speculation
from edgespec.models import registry

from .. import command, folders, spoil, use
from ..place import Place

_DEVICE = Device(threads=1)
_TOML = b"""[mine]
target = { repo = "org/target-GGUF", file = "target-Q4_K_M.gguf", size = 4920739232 }
draft = { repo = "org/draft-GGUF", file = "draft-Q8_0.gguf", size = 639446688 }
title = "Mine"
"""
_PAIR: dict[str, Any] = {
    "target": "target.gguf",
    "draft": "draft.gguf",
    "made_of": {"target": {"source": "org/t", "commit": "0", "quantization": "q8_0"}, "draft": {"source": "org/d"}},
    "measured": {
        "acceptance": [0.5, 0.25],
        "tries": [4, 2],
        "prompts": "own",
        "tokens": 100,
        "temperature": 0.0,
        "k": 2,
    },
    "date": "2025-01-01",
    "versions": {"edgespec": "0.1.0", "engine": "x"},
}


@contextmanager
def _own_cache(place: Place) -> Iterator[Path]:
    """EDGESPEC_CACHE for this input, with what one conversation leaves."""
    folder = place.folder / "kept"
    shutil.copytree(os.environ["EDGESPEC_CACHE"], folder, dirs_exist_ok=True)
    with mock.patch.dict(os.environ, {"EDGESPEC_CACHE": str(folder)}):
        _talk(place)
        yield folder


def _talk(place: Place) -> None:
    """Two answers that are remembered."""
    runtime = place.attempt(
        lambda: edgespec.load(place.models.gguf("qwen2"), device=_DEVICE, speculation=Speculation(remember=True))
    )
    if runtime is None:
        return
    with runtime:
        for _ in range(2):
            place.attempt(lambda: list(runtime.complete("Hello there, hello there", max_tokens=24)))


def _shelf(kind: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Place], None]:
    """With another content of all files of this kind."""

    def run(place: Place) -> None:
        with _own_cache(place) as cache:
            for path in sorted((cache / kind).glob("*.json")):
                content = json.loads(path.read_bytes())
                change(content)
                text = json.dumps(content).replace(f'"{spoil.DIGITS}"', "1" * 5000)
                path.write_text(text.replace(f'"{spoil.BRACKETS}"', "[" * 3000 + "]" * 3000), encoding="utf-8")
            _talk(place)

    return run


def _everywhere(value: object) -> Callable[[Any], Any]:
    """Put `value` in place of all numbers but the version."""

    def change(content: Any) -> Any:
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, each in list(items):
            if isinstance(each, dict | list):
                change(each)
            elif isinstance(each, int | float) and key != "version":
                content[key] = value
        return content

    return change


def _registry(content: bytes) -> Callable[[Place], None]:
    def run(place: Place) -> None:
        path = place.write("config/models.toml", content)
        with mock.patch.object(registry, "own_file", return_value=path):
            for arguments in (["models", "list"], ["models", "show", "mine"], ["models", "pair", "mine"]):
                command.run(place, arguments)

    return run


def _pair(content: bytes) -> Callable[[Place], None]:
    def run(place: Place) -> None:
        for name, model in (("target", "qwen2"), ("draft", "qwen2")):
            shutil.copy(place.models.gguf(model), place.folder / f"{name}.gguf")
        path = place.write("pair.json", content)
        use.models(place, path)
        use.models(place, place.folder)

    return run


def _prompts(content: bytes) -> Callable[[Place], None]:
    def run(place: Place) -> None:
        path = place.write("prompts.jsonl", content)
        model = str(place.models.gguf("qwen2"))
        more = ["--threads", "1", "--draft", "none", "--max-tokens", "2"]
        command.run(place, ["check", model, "--prompts", str(path), *more])

    return run


CORPUS: Mapping[str, Callable[[Place], object]] = {
    **{
        f"{kind}: {value!r:.20}": _shelf(kind, _everywhere(value))
        for kind in ("prices", "drafters", "memory")
        for value in (spoil.DIGITS, spoil.BRACKETS, 10**399, float("nan"), float("inf"), -1, 0, "x", None, 1e308)
    },
    "a size of 5000 digits": _registry(_TOML.replace(b"4920739232", b"9" * 5000)),
    "a size of 400 digits": _registry(_TOML.replace(b"4920739232", b"9" * 400)),
    "3000 brackets": _registry(_TOML + b"x = " + b"[" * 3000 + b"]" * 3000),
    "a negative size": _registry(_TOML.replace(b"4920739232", b"-1")),
    "a title that commands the terminal": _registry(_TOML.replace(b'"Mine"', b'"\\u001b]0;title\\u0007"')),
    "a registry that is no UTF-8": _registry(b"\xff\xfe"),
    "a pair of 3000 brackets": _pair(b"[" * 3000 + b"]" * 3000),
    "a pair of itself": _pair(json.dumps({"target": "pair.json", "draft": "pair.json"}).encode()),
    "a pair with a name that commands the terminal": _pair(json.dumps({**_PAIR, "target": "\x1b]0;t\x07"}).encode()),
    "a pair with a NUL": _pair(json.dumps({**_PAIR, "target": "a\0b"}).encode()),
    "a pair with a lone surrogate": _pair(json.dumps({**_PAIR, "target": "\ud800"}).encode()),
    "a pair with 5000 digits": _pair(
        json.dumps({**_PAIR, "date": 0}).replace('"date": 0', '"date": ' + "9" * 5000).encode()
    ),
    "prompts that are no objects": _prompts(b"5\n[]\nnull\n"),
    "prompts of 5000 digits": _prompts(b'{"prompt": ' + b"9" * 5000 + b"}\n"),
    "prompts that are not UTF-8": _prompts(b'{"prompt": "\xff"}\n'),
}


def play(rng: Random, place: Place) -> None:
    """One of these files, spoilt."""
    rng.choice((_play_cache, _play_cache, _play_registry, _play_pair, _play_prompts))(rng, place)


def _play_cache(rng: Random, place: Place) -> None:
    with _own_cache(place) as cache:
        files = sorted(path for path in cache.rglob("*.json"))
        for path in files if rng.random() < 0.3 else [rng.choice(files)]:
            how = folders.spoilt_file(rng, path) if rng.random() < 0.2 else folders.spoilt_json(rng, path)
            place.note(f"{path.parent.name} {how}")
        _talk(place)


def _play_registry(rng: Random, place: Place) -> None:
    text = spoil.data(rng, _TOML, 3)
    if rng.random() < 0.7:
        old = rng.choice(
            (b"4920739232", b'"org/target-GGUF"', b'"target-Q4_K_M.gguf"', b'"Mine"', b"[mine]", b"draft =")
        )
        new = rng.choice(
            (b"1e400", b"nan", b"[1]", b'"x"', b'"\\u001b[0m"', b"9" * 5000, b"{}", b"-1", b"true", b"['a b']", b"0x1")
        )
        text = _TOML.replace(old, new)
    place.note(f"registry {text!r:.400}")
    _registry(text)(place)


def _play_pair(rng: Random, place: Place) -> None:
    text = spoil.json_file(rng, _PAIR)
    place.note(f"pair {text!r:.400}")
    _pair(text)(place)


def _play_prompts(rng: Random, place: Place) -> None:
    lines: list[Any] = [{"prompt": "Hello"}, {"messages": use.MESSAGES}, {"turns": ["Hello", "Hi"]}]
    text = b"\n".join(spoil.json_file(rng, rng.choice(lines)) for _ in range(rng.randint(1, 3)))
    place.note(f"prompts {text!r:.400}")
    _prompts(text)(place)
