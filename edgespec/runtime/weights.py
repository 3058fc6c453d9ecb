"""Loaded models that several runtimes use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ..backends import Model, Session
from ..errors import ClosedError
from ..prices import Prices, keep
from .learned import Learned
from .turns import Turns


class Weights:
    """A target, perhaps its draft model, and what is known of them, for all runtimes that use them.

    Runtimes over the same weights take turns by the round: passes of one beside passes of another would be timed too
    long, and what they share, prices and calibration, is changed by one of them at a time. The last one to leave frees
    the models, and keeps what was learned for the next run.

    Args:
        models: the target first.
        learned: what is known of the drafters.
    """

    def __init__(self, models: Sequence[Model], learned: Learned) -> None:
        self.models = tuple(models)
        self.learned = learned
        self.turns = Turns()
        self._prices: dict[str, Prices] = {}
        self._lock = threading.Lock()
        self._users: set[object] = set()
        self._freed = False
        self._closing = ExitStack()
        for model in reversed(self.models):
            self._closing.callback(model.close)
        self._closing.callback(learned.keep)

    def join(self) -> object:
        """A new user, who has to `leave`.

        Raises:
            ClosedError: the models were freed.
        """
        user = object()
        with self._lock:
            if self._freed:
                raise ClosedError("the models of this runtime were freed; load them again")
            self._users.add(user)
        return user

    def leave(self, user: object) -> None:
        """The last user frees the models. Leaving twice does no harm."""
        with self._lock:
            self._users.discard(user)
            if self._users:
                return
            self._freed = True
            self._closing.close()

    def prices(self, role: str, session: Session, measured: Callable[[], Prices]) -> Prices:
        """What passes of this session cost: `measured` by the first user. `role` tells target and draft apart."""
        known = self._prices.get(role)
        if known is None:
            known = self._prices[role] = measured()
            if role == "target":  # a draft model's are not followed
                self._closing.callback(_keep, session, known)
        return known


def _keep(session: Session, prices: Prices) -> None:
    if prices.changed:
        keep(session, prices)
