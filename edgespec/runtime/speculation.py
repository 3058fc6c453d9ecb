"""How to speculate, as an app asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from ..values import shown, texts, whole
from ..verify import verifier

DRAFTERS = ("lookup", "model", "cross-vocabulary")  #: the names of the built-in drafters
LONGEST = 256  #: tokens of a draft; what one pass of any engine takes


@dataclass(frozen=True, slots=True)
class Speculation:
    """How to speculate.

    Args:
        drafters: names from `DRAFTERS`, of drafters given to `load`, or of installed ones; None takes all that the pair
            allows and those that were given. Installed ones are there only if they were named when loading.
        k: tokens to draft in each round, 0 for plain decoding; None adapts to what pays.
        verifier: `match`, `rejection` or `block`.
        through_text: when loading, let a draft model with another vocabulary draft through text, which costs more and
            is right less often; False refuses it.
        remember: keep what is said, unencrypted in the user's cache folder, and look it up in later runs. Only where
            it was so when loading.
    """

    drafters: tuple[str, ...] | None = None
    k: int | None = None
    verifier: str = "match"
    through_text: bool = True
    remember: bool = False

    def __post_init__(self) -> None:
        verifier(self.verifier)
        if self.k is not None:
            object.__setattr__(self, "k", _length(self.k))
        if self.drafters is not None:
            object.__setattr__(self, "drafters", texts("drafters", self.drafters))


def _length(k: Any) -> int:
    """A draft length that was asked for. Raises OptionError."""
    try:
        return whole("k", k, 0, LONGEST)
    except OptionError:
        raise OptionError(
            f"k is {shown(k)}; it must be auto (None in a program), or from 0 (plain decoding) to {LONGEST}"
        ) from None
