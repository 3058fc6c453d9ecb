"""Why drafts are as long as they are, in words."""

from __future__ import annotations

from ..runtime import Runtime
from ..tuning import best, break_even

_NAMES = {"lookup": "look-ups are", "model": "your draft model is", "words": "your draft model is"}


def explained(runtime: Runtime) -> str:
    """What this machine asks for a wider pass, how often drafts are right, and what follows; empty while nothing is
    known of any draft."""
    curve = runtime.prices.curve()
    known = {name: rate for name, rate in runtime.acceptance.items() if name in runtime.step_prices}
    if len(curve) < 2 or not known:
        return ""
    found = {name: best(curve, runtime.step_prices[name], rate) for name, rate in known.items()}
    name = max(found, key=lambda name: (found[name].speedup, known[name]))
    k, speedup = found[name]
    right = f"{_NAMES.get(name, f'the drafter {name} is')} right {known[name]:.0%} of the time"
    width = 1 + (k or min(3, len(curve) - 1))
    here = f"this machine checks {width} tokens for the price of {curve[width - 1] / curve[0]:.1f}; {right}"
    if k:
        return f"{here}: drafts of {k} would give {speedup:.1f}x, and more where guesses are surer than that"
    needed = break_even(curve, runtime.step_prices[name])
    return f"{here}: " + ("no draft can pay" if needed is None else f"drafts pay where that is above {needed:.0%}")
