"""Where the copying circuit lives: the dimensions of the residual stream that it adds, and its token codes.

own     code of the token at this place (in the embedding)
before  codes of the tokens one, two and three places back (written by the first new layer)
out     code of the token that followed the same context earlier (written by the second; read by the output head)
one     a constant, of which heads make queries and keys that depend on the position alone
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

OFFSETS = (1, 2, 3)


@dataclass(frozen=True)
class Layout:
    """Places in a residual stream of `base` + `extra` dimensions, of which the first `base` are the grown model's."""

    base: int
    code: int = 64
    before: int = 40
    extra: int = 256

    @classmethod
    def of(cls, width: int) -> Layout:
        """The layout of a grown model of that width."""
        return cls(width - cls.extra)

    @property
    def width(self) -> int:
        return self.base + self.extra

    @property
    def own(self) -> slice:
        return slice(self.base, self.base + self.code)

    @property
    def out(self) -> slice:
        return slice(self.own.stop, self.own.stop + self.code)

    def back(self, offset: int) -> slice:
        """The code of the token `offset` places back: the first `before` numbers of its own code."""
        start = self.out.stop + (offset - 1) * self.before
        return slice(start, start + self.before)

    @property
    def one(self) -> int:
        end: int = self.out.stop + OFFSETS[-1] * self.before
        return end


def token_codes(vocabulary: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Random unit vectors, float32 (vocabulary, size): nearly orthogonal, so a code says which token it is."""
    codes = torch.randn(vocabulary, size, generator=generator)
    return codes / codes.norm(dim=1, keepdim=True)
