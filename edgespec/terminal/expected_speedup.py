"""The speedup that a pair can give on this machine, by the prices and acceptance rates of earlier runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from ..backends import Device, Interrupt, Model, Session, open_model
from ..backends.parallel import parallel_of
from ..controller.calibration import Share
from ..library import Job, fitted
from ..prices import Prices, recall
from ..prices.draft_length import best
from ..runtime.learned import Learned
from ..runtime.loading import Files
from ..tools.tuning import plausible

_ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
_EXPENSIVE_STEP = 0.25  # of a plain step, for a draft's
_VERIFIED = 50  # guesses from which on an acceptance rate is reported


def expected_speedup(target: Path, draft: Path) -> Iterator[str]:
    """The expected speedup by the prices of earlier runs, and advice, in lines."""
    with ExitStack() as stack:
        device = fitted(Files(target, (draft,)), Device(), Job())
        models: list[Model] = []
        sessions: list[Session] = []
        for path, where in ((target, device), (draft, device.of_draft(draft))):
            model = open_model(path, where, Interrupt())
            stack.callback(model.close)
            models.append(model)
            sessions.append(model.session(512))
            stack.callback(sessions[-1].close)
        prices, drafting = map(recall, sessions)
        if prices is None or drafting is None:
            yield "speedup: no prices are known here yet; `edgespec tune` measures them, and so does the first chat"
            return
        parallel = parallel_of(models[1])
        learned = Learned.of(models).calibration("match").summary().get("pard" if parallel else "model")
    yield from speedup_lines(prices, drafting, learned, parallel.guesses if parallel else 1)


def speedup_lines(prices: Prices, drafting: Prices, learned: Share | None, guesses: int = 1) -> Iterator[str]:
    """The same by given prices; `learned` is the acceptance rate of the draft's likeliest guess in earlier chats, and
    `guesses` how many tokens a pass of the draft guesses."""
    curve, step = prices.curve(), drafting.price(guesses) / guesses
    if not plausible(curve):
        yield ("speedup: the known prices are implausible: other programs were running; `edgespec tune` measures again")
        return
    yield (
        f"price: a plain step takes {1e3 * curve[0]:.1f} ms, a step of the draft {1e3 * step:.1f}: "
        f"{step / curve[0]:.2f} of it"
    )
    yield "speedup at the prices of this machine, by the acceptance rate of a drafted token:"
    for acceptance in _ACCEPTANCES:
        yield f"{acceptance:6.0%}  {_said(best(curve, step, acceptance))}"
    if learned is not None and learned.tries >= _VERIFIED:
        yield f"measured here: {learned.right:.0%} of the draft's first guesses were accepted, which means " + _said(
            best(curve, step, learned.right)
        )
    else:
        yield "measured here: too few guesses so far; a few chats with this pair measure the acceptance rate"
    if step > _EXPENSIVE_STEP * curve[0]:
        yield "better: the draft is slow for this target; use one with fewer parameters or a coarser quantization"
    elif learned is not None and learned.tries >= _VERIFIED and not best(curve, step, learned.right).k:
        yield "better: the draft is rejected too often; use one with the target's instruction tuning, or --draft none"


def _said(found: tuple[int, float]) -> str:
    k, gain = found
    return f"{gain:.2f}x at K = {k}" if k else "plain decoding"
