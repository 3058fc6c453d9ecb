"""The loss of a draft: its divergence from the target's distribution, and the cross-entropy of what the target said.

Forward KL divergence over the target's likeliest tokens and one more for all the others together, which makes it a
lower bound of the divergence over the whole vocabulary.
"""

from __future__ import annotations

from typing import Any

_FLOOR = 1e-6  # of the probability of all other tokens, below which its logarithm is lost in rounding


def distillation_loss(logits: Any, likely: Any, logprobs: Any, said: Any, cross_entropy: float) -> Any:
    """The mean loss, a scalar tensor.

    Args:
        logits: the draft's, float32 [n, vocabulary].
        likely: the target's likeliest tokens, int64 [n, k]. Those that the draft does not have, which may be negative,
            count with all others.
        logprobs: their logarithms of probability, float32 [n, k].
        said: the target's tokens, int64 [n]; -1 where the draft does not have it, which has no cross-entropy.
        cross_entropy: the weight of the cross-entropy beside the divergence.
    """
    import torch  # noqa: PLC0415

    q = logits.log_softmax(-1)
    known = (likely >= 0) & (likely < logits.shape[-1])
    p = logprobs.exp() * known
    ours = q.gather(-1, likely * known)
    others = (1 - p.sum(-1)).clamp_min(_FLOOR)
    our_others = (1 - (ours.exp() * known).sum(-1)).clamp_min(_FLOOR)
    divergence = (p * (logprobs - ours)).sum(-1) + others * (others.log() - our_others.log())
    surprise = torch.nn.functional.nll_loss(q, said, ignore_index=-1, reduction="none")
    return (divergence + cross_entropy * surprise).mean()
