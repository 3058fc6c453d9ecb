"""Loading: open the models, check that they fit together, measure the prices of passes, make a runtime."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..backends import (
    FINAL,
    Device,
    FittedHead,
    HeadWeights,
    HiddenRows,
    Interrupt,
    Model,
    PartOfTarget,
    Session,
    StateHead,
    Wanted,
    context_length,
    fingerprint,
    open_model,
    require_same_tokens,
    state_head_kind,
)
from ..backends.head_header import head_in
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
from ..prices.engine_comparison import with_engines
from ..values import instance, shown
from .earlier_texts import EarlierTexts
from .learned import Learned
from .loaded_pair import LoadedPair
from .outside import is_factory, made, require_known
from .runtime import Runtime
from .speculation import Speculation, numbered
from .weights import Weights

_OBSERVED = 0.1  # seconds over which the load by other programs is measured

#: Drafters that read rows of their target.
_READING = (MtpDrafter.name, EagleDrafter.name, Eagle3Drafter.name, MedusaDrafter.name)
#: Heads by the name of their drafter, in the order in which they are opened: that for multi-token prediction uses a
#: context of the target which is opened anew for the rows that others read.
_HEADS: dict[str, type[HeadDrafter]] = {
    each.name: each for each in (EagleDrafter, Eagle3Drafter, MtpDrafter, ExitDrafter)
}

#: Called with the model whose passes are being measured, "target", "draft", "draft 2" or "target in OpenVINO", and the
#: share done, from 0 to 1.
OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a target and of its drafts: draft models and heads, each another one.

    Args:
        found: whether the drafts were found, rather than named by the user.
    """

    target: Path
    drafts: tuple[Path, ...] = ()
    found: bool = False


def open_files(
    files: Files,
    device: Device,
    *,
    drafters: Sequence[Drafter | Factory],
    speculation: Speculation,
    interrupt: Interrupt,
    on_progress: OnProgress,
) -> Runtime:
    """A runtime over the models in `files`, with the arguments of `assemble`.

    A draft that was found, not named, and has another vocabulary is left out; `Runtime.notices` says so.

    Raises:
        ModelError: a file that cannot be loaded, or models that do not fit together.
        MissingPackage: the engine for these files is not installed.
        and as `assemble`.
    """
    require_known(speculation.drafters or (), drafters)
    files, in_target = with_head(files, device, speculation)
    with ExitStack() as opened:
        wanted = replace(device, head=in_target)
        engines = with_engines(files.target, files.drafts, wanted, interrupt, on_progress=on_progress)
        target = open_model(files.target, replace(engines.device, head=in_target), interrupt)
        opened.callback(target.close)
        drafts, left_out = list[Model](), list[str]()
        for path, place in zip(files.drafts, engines.draft_devices, strict=True):
            draft = open_model(path, place, interrupt)
            mismatch = _mismatch(target, draft) if files.found and not isinstance(draft, FittedHead) else ""
            if mismatch:
                draft.close()
                left_out.append(f"{path}, found beside the model, is left out: {mismatch}")
            else:
                opened.callback(draft.close)
                drafts.append(draft)
        runtime = assemble(
            target,
            drafts,
            device=device,
            drafters=drafters,
            speculation=speculation,
            interrupt=interrupt,
            on_progress=on_progress,
        )
        opened.pop_all()
    if engines.target is not None and engines.target.new:
        runtime.add_notice(f"{target.description} runs in {engines.target}")
    for notice in left_out:
        runtime.add_notice(notice)
    return runtime


def with_head(files: Files, device: Device, speculation: Speculation) -> tuple[Files, bool]:
    """The files to open, and whether to load the head of the target's file, if it has one.

    A head costs memory and time in prompts, so it is loaded only where it drafts. Draft models and heads in files of
    their own take the place of that in the target's file unless it is named; one of its kind does in any case.
    """
    named = speculation.drafters
    if device.exact and (heads := [name for name in named or () if name in _READING]):
        raise OptionError(
            f"exact is {device.exact}, but the drafter {heads[0]} needs passes of other widths; leave one of them out"
        )
    if device.rpc and (heads := [name for name in named or () if name in (*_READING, ExitDrafter.name)]):
        raise OptionError(
            f"the drafter {heads[0]} reads rows of its target, and those of workers stay there; leave one of them out, "
            "or draft with a model"
        )
    kinds = {path: state_head_kind(path) or head_in(path) for path in files.drafts}

    def wanted(kind: str) -> bool:
        return not (device.exact or device.rpc) and speculation.uses(kind)

    kept = tuple(path for path, kind in kinds.items() if kind is None or wanted(kind))
    in_file = [kind for kind in (MtpDrafter.name, ExitDrafter.name) if kind not in kinds.values()]
    own = any(map(wanted, in_file))
    return replace(files, drafts=kept), own and (named is not None or not files.drafts)


def _mismatch(target: Model, draft: Model) -> str:
    """How the vocabularies differ; empty if they are the same."""
    try:
        require_same_tokens(target.vocabulary, draft.vocabulary)
    except VocabularyMismatch as error:
        return str(error)
    return ""


def assemble(  # noqa: PLR0913 - all but the models are options by name
    target: Model,
    draft: Model | Sequence[Model] | None = None,
    *,
    device: Device | None = None,
    drafters: Sequence[Drafter | Factory] = (),
    speculation: Speculation | None = None,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
    learned: Learned | None = None,
) -> Runtime:
    """A runtime over models that are open, for example those of an engine outside this package. It closes them when it
    is closed; if this raises, they stay open.

    Args:
        target: the model whose output is generated.
        draft: the draft model, or several draft models and heads, at most one head of a kind. A second draft model of
            a kind is the drafter "model2", a third "model3".
        device: only its `context` is used; None takes the default.
        drafters: drafters of the app, or factories that make one for a `Target`. Each serves one runtime, which closes
            it.
        speculation: how to speculate; None takes the defaults.
        interrupt: the one that the models were opened with. If it is set while prices are measured, loading ends.
        on_progress: reports the measurement of prices, which runs once per model and machine.
        learned: the calibration of the drafters; None takes that of earlier runs.

    Raises:
        ModelError: the models do not fit together.
        OptionError: an invalid option, or a drafter that is not known.
        DrafterError: a drafter of the app or of an installed package cannot be made.
        Interrupted: `interrupt` was set.
    """
    device, speculation = settings(device, speculation)
    require_known(speculation.drafters or (), drafters)
    drafts = tuple(draft) if isinstance(draft, Sequence) else (draft,) if draft is not None else ()
    for each in drafts:
        if isinstance(each, FittedHead):
            each.require_fit(target.vocabulary)
        elif not speculation.through_text:
            require_same_tokens(target.vocabulary, each.vocabulary)
    require_one_of_a_kind(drafts)
    models = (target, *drafts)
    weights = Weights(models, learned or Learned.of(models))
    opening = _Opening(weights, context_length(device, target), tuple(drafters), on_progress)
    with ExitStack() as undo:
        pair = opening.pair(speculation, interrupt or Interrupt(), weights.join())
        undo.callback(pair.close_sessions)
        runtime = Runtime(pair, speculation)
        undo.pop_all()
    return runtime


def require_one_of_a_kind(drafts: Sequence[Model]) -> None:
    """OptionError if two of `drafts` are heads of one kind."""
    kinds = Counter(kind for each in drafts if (kind := _head_kind(each)))
    if twice := [kind for kind, count in kinds.items() if count > 1]:
        raise OptionError(f"there are {kinds[twice[0]]} heads of the kind {twice[0]}; give one of them (--draft)")


@dataclass(frozen=True, slots=True)
class _Opening:
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
            built_in: list[Drafter] = [Lookup(earlier=kept.texts() if kept else ())]
            models, which = self._draft_models(own, sessions, speculation)
            heads, left_out = self._heads(session, speculation, sessions, own)
            built_in += [*models, *heads]
            built_in += self._state_heads(session, speculation)
            # Beside a model or a head it brings nothing, and takes 0.2% to 0.7% (docs/drafters/recycling.md).
            if len(built_in) == 1 or Recycling.name in (speculation.drafters or ()):
                built_in.append(Recycling(session.vocab))
            if Lookahead.name in (speculation.drafters or ()):  # it seldom pays (docs/drafters/lookahead.md)
                built_in.append(Lookahead())
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
                remarks=(*which, *left_out),
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

    def _draft_models(
        self, own: Interrupt | None, sessions: ExitStack, speculation: Speculation
    ) -> tuple[list[Drafter], list[str]]:
        """The drafters of the draft models, and messages for users: which is which, if there are several. The second of
        a kind has the number 2 in its name."""
        drafters, remarks = list[Drafter](), list[str]()
        target, names = self.weights.models[0], Counter[str]()
        drafts = [draft for draft in self.weights.models[1:] if not _head_kind(draft)]
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
            weights = next((each for each in reversed(self.weights.models) if _head_kind(each) == kind), None)
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
            return _priced(session, sample_text(model.vocabulary), role, self.on_progress)

        return self.weights.prices(role, session, measured)


def settings(device: Device | None, speculation: Speculation | None) -> tuple[Device, Speculation]:
    """The defaults where one is None. Raises OptionError for a wrong type."""
    return (
        Device() if device is None else instance("device", device, Device),
        Speculation() if speculation is None else instance("speculation", speculation, Speculation),
    )


def path_of(name: str, value: Any) -> Path:
    """`value` as a path. Raises OptionError, whose message begins with `name`."""
    try:
        return Path(value)
    except TypeError:
        raise OptionError(f"{name} is {shown(value)}; it must be the path of a file or a folder") from None


def _drafter(
    session: Session, target: Model, draft: Model, prices: Prices, speculation: Speculation, *, alone: bool
) -> Drafter:
    """The drafter that uses a session of the model `draft`.

    A model that guesses several tokens in one pass does, unless it is the only one and is asked for as an ordinary one
    by name.
    """
    if _mismatch(target, draft):
        return CrossVocabularyDrafter(session, target.vocabulary, draft.vocabulary, prices.plain())
    if isinstance(draft, PartOfTarget) and draft.is_part:
        return ModelDrafter(session, target.vocabulary.size, prices.plain(), ExitDrafter.name)
    parallel, named = parallel_of(draft), speculation.drafters or ()
    if parallel is None or (alone and ModelDrafter.name in named and PardDrafter.name not in named):
        return ModelDrafter(session, target.vocabulary.size, prices.plain())
    # A pass over two committed tokens, as after a draft of which one was accepted, and the masks.
    block_prices = [prices.price(1 + guesses) for guesses in range(1, 1 + parallel.guesses)]
    return PardDrafter(session, target.vocabulary.size, parallel.mask, block_prices)


def _head_kind(model: Model) -> str:
    """The name of the drafter that uses the head in `model`; empty if it holds none."""
    if isinstance(model, StateHead):
        return model.kind
    return model.head_drafter if isinstance(model, HeadWeights) and model.holds_head else ""


def _opened(model: Model, context: int, interrupt: Interrupt | None) -> Session:
    """A session of `model`, stopped by `interrupt`, by default the model's own."""
    return model.session(context) if interrupt is None else model.session(context, interrupt)


def _priced(session: Session, text: Sequence[int], what: str, on_progress: OnProgress | None) -> Prices:
    prices = recall(session)
    if prices is not None and _holds(session, text, prices):
        return prices
    report = on_progress or (lambda _what, _share: None)
    return measure_and_keep(session, text, lambda share: report(what, share))


def _holds(session: Session, text: Sequence[int], prices: Prices) -> bool:
    """Whether recalled `prices` are valid, scaled to the present pace of the machine. Those measured on a busy machine
    are valid only while it is busy."""
    with OtherPrograms() as others:
        refresh(session, prices, text=text)
        if not prices.trusted:
            time.sleep(_OBSERVED)
    return prices.trusted or others.busy
