"""What of a model this version runs: what is fetched, what memory is counted and what `edgespec models` says follow."""

from __future__ import annotations

from edgespec.backends.recurrent_state import SUPPORTED

#: The kinds of heads that draft, of `head` (multi-token prediction) and `dflash`.
HEADS: frozenset[str] = frozenset({"head"})


def runs_state_of(architecture: str) -> bool:
    """Whether the recurrent state of models of this architecture can be rolled back."""
    return architecture in SUPPORTED
