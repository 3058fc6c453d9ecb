"""Values, bytes and JSON that are wrong."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

DIGITS = "@DIGITS@"  #: stands for a number of 5000 digits, which Python does not write
BRACKETS = "@BRACKETS@"  #: stands for 3000 brackets
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 1 << 16, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**40, 10**400,
    0.5, -0.5, 1e-45, 1e30, 1e308, -1e308, math.nan, math.inf, -math.inf, -0.0,
    "", " ", "x", "0", "-1", "1e400", "nan", "true", "none", "null", "\0", "\n", "\r\n", "\x1b]0;title\x07", "\x9b31m",
    "\ud800", "\ufdd0", "\u202e", "e\u0301", "\U0001f600", "../../x", "/etc/passwd", "C:\\x", "CON", "a" * 300,
    "a" * 100_000, "{{ 7 * 7 }}", "%s%n", "<|im_end|>", [], {}, [[]], [None], [{}], {"a": {}}, [0], ["x"], {"": ""},
    [1, "x", None], [-1] * 9, DIGITS, BRACKETS,
)  # fmt: skip
TEXTS: tuple[str, ...] = tuple(value for value in VALUES if isinstance(value, str) and not value.startswith("@"))


def value(rng: Random) -> Any:
    """A value that hardly anything expects."""
    return rng.choice(VALUES)


def number(rng: Random) -> float:
    """A number, often at the edge of some range."""
    numbers = [each for each in VALUES if isinstance(each, int | float)]
    near = rng.choice((0, 1, 2, 7, 64, 256, 512, 600, 700, 4096, 65536)) + rng.choice((-1, 0, 1))
    return rng.choice((rng.choice(numbers), near, rng.uniform(-2, 2), rng.getrandbits(rng.choice((8, 32, 64)))))


def like(rng: Random, old: Any) -> Any:
    """A value of about the type of `old`."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        old = min(max(old, -(10**300)), 10**300)  # what a float can be
        return rng.choice((0, 1, -1, -old, old + 1, old - 1, 2 * old, old * 1000, 2**31, 2**63, float(old), str(old)))
    if isinstance(old, float):
        return rng.choice((0.0, -old, old * 1e6, old * 1e-9, math.nan, math.inf, -math.inf, 1e39, 1))
    if isinstance(old, str):
        return text(rng, old)
    return value(rng)


def text(rng: Random, old: str) -> str:
    """A text like `old`, or none like it."""
    at = rng.randrange(len(old) + 1)
    new = rng.choice(TEXTS)
    return rng.choice((new, old + new, old[:at] + new + old[at:], old[:at], old[at:], old.upper(), old * 2))


def data(rng: Random, old: bytes, most: int = 8) -> bytes:
    """Bytes like `old`: some changed, cut off, missing, doubled or added."""
    new = bytearray(old)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(new) + 1)
        end = min(len(new), at + rng.choice((1, 2, 4, 8, 100)))
        match rng.randrange(8):
            case 0 | 1 | 2 if at < len(new):
                new[at] ^= 1 << rng.randrange(8)
            case 3:
                new[at:end] = rng.randbytes(end - at)
            case 4:
                del new[at:end]
            case 5:
                new[at:at] = new[at:end]
            case 6:
                new[at:end] = rng.choice((b"\0", b"\xff")) * (end - at)
            case _ if rng.random() < 0.3:
                del new[at:]
    return bytes(new)


def tree(rng: Random, old: Any) -> Any:
    """JSON like `old` with one thing changed."""
    if isinstance(old, dict) and old and rng.random() < 0.9:
        return _table(rng, dict(old))
    if isinstance(old, list) and old and rng.random() < 0.9:
        return _list(rng, list(old))
    return like(rng, old) if rng.random() < 0.5 else value(rng)


def _table(rng: Random, new: dict[str, Any]) -> Any:
    key = rng.choice(list(new))
    match rng.randrange(12):
        case 0:
            del new[key]
        case 1:
            new[rng.choice(TEXTS)] = value(rng)
        case 2:
            other = rng.choice(list(new))
            new[key], new[other] = new[other], new[key]
        case 3:
            new[text(rng, key)] = new.pop(key)
        case 4 | 5 | 6:
            new[key] = value(rng)
        case 7 | 8:
            new[key] = like(rng, new[key])
        case _:
            new[key] = tree(rng, new[key])
    return new


def _list(rng: Random, new: list[Any]) -> Any:
    at = rng.randrange(len(new))
    match rng.randrange(8):
        case 0:
            del new[at]
        case 1:
            new.insert(at, new[rng.randrange(len(new))])
        case 2:
            new[at] = value(rng)
        case 3:
            del new[at:]
        case 4:
            other = rng.randrange(len(new))
            new[at], new[other] = new[other], new[at]
        case 5:
            new[at] = like(rng, new[at])
        case _:
            new[at] = tree(rng, new[at])
    return new


def written(rng: Random, content: Any) -> bytes:
    """`content` as a JSON file, now and then with a fault in its text too."""
    found = json.dumps(content, ensure_ascii=rng.random() < 0.5)
    found = found.replace(f'"{DIGITS}"', "1" * 5000).replace(f'"{BRACKETS}"', "[" * 3000 + "]" * 3000)
    done = found.encode("utf-8", rng.choice(("surrogatepass", "replace")))
    match rng.randrange(16):
        case 0:
            return data(rng, done, 2)
        case 1:
            return b"\xef\xbb\xbf" + done
        case 2 if done.startswith(b"{") and content:
            key = json.dumps(rng.choice(list(content)))
            return b"{" + f"{key}: 1, ".encode() + done[1:]
        case 3:
            return done.decode("utf-8", "replace").encode("utf-16")
    return done


def json_file(rng: Random, content: Any, changes: int = 2) -> bytes:
    """A JSON file like `content`, with one change or a few."""
    for _ in range(rng.randint(1, changes)):
        content = tree(rng, content)
    return written(rng, content)
