"""What time is worth: how fast the text just ahead is generated, by what look-ups offer for it.

All tokens of an answer must be generated. So a token that a draft adds saves the time that the text *just ahead* takes
a token, and not what texts took on the average: where text is slow, drafting time is not dear because a copy before it
was fast. How fast the text ahead is can be seen from what the free drafters offer: nothing, little, or much.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence

from .prompt_groups import GroupMean

# Tokens per plain step that the best free draft is expected to bring: nothing is offered, a little, or much.
_EDGES = (1.05, 2.2)
_AHEAD = 8  # tokens that count as just ahead
_MEMORY = 0.98  # of a speed, each time
_PRIOR = 8.0  # plain steps for which the average counts beside what followed an offer, and that beside a group's


class _Speed:
    """Tokens, and the plain steps that they took."""

    def __init__(self) -> None:
        self.tokens = self.steps = 0.0

    def observe(self, tokens: float, steps: float) -> None:
        self.tokens = _MEMORY * self.tokens + tokens
        self.steps = _MEMORY * self.steps + steps


class _Ahead:
    """The tokens from one round on, and the plain steps that they took."""

    def __init__(self, offer: int) -> None:
        self.offer = offer
        self.tokens = 0
        self.steps = 0.0


def group_speeds() -> list[GroupMean]:
    """Empty records of the speeds in groups of prompts, one for each kind of offer."""
    return [GroupMean(_MEMORY, _PRIOR) for _ in range(len(_EDGES) + 1)]


class TimeValue:
    """Tokens that a plain step's time is worth, at least the one of plain decoding.

    Every round is recorded by the draft that the free drafters offered in it: the tokens and the time of that round and
    those after it, until there are `_AHEAD` tokens. Answers to prompts that begin alike are recorded apart, too.

    Args:
        in_group: their records so far, see `group_speeds`.
    """

    def __init__(self, in_group: Sequence[GroupMean] = ()) -> None:
        self._average = _Speed()
        self._after = [_Speed() for _ in range(len(_EDGES) + 1)]
        self._in_group = in_group or group_speeds()
        self._open = deque[_Ahead]()

    def enter(self, group: int, remembered: Collection[int]) -> None:
        """An answer of a group of prompts begins, see `GroupMean.enter`."""
        self._open.clear()
        for mean in self._in_group:
            mean.enter(group, remembered)

    def average(self) -> float:
        """The speed of late, in tokens per plain step."""
        return max(1.0, self._average.tokens / self._average.steps if self._average.steps else 0.0)

    def ahead(self, offer: float) -> float:
        """The speed expected of the text just ahead, in tokens per plain step, in a round that is recorded so.

        Args:
            offer: tokens per plain step that the round is expected to bring with the best free draft.
        """
        kind = bisect_right(_EDGES, offer)
        self._open.append(_Ahead(kind))
        after = self._after[kind]
        speed = (after.tokens + _PRIOR * self.average()) / (after.steps + _PRIOR)
        return max(1.0, offer, self._in_group[kind].given(speed))

    def observe(self, tokens: int, steps: float) -> None:
        """A round brought `tokens` and took as long as so many plain steps."""
        self._average.observe(tokens, steps)
        for ahead in self._open:
            ahead.tokens += tokens
            ahead.steps += steps
        while self._open and self._open[0].tokens >= _AHEAD:
            done = self._open.popleft()
            self._after[done.offer].observe(done.tokens, done.steps)
            self._in_group[done.offer].add(done.tokens, done.steps)
