"""The options of an answer that requests of all APIs share."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ..errors import OptionError
from ..runtime.speculation import LONGEST, Speculation
from ..sampling import Sampling
from .errors import Refused
from .fields import Fields
from .settings import Settings

MOST_STOPS, LONGEST_STOP, MOST_BIASES = 16, 256, 4096
MOST_ANSWERS = 8  #: to one prompt

#: The fields of `Sampling` by what requests call them, with their ranges.
_REALS: dict[str, tuple[str, float, float]] = {
    "temperature": ("temperature", 0, 100),
    "top_p": ("top_p", 0, 1),
    "min_p": ("min_p", 0, 1),
    "repeat_penalty": ("repetition_penalty", 1e-4, 1e4),
    "repetition_penalty": ("repetition_penalty", 1e-4, 1e4),
    "presence_penalty": ("presence_penalty", -100, 100),
    "frequency_penalty": ("frequency_penalty", -100, 100),
}
_WORD = (1 << 64) - 1
_LARGEST = (1 << 31) - 1


def sampling(fields: Fields, settings: Settings) -> Sampling:
    """How a request wants tokens to be chosen: its fields, then the server's defaults. Raises Refused."""
    changed: dict[str, Any] = {}
    for name, (option, low, high) in _REALS.items():
        if (value := fields.real(name, low, high)) is not None:
            changed[option] = value
    if changed.get("top_p") == 0:  # as OpenAI's server: the likeliest token only
        changed.update(top_p=1.0, top_k=1)
    if (top_k := fields.whole("top_k", -1, _LARGEST)) is not None:
        changed["top_k"] = max(0, top_k)  # -1 keeps all, as in other servers
    if (size := fields.whole("repeat_last_n", -1, _LARGEST)) is not None:
        changed["penalty_window"] = size if size >= 0 else _LARGEST
    if fields.has("logit_bias"):
        changed["logit_bias"] = _biases(fields)
    changed["seed"] = _seed(fields, settings)
    try:
        return replace(settings.sampling, **changed)
    except OptionError as error:
        raise Refused(str(error)) from None


def stops(fields: Fields, name: str = "stop") -> tuple[str, ...]:
    """The texts that end the answer."""
    alone = isinstance(fields.raw(name), str)
    given = [fields.text(name, most=LONGEST_STOP)] if alone else fields.items(name, most=MOST_STOPS)
    for each in given:
        if not isinstance(each, str) or len(each) > LONGEST_STOP:
            raise fields.wrong(name, f"a text or a list of texts, each of at most {LONGEST_STOP} characters")
    return tuple(filter(None, given))


def most_tokens(fields: Fields, settings: Settings, *names: str) -> int | None:
    """The longest answer, by the first of these fields that is given, else the server's default."""
    for name in names:
        if fields.has(name):
            most = fields.whole(name, -2, _LARGEST)
            if most == 0:
                raise fields.wrong(name, "1 or more")
            return most if most is not None and most > 0 else None  # -1 and -2: to the end, as in other servers
    return settings.max_tokens


def count(fields: Fields) -> int:
    """The number of answers."""
    return fields.whole("n", 1, MOST_ANSWERS) or 1


def extension(fields: Fields) -> tuple[dict[str, Any], bool]:
    """The field `edgespec`: what differs in `Speculation`, and whether the answer shows what was drafted."""
    own = fields.below("edgespec")
    changed = length(own)
    if own.has("verifier"):
        changed["verifier"] = own.text("verifier")
    if own.has("drafters"):
        changed["drafters"] = tuple(own.items("drafters", most=64))
    try:
        Speculation(**changed)
    except OptionError as error:
        raise Refused(str(error), param="edgespec") from None
    return changed, own.flag("spans")


def length(fields: Fields) -> dict[str, Any]:
    """The field `k`: tokens to draft in each round, or "auto"."""
    if not fields.has("k"):
        return {}
    return {"k": None if fields.raw("k") == "auto" else fields.whole("k", 0, LONGEST)}


def _seed(fields: Fields, settings: Settings) -> int:
    given = fields.whole("seed", -(1 << 63), _WORD)
    if given is not None:
        return given & _WORD
    return settings.sampling.seed if settings.seeded else int.from_bytes(os.urandom(4), "little")


def _biases(fields: Fields) -> tuple[tuple[int, float], ...]:
    given = fields.below("logit_bias")
    if len(given.values) > MOST_BIASES:
        raise Refused(f"logit_bias has more than {MOST_BIASES} tokens; send fewer", param="logit_bias")
    pairs = []
    for token in given.values:
        if not token.isdecimal() or not token.isascii() or len(token) > 9:
            raise Refused(
                f"logit_bias has the key {token[:40]!r}; it must be the number of a token", param="logit_bias"
            )
        pairs.append((int(token), given.real(token, -1e9, 1e9) or 0.0))
    return tuple(pairs)
