"""An explanation of the chosen draft length, from measured prices and acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..controller.calibration import Share
from ..prices.draft_length import best, break_even
from ..runtime.runtime import Runtime
from ..tools.tuning import plausible

_NAMES = {
    "lookup": ("look-ups", "are"),
    "model": ("your draft model", "is"),
    "cross-vocabulary": ("your draft model", "is"),
    "mtp": ("the model's head", "is"),
    "pard": ("your PARD draft model", "is"),
    "eagle": ("the EAGLE head", "is"),
    "eagle3": ("the EAGLE-3 head", "is"),
    "medusa": ("your Medusa heads", "are"),
    "exit": ("the model's first layers", "are"),
    "recycling": ("recycled guesses", "are"),
    "lookahead": ("lookahead's guesses", "are"),
}
_TRIES = 20  # verified guesses from which on an acceptance rate is reported
_DISTURBED = (
    "the measured prices of passes are implausible: other programs were running; `edgespec tune` measures them again"
)

_WIDTH = 4  # tokens of the pass that is described where no draft pays


def explained(runtime: Runtime) -> str:
    """The price of a wider pass on this machine, the acceptance rate of drafts, and what follows for the draft length;
    empty until a draft was verified."""
    curve = runtime.prices.curve()
    judged = {name: share for name, share in runtime.acceptance.items() if name in runtime.step_prices}
    if len(curve) < 2 or not judged:
        return ""
    if not (runtime.prices.trusted and plausible(curve)):
        return _DISTURBED
    known = {name: share.right for name, share in judged.items() if share.tries >= _TRIES}
    return _value(curve, runtime.step_prices, known) if known else _break_even(curve, runtime.step_prices, judged)


def _value(curve: Sequence[float], steps: Mapping[str, float], known: Mapping[str, float]) -> str:
    """The speedup of the drafter with the highest one."""
    found = {name: best(curve, steps[name], rate) for name, rate in known.items()}
    name = max(found, key=lambda name: (found[name].speedup, known[name]))
    k, speedup = found[name]
    here = f"{_price(curve, k)}; {' '.join(_named(name))} right {known[name]:.0%} of the time"
    if k:
        return f"{here}: drafts of {k} would give {speedup:.1f}x, and more where they are accepted more often"
    needed = break_even(curve, steps[name])
    return f"{here}: " + ("no draft can pay" if needed is None else f"drafts pay where that is above {needed:.0%}")


def _break_even(curve: Sequence[float], steps: Mapping[str, float], judged: Mapping[str, Share]) -> str:
    """The acceptance rate from which on drafts pay, of the drafter with most verified guesses: too few for a rate."""
    name = max(judged, key=lambda name: judged[name].tries)
    who, verb = _named(name)
    if (needed := break_even(curve, steps[name])) is None:
        return f"{_price(curve, 0)}: no draft of {who} can pay"
    pays = f"drafts pay where {who} {verb} right more than {needed:.0%} of the time"
    return f"{_price(curve, 0)}: {pays}; too few guesses so far to know the rate"


def _price(curve: Sequence[float], k: int) -> str:
    width = min(1 + k if k else _WIDTH, len(curve))
    return f"this machine checks {width} tokens for the price of {max(1.0, curve[width - 1] / curve[0]):.1f}"


def _named(name: str) -> tuple[str, str]:
    return _NAMES.get(name, (f"the drafter {name}", "is"))
