"""The one JSON file of a run: what each item of each step found, kept after every item."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGUN, DONE, FAILED, LEFT_OUT = "begun", "done", "failed", "left out"
_TRIES = 2  # of an item in which the process ended
_LONGEST = 2000  # characters of a message


class LeftOut(Exception):
    """An item that this machine cannot do; the message says why."""


@dataclass(frozen=True)
class Item:
    """A measurement or a check with a name; `work` returns what becomes JSON."""

    name: str
    work: Callable[[], Any]


class Results:
    """The file at `path`. An item is begun, then done, failed or left out; one that is done is not done again.

    An item that is still begun when the file is read again ended its process: it is tried once more, and then failed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}

    def set(self, name: str, value: Any) -> None:
        """Keep a fact of the whole run."""
        self.content[name] = value
        self._write()

    def step(self, name: str) -> dict[str, Any]:
        """The items of a step by name."""
        steps = self.content.setdefault("steps", {})
        found: dict[str, Any] = steps.setdefault(name, {})
        return found

    def open(self, step: str, items: list[Item]) -> Iterator[Item]:
        """Those of `items` that are neither done nor left out nor failed for good."""
        for item in items:
            kept = self.step(step).get(item.name)
            if kept is not None and kept["state"] == BEGUN and kept["tries"] >= _TRIES:
                self._keep(step, item.name, FAILED, error="the process ended, or its time was up, each time")
            elif kept is None or kept["state"] == BEGUN:
                yield item

    def run(self, step: str, item: Item) -> str:
        """Do `item`, and keep what it found, or its error. Returns its state."""
        tries = self.step(step).get(item.name, {}).get("tries", 0) + 1
        self._keep(step, item.name, BEGUN, tries=tries)
        started = time.monotonic()
        try:
            value = item.work()
        except LeftOut as error:
            self._keep(step, item.name, LEFT_OUT, error=str(error))
        except Exception as error:  # noqa: BLE001 - the other items are still worth measuring
            told = f"{type(error).__name__}: {error}"[:_LONGEST]
            self._keep(step, item.name, FAILED, error=told, seconds=_seconds(started))
        else:
            failed = isinstance(value, dict) and value.get("passed") is False
            self._keep(step, item.name, FAILED if failed else DONE, value=value, seconds=_seconds(started))
        return str(self.step(step)[item.name]["state"])

    def restart(self, step: str) -> None:
        """Forget items that were cut off: they can be cut off any number of times, and go on where they ended."""
        items = self.step(step)
        for name in [name for name, kept in items.items() if kept["state"] == BEGUN]:
            del items[name]

    def forgive(self, step: str) -> None:
        """Do not count the item during which time was up as one that ended its process."""
        for kept in self.step(step).values():
            if kept["state"] == BEGUN and kept["tries"] < _TRIES:
                kept["tries"] = max(0, kept["tries"] - 1)
                kept["cut"] = kept.get("cut", 0) + 1
                if kept["cut"] >= _TRIES:
                    kept["tries"] = _TRIES
        self._write()

    def _keep(self, step: str, name: str, state: str, **more: Any) -> None:
        kept = {"state": state, **more}
        before = self.step(step).get(name, {})
        if state == BEGUN and "cut" in before:
            kept["cut"] = before["cut"]
        self.step(step)[name] = kept
        self._write()

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n", "utf-8")
        part.replace(self._path)


def _seconds(started: float) -> float:
    return round(time.monotonic() - started, 1)
