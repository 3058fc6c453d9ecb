"""The output of `edgespec models`, in lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from edgespec import models
from edgespec.models import fit, model_source, model_summary, registry
from edgespec.models.head_files import HeadTarget, shape
from edgespec.models.hub import Hub
from edgespec.models.memory import machine_memory
from edgespec.models.model_source import MIN_SIZE_RATIO
from edgespec.models.model_summary import ModelSummary
from edgespec.models.public_drafts import in_repository
from edgespec.models.sizes import amount, size_of
from edgespec.storage import pair_file as pairfile

from ..backends import Device, engines, recall_choice, require_same_tokens
from ..errors import HubError, OptionError, VocabularyMismatch
from ..library import converted
from ..library.resolving import DEMO
from . import exit_layers, instead, model_facts, public_drafts
from .disk_use import size_of_folder
from .expected_speedup import expected_speedup
from .terminal_job import terminal_job


def listed() -> Iterator[str]:
    """The known models by the memory that they take, whether they are in the cache, and the other GGUF files there."""
    known, free = registry.entries(), machine_memory()
    width = max(map(len, known))
    licences = max(len(entry.licence) for entry in known.values())
    yield f"{'name':{width}}  {'size':>8}  here     {'fits now':9}  new  {'licence':{licences}}  needs"
    for name, entry in sorted(known.items(), key=lambda each: each[1].size):
        sources = [model_source.Source.of(file) for file in (entry.target, entry.drafting) if file is not None]
        here = [source.here() is not None for source in sources]
        state = "yes" if all(here) else "in part" if any(here) else "-"
        newest = "*" if entry.newest else ""
        yield (
            f"{name:{width}}  {amount(entry.size):>8}  {state:7}  {instead.fit_of(entry, free):9}  {newest:3}  "
            f"{entry.licence:{licences}}  {entry.needs}"
        )
    yield "fits now: into the memory that is free, which other programs can leave; needs: a machine or GPU of that size"
    yield "* no later generation of its family is known at its size"
    if not all(map(instead.runs, known.values())):
        yield "not run: a hybrid, whose recurrent state this version cannot roll back"
    if installed := [f"{amount(size_of(path)):>10}  {repo}  {path.name}" for repo, path in Hub().models()]:
        yield f"GGUF files in {Hub().cache} ({amount(size_of_folder(Hub().cache))} with all else in it):"
        yield from installed
    demo = models.demo()
    yield f"Without a name, or as demo: the demo pair in {demo.target.parent}"
    yield f"Your own pairs: {registry.own_file()}"


def shown(name: str, context: int) -> Iterator[str]:
    """One model or pair: its files, and how it would be loaded.

    Raises:
        OptionError: an unknown name, or a wrong context.
        ModelError: a file cannot be read.
        HubError: a file on the hub cannot be inspected.
    """
    Device(context)  # checks the context
    if (public := in_repository(name)) is not None and not Path(name).exists():
        yield from public_drafts.of_repository(public)
        return
    name, known = _meant(name)
    if known is not None and (entry := known.entry):
        yield f"{entry.title}; licence {entry.licence}; needs {entry.needs}"
    target = _target(name, known)
    drafts = [] if target.head_alone else _own_drafts(name, target, known)
    for what, each in (("target", target), *(("draft", draft) for draft in drafts)):
        what = "head" if each.head_alone else what  # noqa: PLW2901
        here = f"  {_where(each)}" if known is not None else ""
        yield f"{what:6}  {each.name}  {_size(each.size)}{here}"
    entry = known.entry if known is not None else None
    if target.head_alone:
        yield from _head_lines(target)
        return
    for draft in drafts:
        if draft.head_alone:
            yield from _head_lines(draft)
    yield from model_facts.lines(target, entry)
    if entry is not None:
        yield from public_drafts.lines(entry)
    yield from model_facts.blocks(target, drafts)
    yield from model_facts.part(target, drafts)
    if known is None:
        yield from _measured(Path(name))
    yield from planned(target, drafts, fit.Requested(context))
    yield from instead.lines(target, drafts, machine_memory(), context)
    yield from _engine(target)
    if any(each.path is None for each in (target, *drafts)):
        yield f"to fetch it: edgespec models pull {name}"


def _measured(path: Path) -> Iterator[str]:
    """The measurements in a pair file, if `path` is one."""
    file = pairfile.at(path)
    about = pairfile.read(file).about if file is not None else {}
    if known := about.get("measured", {}).get("acceptance"):
        shares = " ".join(f"{share:.0%}" for share in known)
        when = f" (measured {about['date']})" if "date" in about else ""
        yield f"acceptance by depth: {shares}{when}"


def _engine(target: ModelSummary) -> Iterator[str]:
    """The engine that opens a model, where several can."""
    if target.path is None or len(engines(target.path)) < 2:
        return
    choice = recall_choice(target.path, Device())
    yield f"engine: {choice or 'measured at the first load, for several open this file'}"


def _where(each: ModelSummary) -> str:
    return "here" if each.path is not None else "not here"


def _size(size: int) -> str:
    return amount(size) if size else "size unknown"


def planned(target: ModelSummary, drafts: Sequence[ModelSummary], asked: fit.Requested) -> Iterator[str]:
    """How a target and its drafts would be loaded now."""
    free = machine_memory()
    try:
        plan = fit.choose(target.sizes, [draft.sizes for draft in drafts], free, asked)
    except OptionError as error:
        yield f"memory: it does not fit: {error}"
        return
    known = plan.cache is not None
    rest = f"cache {amount(plan.cache or 0)} for {plan.context} tokens"
    rest += f" + recurrent states {amount(plan.state)}" * bool(plan.state) + f" + buffers {amount(plan.buffers)}"
    total = f" = {amount(plan.needed)}" if known else f", and a cache of unknown size for {plan.context} tokens"
    gpus = f", and {amount(sum(gpu.free for gpu in free.gpus))} on GPUs" if free.gpus else ""
    verdict = "it does not fit" if not plan.fits else "it fits" if known else "its weights fit"
    weights = f"weights {amount(plan.weights)}" + (f" + {rest}" if known else "")
    yield f"memory: {weights}{total}; {amount(free.free)} are free{gpus}: {verdict}"
    if target.sizes.estimated:
        yield "estimate: the file's header was not read, so only what the registry knows is counted"
    if not plan.fits:
        yield (
            f"to do: {amount(plan.lacking)} are missing, so it would be very slow; close other programs, or use models "
            f"of {amount(plan.largest)} together: a coarser quantization, or fewer parameters"
        )
    yield from _placed(plan, target, drafts)
    if plan.shortened and not asked.context:
        yield f"context: {plan.context} tokens, since {fit.DEFAULT_CONTEXT} do not fit"


def _placed(plan: fit.Plan, target: ModelSummary, drafts: Sequence[ModelSummary]) -> Iterator[str]:
    """What is loaded where, on a machine with GPUs."""
    if not plan.layers or not plan.free.gpus:
        return
    if target.sizes.estimated and plan.gpu_layers != fit.ALL:
        layers = f"about {plan.gpu_layers / plan.layers:.0%}"
    else:
        layers = _layers(plan.gpu_layers, plan.layers)
    second = f", {_layers(plan.draft_gpu_layers, 0)} of the draft{'s' * (len(drafts) > 1)}" if drafts else ""
    yield f"GPU: {layers} of the target{second}"
    if plan.on_gpu and plan.cache is not None and not plan.free.shared:
        held = "weights, cache, state copies and buffers" if plan.copies else "weights, cache and buffers"
        yield f"loaded: {amount(plan.on_gpu)} on the GPU ({held}), {amount(plan.in_ram)} in the CPU's memory"


def _layers(count: int, of: int) -> str:
    if count == fit.ALL:
        return "all layers"
    return f"{count} of {of} layers" if count and of else f"{count or 'no'} layers"


def paired(name: str, draft_name: str | None) -> Iterator[str]:
    """Whether two models make a pair, the expected speedup, and advice.

    Raises:
        OptionError: an unknown name, or no draft is found.
        ModelError: a file cannot be read.
        HubError: a file on the hub cannot be inspected.
    """
    name, known = _meant(name)
    target = _target(name, known)
    why = ""
    if draft_name is not None:
        draft: ModelSummary | None = _target(*_meant(draft_name))
    else:
        draft = next(iter(_own_drafts(name, target, known)), None)
        if draft is None or draft.head_alone:
            draft, why = _hub_draft(target, known)
    if draft is None:
        raise OptionError(
            f"no draft model for {name} is known, found here or on the hub; name one: edgespec models pair TARGET "
            "DRAFT, or try its own first layers with --exit-layers"
        )
    for what, each in (("target", target), ("draft", draft)):
        tokens = f"vocabulary of {each.tokens.size} tokens" if each.tokens is not None else "its head could not be read"
        yield f"{what:6}  {each.name}  {amount(each.size)}  {tokens}  {_where(each)}"
    if why:
        yield f"found: {why}"
    if draft.head_alone:
        yield from _with_head(target, draft)
        return
    same, text = _vocabularies(target, draft)
    yield text
    yield _templates(target, draft)
    yield _sizes(target.size, draft.size)
    yield from planned(target, [draft], fit.Requested())
    if same and target.path is not None and draft.path is not None:
        yield from expected_speedup(target.path, draft.path)
    elif same:
        yield "speedup: known after both are fetched, and a chat or `edgespec tune` has measured them"


def with_own_layers(name: str) -> Iterator[str]:
    """What the first layers of a local model are worth as its draft.

    Raises:
        OptionError: an unknown name, or a model that is not here.
        ConversionError: the model cannot be cut.
        and as `exit_layers.lines`.
    """
    name, known = _meant(name)
    target = _target(name, known)
    if target.path is None:
        raise OptionError(f"{name} is not here, so nothing can be measured; fetch it: edgespec models pull {name}")
    yield f"target  {target.name}  {amount(target.size)}"
    yield from exit_layers.lines(target.path)


def _head_lines(head: ModelSummary) -> Iterator[str]:
    """What a head in a file of its own is, and what uses it."""
    if head.path is not None:
        yield from shape(head.path)
    if not head.drafter:
        yield "head: not used by this version"
    else:
        yield f"head: it drafts for its target, with --draft (drafter {head.drafter})"


def _with_head(target: ModelSummary, head: ModelSummary) -> Iterator[str]:
    """What `paired` says of a head in a file of its own."""
    yield from _head_lines(head)
    if target.path is not None and head.path is not None and (model := HeadTarget.of(target.path)) is not None:
        yield f"rows and vocabulary: those of {'this target' if model.is_fitted_by(head.path) else 'another model'}"
    yield from planned(target, [head], fit.Requested())


def _meant(text: str) -> tuple[str, model_source.ResolvedName | None]:
    """A model argument: resolved if it is a name; the folder of a checkpoint is converted once."""
    if text == DEMO and not Path(DEMO).exists():
        return str(models.demo().target), None
    known = model_source.resolve_name(text)
    if known is not None:
        return text, known
    _require(Path(text))
    with terminal_job() as job:
        return str(converted(Path(text), job)), None


def _target(text: str, known: model_source.ResolvedName | None) -> ModelSummary:
    if known is not None:
        return model_summary.of_source(known.target)
    return model_summary.of_path(models.with_draft(Path(text)).target)


def _own_drafts(name: str, target: ModelSummary, known: model_source.ResolvedName | None) -> list[ModelSummary]:
    """The drafts of a target without a search on the hub: the registry's, those of its pair file, one beside the
    target, or a local one."""
    if known is not None and known.draft is not None:
        return [model_summary.of_source(known.draft)]
    paths: Sequence[Path | None] = ()
    if target.path is not None:
        paths = models.with_draft(Path(name) if known is None else target.path).drafts
        paths = paths or [model_source.local_draft(target.path)]
    elif target.tokens is not None:
        paths = [model_source.cached_draft(target.tokens, target.size // MIN_SIZE_RATIO)]
    return [model_summary.of_path(path) for path in paths if path is not None]


def _hub_draft(target: ModelSummary, known: model_source.ResolvedName | None) -> tuple[ModelSummary | None, str]:
    """The draft for a target that is found on the hub, and why it was chosen."""
    from edgespec.models import hub_search  # noqa: PLC0415

    name = known.target.repo if known is not None else Path(target.name).name
    if target.tokens is None:
        return None, ""
    try:
        match = hub_search.find_draft(name, target.tokens, target.size)
    except HubError as error:
        raise OptionError(
            f"no draft model for {name} is known or found here, and none can be looked for: {error}"
        ) from error
    return (model_summary.of_source(match.source), match.why) if match is not None else (None, "")


def _require(path: Path) -> None:
    try:
        found = path.exists()
    except OSError as error:  # a name too long, a folder that may not be searched
        raise OptionError(f"{path} cannot be opened: {error.strerror}; give a file that can be read") from error
    if not found:
        raise OptionError(
            f"no model at {path}; give the path of a .gguf file or of an ONNX model's folder, a name of "
            "`edgespec models list`, or org/repo"
        )


def _vocabularies(target: ModelSummary, draft: ModelSummary) -> tuple[bool, str]:
    if target.tokens is None or draft.tokens is None:
        return False, "vocabulary: unknown, since a header could not be read; it is checked when the model is loaded"
    try:
        require_same_tokens(target.tokens, draft.tokens)
    except VocabularyMismatch as error:
        return False, f"vocabulary: {str(error).partition(';')[0]}; with --draft it drafts through text"
    return True, "vocabulary: the same"


def _templates(target: ModelSummary, draft: ModelSummary) -> str:
    ours, theirs = target.template, draft.template
    if target.tokens is None or draft.tokens is None:
        return "template: unknown"
    if ours is None:
        return "template: the target has none, so chats are not formatted"
    if theirs is None:
        return "template: the target's; the draft has none, and may be accepted less often in chats"
    if ours == theirs:
        return "template: the same"
    return "template: different; the target's is used, and chats may have lower acceptance"


def _sizes(target: int, draft: int) -> str:
    share = draft / target
    text = f"size: the draft has {share:.0%} of the target's bytes"
    if share <= 1 / MIN_SIZE_RATIO:
        return f"{text}; good"
    most = amount(target / MIN_SIZE_RATIO)
    return f"{text}; at most a tenth pays best: take a draft of at most {most}, by fewer parameters or fewer bits"
