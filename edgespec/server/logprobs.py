"""Log probabilities as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..logprobs import Alternative, TokenLogprobs

_LEAST = -9999.0  # for -inf, which JSON does not have; the value that OpenAI's API has for very unlikely tokens


def chat(tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Those of a chat completion."""
    return {
        "content": [{**_token(each), "top_logprobs": [_token(other) for other in each.top]} for each in tokens],
        "refusal": None,
    }


def completion(tokens: Sequence[TokenLogprobs], offset: int = 0) -> dict[str, Any]:
    """Those of a completion.

    Args:
        offset: characters of the answer before these tokens.
    """
    offsets = []
    for each in tokens:
        offsets.append(offset)
        offset += len(_text(each.piece))
    return {
        "tokens": [_text(each.piece) for each in tokens],
        "token_logprobs": [_number(each.logprob) for each in tokens],
        "top_logprobs": [{_text(other.piece): _number(other.logprob) for other in each.top} for each in tokens],
        "text_offset": offsets,
    }


def _token(token: TokenLogprobs | Alternative) -> dict[str, Any]:
    return {"token": _text(token.piece), "bytes": list(token.piece), "logprob": _number(token.logprob)}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _number(logprob: float) -> float:
    return max(logprob, _LEAST)
