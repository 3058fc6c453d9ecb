"""What the passengers of a drafter cost and bring, and when passes carry them."""

from __future__ import annotations

from collections.abc import Sequence

from ..drafters import Drafter, passengers_of
from ..types import Draft, Passengers, Round

_TRIAL = 32  # rounds of a trial: the first ones fill the window, and what they made is guessed in later ones
_SHARE = 0.03  # of the time that may go into trials
_LATELY = 0.98  # of what rounds with passengers brought, each such round
_PATIENCE = 64  # times as long between two trials as `_SHARE` asks for, at most


class PassengerValue:
    """Says whether a pass carries the passengers of a drafter: for a trial, and for as long as the guesses that only
    this drafter made bring more than its passengers cost. All is measured in tokens.

    Passengers bring nothing to their own round, so what they bring is what the drafter brings later, over the rounds
    that carried some.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._brought = 0.0
        self._carried = 0.0
        self._left = 0  # rounds of the trial
        self._alone = 0  # tokens since the last round that carried
        self._patience = 1

    def chosen(self, draft: Draft, cost: Sequence[float], surcharge: float) -> Passengers:
        """The passengers of the pass over `draft`, perhaps none; the drafter has begun the round.

        Args:
            cost: by the number of tokens beyond a plain step, the tokens that the time of the pass is worth beyond it.
            surcharge: the same of a tree, beyond a chain of as many tokens.
        """
        drafted = len(draft)
        passengers = passengers_of(self._drafter, len(cost) - 1 - drafted)
        if not passengers.tokens:
            return passengers
        price = cost[drafted + len(passengers.tokens)] - cost[drafted] + (surcharge if draft.is_chain else 0.0)
        return passengers if self._is_worth(price) else Passengers()

    def observe(self, round: Round, cost: Sequence[float]) -> None:  # noqa: A002
        """A round is over; `cost` as for `chosen`."""
        draft = round.draft
        own = [name == self._drafter.name for name in draft.drafters]
        # Without the first of its tokens on the path, no later one had been reached.
        reached = next((n for n, node in enumerate(round.path) if own[node]), len(round.path))
        brought = len(round.path) - reached - (cost[len(draft)] - cost[len(draft) - sum(own)])
        if not draft.passengers.tokens:
            self._brought += brought
            self._alone += len(round.tokens)
            return
        self._brought = _LATELY * self._brought + brought
        self._carried = _LATELY * self._carried + 1
        self._alone = 0
        self._left -= self._left > 0

    def _is_worth(self, price: float) -> bool:
        if self._left:
            return True
        if self._carried and self._brought > price * self._carried:
            self._patience = 1
            return True
        if _SHARE * self._alone < self._patience * _TRIAL * price:
            return False
        self._patience = min(2 * self._patience, _PATIENCE)
        self._left = _TRIAL
        return True
