"""Models to a runtime: open, check that they fit together, measure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from . import pairfile
from .backends import (
    Device,
    Interrupt,
    Model,
    Session,
    context_length,
    fingerprint,
    open_model,
    require_same_tokens,
)
from .drafters import Drafter
from .drafters.lookup import Lookup
from .drafters.model import ModelDrafter
from .drafters.words import WordsDrafter
from .errors import ModelError, VocabularyMismatch
from .learned import Learned
from .memory import Memory
from .pair import Pair, Speculation
from .prices import Prices, keep, measure, recall, refresh
from .runtime import Runtime

#: Told what is being measured and the share done, from 0 to 1.
OnProgress = Callable[[str, float], None]


def load(
    model: str | Path,
    draft: str | Path | None = None,
    *,
    device: Device | None = None,
    speculation: Speculation | None = None,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
) -> Runtime:
    """Load a target, and a draft model if one is given, and measure what passes cost unless that is known.

    Args:
        model: a GGUF file, or the folder of an ONNX model that edgespec converted; or the file of a pair, or its
            folder, which name a target and its draft.
        draft: a small one, of either kind. It comes before that of a pair.
        interrupt: set it from another thread to give up loading.
        on_progress: told how far measuring is; it runs once for each model and machine.

    Raises:
        ModelError: a file that cannot be loaded, or a pair that does not fit together.
        MissingPackage: the engine for these files is not installed.
        Interrupted: `interrupt` was set.
    """
    device, interrupt = device or Device(), interrupt or Interrupt()
    speculation = speculation or Speculation()
    if (file := pairfile.at(Path(model))) is not None:
        pair = pairfile.read(file)
        model, draft = pair.target, draft or pair.draft
    with ExitStack() as opened:
        target = open_model(Path(model), device, interrupt)
        opened.callback(target.close)
        second = None
        if draft is not None:
            second = open_model(Path(draft), device.of_draft(), interrupt)
            opened.callback(second.close)
        runtime = assemble(
            target,
            second,
            device=device,
            speculation=speculation,
            interrupt=interrupt,
            on_progress=on_progress,
        )
        opened.pop_all()
    return runtime


def assemble(
    target: Model,
    draft: Model | None = None,
    *,
    device: Device | None = None,
    speculation: Speculation | None = None,
    interrupt: Interrupt | None = None,
    on_progress: OnProgress | None = None,
    learned: Learned | None = None,
) -> Runtime:
    """A runtime over models that are open already, by an engine of one's own, say. It closes them when it is closed.

    `interrupt` is the one the models were opened with; `learned` what is known of the drafters, None what earlier runs
    kept. Raises as `load` does; then the models stay open.
    """
    device, speculation = device or Device(), speculation or Speculation()
    if draft is not None and not speculation.through_text:
        require_same_tokens(target.vocabulary, draft.vocabulary)
    context = context_length(device, target)
    sessions = ExitStack()
    with ExitStack() as refused:
        refused.callback(sessions.close)
        session = _opened(target, context)
        sessions.callback(session.close)
        prices = _priced(session, "target", on_progress)
        sessions.callback(_keep_learned, session, prices)
        kept = Memory(fingerprint(target.vocabulary), target.vocabulary.size) if speculation.remember else None
        drafters: list[Drafter] = [Lookup(earlier=kept.texts() if kept else ())]
        if draft is not None:
            drafting = _opened(draft, context)
            sessions.callback(drafting.close)
            drafters.append(_drafter(drafting, target, draft, _priced(drafting, "draft", on_progress).plain()))
        models = (target, draft) if draft is not None else (target,)
        learned = learned or Learned.of(models)
        sessions.callback(learned.keep)
        pair = Pair(models, session, tuple(drafters), prices, learned, interrupt or Interrupt(), sessions.close, kept)
        runtime = Runtime(pair, speculation)
        refused.pop_all()
    return runtime


def _drafter(session: Session, target: Model, draft: Model, step: float) -> Drafter:
    """What drafts with this session of `draft`."""
    try:
        require_same_tokens(target.vocabulary, draft.vocabulary)
    except VocabularyMismatch:
        return WordsDrafter(session, target.vocabulary, draft.vocabulary, step)
    return ModelDrafter(session, target.vocabulary.size, step)


def _opened(model: Model, context: int) -> Session:
    """A session that can go back, for rejected tokens must leave the cache."""
    session = model.session(context)
    if not session.can_rollback:
        session.close()
        raise ModelError(
            f"{model.description} keeps a recurrent state that cannot go back, so no draft can be taken back; "
            "speculation needs a model with attention in every layer"
        )
    return session


def _keep_learned(session: Session, prices: Prices) -> None:
    if prices.changed:
        keep(session, prices)


def _priced(session: Session, what: str, on_progress: OnProgress | None) -> Prices:
    prices = recall(session)
    if prices is not None:
        refresh(session, prices)
        return prices
    tell = on_progress or (lambda _what, _share: None)
    prices = Prices(measure(session, lambda share: tell(what, share)).timed)
    keep(session, prices)
    return prices
