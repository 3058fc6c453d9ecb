"""A loaded target with its drafters, as one runtime uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..backends import Interrupt, Model, Session
from ..controller import Controller
from ..controller.adaptive import Adaptive
from ..controller.calibration import Calibration
from ..controller.fixed import Fixed
from ..drafters import Drafter
from ..drafters.failsafe import Failsafe
from ..drafters.grammar import ForcedTokens
from ..errors import OptionError
from ..grammar import GrammarTokens
from ..prices import Prices
from .earlier_texts import EarlierTexts
from .learned import Learned
from .speculation import Speculation
from .turns import Turns


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """The target's session and the drafters that a runtime owns, and the models that it shares with other runtimes.

    Args:
        models: the target, then draft models and heads.
        session: the session of the target.
        drafters: all drafters, each wrapped so that its failure does not end an answer.
        prices: seconds of a target pass, shared by all runtimes over the models.
        learned: the calibration of the drafters, with that of earlier runs; shared, too.
        interrupt: stops the sessions.
        close_sessions: closes the sessions and the drafters.
        free_models: frees the models unless other runtimes use them.
        turns: a lock held in every round, so that runtimes over the same models do not compute at the same time.
        grammars: grammars in the target's tokens, shared by all runtimes over the models.
        another: opens further sessions over the same models.
        earlier_texts: keeps the text of answers for look-ups in later runs; None where nothing is to be kept.
        remarks: messages for the user about drafters: which model each is, and which were left out.
    """

    models: tuple[Model, ...]
    session: Session
    drafters: tuple[Failsafe, ...]
    prices: Prices
    learned: Learned
    interrupt: Interrupt
    close_sessions: Callable[[], None]
    free_models: Callable[[], None]
    turns: Turns
    grammars: GrammarTokens
    another: Callable[[Speculation], LoadedPair]
    earlier_texts: EarlierTexts | None = None
    remarks: tuple[str, ...] = ()

    @property
    def notices(self) -> list[str]:
        """Messages for the user: where a model is not loaded as requested, and which drafters failed."""
        notices = [*self.remarks, *(notice for model in self.models for notice in model.notices)]
        return [*notices, *(drafter.notice for drafter in self.drafters if drafter.notice)]

    def calibration(self, speculation: Speculation) -> Calibration:
        """The calibration of the drafters for the verifier of `speculation`."""
        return self.learned.calibration(speculation.verifier)

    def controller(
        self, speculation: Speculation, own: Sequence[Drafter] = (), *, constrained: bool = False
    ) -> Controller:
        """A controller for `speculation`, with the calibration so far.

        Args:
            own: drafters of one answer, which are asked before those of the pair, whatever `speculation` names.
            constrained: whether it is for answers with a grammar, which drafts too.

        Raises:
            OptionError: a drafter that this pair does not have, or a `k` beyond the widest pass.
        """
        if constrained and speculation.uses(ForcedTokens.name):
            own = (*own, Failsafe(ForcedTokens()))
        known: dict[str, Drafter] = {drafter.name: drafter for drafter in self.drafters}
        names = speculation.drafters if speculation.drafters is not None else tuple(known)
        taken = {ForcedTokens.name, *(each.name for each in own)}
        names = tuple(name for name in names if name not in taken)
        if missing := [name for name in names if name not in known]:
            raise OptionError(
                f"this pair has no drafter {missing[0]!r}, only {', '.join(known)}: 'model' needs a draft model "
                "(--draft) with the target's vocabulary, 'model2' a second one, 'cross-vocabulary' one with another, "
                "'mtp' a head in the model's GGUF file or in that of --draft, 'pard' a PARD draft model, 'eagle', "
                "'eagle3' or 'medusa' such a head in --draft, 'exit' a folder of `convert --exit-layer`; the drafter "
                "of an installed package, mtp and recycling beside a draft model, lookahead, and model with a PARD "
                "draft model, must be named when loading; 'prediction' needs a request with a prediction"
            )
        drafters = [*own, *(known[name] for name in names)]
        if speculation.k is not None:
            if self.session.widest <= speculation.k < self.session.context:
                raise OptionError(
                    f"k is {speculation.k}, but passes of this session take {self.session.widest} tokens, one of them "
                    f"not drafted; give at most {self.session.widest - 1}, or a larger exact"
                )
            widest = self.session.widest - 1
            merged = speculation.drafters is not None and self.session.can_tree
            return Fixed(drafters, min(speculation.k, widest), widest if merged else 0)
        session, calibration = self.session, self.calibration(speculation)
        return Adaptive(
            drafters,
            self.prices,
            calibration,
            trees=session.can_tree,
            replays=session.replays,
            settling=session.settling,
        )

    def close(self) -> None:
        """Close sessions and drafters, then free the models unless another runtime uses them."""
        self.close_sessions()
        self.free_models()
