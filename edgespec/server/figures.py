"""Usage and timings of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..stats import Stats

PREDICTION = "prediction"  #: the drafter of the text that the client predicted


def usage(answers: Sequence[Stats], prompts: int = 1) -> dict[str, Any]:
    """OpenAI's usage of one or several answers.

    Args:
        prompts: the number of prompts; the answers to one of them count its tokens once.
    """
    each = max(1, len(answers) // prompts)
    prompt, cached = (sum(getattr(stats, name) for stats in answers[::each]) for name in ("prompt", "cached"))
    tokens = sum(stats.tokens for stats in answers)
    predicted = [stats.of_drafter(PREDICTION) for stats in answers]
    accepted = sum(accepted for _, accepted in predicted)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": sum(stats.reasoning_tokens for stats in answers),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(drafted for drafted, _ in predicted) - accepted,
        },
    }


def timings(stats: Stats) -> dict[str, Any]:
    """The object of that name in answers of llama.cpp's server. Times are in milliseconds."""
    computed, prompt_ms, ms = stats.prompt - stats.cached, 1e3 * stats.prompt_seconds, 1e3 * stats.seconds
    return {
        "cache_n": stats.cached,
        "prompt_n": computed,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / computed if computed else 0.0,
        "prompt_per_second": 1e3 * computed / prompt_ms if prompt_ms else 0.0,
        "predicted_n": stats.tokens,
        "predicted_ms": ms,
        "predicted_per_token_ms": ms / stats.tokens if stats.tokens else 0.0,
        "predicted_per_second": stats.tokens_per_second,
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
    }


def finish_reason(reason: str) -> str:
    """OpenAI's word for the reason of `Finished`."""
    return "length" if reason in ("length", "context") else "stop"
