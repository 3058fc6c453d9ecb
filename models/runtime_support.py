"""What of a model this version runs: what is fetched, what memory is counted and what `edgespec models` says follow."""

from __future__ import annotations

#: The kinds of heads that draft, of `head` (multi-token prediction) and `dflash`.
HEADS: frozenset[str] = frozenset()
#: Whether models with a recurrent state are run, whose rejected tokens are taken back by copies of it.
HYBRIDS: bool = False
