"""A tiny language model in NumPy for tests and examples: fast, exact, with trees and rollback.

Its logits are a function of the last few tokens, so a wrong rollback, a lost token or a confused branch changes its
output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import Interrupted
from ..sampling import gumbel
from ..types import Floats
from . import Interrupt
from .sequence import SequenceCache
from .tree_layout import Branches

Rule = Callable[[Sequence[int]], Floats]

END = "<|im_end|>"
_SPECIALS = ("<|endoftext|>", "<|im_start|>", END)


class Bytes:
    """A vocabulary of the 256 bytes and three special tokens; characters outside ASCII are several tokens."""

    size = 256 + len(_SPECIALS)
    bos: int | None = None
    eos: int | None = 256 + _SPECIALS.index(END)
    template: str | None = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:  # noqa: ARG002
        tokens: list[int] = []
        while text:
            spelled = next((s for s in _SPECIALS if special and text.startswith(s)), None)
            tokens += [256 + _SPECIALS.index(spelled)] if spelled else text[0].encode()
            text = text[len(spelled or text[0]) :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def label(self, token: int) -> str:
        return f"<0x{token:02X}>" if token < 256 else _SPECIALS[token - 256]

    def is_eog(self, token: int) -> bool:
        return token >= 256 and _SPECIALS[token - 256] != "<|im_start|>"

    def specials(self) -> Sequence[str]:
        return _SPECIALS


def ngram_rule(vocab: int, *, order: int = 2, seed: int = 0, sharpness: float = 2.0) -> Rule:
    """Random logits, float32 [vocab], by the last `order` tokens; a greater `sharpness` lowers their entropy."""
    everything = np.arange(vocab, dtype=np.int64)

    def rule(context: Sequence[int]) -> Floats:
        place = 0
        for token in context[-order:]:
            place = place * (vocab + 1) + token + 1
        noise: Floats = (sharpness * gumbel(seed, place, everything)).astype(np.float32)
        return noise

    return rule


def blend(rule: Rule, other: Rule, weight: float) -> Rule:
    """A mixture of two rules, for a draft model: the greater the `weight` of `other`, the lower the acceptance rate."""
    return lambda context: ((1 - weight) * rule(context) + weight * other(context)).astype(np.float32)


def scripted(vocab: int, script: Sequence[int]) -> Rule:
    """Generates `script` token by token by the length of the context alone, and repeats it."""

    def rule(context: Sequence[int]) -> Floats:
        row = np.zeros(vocab, dtype=np.float32)
        row[script[len(context) % len(script)]] = 20.0
        return row

    return rule


class ToySession(SequenceCache):
    """A session over a rule. `passes` records the width of every decode, with what was owed.

    Args:
        reach: as in `Session`, to simulate a recurrent state; unless None, the session takes no trees.
        replays: likewise.
    """

    can_tree = True
    leaves = 512
    widest = 512
    identity = "toy"

    def __init__(
        self,
        rule: Rule,
        vocab: int,
        context: int = 4096,
        interrupt: Interrupt | None = None,
        *,
        reach: int | None = None,
        replays: bool = False,
    ) -> None:
        super().__init__(vocab, context)
        self.reach, self.replays = reach, replays
        if reach is not None or replays:
            self.can_tree, self.leaves = False, 0
        self._saved = 0  # the length to which it goes back, if it replays
        self._marked = False
        self.passes: list[int] = []
        self._rule = rule
        self._interrupt = interrupt
        self._rows: Floats = np.zeros((0, vocab), np.float32)

    def _free(self) -> None:
        self._held.clear()

    def _chunk(self) -> int:
        return self.context

    def _pass_chain(self, tokens: Sequence[int], *, logits: bool) -> None:
        if logits:
            self._compute(tokens, Branches(range(-1, len(tokens) - 1)))
        elif self._interrupt is not None and self._interrupt.is_set:
            raise Interrupted

    def _pass_tree(self, tokens: Sequence[int], branches: Branches) -> None:
        self._compute(tokens, branches)

    def _logits(self, n: int) -> Floats:
        return self._rows[:n]

    def _keep(self, branches: Branches, path: Sequence[int]) -> None:
        """It holds tokens only."""

    def _cut(self, length: int) -> int:
        if self.replays:
            return self._saved if self._saved <= length else 0
        far = self.reach is not None and len(self._held) - length > min(self.reach, len(self._held) - self._last - 1)
        return 0 if far else length

    def _mark(self) -> None:
        self._marked = True

    def _recompute(self, most: int) -> None:
        if self.owed > most:
            self._computed = len(self._held)
        if self._marked and not self.owed:
            self._saved, self._marked = len(self._held), False

    def _compute(self, tokens: Sequence[int], branches: Branches) -> None:
        if self._interrupt is not None and self._interrupt.is_set:
            raise Interrupted
        self.passes.append(self.owed + len(tokens))
        paths: list[list[int]] = []
        for token, parent in zip(tokens, branches.parents, strict=True):
            paths.append([*(paths[parent] if parent >= 0 else ()), token])
        self._rows = np.stack([self._rule([*self._held, *path]) for path in paths])


class ToyModel:
    """A rule with the byte vocabulary as a `Model`."""

    trained_context = 4096
    description = "toy"
    notices: Sequence[str] = ()
    weights = ""  # so that no calibration is kept

    def __init__(self, rule: Rule | None = None, interrupt: Interrupt | None = None) -> None:
        self.vocabulary = Bytes()
        self.sampling: dict[str, float] = {}
        self._rule = rule or ngram_rule(Bytes.size)
        self._interrupt = interrupt

    def session(self, context: int, interrupt: Interrupt | None = None) -> ToySession:
        return ToySession(self._rule, self.vocabulary.size, context, interrupt or self._interrupt)

    def close(self) -> None:
        """There is nothing to free."""
