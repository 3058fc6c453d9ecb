"""The best that any choice of drafters and lengths could do, knowing the text."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.drafters.lookup import Lookup
from edgespec.sampling import Sampling
from edgespec.verify import RoundContext, verifier

from .trace import Item, Trace
from .world import WIDTHS, Curve


def clairvoyant(trace: Trace, curve: Curve) -> float:
    """Tokens per plain step's time of one who drafts, at each place, just as far as it pays.

    Every drafted token is right, from the look-up for nothing where that has it, else from the draft model at a step
    each; the rounds are cut by dynamic programming. No policy can do better with these drafters.
    """
    lookup = Lookup()
    seconds = sum(_shortest(_costs(item, lookup, curve.step), curve.seconds) for item in trace.items)
    return trace.tokens / seconds


def _costs(item: Item, lookup: Lookup, step: float) -> list[float | None]:
    """For each token of the answer what a right guess costs; None where nobody has one."""
    context = list(item.prompt)
    round_context = RoundContext(verifier("match"), Sampling(), context, lambda _token: False)
    costs: list[float | None] = []
    for at, token in enumerate(item.answer):
        lookup.begin(round_context)
        looked_up = any(guess.token == token for guess in lookup.guess((), 1))
        costs.append(0.0 if looked_up else step if int(item.guesses[at, 0, 0]) == token else None)
        context.append(token)
    return costs


def _shortest(costs: Sequence[float | None], seconds: Sequence[float]) -> float:
    """The least time to say all tokens, in rounds of right guesses and one token of the target's own."""
    best = [0.0] * (len(costs) + 1)
    for at in reversed(range(len(costs))):
        best[at] = seconds[0] + best[at + 1]
        drafting = 0.0
        for n in range(1, min(WIDTHS, len(costs) - at)):
            cost = costs[at + n - 1]
            if cost is None:
                break
            drafting += cost
            best[at] = min(best[at], drafting + seconds[n] + best[at + n + 1])
    return best[0]
