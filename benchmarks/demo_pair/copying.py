"""How well a model in training copies: exact answers of held-out cases, by teacher forcing, so one pass a case.

Greedy decoding gives the right answer exactly if each token of it is the likeliest one after those before it."""

from __future__ import annotations

import random
from typing import Any

import torch
from tokenizers import Tokenizer

from .packing import encode
from .tasks import Maker, Texts


def exactness(
    model: Any, tokenizer: Tokenizer, held: Texts, tasks: tuple[str, ...], cases: int
) -> dict[str, list[float]]:
    """For each task the share of exact answers, and of right tokens, over `cases` cases of 8 to 30 words."""
    device = next(model.parameters()).device
    made: dict[str, list[float]] = {}
    for task in tasks:
        maker = Maker(held, random.Random(f"measure {task}"), 8, 30)  # noqa: S311 - no secret
        exact, right, all_tokens = 0, 0, 0
        for _ in range(cases):
            case = maker.case(task)
            chat = [{"role": "user", "content": case.prompt}, {"role": "assistant", "content": case.answer}]
            tokens, weights = encode(chat, tokenizer, 0.0)
            known = torch.tensor([tokens], device=device)
            wanted = torch.tensor(weights, device=device)[1:] > 0
            with torch.no_grad():
                likeliest = model(known).logits[0, :-1].argmax(-1)
            hits = (likeliest == known[0, 1:])[wanted]
            exact += bool(hits.all())
            right += int(hits.sum())
            all_tokens += len(hits)
        made[task] = [exact / cases, right / all_tokens]
    return made
