"""The adaptive controller: which draft to verify next.

A draft of n tokens costs the time of drafting and of a wider pass, and brings the tokens that are accepted.

A round over a tree of n drafted tokens commits `1 + sum(a_v)` tokens, where `a_v` is the chance that node v and all
above it are accepted, and takes `price(1 + n)` and the drafting. To maximise tokens per second is a fractional program:
with `rate` the speed at which the text just ahead is generated (`TimeValue`), every round should maximise
tokens - rate * seconds (Dinkelbach 1967). An empty draft is always a candidate, so a slower round than a plain one is
never planned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..drafters import Drafter, most_passengers_of
from ..prices import Prices, RunningPrice
from ..types import Draft, Round
from ..verify import RoundContext
from .budget import Budget, Instalments
from .calibration import Calibration
from .draft_tree import DraftTree
from .expansion import PROBE_ERRORS, Expansion, Passes
from .exploration import Explorer
from .passenger_value import PassengerValue
from .priced_drafter import PricedDrafter
from .recent_rounds import Compared, RecentRounds
from .shadow import Shadow
from .time_value import TimeValue

_PLAIN_EVERY = 64  # rounds after which a plain step is measured, if none was bought meanwhile
_SURCHARGE = 0.01  # of a tree, in plain steps, until one was timed
# Trees bring 1% to 4% where 8 tokens cost what one does, and nothing where they cost half as much again (simulated); to
# grow them takes 3% to 5% of a round on a processor (measured, passes of 7 to 17 ms).
_BUSHY, _FLAT = 8, 1.25
_HICCUP = 3.0  # times the price of a pass, for which what it took counts at most


class Adaptive:
    """Selects the draft that is expected to pay best at the measured prices and acceptance rates.

    Free drafters are asked everywhere. Drafters with a price extend the likeliest path token by token for as long as a
    longer draft is expected to pay. All guesses form one draft tree, of which the best part is verified: a subtree
    where the target's session takes trees, else a chain. A drafter that does not pay is probed now and then; its guess
    is compared with the text and need not be verified.

    The pass may carry passengers of a drafter, where trees can be verified and they bring more than they cost.

    Speculation is never much slower than plain decoding: plain steps are timed live, one when the machine changed its
    pace and one after a while without, and `Budget` bounds what speculation as a whole may lose. Prices of wide passes
    that are too high are found by verifying such a draft now and then, see `Explorer`, and drafters that pay although
    they have lost what they may by drafts that are not verified, see `Shadow`.

    Args:
        trees: whether the target's session takes trees. They are grown where wide passes are cheap enough.
        replays: whether the tokens that stay of a draft must be computed again unless all of it is accepted
            (`Session.replays`).
        settling: passes of one width in a row after which its price is a settled one (`Session.settling`).
        clock: seconds, to time what drafters take.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        prices: Prices,
        calibration: Calibration | None = None,
        *,
        trees: bool = False,
        replays: bool = False,
        settling: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.drafters = tuple(drafters)
        self.prices = prices
        self.calibration = calibration or Calibration()
        #: Seconds that a pass over a tree takes beyond one over a chain as wide.
        self.surcharge = RunningPrice(_SURCHARGE * prices.plain())
        #: Seconds that the free drafters take at one place.
        self._look = RunningPrice()
        self._trees = trees
        self._replays = replays
        self._settling = settling
        self._clock = clock
        self._free = [drafter for drafter in drafters if not drafter.step_price]
        asked = [drafter for drafter in drafters if drafter.step_price]
        self._priced = [PricedDrafter(d, self.calibration.ahead(d.name), clock, len(asked) - 1) for d in asked]
        self._passengers = [PassengerValue(drafter) for drafter in self._free if trees and most_passengers_of(drafter)]
        self._time_value = TimeValue(self.calibration.speeds)
        self._budget = Budget(len(self._priced), self.calibration.gained)
        self._instalments = Instalments()
        self._recent = RecentRounds()
        self._shadows = [Shadow(priced, self.calibration, clock, len(asked)) for priced in self._priced]
        self._explorer = Explorer()
        self._exploring = False
        self._believed: Sequence[float] = ()  # prices of the round that explores
        self._expansion: Expansion | None = None
        self._context: Sequence[int] = ()  # that of the answer under way
        self._nodes: list[int] = []
        self._width, self._row = 1, settling  # of the last pass, and how many of that width there were in a row
        self._trims = True

    @property
    def is_paused(self) -> bool:
        """Whether speculation has lost what it may, see `Budget`."""
        return not self._budget.is_left

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        started, context = self._clock(), round_context.tokens
        self._expansion, self._exploring = None, False
        if context is not self._context:
            self._begin_answer(context)
        for priced in self._priced:
            priced.forget_round()
            priced.expect(context)
        for shadow in self._shadows:
            if shadow.compare(context):
                self._budget.restore()
        limit = min(limit, self.prices.widest - 1 - round_context.owed)
        if limit < 1 or self.prices.unsure(1) or self.prices.unseen(1) >= _PLAIN_EVERY:
            return Draft()
        due = self._due_shadow(context)
        if self.is_paused and due is None:
            return Draft()
        self._expansion = expansion = self._begin_expansion(round_context, limit, explores=due is None)
        self._trims = round_context.verifier.trims
        self._ask_free(expansion, round_context)
        for priced in self._in_turn(expansion) if self._asks else ():
            if not expansion.settled:
                self._ask(priced, expansion, round_context)
        self._nodes = [] if self.is_paused else expansion.bought()
        if due is not None and not self._nodes:
            due.draft(expansion, round_context, self.prices.plain(len(context) - 1), started)
            return Draft()
        return self._with_passengers(expansion.tree.draft(self._nodes), expansion)

    @property
    def _asks(self) -> bool:
        """Whether drafters with a price have credit."""
        return self._budget.is_left and self._budget.is_left_for_priced

    def _begin_answer(self, prompt: Sequence[int]) -> None:
        self._context = prompt
        self.calibration.begin(prompt)
        self._time_value.enter(self.calibration.group, self.calibration.groups)

    def observe(self, round: Round) -> None:  # noqa: A002
        self._row = self._row + 1 if round.width == self._width else 1
        self._width = round.width
        for shadow in () if self._asks else self._shadows:
            shadow.wait()
        self._account(round, asked=any(priced.guesses for priced in self._priced))
        self._learn_prices(round)
        if self._expansion is not None:
            self._learn_guesses(round, self._expansion)
        self._explorer.observe()

    def _account(self, round: Round, *, asked: bool) -> None:  # noqa: A002
        """Compare the round with plain decoding.

        Args:
            asked: whether drafters with a price were asked.
        """
        if not (self.prices.unseen(1) or self.prices.doubted(1)):
            self._budget.correct(*self._recent.correct(self.prices.plain))
        plain = self.prices.plain(round.held)
        reading = sum(priced.reading_seconds for priced in self._priced) if asked else 0.0
        paid = self._instalments.pay(reading / plain)
        compared, same = self._compared(round, reading)
        if not same:
            pace = round.verify_seconds / self.prices.price(round.width, round.held)
            self._recent.add(Compared(round.held, compared, plain, pace, asked))
        steps = same + compared / plain
        self._time_value.observe(len(round.tokens), steps + paid)
        self._budget.observe(len(round.tokens), steps, paid, asked=asked)
        self.calibration.gained = self._budget.left

    def _learn_prices(self, round: Round) -> None:  # noqa: A002
        """Learn what the pass of a draft cost that was chosen to find that out, and the pass over a tree."""
        if self._exploring:
            pace = round.verify_seconds / self._believed[len(round.draft)] if round.draft else None
            self._explorer.explored(pace)
        if not round.draft.is_chain:
            extra = max(0.0, round.verify_seconds - self.prices.price(round.width, round.held))
            self.surcharge.observe(extra)

    def _learn_guesses(self, round: Round, expansion: Expansion) -> None:  # noqa: A002
        """Learn which guesses of a round were right."""
        tree = expansion.tree
        trials = tree.trials(round.tokens, self._nodes, len(round.path))
        tried = {trial.node: trial.hit for trial in trials}
        self.calibration.learn((tree.cells[node], hit) for node, hit in tried.items())
        for priced in self._priced:
            priced.observe([t for t in trials if t.drafter == priced.name and t.rank == 0])
        for value in self._passengers:
            value.observe(round, expansion.cost)

    def _compared(self, round: Round, reading: float) -> tuple[float, float]:  # noqa: A002
        """What a round took without the seconds in which drafters read: the seconds to compare with plain decoding, and
        the plain steps that plain decoding would have made, too."""
        # Whatever a plain step took, plain decoding would have spent the same, but for those just after a wider pass.
        is_plain = round.width <= 1 + round.owed and round.settled
        beside = max(0.0, round.draft_seconds - reading)
        if self.is_paused:
            # A longer pause does not avoid it. If all of it counted, no pause would end where it is more than the share
            # of the time that refills the budget, as with the shortest plain steps.
            beside = min(beside, self._budget.pause_charge * self.prices.plain(round.held))
        # One hiccup of the machine can take as long as a hundred rounds, and says nothing of drafts.
        most = _HICCUP * self.prices.price(round.width, round.held)
        if is_plain:
            return min(beside, most - self.prices.plain(round.held)), 1.0
        return min(round.verify_seconds + beside, most), 0.0

    def _begin_expansion(self, round_context: RoundContext, limit: int, *, explores: bool) -> Expansion:
        """An empty tree, and what it may cost to grow."""
        held, owed = len(round_context.tokens) - 1, round_context.owed
        whole = self.prices.curve(held)
        trees = self.surcharge.seconds if self._trees and self._flat(held) else None
        rate = self._time_value.average() / whole[0]
        if explores and self._explorer.due:
            self._exploring, self._believed, trees = True, whole[owed:], None
            whole = self._explorer.doubted(whole)
        curve = self._from_last_width(whole, owed)[: limit + 1]
        replaying = _replaying(whole, owed, limit) if self._replays else ()
        passes = Passes(curve, trees, replaying)
        return Expansion(DraftTree(self.calibration), round_context, self._free, self._look.seconds, passes, rate)

    def _from_last_width(self, whole: Sequence[float], owed: int) -> Sequence[float]:
        """The price of a pass by the number of tokens drafted. One whose width is not settled after the last ones is
        dearer."""
        if not (switching := self.prices.switching):
            return whole[owed:]
        settled = self._width if self._row >= self._settling else None
        return [price + switching * (width != settled) for width, price in enumerate(whole, 1)][owed:]

    def _flat(self, held: int) -> bool:
        """Whether wide passes cost so little that second guesses are worth asking for."""
        curve = self.prices.curve(held)
        return curve[min(_BUSHY, len(curve)) - 1] <= _FLAT * curve[0]

    def _with_passengers(self, draft: Draft, expansion: Expansion) -> Draft:
        """`draft` with the passengers that are worth their time, of one drafter."""
        for value in () if self._exploring else self._passengers:
            surcharge = expansion.rate * self.surcharge.seconds
            if (passengers := value.chosen(draft, expansion.cost, surcharge)).tokens:
                return replace(draft, passengers=passengers)
        return draft

    def _ask_free(self, expansion: Expansion, round_context: RoundContext) -> None:
        for drafter in self._free:
            drafter.begin(round_context)
        started = self._clock()
        expansion.ask_free()
        if expansion.looks:
            self._look.observe((self._clock() - started) / expansion.looks)
        plain = self.prices.plain(len(round_context.tokens) - 1)
        expansion.value_time(self._time_value.ahead(expansion.offer(plain)) / plain)

    def _in_turn(self, expansion: Expansion) -> Sequence[PricedDrafter]:
        """The drafters with a price in the order in which they are asked: first that of which most is expected.

        What the next ones guess is only worth what it adds. Where tokens are drawn, only the first one drafts in a
        round (`Expansion.settled`). One that was left alone may be asked before it, as far as what is expected less is
        worth a probe.
        """
        if len(self._priced) < 2:
            return self._priced
        return sorted(self._priced, key=lambda priced: expansion.prospect(priced) + priced.credit, reverse=True)

    def _ask(self, priced: PricedDrafter, expansion: Expansion, round_context: RoundContext) -> None:
        """Let a drafter with a price go on from what is there, if it is worth asking or due for a probe."""
        reading = priced.reading.expected(round_context.tokens)
        toll = expansion.rate * priced.reading.share(reading)
        due = priced.due(1 / expansion.rate, priced.reading.expected_of_prompt(round_context.tokens))
        # Texts are read for what is expected of the guesses, or in the time for probes. To read them for trials, too,
        # took a tenth of the time of short copies, where three drafters had a price (simulated).
        is_on_trial = priced.is_new and not toll
        ask = self._trims and (priced.worth > toll or due or is_on_trial)
        if ask or expansion.prospect(priced) > toll:
            priced.begin(round_context)
            expansion.draft(priced, ask=ask, errors=PROBE_ERRORS if due else 1.0)
        elif due and not self._trims:
            priced.begin(round_context)
            expansion.probe(priced)

    def _due_shadow(self, context: Sequence[int]) -> Shadow | None:
        """A shadow draft for this round."""
        if self._asks:
            return None
        plain = self.prices.plain(len(context) - 1)
        return next((shadow for shadow in self._shadows if shadow.is_due(context, plain)), None)


def _replaying(curve: Sequence[float], owed: int, limit: int) -> list[float]:
    """Seconds that the next pass takes longer if a draft is rejected after 0, 1, ... accepted tokens: what was owed,
    the last committed token and the accepted ones are then computed again."""
    widest = len(curve)
    slope = (curve[-1] - curve[0]) / max(1, widest - 1)
    owing = range(owed + 1, owed + 1 + limit)
    return [curve[n] - curve[0] if n < widest else slope * n for n in owing]
