"""The target's own answers to whole dialogues, many at a time by torch, where `edgespec distill` asks one by one."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer

_ENDS = (0, 2)  # of a text, of a turn
_PADDING = 0


@dataclass(eq=False)
class Dialogue:
    """What the user says, turn by turn, and the text so far: its tokens, and 1.0 for those that the target said."""

    turns: Sequence[str]
    tokens: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    ended: bool = False  #: an answer was too long, so that nothing can follow it

    def add(self, tokens: Sequence[int], weight: float) -> None:
        self.tokens += tokens
        self.weights += [weight] * len(tokens)


@dataclass(frozen=True)
class Asking:
    """How the target is asked.

    Args:
        rows: dialogues at a time.
        longest: tokens of an answer; a longer one ends its dialogue.
        most: tokens of a dialogue, after which no more is asked.
        temperature: 0 is greedy.
    """

    rows: int = 2048
    longest: int = 80
    most: int = 600
    temperature: float = 0.0


class Answering:
    """Asks a Llama of transformers, on the device on which it is."""

    def __init__(self, model: Any, tokenizer: Tokenizer, asking: Asking) -> None:
        self._model, self._asking = model, asking
        self._device = next(model.parameters()).device
        self._opening = tokenizer.encode("<|im_start|>assistant\n").ids
        self._closing = tokenizer.encode("\n").ids
        self._tokenizer = tokenizer
        # transformers has renamed it in 5.x.
        self._keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def answered(self, chats: Sequence[Sequence[str]], rng: random.Random) -> Iterator[Dialogue]:
        """The dialogues in which the target answers the turns of each chat, in another order."""
        ordered = sorted(chats, key=lambda turns: (len(turns), rng.random()))
        for start in range(0, len(ordered), self._asking.rows):
            together = [Dialogue(turns) for turns in ordered[start : start + self._asking.rows]]
            for number in range(max(len(each.turns) for each in together)):
                self._turn([each for each in together if number < len(each.turns) and not each.ended], number)
            yield from (each for each in together if any(each.weights))

    def _turn(self, dialogues: list[Dialogue], number: int) -> None:
        """Ask and answer one turn of each."""
        for each in dialogues:
            turn = self._tokenizer.encode(f"<|im_start|>user\n{each.turns[number]}<|im_end|>\n").ids
            each.add([*turn, *self._opening], 0.0)
            each.ended = len(each.tokens) >= self._asking.most
        asked = [each for each in dialogues if not each.ended]
        if not asked:
            return
        for each, said in zip(asked, self._said([each.tokens for each in asked]), strict=True):
            each.ended = said[-1] not in _ENDS
            if not each.ended:
                each.add(said, 1.0)
                each.add(self._closing, 0.0)

    def _said(self, texts: Sequence[Sequence[int]]) -> list[list[int]]:
        """What follows each text, up to an end, or `longest` tokens without one."""
        width = max(map(len, texts))
        tokens = torch.full((len(texts), width), _PADDING)
        for row, text in enumerate(texts):
            tokens[row, width - len(text) :] = torch.tensor(text)
        sees = (torch.arange(width)[None] >= width - torch.tensor([len(text) for text in texts])[:, None]).long()
        with torch.no_grad():
            return self._decoded(tokens.to(self._device), sees.to(self._device))

    def _decoded(self, tokens: torch.Tensor, sees: torch.Tensor) -> list[list[int]]:
        """The tokens after each text of `tokens`, int64 (texts, width), where `sees` is 1 and not padding."""
        from transformers import DynamicCache  # noqa: PLC0415

        positions, cache = (sees.cumsum(1) - 1).clamp_min(0), DynamicCache()
        ends = torch.tensor(_ENDS, device=self._device)
        said: list[list[int]] = [[] for _ in tokens]
        texts = torch.arange(len(tokens), device=self._device)  # of which the rows are
        going = torch.ones_like(texts, dtype=torch.bool)
        for _ in range(self._asking.longest):
            made = self._model(
                input_ids=tokens,
                attention_mask=sees,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self._keyword: cache},
            )
            chosen = self._chosen(made.logits[:, -1])
            for text, token in zip(texts[going].tolist(), chosen[going].tolist(), strict=True):
                said[text].append(token)
            going &= ~torch.isin(chosen, ends)
            if not bool(going.any()):
                break
            tokens, positions = chosen[:, None], positions[:, -1:] + 1
            sees = torch.cat([sees, torch.ones_like(tokens)], 1)
            if 2 * int(going.sum()) < len(going):  # most answers are short: go on without those that ended
                cache.batch_select_indices(going.nonzero()[:, 0])
                tokens, positions, sees, texts = (each[going] for each in (tokens, positions, sees, texts))
                going = going[going]
        return said

    def _chosen(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._asking.temperature:
            return logits.argmax(-1)
        return torch.multinomial((logits.float() / self._asking.temperature).softmax(-1), 1)[:, 0]
