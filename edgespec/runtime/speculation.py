"""The settings of speculation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from ..values import shown, texts, whole
from ..verify import verifier

#: The names of the built-in drafters.
DRAFTERS = (
    "lookup",
    "model",
    "cross-vocabulary",
    "mtp",
    "pard",
    "eagle",
    "eagle3",
    "medusa",
    "exit",
    "recycling",
    "lookahead",
    "grammar",
    "prediction",
)
_MODELS = ("model", "cross-vocabulary", "pard", "exit")  # those of draft models, of which there may be several
LONGEST = 256  #: the most tokens of a draft, within the widest pass of all engines


@dataclass(frozen=True, slots=True)
class Speculation:
    """How to speculate.

    Args:
        drafters: names from `DRAFTERS`, of drafters given to `load`, or of installed packages; None takes all built-in
            drafters that are possible for the pair, and those given; "mtp" and "recycling" only without a draft model.
            "prediction" need not be named: it drafts wherever an answer is given a prediction.
            Drafters of packages, these two beside a draft model, and "lookahead" must be named when loading. The second
            of several draft models of a kind has the number 2 in its name: "model2".
        k: tokens to draft in each round, 0 for plain decoding; None adapts the draft length to acceptance and prices.
            Without `drafters`, the first that has a guess drafts; with them the chains of all are merged into one tree
            where the engine takes trees.
        verifier: "match", "rejection" or "block".
        through_text: when loading, accept a draft model with another vocabulary, which drafts through text at a higher
            price and a lower acceptance rate; False raises VocabularyMismatch.
        remember: store the text of answers, unencrypted in the user's cache folder, and look it up in later runs. Must
            be set when loading, too.

    Raises:
        OptionError: an invalid value.
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

    def uses(self, name: str) -> bool:
        """Whether a drafter of this name is used where it is possible."""
        return self.drafters is None or name in self.drafters


def numbered(name: str, number: int) -> str:
    """The name of the drafter of a draft model that is the first, second, ... of its kind."""
    return name if number == 1 else f"{name}{number}"


def is_built_in(name: str) -> bool:
    """Whether a built-in drafter may have this name."""
    return name in DRAFTERS or re.fullmatch(rf"({'|'.join(_MODELS)})([2-9]|[1-9]\d+)", name) is not None


def _length(k: Any) -> int:
    """A draft length. Raises OptionError."""
    try:
        return whole("k", k, 0, LONGEST)
    except OptionError:
        raise OptionError(
            f"k is {shown(k)}; it must be auto (None in a program), or from 0 (plain decoding) to {LONGEST}"
        ) from None
