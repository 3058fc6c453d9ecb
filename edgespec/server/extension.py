"""What an answer says of drafts, beside the fields of OpenAI's API, where the client asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..engine import Finished, Text
from ..runtime.as_json import stats_as_json


def round_as_json(event: Text, text_of: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """A round: its text in parts with the drafter that guessed them, null for the target's own, what was rejected, the
    tokens drafted, and the milliseconds it took.

    Args:
        text_of: the text of tokens.
    """
    round_ = event.round
    lost = [token for node, token in enumerate(round_.draft.tokens) if node not in round_.path]
    return {
        "spans": [[span.text, span.drafter or None] for span in event.spans if not span.reasoning],
        "reasoning_spans": [[span.text, span.drafter or None] for span in event.spans if span.reasoning],
        "rejected": [text_of([token]) for token in lost],
        "k": len(round_.draft),
        "tokens": len(event.tokens),
        "ms": 1e3 * (round_.verify_seconds + round_.draft_seconds),
    }


def end_as_json(event: Finished) -> dict[str, Any]:
    """The end of an answer: its statistics as `edgespec chat --json` prints them."""
    return {"reason": event.reason, "stats": stats_as_json(event.stats), "notices": list(event.notices)}
