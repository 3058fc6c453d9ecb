"""python -m benchmarks.gpu.step NAME: the items of a step that are still to do."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from edgespec import models

from .results import Item, Results
from .run import MODELS
from .setting import Setting

_MODULES = {"check": "checks", "prices": "prices", "speeds": "speeds", "peers": "peers"}


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=(MODELS, *_MODULES))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--server", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--head", type=Path, action="append", default=[])
    parser.add_argument("--pair", type=Path, nargs="+")
    parser.add_argument("--contender", action="append", default=[])
    parser.add_argument("--questions", type=int, required=True)
    parser.add_argument("--only", action="append", default=[])
    return parser.parse_args(arguments)


def setting_of(chosen: argparse.Namespace) -> Setting:
    """The setting that the options describe."""
    pair = models.Pair(chosen.pair[0], tuple(chosen.pair[1:])) if chosen.pair else models.demo()
    return Setting(
        chosen.work,
        chosen.device,
        chosen.small,
        chosen.server,
        tuple(chosen.head),
        chosen.questions,
        pair,
        tuple(chosen.contender),
    )


def main() -> None:
    """Do what is left of a step, and keep the result of every item."""
    chosen = options()
    setting = setting_of(chosen)
    if chosen.name == MODELS:
        import_module("benchmarks.gpu.made").make_all(setting)
        return
    results = Results(chosen.work / "results.json")
    items = [item for item in _items(chosen.name, setting) if wanted(item.name, chosen.only)]
    for item in results.open(chosen.name, items):
        started = time.monotonic()
        state = results.run(chosen.name, item)
        print(f"  {chosen.name}: {item.name}: {state}, {time.monotonic() - started:.1f} s", flush=True)


def wanted(name: str, parts: Sequence[str]) -> bool:
    """Whether an item's name has one of `parts`; each has, if there are none."""
    return not parts or any(part in name for part in parts)


def _items(name: str, setting: Setting) -> Iterator[Item]:
    # Imported here: what one step needs may be missing for another.
    module = import_module(f"benchmarks.gpu.{_MODULES[name]}")
    found: Iterator[Item] = module.items(setting)
    return found


if __name__ == "__main__":
    main()
