"""What the routes share: the loaded model in its slots, the settings, the metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..controller.calibration import Share
from ..runtime.runtime import Runtime
from .computing import Computing
from .errors import Refused
from .metrics import Metrics
from .settings import Settings
from .slots import Slots


class Service:
    """A server without its model until `open` is called, which may be on another thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.started = int(time.time())
        self._computing: Computing | None = None
        self._runtime: Runtime | None = None
        self.metrics.watch(self._busy, self._queued)

    def open(self, runtimes: Sequence[Runtime], settings: Settings) -> None:
        """Serve with these runtimes over the same weights, one for each slot.

        Args:
            settings: those that the model may have completed: its sampling and its name.
        """
        self.settings = settings
        self._runtime = runtimes[0]
        self._computing = Computing(Slots(runtimes, settings.queue), self.metrics, settings.patience)

    @property
    def is_ready(self) -> bool:
        """Whether a model is loaded."""
        return self._computing is not None

    @property
    def computing(self) -> Computing:
        """The slots. Raises Refused while the model is loaded."""
        if self._computing is None:
            raise Refused("the model is being loaded; try again", 503, headers={"Retry-After": "5"})
        return self._computing

    @property
    def runtime(self) -> Runtime:
        """A runtime, for what needs no slot. Raises Refused as `computing`."""
        if self._runtime is None:
            raise Refused("the model is being loaded; try again", 503, headers={"Retry-After": "5"})
        return self._runtime

    @property
    def template(self) -> str:
        """The chat template of the model; empty where it has none."""
        return self.runtime.vocabulary.template or ""

    def end(self) -> None:
        """Refuse further requests. On the event loop."""
        if self._computing is not None:
            self._computing.slots.end()

    def cancel(self) -> None:
        """Cancel the requests under way. On the event loop."""
        if self._computing is not None:
            self._computing.slots.cancel()

    def close(self) -> None:
        """Free the slots."""
        if self._computing is not None:
            self._computing.slots.close()

    @property
    def busy(self) -> int:
        """Slots with a request."""
        return self._busy()

    def status(self) -> dict[str, Any]:
        """The figures of `/v1/edgespec/status`."""
        runtime, slots = self.runtime, self.computing.slots
        plain = runtime.prices.plain()
        return {
            "model": self.settings.name,
            "description": runtime.description,
            "context": runtime.context,
            "trained_context": runtime.trained_context,
            "drafters": list(runtime.drafters),
            "verifier": runtime.speculation.verifier,
            "k": runtime.speculation.k,
            "acceptance": {name: _share(share) for name, share in runtime.acceptance.items()},
            "prices_ms": {
                "plain": 1e3 * plain,
                "pass_by_width": {str(width): 1e3 * runtime.prices.price(width) for width in (1, 2, 4, 8, 16)},
                "guess_by_drafter": {name: 1e3 * step for name, step in runtime.step_prices.items()},
            },
            "slots": [
                {
                    "id": slot.number,
                    "busy": slot.since is not None,
                    "seconds": time.monotonic() - slot.since if slot.since is not None else 0.0,
                    "cached_tokens": len(slot.runtime.session.tokens),
                }
                for slot in slots.all
            ],
            "queue": {"length": slots.queued, "limit": self.settings.queue},
            "notices": list(runtime.notices),
        }

    def _busy(self) -> int:
        return self._computing.slots.busy if self._computing is not None else 0

    def _queued(self) -> int:
        return self._computing.slots.queued if self._computing is not None else 0


def _share(share: Share) -> dict[str, Any]:
    return {"rate": share.right if share.tries else None, "tries": share.tries}
