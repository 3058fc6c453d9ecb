"""Shadow drafts: what drafters would bring whose credit is spent, found without verifying what they draft.

Where wide passes are dear, a draft is a bet: it costs two plain steps or three, and many that are rejected are paid for
by few that are accepted at full length. The first credit of a budget is then lost by chance, by drafters that pay, too,
and the share of the time that refills it buys a draft in some hundred rounds. To draft without verifying costs a
fraction of that, and the text that follows tells what the draft would have brought.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..verify import RoundContext
from .calibration import Calibration
from .draft_tree import DraftTree
from .expansion import PROBE_ERRORS, Expansion
from .priced_drafter import PricedDrafter

# Of the time, that shadow drafts may take (docs/controller.md).
_SHARE = 0.005
_SHOWN = 4.0  # plain steps that they must have gained lately: as many as may be lost at first


class ShadowDraft(NamedTuple):
    """A draft that is not verified.

    Args:
        context: of its answer; it grows.
        start: tokens of the context when it was drafted.
        tree: the guesses.
        nodes: those that would have been verified; none where a plain step was better.
        cost: what drafting them took, and verifying them would have taken beyond a plain step, in plain steps.
    """

    context: Sequence[int]
    start: int
    tree: DraftTree
    nodes: Sequence[int]
    cost: float

    def text(self) -> Sequence[int]:
        """The tokens of the answer after it."""
        return self.context[self.start :]

    def accepted(self) -> int | None:
        """How many of its tokens the text agrees with; None while that is not known."""
        node, count, verified = -1, 0, set(self.nodes)
        for token in self.text():
            child = self.tree.children(node).get(token)
            if child is None or child not in verified:
                return count
            node, count = child, count + 1
        return None if verified.intersection(self.tree.children(node).values()) else count


class Shadow:
    """The shadow drafts of a drafter with a price, one at a time.

    What they gain is summed up as in Page's test for a change of a mean (1954): the sum does not fall below 0, so a
    text in which the drafter did not pay does not count against it in the next one.

    Args:
        clock: seconds.
        drafters: with a price, which share the time for such drafts.
    """

    def __init__(
        self, priced: PricedDrafter, calibration: Calibration, clock: Callable[[], float], drafters: int = 1
    ) -> None:
        self._priced = priced
        self._calibration = calibration
        self._clock = clock
        self._share = _SHARE / drafters
        self._draft: ShadowDraft | None = None  # the one whose text is not known yet
        self._left = 0.0  # plain steps that drafts may take now
        self._gained = 0.0

    def wait(self) -> None:
        """A round in which drafters have no credit: a share of it may be used for a draft later on."""
        self._left += self._share

    def is_due(self, context: Sequence[int], plain: float) -> bool:
        """Whether to draft: there is time for a first guess, and no draft whose text is not known yet.

        Args:
            plain: seconds of a plain step.
        """
        if self._draft is not None:
            return False
        seconds = self._priced.price(0, 1) + self._priced.reading.expected_of_prompt(context)
        return self._left * plain >= seconds

    def draft(self, expansion: Expansion, round_context: RoundContext, plain: float, started: float) -> None:
        """Let the drafter make a draft.

        Args:
            expansion: of this round, in which no draft is verified.
            plain: seconds of a plain step.
            started: when the round began: all that it took is for this draft.
        """
        context = round_context.tokens
        self._priced.begin(round_context)
        expansion.draft(self._priced, ask=True, errors=PROBE_ERRORS)
        nodes = expansion.bought()
        cost = (self._priced.steady_seconds + expansion.extra_seconds(len(nodes))) / plain
        self._draft = ShadowDraft(context, len(context), expansion.tree, nodes, cost)
        self._left -= (self._clock() - started) / plain

    def compare(self, context: Sequence[int]) -> bool:
        """Learn from the draft if its text is known by now; return whether the drafter has shown that it pays."""
        if (draft := self._draft) is None:
            return False
        if draft.context is not context:
            self._draft = None  # the answer ended before
            return False
        if (accepted := draft.accepted()) is None:
            return False
        self._draft = None
        self._learn(draft)
        self._gained = max(0.0, self._gained + accepted - draft.cost)
        if has_shown := self._gained >= _SHOWN:
            self._gained = 0.0
        return has_shown

    def _learn(self, draft: ShadowDraft) -> None:
        """Learn from its guesses but the first ones, from which the round has learned."""
        trials = [trial for trial in draft.tree.trials(draft.text(), (), 0) if trial.depth]
        tried = {trial.node: trial.hit for trial in trials}
        self._calibration.learn((draft.tree.cells[node], hit) for node, hit in tried.items())
        self._priced.learn([trial for trial in trials if trial.drafter == self._priced.name and trial.rank == 0])
