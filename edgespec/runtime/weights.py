"""Loaded models that several runtimes share."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ..backends import Model, Session
from ..errors import ClosedError
from ..grammar import GrammarTokens
from ..prices import Prices, keep
from .learned import Learned
from .turns import Turns


class Weights:
    """A target and its drafts, with their prices and calibration, shared by runtimes.

    Runtimes over the same weights alternate by the round: concurrent passes would take longer than their price, and
    prices and calibration must be changed by one runtime at a time. The last user to leave frees the models, and stores
    prices and calibration for the next run.

    Args:
        models: the target, then draft models and heads.
        learned: the calibration of the drafters.
    """

    def __init__(self, models: Sequence[Model], learned: Learned) -> None:
        self.models = tuple(models)
        self.learned = learned
        self.turns = Turns()
        #: Grammars in the target's tokens.
        self.grammars = GrammarTokens(self.models[0].vocabulary)
        self._prices: dict[str, Prices] = {}
        self._steps: dict[str, float] = {}
        self._lock = threading.Lock()
        self._users: set[object] = set()
        self._freed = False
        self._closing = ExitStack()
        for model in reversed(self.models):
            self._closing.callback(model.close)
        self._closing.callback(learned.keep)

    def join(self) -> object:
        """A new user of the models, which must `leave` at the end.

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
        """Remove a user; the last one frees the models. May be called several times."""
        with self._lock:
            self._users.discard(user)
            if self._users:
                return
            self._freed = True
            self._closing.close()

    def prices(self, role: str, session: Session, measured: Callable[[], Prices]) -> Prices:
        """The prices of passes of `session`; `measured` is called for the first user.

        Args:
            role: "target", "draft", "draft 2", ...
        """
        known = self._prices.get(role)
        if known is None:
            known = self._prices[role] = measured()
            if role == "target":  # prices of the draft model do not change after loading
                self._closing.callback(_keep, session, known)
        return known

    @property
    def slowdown(self) -> float:
        """How many times as long as recalled plain steps of the target take now; unbounded before they were timed."""
        target = self._prices.get("target")
        return math.inf if target is None else target.slowdown

    def head_step(self, kind: str, measured: Callable[[], float]) -> float:
        """The seconds of a pass of the head of this kind; `measured` is called for the first user."""
        if kind not in self._steps:
            self._steps[kind] = measured()
        return self._steps[kind]


def _keep(session: Session, prices: Prices) -> None:
    if prices.changed:
        keep(session, prices)
