"""Never slower than plain decoding: what speculation brought of late, all it costs included, against plain steps."""

from __future__ import annotations

_WINDOW = 32  # rounds that are judged together
_PROBATION = 16  # rounds judged together after a pause
_LOSS = 0.98  # of plain decoding's speed; below it the next rounds are plain: windows are short, and text varies
_EVEN = 1.0  # the same on probation: what lost before must not lose again
_GAIN = 1.03  # and what ends probation
_LISTENING = 4  # rounds of a pause, in the last of which somebody may wake it: even that is not free
_WAKING = 2  # times in a row that somebody is sure of the next token, and the pause is over
_PAUSES = (16, 128)  # rounds: the first pause, and the longest


class Guard:
    """Pauses speculation that loses.

    What a draft may bring is weighed before it is bought; what weighing costs, and drafters that find nothing, show
    only in the sum. A pause is a stretch of plain steps; each in a row is twice as long. It ends early where the text
    begins to go as it went before.
    """

    def __init__(self) -> None:
        self._left = 0
        self._sure = 0
        self._pause = _PAUSES[0]
        self._window = _WINDOW
        self._rounds = 0
        self._tokens = 0
        self._steps = 0.0

    @property
    def pausing(self) -> bool:
        """Whether the next round is to be plain."""
        return self._left > 0

    @property
    def listening(self) -> bool:
        """Whether this is a round of a pause in which somebody may wake it."""
        return self._left > 0 and self._left % _LISTENING == 0

    def hear(self, sure: bool) -> None:
        """Whether somebody who costs nothing is sure of the next token."""
        self._sure = self._sure + 1 if sure else 0
        if self._sure == _WAKING:
            self._left = self._sure = 0

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
        probation = self._window == _PROBATION
        if self._tokens < (_EVEN if probation else _LOSS) * self._steps:
            self._left, self._pause, self._window = self._pause, min(2 * self._pause, _PAUSES[1]), _PROBATION
            self._sure = 0
        elif not probation or self._tokens >= _GAIN * self._steps:
            self._pause, self._window = _PAUSES[0], _WINDOW
        self._rounds, self._tokens, self._steps = 0, 0, 0.0
