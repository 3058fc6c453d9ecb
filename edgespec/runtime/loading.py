"""Models to a runtime: open, check that they fit together, measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..backends import Device, Interrupt, Model, Session, context_length, fingerprint, open_model, require_same_tokens
from ..backends.machine import OtherPrograms
from ..drafters import Drafter, Factory, Target
from ..drafters.cross_vocabulary import CrossVocabularyDrafter
from ..drafters.failsafe import Failsafe
from ..drafters.lookup import Lookup
from ..drafters.model import ModelDrafter
from ..errors import ModelError, OptionError, VocabularyMismatch
from ..prices import Prices, calmed, keep, measure, recall, refresh, restless
from ..storage import pair_file as pairfile
from ..values import instance, shown
from .earlier_texts import EarlierTexts
from .learned import Learned
from .loaded_pair import LoadedPair
from .outside import is_factory, made, require_known
from .runtime import Runtime
from .speculation import Speculation
from .weights import Weights

_LISTENING = 0.1  # seconds in which other programs show

#: Told what is being measured and the share done, from 0 to 1.
OnProgress = Callable[[str, float], None]


def load(
    model: str | Path,
    draft: str | Path | None = None,
    *,
    device: Device | None = None,
    drafters: Sequence[Drafter | Factory] = (),
    speculation: Speculation | None = None,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
) -> Runtime:
    """Load a target and its draft model, and measure what passes cost unless that is known.

    Args:
        model: a GGUF file, or the folder of an ONNX model that edgespec converted; or the file of a pair, or its
            folder, which name a target and its draft.
        draft: a small one, of either kind. None (or "auto") takes that of the pair, or the one that lies beside the
            target: `NAME.draft.gguf` or `draft.gguf`, of a folder `NAME.draft` or `draft`. "none" takes none.
        drafters: drafters of your own, or what makes one for a `Target`. Each serves one runtime, which closes it.
        interrupt: set it from another thread to give up loading.
        on_progress: told how far measuring is; it runs once for each model and machine.

    A draft that was found beside the target and has another vocabulary is left out; `Runtime.notices` says so.

    Raises:
        ModelError: a file that cannot be loaded, or a pair that does not fit together.
        MissingPackage: the engine for these files is not installed.
        OptionError: an argument that makes no sense.
        DrafterError: a drafter of your own, or an installed one that was named, cannot be made.
        Interrupted: `interrupt` was set.
    """
    return open_files(
        _files(model, draft),
        device=device,
        drafters=drafters,
        speculation=speculation,
        interrupt=interrupt,
        on_progress=on_progress,
    )


def open_files(
    files: Files,
    *,
    device: Device | None = None,
    drafters: Sequence[Drafter | Factory] = (),
    speculation: Speculation | None = None,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
) -> Runtime:
    """The same for files that are settled. Raises as `load` does."""
    device, speculation = settings(device, speculation)
    require_known(speculation.drafters or (), drafters)
    interrupt = interrupt or Interrupt()
    with ExitStack() as opened:
        target = open_model(files.target, device, interrupt)
        opened.callback(target.close)
        second, mismatch = None, ""
        if files.draft is not None:
            second = open_model(files.draft, device.of_draft(), interrupt)
            mismatch = _mismatch(target, second) if files.found else ""
            if mismatch:
                second.close()
                second = None
            else:
                opened.callback(second.close)
        runtime = assemble(
            target,
            second,
            device=device,
            drafters=drafters,
            speculation=speculation,
            interrupt=interrupt,
            on_progress=on_progress,
        )
        opened.pop_all()
    if mismatch:
        runtime.add_notice(f"{files.draft}, found beside the model, is left out: {mismatch}")
    return runtime


@dataclass(frozen=True, slots=True)
class Files:
    """A target and its draft; `found` says that nobody named the draft."""

    target: Path
    draft: Path | None
    found: bool = False


def _files(model: str | Path, draft: str | Path | None) -> Files:
    """Raises ModelFileError for a pair file that is not what it should be."""
    target = path_of("model", model)
    named = None if draft in (None, "auto", "none") else path_of("draft", draft)
    if (file := pairfile.at(target)) is not None:
        pair = pairfile.read(file)
        return Files(pair.target, None if draft == "none" else named or pair.draft)
    if named is not None or draft == "none":
        return Files(target, named)
    return Files(target, pairfile.beside(target), found=True)


def _mismatch(target: Model, draft: Model) -> str:
    """How the vocabularies differ; empty where they are the same."""
    try:
        require_same_tokens(target.vocabulary, draft.vocabulary)
    except VocabularyMismatch as error:
        return str(error)
    return ""


def assemble(  # noqa: PLR0913 - all but the models are options by name
    target: Model,
    draft: Model | None = None,
    *,
    device: Device | None = None,
    drafters: Sequence[Drafter | Factory] = (),
    speculation: Speculation | None = None,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
    learned: Learned | None = None,
) -> Runtime:
    """A runtime over models that are open already, by an engine of one's own, say. It closes them when it is closed.

    `interrupt` is the one the models were opened with; `learned` what is known of the drafters, None what earlier runs
    kept. Raises as `load` does; then the models stay open.
    """
    device, speculation = settings(device, speculation)
    require_known(speculation.drafters or (), drafters)
    if draft is not None and not speculation.through_text:
        require_same_tokens(target.vocabulary, draft.vocabulary)
    models = (target, draft) if draft is not None else (target,)
    weights = Weights(models, learned or Learned.of(models))
    opening = _Opening(weights, context_length(device, target), tuple(drafters), on_progress)
    with ExitStack() as refused:
        pair = opening.pair(speculation, interrupt or Interrupt(), weights.join())
        refused.callback(pair.close_sessions)
        runtime = Runtime(pair, speculation)
        refused.pop_all()
    return runtime


@dataclass(frozen=True, slots=True)
class _Opening:
    """Opens sessions over loaded models."""

    weights: Weights
    context: int
    given: tuple[Drafter | Factory, ...] = ()
    on_progress: OnProgress | None = None

    def pair(
        self, speculation: Speculation, interrupt: Interrupt, user: object, own: Interrupt | None = None
    ) -> LoadedPair:
        """Sessions for a `user` of the models, who stays one if this fails.

        Args:
            interrupt: stops them.
            own: the same where it is not the one that the models were opened with.
        """
        target, draft = self.weights.models[0], next(iter(self.weights.models[1:]), None)
        sessions = ExitStack()
        with ExitStack() as refused:
            refused.callback(sessions.close)
            session = _opened(target, self.context, own)
            sessions.callback(session.close)
            prices = self._priced("target", session)
            kept = (
                EarlierTexts(fingerprint(target.vocabulary), target.vocabulary.size) if speculation.remember else None
            )
            built_in: list[Drafter] = [Lookup(earlier=kept.texts() if kept else ())]
            if draft is not None:
                drafting = _opened(draft, self.context, own)
                sessions.callback(drafting.close)
                built_in.append(_drafter(drafting, target, draft, self._priced("draft", drafting).plain()))
            facts = Target(target.vocabulary, session.context, target.description, target.weights)
            added = list(made(self.given, speculation.drafters or (), facts, refused))
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
                another=replace(self, given=tuple(filter(is_factory, self.given))).another,
                earlier_texts=kept,
            )
            pair.controller(speculation)  # before those that were given are closed with the pair
            refused.pop_all()
        for drafter in added:
            sessions.callback(drafter.close)
        return pair

    def another(self, speculation: Speculation) -> LoadedPair:
        """A further pair, while another one is in use; what it needs to know of the machine is known."""
        interrupt = Interrupt()
        user = self.weights.join()  # first: whoever closes meanwhile, the models stay
        try:
            with self.weights.turns.turn():
                return self.pair(speculation, interrupt, user, interrupt)
        except BaseException:
            self.weights.leave(user)
            raise

    def _priced(self, role: str, session: Session) -> Prices:
        return self.weights.prices(role, session, lambda: _priced(session, role, self.on_progress))


def settings(device: Device | None, speculation: Speculation | None) -> tuple[Device, Speculation]:
    """The usual ones where none are given. Raises OptionError."""
    return (
        Device() if device is None else instance("device", device, Device),
        Speculation() if speculation is None else instance("speculation", speculation, Speculation),
    )


def path_of(name: str, value: Any) -> Path:
    """What was given as a path. Raises OptionError."""
    try:
        return Path(value)
    except TypeError:
        raise OptionError(f"{name} is {shown(value)}; it must be the path of a file or a folder") from None


def _drafter(session: Session, target: Model, draft: Model, step: float) -> Drafter:
    """What drafts with this session of `draft`."""
    if _mismatch(target, draft):
        return CrossVocabularyDrafter(session, target.vocabulary, draft.vocabulary, step)
    return ModelDrafter(session, target.vocabulary.size, step)


def _opened(model: Model, context: int, interrupt: Interrupt | None) -> Session:
    """A session that can go back, for rejected tokens must leave the cache."""
    session = model.session(context) if interrupt is None else model.session(context, interrupt)
    if session.reach is not None:
        session.close()
        raise ModelError(
            f"{model.description} keeps a recurrent state that cannot go back, so no draft can be taken back; "
            "speculation needs a model with attention in every layer"
        )
    return session


def _priced(session: Session, what: str, on_progress: OnProgress | None) -> Prices:
    prices = recall(session)
    if prices is not None and _holds(session, prices):
        return prices
    tell = on_progress or (lambda _what, _share: None)
    with OtherPrograms() as others:
        curve = measure(session, lambda share: tell(what, share))
    trusted = not (others.busy or restless(curve))
    prices = Prices(curve.timed if trusted else calmed(curve))
    prices.trusted = trusted
    keep(session, prices)
    return prices


def _holds(session: Session, prices: Prices) -> bool:
    """Whether recalled `prices`, brought to today's pace, will do: those of a busy machine only while it is busy."""
    with OtherPrograms() as others:
        refresh(session, prices)
        if not prices.trusted:
            time.sleep(_LISTENING)
    return prices.trusted or others.busy
