"""Lossless acceptance: which of a draft's tokens the target would have said itself. One rule a file.

`match` promises the text: same seed, same text, whatever was drafted. `rejection` and `block` promise its
distribution and accept more, `block` never less than `rejection`.

What `rejection` and `block` rest on: each token was drawn from its q by noise that nothing before it has used, and
whether it was drafted at all was settled without looking at it. So noise belongs to a round too (`round_seed`). A place
is drafted, and by `block` tested, in every round until it is committed; the outcome of the round before tells of the
numbers used there, and meeting them again would bias the text.
"""

from __future__ import annotations

from ..errors import OptionError
from ..values import shown
from .block import Block
from .match import Match
from .rejection import Rejection
from .round_context import RoundContext, Verifier

__all__ = ["VERIFIERS", "Block", "Match", "Rejection", "RoundContext", "Verifier", "verifier"]

_VERIFIERS: dict[str, type[Match | Rejection | Block]] = {rule.name: rule for rule in (Match, Rejection, Block)}
VERIFIERS = tuple(_VERIFIERS)


def verifier(name: str) -> Verifier:
    """The verifier called `name`.

    Raises:
        OptionError: no such verifier; the message lists them.
    """
    if not isinstance(name, str) or name not in _VERIFIERS:
        raise OptionError(f"no verifier {shown(name)}; there are {', '.join(VERIFIERS)}")
    return _VERIFIERS[name]()
