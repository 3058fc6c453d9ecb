"""The sizes of a layer that keeps a state instead of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

#: llama.cpp's names of the families whose recurrent layers are converted to ONNX.
STATES_IN_ONNX = ("lfm2", "lfm2moe", "qwen35", "qwen35moe")


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A causal convolution over `kernel` tokens and, unless there are no heads, a state for each head.

    Args:
        kernel: tokens that the convolution sees.
        heads: the heads with a state of their own.
        groups: the keys that they share, a divisor of `heads`.
        head: the width of a head.
        state: the width of a key.
    """

    kernel: int
    heads: int = 0
    groups: int = 0
    head: int = 0
    state: int = 0

    @property
    def inner(self) -> int:
        """The width of all heads."""
        return self.heads * self.head

    @property
    def channels(self) -> int:
        """What is convolved: the heads' inputs, and two keys for each group."""
        return self.inner + 2 * self.groups * self.state

    def sizes(self) -> dict[str, int]:
        """By the words of roles.py."""
        return {
            "kernel": self.kernel,
            "inner": self.inner,
            "channels": self.channels,
            "mamba": self.inner + self.channels + self.heads,
            "state heads": self.heads,
            "state heads twice": 2 * self.heads,
            "state head": self.head,
            "groups": self.groups,
            "group": self.inner // max(1, self.groups),
        }

    def grouped(self, parts: str) -> tuple[range, ...]:
        """The rows of some of the parts q, k, v and z of a matrix that has all four of a group next to each other."""
        values = self.heads // self.groups * self.head
        widths = {"q": self.state, "k": self.state, "v": values, "z": values}
        ends = dict(zip(widths, accumulate(widths.values()), strict=True))
        return tuple(
            range(group * ends["z"] + ends[part] - widths[part], group * ends["z"] + ends[part])
            for part in parts
            for group in range(self.groups)
        )

    def tiled(self, offset: int, width: int) -> tuple[range, ...]:
        """The heads, of `width` rows each after the first `offset`, one of each group after the other.

        Checkpoints have the heads of a group next to each other; llama.cpp repeats the keys of all groups in turn.
        """
        each = self.heads // self.groups
        order = (head for first in range(each) for head in range(first, self.heads, each))
        return tuple(range(offset + head * width, offset + (head + 1) * width) for head in order)
