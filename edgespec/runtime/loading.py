"""Loading: open the models, check that they fit together, make a runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..backends import (
    Device,
    FittedHead,
    Interrupt,
    Model,
    context_length,
    open_model,
    require_same_tokens,
    state_head_kind,
)
from ..backends.head_header import head_in
from ..drafters import Drafter, Factory
from ..drafters.eagle import EagleDrafter
from ..drafters.eagle3 import Eagle3Drafter
from ..drafters.exit import ExitDrafter
from ..drafters.medusa import MedusaDrafter
from ..drafters.mtp import MtpDrafter
from ..errors import OptionError
from ..prices.engine_comparison import with_engines
from ..values import instance, shown
from .learned import Learned
from .opening import OnProgress, Opening, head_kind, mismatch
from .outside import require_known
from .runtime import Runtime
from .speculation import Speculation
from .weights import Weights

#: Drafters that read rows of their target.
_READING = (MtpDrafter.name, EagleDrafter.name, Eagle3Drafter.name, MedusaDrafter.name)


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
        drafts, left_out = _opened_drafts(files, engines.draft_devices, target, interrupt, opened)
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


def _opened_drafts(
    files: Files, devices: Sequence[Device], target: Model, interrupt: Interrupt, opened: ExitStack
) -> tuple[list[Model], list[str]]:
    """The drafts of `files`, closed by `opened`, and messages about those that are left out: found, and unfit."""
    drafts, left_out = list[Model](), list[str]()
    for path, device in zip(files.drafts, devices, strict=True):
        draft = open_model(path, device, interrupt)
        differs = mismatch(target, draft) if files.found and not isinstance(draft, FittedHead) else ""
        if differs:
            draft.close()
            left_out.append(f"{path}, found beside the model, is left out: {differs}")
        else:
            opened.callback(draft.close)
            drafts.append(draft)
    return drafts, left_out


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
    opening = Opening(weights, context_length(device, target), tuple(drafters), on_progress)
    with ExitStack() as undo:
        pair = opening.pair(speculation, interrupt or Interrupt(), weights.join())
        undo.callback(pair.close_sessions)
        runtime = Runtime(pair, speculation)
        undo.pop_all()
    return runtime


def require_one_of_a_kind(drafts: Sequence[Model]) -> None:
    """OptionError if two of `drafts` are heads of one kind."""
    kinds = Counter(kind for each in drafts if (kind := head_kind(each)))
    if twice := [kind for kind, count in kinds.items() if count > 1]:
        raise OptionError(f"there are {kinds[twice[0]]} heads of the kind {twice[0]}; give one of them (--draft)")


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
