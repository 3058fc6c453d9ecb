"""Cases and dialogues as windows of tokens: several chats a window, of which none sees another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

Chat = list[dict[str, str]]


@dataclass(frozen=True)
class Windows:
    """A batch. `tokens`, `positions` and `chats` (the number of the chat in its window): int64 (rows, window);
    `weights`: float32 (rows, window), of the loss of predicting that token."""

    tokens: torch.Tensor
    positions: torch.Tensor
    chats: torch.Tensor
    weights: torch.Tensor

    def mask(self) -> torch.Tensor:
        """bool (rows, 1, window, window): which tokens a token sees, those before it in its own chat and itself."""
        size = self.tokens.shape[1]
        earlier = torch.ones(size, size, dtype=torch.bool, device=self.tokens.device).tril()
        return (earlier & (self.chats[:, :, None] == self.chats[:, None, :]))[:, None]

    def to(self, device: str) -> Windows:
        return Windows(*(each.to(device) for each in (self.tokens, self.positions, self.chats, self.weights)))


def encode(chat: Chat, tokenizer: Tokenizer, prompt_weight: float) -> tuple[list[int], list[float]]:
    """The tokens of a chat in ChatML, and the weights of their losses: 1 for what the assistant says and its end."""
    tokens: list[int] = []
    weights: list[float] = []
    for message in chat:
        head = tokenizer.encode(f"<|im_start|>{message['role']}\n").ids
        said = tokenizer.encode(f"{message['content']}<|im_end|>").ids
        end = tokenizer.encode("\n").ids
        own = 1.0 if message["role"] == "assistant" else prompt_weight
        tokens += head + said + end
        weights += [0.0] * len(head) + [own] * len(said) + [0.0] * len(end)
    return tokens, weights


def windows(
    encoded: Iterator[tuple[list[int], list[float]]], rows: int, window: int, rng: random.Random
) -> Iterator[Windows]:
    """Batches for ever: each window takes chats while they fit; one that does not fit anywhere begins the next
    batch. A chat longer than a window is cut at its end."""
    waiting: list[tuple[list[int], list[float]]] = []
    while True:
        filled: list[list[tuple[list[int], list[float]]]] = [[] for _ in range(rows)]
        room = [window] * rows
        while True:
            tokens, weights = waiting.pop() if waiting else next(encoded)
            tokens, weights = tokens[:window], weights[:window]
            fitting = [row for row in range(rows) if room[row] >= len(tokens)]
            if not fitting:
                waiting.append((tokens, weights))
                break
            row = rng.choice(fitting)
            filled[row].append((tokens, weights))
            room[row] -= len(tokens)
        yield _batch(filled, window)


def _batch(filled: list[list[tuple[list[int], list[float]]]], window: int) -> Windows:
    shape = (len(filled), window)
    tokens, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    chats, weights = torch.full(shape, -1), torch.zeros(shape)
    for row, packed in enumerate(filled):
        at = 0
        for number, (own, own_weights) in enumerate(packed):
            place = slice(at, at + len(own))
            tokens[row, place] = torch.tensor(own)
            positions[row, place] = torch.arange(len(own))
            chats[row, place] = number
            weights[row, place] = torch.tensor(own_weights)
            weights[row, at] = 0.0  # the first token has nothing before it
            at += len(own)
    return Windows(tokens, positions, chats, weights)
