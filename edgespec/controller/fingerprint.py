"""Fingerprints of prompts: enough to tell in a later run that a prompt begins alike, too little to read one.

A calibration outlives its run, and what users ask is not to be found in it. So of a prompt are kept 16 bits for each of
a few of its prefixes, each much longer than the one before: many texts have the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Any

import numpy as np

_DIGEST = 2  # bytes
# Tokens of a prefix beyond those that all prompts have in common, which say nothing of the user's words. Twice as many
# prefixes come to the same speed (simulated).
_BEYOND = (0, 2, 8, 32, 128)


@dataclass(frozen=True)
class Fingerprint:
    """Of a prompt of an earlier run.

    Args:
        group: that of the prompt.
        marks: lengths of prefixes in tokens, ascending, and their digests.
    """

    group: int
    marks: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, group: int, tokens: Sequence[int], common: int) -> Fingerprint:
        """The fingerprint of a prompt.

        Args:
            common: tokens at its beginning that it has in common with all others.
        """
        lengths = takewhile(lambda length: length <= len(tokens), (common + beyond for beyond in _BEYOND))
        return cls(group, [(length, _digest(tokens[:length])) for length in lengths])

    def shared(self, tokens: Sequence[int]) -> int | None:
        """How many tokens a prompt has in common with this one, at least; None if it does not begin as all prompts of
        the earlier run did."""
        return max(self._alike(tokens), default=None)

    def kept(self) -> list[Any]:
        """The fingerprint, as JSON has it."""
        return [self.group, [list(mark) for mark in self.marks]]

    @classmethod
    def read(cls, kept: Sequence[Any]) -> Fingerprint:
        """What `kept` gave.

        Raises:
            TypeError, ValueError: something else.
        """
        group, marks = kept
        return cls(int(group), [(int(length), int(digest)) for length, digest in marks])

    def _alike(self, tokens: Sequence[int]) -> Iterator[int]:
        for length, digest in self.marks:
            if _digest(tokens[:length]) != digest:
                return
            yield length


def _digest(tokens: Sequence[int]) -> int:
    return int.from_bytes(blake2b(np.array(tokens, "<i8").tobytes(), digest_size=_DIGEST).digest(), "little")
