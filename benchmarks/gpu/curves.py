"""The price curves of a run, as lines of the simulator's `cards.jsonl`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..simulator.measured import Measured
from .results import DONE


def measured(content: Mapping[str, Any], date: str) -> Iterator[Measured]:
    """A line for each curve in the content of a results.json, measured on `date`."""
    facts, items = content["machine"], content.get("steps", {}).get("prices", {})
    machine = (facts.get("card") or {}).get("name") or facts["processor"]
    for name, item in items.items():
        value = item.get("value") or {}
        if item["state"] != DONE or "version" not in value:
            continue
        size, weights = name.split()
        run = {context: passes for context, passes in value.items() if context.partition(",")[0].isdecimal()}
        yield Measured(size, "llama", weights.lower(), value["version"], machine, value["threads"], date, [run])
