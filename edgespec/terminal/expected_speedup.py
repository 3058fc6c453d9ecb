"""What a pair can bring on this machine, by what earlier runs measured and learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from ..backends import Device, Interrupt, Model, Session, open_model
from ..controller.calibration import Share
from ..library import Job, fitted
from ..prices import Prices, recall
from ..runtime.learned import Learned
from ..runtime.loading import Files
from ..tools.tuning import best, plausible

_ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
_DEAR = 0.25  # of a plain step, for a draft's
_JUDGED = 50  # guesses after which a share is worth saying


def gains(target: Path, draft: Path) -> Iterator[str]:
    """What prices known from earlier runs promise, and what would be better."""
    with ExitStack() as stack:
        device = fitted(Files(target, draft), Device(), Job())
        models: list[Model] = []
        sessions: list[Session] = []
        for path, where in ((target, device), (draft, device.of_draft())):
            model = open_model(path, where, Interrupt())
            stack.callback(model.close)
            models.append(model)
            sessions.append(model.session(512))
            stack.callback(sessions[-1].close)
        prices, drafting = map(recall, sessions)
        if prices is None or drafting is None:
            yield "speedup: no prices are known here yet; `edgespec tune` measures them, and so does the first chat"
            return
        learned = Learned.of(models)
    yield from promised(prices, drafting, learned.calibration("match").summary().get("model"))


def promised(prices: Prices, drafting: Prices, learned: Share | None) -> Iterator[str]:
    """The same of prices, and of how often the draft's likeliest guess was right in earlier chats."""
    curve, step = prices.curve(), drafting.plain()
    if not plausible(curve):
        yield "speedup: the prices known here cannot be true: something else was running; `edgespec tune` measures anew"
        return
    yield (
        f"price: a plain step takes {1e3 * curve[0]:.1f} ms, a step of the draft {1e3 * step:.1f}: "
        f"{step / curve[0]:.2f} of it"
    )
    yield "speedup at the prices of this machine, by how often a drafted token is right:"
    for acceptance in _ACCEPTANCES:
        yield f"{acceptance:6.0%}  {_said(best(curve, step, acceptance))}"
    if learned is not None and learned.tries >= _JUDGED:
        yield f"learned here: {learned.right:.0%} of the draft's first guesses were right, which means " + _said(
            best(curve, step, learned.right)
        )
    else:
        yield "learned here: not enough yet; a few chats with this pair tell how often it is right"
    if step > _DEAR * curve[0]:
        yield "better: the draft is dear for this target; one with fewer parameters, or a coarser quantization of it"
    elif learned is not None and learned.tries >= _JUDGED and not best(curve, step, learned.right).k:
        yield "better: the draft is too often wrong; one tuned as the target is, or none (--draft none)"


def _said(found: tuple[int, float]) -> str:
    k, gain = found
    return f"{gain:.2f}x at K = {k}" if k else "plain decoding"
