"""Why drafts are as long as they are, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..controller.calibration import Share
from ..runtime.runtime import Runtime
from ..tools.tuning import best, break_even, plausible

_NAMES = {
    "lookup": ("look-ups", "are"),
    "model": ("your draft model", "is"),
    "cross-vocabulary": ("your draft model", "is"),
}
_TRIES = 20  # judged guesses from which on their share means something
_DISTURBED = "the prices of passes known here cannot be true: something else was running; `edgespec tune` measures anew"

_WIDTH = 4  # tokens of the pass that is spoken of where none pays


def explained(runtime: Runtime) -> str:
    """What this machine asks for a wider pass, how often drafts are right, and what follows; empty while nothing is
    known of any draft."""
    curve = runtime.prices.curve()
    judged = {name: share for name, share in runtime.acceptance.items() if name in runtime.step_prices}
    if len(curve) < 2 or not judged:
        return ""
    if not (runtime.prices.trusted and plausible(curve)):
        return _DISTURBED
    known = {name: share.right for name, share in judged.items() if share.tries >= _TRIES}
    return _merit(curve, runtime.step_prices, known) if known else _demand(curve, runtime.step_prices, judged)


def _merit(curve: Sequence[float], steps: Mapping[str, float], known: Mapping[str, float]) -> str:
    """What the drafter that gives most is worth here."""
    found = {name: best(curve, steps[name], rate) for name, rate in known.items()}
    name = max(found, key=lambda name: (found[name].speedup, known[name]))
    k, speedup = found[name]
    here = f"{_price(curve, k)}; {' '.join(_named(name))} right {known[name]:.0%} of the time"
    if k:
        return f"{here}: drafts of {k} would give {speedup:.1f}x, and more where guesses are surer than that"
    needed = break_even(curve, steps[name])
    return f"{here}: " + ("no draft can pay" if needed is None else f"drafts pay where that is above {needed:.0%}")


def _demand(curve: Sequence[float], steps: Mapping[str, float], judged: Mapping[str, Share]) -> str:
    """How good the drafter that is known best must be: how good it is nobody can say yet."""
    name = max(judged, key=lambda name: judged[name].tries)
    who, verb = _named(name)
    if (needed := break_even(curve, steps[name])) is None:
        return f"{_price(curve, 0)}: no draft of {who} can pay"
    pays = f"drafts pay where {who} {verb} right more than {needed:.0%} of the time"
    return f"{_price(curve, 0)}: {pays}; too few guesses yet to tell"


def _price(curve: Sequence[float], k: int) -> str:
    width = min(1 + k if k else _WIDTH, len(curve))
    return f"this machine checks {width} tokens for the price of {max(1.0, curve[width - 1] / curve[0]):.1f}"


def _named(name: str) -> tuple[str, str]:
    return _NAMES.get(name, (f"the drafter {name}", "is"))
