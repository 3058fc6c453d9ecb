"""Never slower than plain decoding: what speculation brought of late, all it costs included, against plain steps."""

from __future__ import annotations

_WINDOW = 32  # rounds that are judged together
_AGAIN = 16  # after a pause: what lost before needs less to be paused again
_LOSS = 0.975  # of plain decoding's speed; below it the next rounds are plain
_PAUSES = (16, 128)  # rounds: the first pause, and the longest


class Guard:
    """Pauses speculation that loses.

    What a draft may bring is weighed before it is bought; what weighing costs, and drafters that find nothing, show
    only in the sum. A pause is a stretch of plain steps for which nobody is asked anything; each in a row is twice as
    long.
    """

    def __init__(self) -> None:
        self._left = 0
        self._pause = _PAUSES[0]
        self._window = _WINDOW
        self._rounds = 0
        self._tokens = 0
        self._steps = 0.0

    @property
    def pausing(self) -> bool:
        """Whether the next round is to be plain."""
        return self._left > 0

    def observe(self, tokens: int, steps: float) -> None:
        """A round brought `tokens` and took as long as so many plain steps."""
        if self._left:
            self._left -= 1
            return
        self._rounds += 1
        self._tokens += tokens
        self._steps += steps
        if self._rounds < self._window:
            return
        if self._tokens < _LOSS * self._steps:
            self._left, self._pause, self._window = self._pause, min(2 * self._pause, _PAUSES[1]), _AGAIN
        else:
            self._pause, self._window = _PAUSES[0], _WINDOW
        self._rounds, self._tokens, self._steps = 0, 0, 0.0
