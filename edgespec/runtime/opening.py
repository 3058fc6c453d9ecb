"""Sessions and drafters over loaded models, and the prices of their passes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from ..backends import (
    FINAL,
    HeadWeights,
    HiddenRows,
    Interrupt,
    Model,
    PartOfTarget,
    Session,
    StateHead,
    Wanted,
    fingerprint,
    require_same_tokens,
)
from ..backends.machine import OtherPrograms
from ..backends.parallel import parallel_of
from ..drafters import Drafter, Factory, Target
from ..drafters.cross_vocabulary import CrossVocabularyDrafter
from ..drafters.eagle import EagleDrafter
from ..drafters.eagle3 import Eagle3Drafter
from ..drafters.exit import ExitDrafter
from ..drafters.failsafe import Failsafe
from ..drafters.head import HeadDrafter
from ..drafters.lookahead import Lookahead
from ..drafters.lookup import Lookup
from ..drafters.medusa import MedusaDrafter
from ..drafters.model import ModelDrafter
from ..drafters.mtp import MtpDrafter
from ..drafters.pard import PardDrafter
from ..drafters.recycling import Recycling
from ..errors import EngineError, MissingPackage, OptionError, VocabularyMismatch
from ..prices import Prices, head_step, measure_and_keep, recall, refresh, sample_text, state_head_step
from .earlier_texts import EarlierTexts
from .loaded_pair import LoadedPair
from .outside import is_factory, made
from .speculation import Speculation, numbered
from .weights import Weights

_OBSERVED = 0.1  # seconds over which the load by other programs is measured

#: Heads by the name of their drafter, in the order in which they are opened: that for multi-token prediction uses a
#: context of the target which is opened anew for the rows that others read.
_HEADS: dict[str, type[HeadDrafter]] = {
    each.name: each for each in (EagleDrafter, Eagle3Drafter, MtpDrafter, ExitDrafter)
}

#: Called with the model whose passes are being measured, "target", "draft", "draft 2" or "target in OpenVINO", and the
#: share done, from 0 to 1.
OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Opening:
    """Opens sessions and drafters over loaded models.

    Args:
        context: tokens that each session holds.
        given: drafters of the app, or factories that make one.
    """

    weights: Weights
    context: int
    given: tuple[Drafter | Factory, ...] = ()
    on_progress: OnProgress | None = None

    def pair(
        self, speculation: Speculation, interrupt: Interrupt, user: object, own: Interrupt | None = None
    ) -> LoadedPair:
        """Sessions and drafters for a `user` of the weights, which has joined them. If this raises, it has not left.

        Args:
            interrupt: stops the sessions.
            own: the same if it is not the one that the models were opened with.
        """
        target = self.weights.models[0]
        sessions = ExitStack()
        with ExitStack() as undo:
            undo.callback(sessions.close)
            session = _opened(target, self.context, own)
            sessions.callback(session.close)
            prices = self._priced("target", session, target)
            kept = (
                EarlierTexts(fingerprint(target.vocabulary), target.vocabulary.size) if speculation.remember else None
            )
            built_in, remarks = self._built_in(session, speculation, kept, sessions, own)
            facts = Target(target.vocabulary, session.context, target.description, target.weights)
            added = list(made(self.given, speculation.drafters or (), facts, undo))
            pair = LoadedPair(
                models=self.weights.models,
                session=session,
                drafters=(*map(Failsafe, built_in), *added),
                prices=prices,
                learned=self.weights.learned,
                interrupt=interrupt,
                close_sessions=sessions.close,
                free_models=lambda: self.weights.leave(user),
                turns=self.weights.turns,
                grammars=self.weights.grammars,
                another=replace(self, given=tuple(filter(is_factory, self.given))).another,
                earlier_texts=kept,
                remarks=tuple(remarks),
            )
            # An unknown drafter raises here, before the runtime owns those of the app.
            pair.controller(speculation)
            undo.pop_all()
        for drafter in added:
            sessions.callback(drafter.close)
        return pair

    def another(self, speculation: Speculation) -> LoadedPair:
        """A further pair of sessions while others are in use. Its prices are known, nothing is measured."""
        interrupt = Interrupt()
        user = self.weights.join()  # first, so that the weights stay if all others close meanwhile
        try:
            with self.weights.turns.turn():
                return self.pair(speculation, interrupt, user, interrupt)
        except BaseException:
            self.weights.leave(user)
            raise

    def _built_in(
        self,
        session: Session,
        speculation: Speculation,
        earlier: EarlierTexts | None,
        sessions: ExitStack,
        own: Interrupt | None,
    ) -> tuple[list[Drafter], list[str]]:
        """The drafters of this package over the target's `session`, and messages for users.

        Args:
            earlier: texts of earlier answers for the look-ups.
            sessions: closes the sessions of draft models and heads.
            own: interrupt of these sessions, None for that of their models.
        """
        models, remarks = self._draft_models(own, sessions, speculation)
        heads, left_out = self._heads(session, speculation, sessions, own)
        lookup = Lookup(earlier=earlier.texts() if earlier else ())
        drafters: list[Drafter] = [lookup, *models, *heads, *self._state_heads(session, speculation)]
        # Beside a model or a head it brings nothing, and takes 0.2% to 0.4% (docs/drafters/recycling.md).
        if len(drafters) == 1 or Recycling.name in (speculation.drafters or ()):
            drafters.append(Recycling(session.vocab))
        if Lookahead.name in (speculation.drafters or ()):  # it seldom pays (docs/drafters/lookahead.md)
            drafters.append(Lookahead())
        return drafters, [*remarks, *left_out]

    def _draft_models(
        self, own: Interrupt | None, sessions: ExitStack, speculation: Speculation
    ) -> tuple[list[Drafter], list[str]]:
        """The drafters of the draft models, and messages for users: which is which, if there are several. The second of
        a kind has the number 2 in its name."""
        drafters, remarks = list[Drafter](), list[str]()
        target, names = self.weights.models[0], Counter[str]()
        drafts = [draft for draft in self.weights.models[1:] if not head_kind(draft)]
        for number, draft in enumerate(drafts, 1):
            session = _opened(draft, self.context, own)
            sessions.callback(session.close)
            prices = self._priced("draft" if number == 1 else f"draft {number}", session, draft)
            drafter = _drafter(session, target, draft, prices, speculation, alone=len(drafts) == 1)
            names[drafter.name] += 1
            drafter.name = numbered(drafter.name, names[drafter.name])
            drafters.append(drafter)
            if len(drafts) > 1:
                remarks.append(f"The drafter {drafter.name} is {draft.description}.")
        return drafters, remarks

    def _heads(
        self, session: Session, speculation: Speculation, sessions: ExitStack, own: Interrupt | None
    ) -> tuple[list[Drafter], list[str]]:
        """The drafters of the heads that were loaded over the target's session, and messages for users.

        A head that was not named, and that the installed engine cannot run, is left out.
        """
        drafters, remarks = list[Drafter](), list[str]()
        for kind in filter(speculation.uses, _HEADS):
            weights = next((each for each in reversed(self.weights.models) if head_kind(each) == kind), None)
            if not isinstance(weights, HeadWeights):
                continue
            try:
                head = weights.head(session, own)
            except (MissingPackage, EngineError) as error:
                if kind in (speculation.drafters or ()):
                    raise
                remarks.append(f"The head of the model does not draft: {error}")
                continue
            sessions.callback(head.close)
            drafters.append(_HEADS[kind](head, self.weights.head_step(kind, partial(head_step, session, head))))
        return drafters, remarks

    def _state_heads(self, session: Session, speculation: Speculation) -> Iterator[Drafter]:
        """The drafter of heads over the final states of the target's session, if there are some."""
        for head in self.weights.models[1:]:
            if isinstance(head, StateHead) and speculation.uses(head.kind):
                if not isinstance(session, HiddenRows):
                    raise OptionError(f"the drafter {head.kind} reads states, which this engine does not give")
                drafter = MedusaDrafter(head, session.vocab)
                session.follow((FINAL,), drafter, Wanted.LAST)
                heard = drafter.last_state
                drafter.step_price = self.weights.head_step(head.kind, partial(state_head_step, session, head, heard))
                yield drafter

    def _priced(self, role: str, session: Session, model: Model) -> Prices:
        def measured() -> Prices:
            return _priced(session, sample_text(model.vocabulary), role, self.on_progress, self.weights.slowdown)

        return self.weights.prices(role, session, measured)


def mismatch(target: Model, draft: Model) -> str:
    """How the vocabularies differ; empty if they are the same."""
    try:
        require_same_tokens(target.vocabulary, draft.vocabulary)
    except VocabularyMismatch as error:
        return str(error)
    return ""


def _drafter(
    session: Session, target: Model, draft: Model, prices: Prices, speculation: Speculation, *, alone: bool
) -> Drafter:
    """The drafter that uses a session of the model `draft`.

    A model that guesses several tokens in one pass does, unless it is the only one and is asked for as an ordinary one
    by name.
    """
    if mismatch(target, draft):
        return CrossVocabularyDrafter(session, target.vocabulary, draft.vocabulary, prices.plain())
    if isinstance(draft, PartOfTarget) and draft.is_part:
        return ModelDrafter(session, target.vocabulary.size, prices.plain(), ExitDrafter.name, prices.slope())
    parallel, named = parallel_of(draft), speculation.drafters or ()
    if parallel is None or (alone and ModelDrafter.name in named and PardDrafter.name not in named):
        return ModelDrafter(session, target.vocabulary.size, prices.plain(), reading_price=prices.slope())
    # A pass over two committed tokens, as after a draft of which one was accepted, and the masks.
    block_prices = [prices.price(1 + guesses) for guesses in range(1, 1 + parallel.guesses)]
    return PardDrafter(session, target.vocabulary.size, parallel.mask, block_prices, prices.slope())


def head_kind(model: Model) -> str:
    """The name of the drafter that uses the head in `model`; empty if it holds none."""
    if isinstance(model, StateHead):
        return model.kind
    return model.head_drafter if isinstance(model, HeadWeights) and model.holds_head else ""


def _opened(model: Model, context: int, interrupt: Interrupt | None) -> Session:
    """A session of `model`, stopped by `interrupt`, by default the model's own."""
    return model.session(context) if interrupt is None else model.session(context, interrupt)


def _priced(
    session: Session, text: Sequence[int], what: str, on_progress: OnProgress | None, slowdown: float
) -> Prices:
    """The prices of `session`, recalled or measured.

    A draft model is taken to be at most as many times slower than recalled as its target, by `slowdown`. Steps of a
    millisecond or two are timed, which a short disturbance makes several times as long, and a drafter that seems four
    times too dear is hardly asked again, so nothing would correct its price (docs/controller.md).
    """
    prices = recall(session)
    if prices is not None and _holds(session, text, prices, slowdown):
        return prices
    report = on_progress or (lambda _what, _share: None)
    return measure_and_keep(session, text, lambda share: report(what, share))


def _holds(session: Session, text: Sequence[int], prices: Prices, slowdown: float) -> bool:
    """Whether recalled `prices` are valid, scaled to the present pace of the machine. Those measured on a busy machine
    are valid only while it is busy."""
    with OtherPrograms() as others:
        refresh(session, prices, text=text, slowdown=slowdown)
        if not prices.trusted:
            time.sleep(_OBSERVED)
    return prices.trusted or others.busy
