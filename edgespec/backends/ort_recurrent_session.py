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
        room, until = super()._chunk(), self._save_at - len(self._held)
        return min(room, until) if until > 0 else room

    def _mark(self) -> None:
        self._recurrent.mark(len(self._held))

    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        super()._pass_chain(tokens, logits=logits)
        if self._computed == self._save_at:
            self._recurrent.save(self._computed)
            for _, follower in self._followers:
                follower.keep(self._computed)

    def _run(self, tokens: Sequence[int], *, silent: int, logits: bool) -> None:
        super()._run(tokens, silent=silent, logits=logits)
        self._recurrent.passed(self._computed)

    def _cut(self, length: int) -> int:
        return self._recurrent.cut(length)
