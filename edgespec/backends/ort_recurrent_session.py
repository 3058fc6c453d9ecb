"""One sequence of an ONNX model of which some layers have a state instead of keys and values."""

from __future__ import annotations

from collections.abc import Sequence

from .ort_recurrent import RecurrentRows
from .ort_session import OrtSession

# The next prompt of a chat differs near the end of the last one, where templates open the answer. The last token of a
# prompt is not prefilled.
_TAIL = 4


class OrtRecurrentSession(OrtSession):
    """A session in which tokens are owed after a rollback that goes too far back. It takes no trees."""

    _recurrent: RecurrentRows
    _save_at = -1  # the length at which the next state is saved

    def prefill(self, tokens: Sequence[int]) -> None:
        self._save_at = len(self._held) + len(tokens) - _TAIL if len(tokens) > _TAIL else -1
        super().prefill(tokens)

    def _chunk(self) -> int:
        room, until = self._room() - self.owed, self._save_at - len(self._held)
        return min(room, until) if until > 0 else room

    def _room(self) -> int:
        """The most tokens of a pass."""
        return self._exactness.rounded_down(min(self._most, self._passes.widest(len(self._held))))

    def _recompute(self, most: int) -> None:
        while self.owed > most:
            self._run(self._held[self._computed :][: self._room()], silent=0, logits=False)

    def _mark(self) -> None:
        self._recurrent.mark(len(self._held))

    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        owed = self._held[self._computed :]
        self._run([*owed, *tokens], silent=len(owed), logits=logits)
        self._decoded = len(tokens) if logits else 0
        if self._computed == self._save_at:
            self._recurrent.save(self._computed)

    def _run(self, tokens: Sequence[int], *, silent: int, logits: bool) -> None:
        """A pass over `tokens` after those that are computed; the first `silent` of them have no logits."""
        self._decoded = 0
        width = self._exactness.rounded_up(len(tokens))
        self._passes.chain(tokens, self._computed, width=width, silent=silent, logits=logits)
        self._computed += len(tokens)
        self._recurrent.passed(self._computed)

    def _cut(self, length: int) -> int:
        return self._recurrent.cut(length)
