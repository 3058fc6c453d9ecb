"""Lossless verification: which tokens of a draft are accepted. One rule per file.

`match` preserves the text: the same seed gives the same text, whichever tokens were drafted. `rejection` and `block`
preserve its distribution and accept more; `block` accepts at least as many as `rejection`.

`rejection` and `block` are correct if each token was drawn from its q by random numbers that were not used before, and
if the decision to draft it did not depend on the token. Therefore random numbers belong to a round (`round_seed`): a
position is drafted, and under `block` tested, in every round until it is committed. The outcome of a round depends on
its numbers, so using them again would bias the text.
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
        OptionError: there is no such verifier; the message lists them.
    """
    if not isinstance(name, str) or name not in _VERIFIERS:
        raise OptionError(f"no verifier {shown(name)}; there are {', '.join(VERIFIERS)}")
    return _VERIFIERS[name]()
