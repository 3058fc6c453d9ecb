"""Events as JSON: the format that `edgespec chat --json` prints, one object per line.

    {"event": "started", "prompt": 25, "cached": 0, "dropped": 0}
    {"event": "text", "text": "What kind", "reasoning": "", "tokens": [318, 722], "drafters": ["model"], "drafted": 3,
     "accepted": 1}
    {"event": "finished", "reason": "end", "stats": {...}, "notices": []}

`started`: the tokens of the prompt, how many of them were in the KV cache, and how many messages were dropped. `text`:
the text, the reasoning and the tokens of a round, see `edgespec.Text`; the drafters, and the tokens drafted and
accepted. `finished`: the reason, see `edgespec.Finished`, and the statistics, named as in `edgespec.Stats`, times in
seconds; `drafters` has the `drafted` and `accepted` tokens by drafter, `k_histogram` the number of rounds by the number
of tokens drafted. Values that are not known are null. Keys may be added, but are not removed, and do not change their
meaning.
"""

from __future__ import annotations

from typing import Any

from ..engine import Event, Finished, Started, Text
from ..stats import Stats


def as_json(event: Event) -> dict[str, Any]:
    """The event as a dict for `json.dumps`, in the format of this module's docstring."""
    match event:
        case Started(prompt, cached, dropped):
            return {"event": "started", "prompt": prompt, "cached": cached, "dropped": dropped}
        case Text(text, tokens, round_):
            return {
                "event": "text",
                "text": text,
                "reasoning": event.reasoning,
                "tokens": list(tokens),
                "drafters": sorted(set(round_.draft.drafters)),
                "drafted": len(round_.draft),
                "accepted": len(round_.path),
            }
        case Finished(reason, stats, notices):
            return {"event": "finished", "reason": reason, "stats": stats_as_json(stats), "notices": list(notices)}


def stats_as_json(stats: Stats) -> dict[str, Any]:
    """The statistics of an answer in the same format."""
    return {
        "prompt": stats.prompt,
        "cached": stats.cached,
        "prompt_seconds": stats.prompt_seconds,
        "tokens": stats.tokens,
        "reasoning_tokens": stats.reasoning_tokens,
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "passengers": stats.passengers,
        "acceptance_rate": stats.acceptance_rate,
        "mean_accepted_length": stats.mean_accepted_length,
        "seconds": stats.seconds,
        "engine_seconds": stats.engine_seconds,
        "tokens_per_second": stats.tokens_per_second,
        "plain_tokens_per_second": stats.plain_tokens_per_second,
        "speedup": stats.speedup,
        "speedup_error": stats.plain_error,
        "drafters": {name: {"drafted": of, "accepted": n} for name, (of, n) in stats.by_drafter.items()},
        "k_histogram": {str(k): n for k, n in stats.k_histogram.items()},
    }
