"""Mask tokens behind places of answers, as a PARD draft reads them (arXiv 2504.18583)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .packing import Windows


@dataclass(frozen=True)
class Pard:
    """Guesses by mask tokens.

    Args:
        mask: a token that no text has.
        block: guesses of a pass.
        places: of each window of text, after which masks are put.
    """

    mask: int
    block: int = 12
    places: int = 96


@dataclass(frozen=True)
class Masked:
    """Windows with masks behind `places`: what a pass reads, int64 (rows, entries), and which entries see which, bool
    (rows, 1, entries, entries). `aims`, int64 (rows, places, block - 1), is the place whose distribution a mask has to
    predict, and `counts`, bool, whether it is one of the same answer's."""

    tokens: torch.Tensor
    positions: torch.Tensor
    sees: torch.Tensor
    aims: torch.Tensor
    counts: torch.Tensor

    @property
    def before(self) -> torch.Tensor:
        """The places whose next tokens are guessed, by depth: those after which masks are, and `aims`."""
        return torch.cat([self.aims[..., :1] - 1, self.aims], -1)


def masked(batch: Windows, pard: Pard, generator: torch.Generator) -> Masked:
    """Put masks behind places of answers, chosen at random."""
    rows, size = batch.tokens.shape
    device, ahead = batch.tokens.device, pard.block - 1
    answers = torch.zeros_like(batch.weights)
    answers[:, :-1] = batch.weights[:, 1:]  # a guess at a place is of the token after it
    drawn = torch.rand(answers.shape, generator=generator, device=device) + (answers > 0)
    places = drawn.topk(pard.places, dim=1).indices  # those of answers first
    steps = torch.arange(1, pard.block, device=device)
    aims = (places[:, :, None] + steps).clamp_max(size - 1)
    chat = batch.chats.gather(1, places)
    whole = (answers > 0).gather(1, places)[:, :, None] & (answers > 0).gather(1, aims.flatten(1)).view_as(aims)
    between = whole.long().cumprod(-1) > 0  # no gap: the same answer
    counts = between & (batch.chats.gather(1, aims.flatten(1)).view_as(aims) == chat[:, :, None])
    positions = (batch.positions.gather(1, places)[:, :, None] + steps).flatten(1)
    text = batch.mask()[:, 0]
    before = text.gather(1, places[:, :, None].expand(-1, -1, size)).repeat_interleave(ahead, 1)
    number = torch.arange(pard.places, device=device).repeat_interleave(ahead)
    own = (number[:, None] == number[None]).tril()
    sees = torch.zeros(rows, size + own.shape[0], size + own.shape[0], dtype=torch.bool, device=device)
    sees[:, :size, :size], sees[:, size:, :size], sees[:, size:, size:] = text, before, own
    masks = torch.full_like(positions, pard.mask)
    return Masked(
        torch.cat([batch.tokens, masks], 1), torch.cat([batch.positions, positions], 1), sees[:, None], aims, counts
    )
