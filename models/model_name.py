"""Family and size of a model by the name of its repository or file."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIZE = re.compile(r"(?:^|[-_ .])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?=$|[-_ .:])", re.IGNORECASE)
_TUNED = re.compile(r"(?:^|[-_ .])(instruct|chat|it)(?=$|[-_ .:])", re.IGNORECASE)
_MIN_RATIO = 8  # parameters of a target over those of its draft, by their names; later the sizes in bytes decide


@dataclass(frozen=True, slots=True)
class ModelName:
    """The family (`qwen2.5`), millions of parameters, and whether the model is tuned for instructions or chat."""

    family: str
    millions: float
    tuned: bool

    def may_draft_for(self, target: ModelName) -> bool:
        """Whether this model is of the target's family and much smaller, by the names."""
        return self.family == target.family and self.millions * _MIN_RATIO <= target.millions


def parse_name(name: str) -> ModelName | None:
    """Parse names such as org/Qwen2.5-7B-Instruct-GGUF or Qwen_Qwen3-32B-Q4_K_M.gguf; None where one has no size."""
    base = name.rpartition("/")[2]
    found = _SIZE.search(base)
    if found is None or not found.start():
        return None
    family = base[: found.start()].lower().rpartition("_")[2].removeprefix("meta-")
    millions = float(found[2]) * int(found[1] or 1) * (1000 if found[3] in "bB" else 1)
    return ModelName(family, millions, _TUNED.search(base) is not None)
