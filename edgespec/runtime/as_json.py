"""Events as plain values for JSON: the form that `edgespec chat --json` prints, one object a line.

    {"event": "started", "prompt": 25, "cached": 0, "dropped": 0}
    {"event": "text", "text": "What kind", "tokens": [318, 722], "drafters": ["model"], "drafted": 3, "accepted": 1}
    {"event": "finished", "reason": "end", "stats": {...}, "notices": []}

`started`: tokens of the prompt, how many of them were in the cache, and how many of the oldest messages were left out.
`text`: what a round added, see `edgespec.Text`; by whom tokens were drafted in it, how many, and how many of them were
accepted. `finished`: why, see `edgespec.Finished`, and the figures, those of `edgespec.Stats` by their names, seconds
throughout; `drafters` has `drafted` and `accepted` tokens by drafter, `k_histogram` rounds by the number of tokens
drafted, and null is what is not known. Keys may be added, none is removed or changes its meaning.
"""

from __future__ import annotations

from typing import Any

from ..engine import Event, Finished, Started, Text
from ..stats import Stats


def as_json(event: Event) -> dict[str, Any]:
    """The event as a dict of strings, numbers, lists and dicts that `json.dumps` takes; see the module."""
    match event:
        case Started(prompt, cached, dropped):
            return {"event": "started", "prompt": prompt, "cached": cached, "dropped": dropped}
        case Text(text, tokens, round_):
            return {
                "event": "text",
                "text": text,
                "tokens": list(tokens),
                "drafters": sorted(set(round_.draft.drafters)),
                "drafted": len(round_.draft),
                "accepted": len(round_.path),
            }
        case Finished(reason, stats, notices):
            return {"event": "finished", "reason": reason, "stats": stats_as_json(stats), "notices": list(notices)}


def stats_as_json(stats: Stats) -> dict[str, Any]:
    """The same of an answer's figures."""
    return {
        "prompt": stats.prompt,
        "cached": stats.cached,
        "prompt_seconds": stats.prompt_seconds,
        "tokens": stats.tokens,
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
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
