"""Which family a model is of, and how large it is, by the name of its repository or file."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIZE = re.compile(r"(?:^|[-_ .])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?=$|[-_ .:])", re.IGNORECASE)
_TUNED = re.compile(r"(?:^|[-_ .])(instruct|chat|it)(?=$|[-_ .:])", re.IGNORECASE)
_FEWER = 8  # a draft has at most this part of the target's parameters by name; its bytes decide


@dataclass(frozen=True, slots=True)
class Kin:
    """A family (`qwen2.5`), millions of parameters, and whether it was tuned to answer."""

    family: str
    millions: float
    tuned: bool

    def may_draft_for(self, target: Kin) -> bool:
        """Whether names say that this is the same family's and much smaller."""
        return self.family == target.family and self.millions * _FEWER <= target.millions


def kin(name: str) -> Kin | None:
    """What a name says, None where it gives no size: org/Qwen2.5-7B-Instruct-GGUF, Qwen_Qwen3-32B-Q4_K_M.gguf."""
    base = name.rpartition("/")[2]
    found = _SIZE.search(base)
    if found is None or not found.start():
        return None
    family = base[: found.start()].lower().rpartition("_")[2].removeprefix("meta-")
    millions = float(found[2]) * int(found[1] or 1) * (1000 if found[3] in "bB" else 1)
    return Kin(family, millions, _TUNED.search(base) is not None)
