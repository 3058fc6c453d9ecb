"""JSON Schemas at random, varied as those of APIs are: nested, with references, choices, patterns and limits."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]
_WORDS = ("id", "name", "city", "tags", "price", "when", "kind", "note", "items", "next", "ok", "größe", "a b")
_PATTERNS = ("^[a-z]{2,4}$", r"^\d{3}-\d{2}$", "^(red|green)+x?$", "^#[0-9a-f]{6}$")
_FORMATS = ("date", "time", "ipv4", "uuid")


def schema(seed: int) -> Schema:
    """A schema of an object, by a seed."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    found = _object(rng, 3)
    if rng.random() < 0.3:
        found["$defs"] = {"leaf": _any(rng, 1)}
        found["properties"]["leaf"] = {"$ref": "#/$defs/leaf"}
        found["required"] = [*found["required"], "leaf"]
    if rng.random() < 0.2:
        node = {"type": "object", "properties": {"v": {"type": "integer"}}, "additionalProperties": False}
        node["properties"] = {**node["properties"], "next": {"$ref": "#/$defs/node"}}  # type: ignore[dict-item]
        found.setdefault("$defs", {})["node"] = node
        found["properties"]["node"] = {"$ref": "#/$defs/node"}
    return found


def _any(rng: random.Random, depth: int) -> Schema:
    simple = (_string, _number, _enum, _constant)
    nested = (_object, _array, _choice)
    make = rng.choice(nested if depth and rng.random() < 0.5 else simple)
    return make(rng, depth - 1)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_WORDS, rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: _any(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.2:
        items = [_any(rng, depth) for _ in range(2)]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": 2}
    least = rng.randint(0, 2)
    return {"type": "array", "items": _any(rng, depth), "minItems": least, "maxItems": least + rng.randint(0, 2)}


def _choice(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth) for _ in range(rng.randint(2, 3))]}


def _string(rng: random.Random, _depth: int) -> Schema:
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}


def _number(rng: random.Random, _depth: int) -> Schema:
    low = rng.randint(-50, 50)
    limits = rng.choice(({"minimum": low}, {"exclusiveMaximum": low}, {"minimum": low, "maximum": low + 7}, {}))
    if rng.random() < 0.2:
        return {"type": "integer", "multipleOf": rng.choice((2, 5, 10)), "minimum": 0, "maximum": 1000}
    return {"type": rng.choice(("integer", "number")), **limits}


def _enum(rng: random.Random, _depth: int) -> Schema:
    return {"enum": rng.sample(["red", "rose", 'a"b', 1, 2.5, None, True, [1], {"k": "v"}], rng.randint(1, 4))}


def _constant(rng: random.Random, _depth: int) -> Schema:
    return {"const": rng.choice([0, "x", False, None])} if rng.random() < 0.5 else {"type": ["boolean", "null"]}
