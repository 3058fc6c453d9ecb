"""What `edgespec models` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from edgespec import models, pairfile
from edgespec.models import finding, fit, registry
from edgespec.models.header import Header, header

from ..backends import Device, Interrupt, open_model, require_same_tokens
from ..errors import OptionError, VocabularyMismatch
from ..prices import recall
from ..tuning import best

_ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
_CONTEXT = 4096


def listed() -> Iterator[str]:
    """The pairs that are known, and whether they are here."""
    known = registry.entries()
    width = max(map(len, known))
    yield f"{'name':{width}}  {'GB':>6}  here     licence     needs"
    for name, entry in known.items():
        sources = [finding.Source.of(file) for file in (entry.target, entry.draft) if file is not None]
        here = [source.here() is not None for source in sources]
        state = "yes" if all(here) else "in part" if any(here) else "-"
        yield f"{name:{width}}  {entry.size / 1e9:6.2f}  {state:7}  {entry.licence:10}  {entry.needs}"
    demo = models.demo()
    yield f"Without a name: the demo pair in {demo.target.parent}"
    yield f"Your own pairs: {registry.own_file()}"


def shown(name: str, context: int) -> Iterator[str]:
    """One pair: its files, and whether it fits into memory."""
    known = finding.named(name)
    if known is None:
        pair = models.with_draft(Path(name))
        paths = [path for path in pair if path is not None]
        yield from (f"{path}  {fit.size_of(path) / 1e9:.2f} GB" for path in paths if _require(path))
        yield from _measured(Path(name))
    else:
        if entry := known.entry:
            yield f"{entry.title}; licence {entry.licence}; needs {entry.needs}"
        sources = [source for source in (known.target, known.draft) if source is not None]
        here = [source.here() for source in sources]
        for what, source, path in zip(("target", "draft"), sources, here, strict=False):
            size = (
                f"{(fit.size_of(path) if path else source.size) / 1e9:.2f} GB"
                if path or source.size
                else "size unknown"
            )
            yield f"{what:6}  {source}  {size}  {path or 'not here'}"
        paths = [path for path in here if path is not None]
        if known.entry:
            yield f"verified: {known.entry.verified or 'nothing'}"
        if len(paths) < len(sources):
            yield f"Memory is told once it is here: edgespec models pull {name}"
            return
    yield memory(fit.plan(paths, context or _CONTEXT))


def _measured(path: Path) -> Iterator[str]:
    """What the file of a pair says of it, if `path` is one."""
    file = pairfile.at(path)
    about = pairfile.read(file).about if file is not None else {}
    if known := about.get("measured", {}).get("acceptance"):
        shares = " ".join(f"{share:.0%}" for share in known)
        when = f" (measured {about['date']})" if "date" in about else ""
        yield f"acceptance by depth: {shares}{when}"


def memory(plan: fit.Plan) -> str:
    """The plan in words."""
    cache = "cache unknown" if plan.cache is None else f"cache {plan.cache / 1e9:.2f}"
    parts = f"weights {plan.weights / 1e9:.2f} + {cache} for {plan.context} tokens + buffers"
    gpu = f", {plan.gpu / 1e9:.2f} on GPUs" if plan.gpu is not None else ""
    verdict = (
        "it fits" if plan.fits else "it does not fit: take a smaller --ctx, a smaller model or a coarser quantization"
    )
    return f"memory: {parts} = {plan.needed / 1e9:.2f} GB; free are {plan.free / 1e9:.2f}{gpu}: {verdict}"


def paired(target: Path, draft: Path | None) -> Iterator[str]:
    """Whether two files make a pair, and what it can bring."""
    target, found = models.with_draft(target)
    draft = draft or found or finding.local_draft(target)
    if draft is None:
        raise OptionError(
            f"no draft model for {target} is known or found here; name one: edgespec models pair TARGET DRAFT"
        )
    with ExitStack() as stack:
        heads = {path: stack.enter_context(header(path)) for path in (target, draft) if _require(path)}
        for what, path in (("target", target), ("draft", draft)):
            yield f"{what:6}  {path}  {fit.size_of(path) / 1e9:.2f} GB  {heads[path].vocabulary.size} tokens"
        same, text = _vocabularies(heads[target], heads[draft])
        yield text
        yield _templates(heads[target], heads[draft])
        yield _sizes(fit.size_of(target), fit.size_of(draft))
    yield memory(fit.plan([target, draft], _CONTEXT))
    yield from gains(target, draft) if same else ()


def _require(path: Path) -> bool:
    if not path.is_file():
        raise OptionError(f"no model at {path}; give the path of a .gguf file, or a name of `edgespec models list`")
    return True


def _vocabularies(target: Header, draft: Header) -> tuple[bool, str]:
    try:
        require_same_tokens(target.vocabulary, draft.vocabulary)
    except VocabularyMismatch as error:
        return False, f"vocabulary: {str(error).partition(';')[0]}; named with --draft it drafts through text"
    return True, "vocabulary: the same, so the draft's tokens are the target's"


def _templates(target: Header, draft: Header) -> str:
    ours, theirs = target.vocabulary.template, draft.vocabulary.template
    if ours is None:
        return "template: the target has none, so chats have no form of their own"
    if theirs is None:
        return "template: the target's; the draft has none, and may guess worse in chats"
    if ours == theirs:
        return "template: the same"
    return "template: they differ; the target's is used, and the draft may guess worse in chats"


def _sizes(target: int, draft: int) -> str:
    share = draft / target
    return f"size: the draft has {share:.0%} of the target's bytes; {'good' if share <= 0.1 else 'a tenth pays most'}"


def gains(target: Path, draft: Path) -> Iterator[str]:
    """What prices known from earlier runs promise."""
    with ExitStack() as stack:
        curves = []
        for path in (target, draft):
            model = open_model(path, Device(), Interrupt())
            stack.callback(model.close)
            session = model.session(512)
            stack.callback(session.close)
            curves.append(recall(session))
        prices, drafting = curves
        if prices is None or drafting is None:
            yield "speedup: no prices are known here yet; `edgespec tune` measures them, and so does the first chat"
            return
        yield "speedup at the prices of this machine, by how often a drafted token is right:"
        for acceptance in _ACCEPTANCES:
            k, gain = best(prices.curve(), drafting.plain(), acceptance)
            yield f"{acceptance:6.0%}  {f'{gain:.2f}x at K = {k}' if k else 'plain decoding'}"
