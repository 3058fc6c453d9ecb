"""What `edgespec models show` says of a model besides its files and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgespec.models import draft_head, runtime_support
from edgespec.models.model_summary import ModelSummary
from edgespec.models.registry import DraftHead, Entry
from edgespec.models.sizes import amount, parts


def lines(target: ModelSummary, entry: Entry | None) -> Iterator[str]:
    """The head, the recurrent state, pictures, and what the registry knows."""
    yield from _head(target, entry.head if entry is not None else None)
    yield from _hybrid(target, entry)
    if target.pictures or (entry is not None and entry.pictures):
        yield "pictures: not read; the model chats in text, without its image projector (mmproj)"
    if entry is None:
        return
    if entry.notes:
        yield f"notes: {entry.notes}"
    commit = f" at the revision {entry.target.revision}" if entry.target.revision else ""
    if entry.target.sha256 or commit:
        yield f"checksum: {entry.target.sha256 or 'unknown'}{commit}"
    yield f"verified: {entry.verified or 'nothing'}"


def blocks(target: ModelSummary, drafts: Sequence[ModelSummary]) -> Iterator[str]:
    """Whether a draft model, or this one as a draft model, guesses several tokens in one pass."""
    guesses = [draft.guesses for draft in drafts if draft.guesses > 1]
    for each in guesses:
        yield f"PARD: the draft model guesses up to {each} tokens in one pass"
    if not guesses and target.guesses > 1:
        yield f"PARD: as a draft model it guesses up to {target.guesses} tokens in one pass"


def part(target: ModelSummary, drafts: Sequence[ModelSummary]) -> Iterator[str]:
    """Whether a draft model, or this one, is made of layers of its target."""
    kept = [draft for draft in drafts if draft.layers_kept]
    for draft in kept:
        shared = _shared(target, draft)
        same = f", with {amount(shared)} of weights on the disk once for both" if shared else ""
        yield f"exit: the draft is the target's layers {draft.layers_kept}{same} (drafter exit)"
    if kept:
        return
    if target.exit_layer:
        yield f"exit: its first {target.exit_layer} layers draft for it in ONNX Runtime, on the CPU (drafter exit)"
    elif target.layers_kept:
        yield f"exit: layers {target.layers_kept} of another model, for which it drafts (drafter exit)"


def _shared(target: ModelSummary, draft: ModelSummary) -> int:
    """Bytes of files that are parts of both, by links."""
    if target.path is None or draft.path is None:
        return 0
    ours = parts(target.path)
    return sum(path.stat().st_size for path in parts(draft.path) if any(path.samefile(each) for each in ours))


def _head(target: ModelSummary, listed: DraftHead | None) -> Iterator[str]:
    file = listed.file if listed is not None else None
    kind = listed.kind if listed is not None else draft_head.HEAD
    if listed is not None and file is None and target.tokens is not None and not target.has_head:
        yield "head: none in this file, although the registry lists one"
        return
    if listed is None and not target.has_head:
        return
    where = "in the target's file"
    if file is not None:
        size = amount(file.size) if file.size else "size unknown"
        where = f"{file.repo} {file.file or file.quantization}  {size}"
    if draft_head.is_used(kind) and (file is not None or target.head_drafts or not target.has_head):
        yield f"head: {where}; it drafts"
        return
    fetched = ", so it is not fetched" if file is not None else ""
    yield f"head: {where}; not used by this version{fetched}: look-ups draft, or a draft model if there is one"


def _hybrid(target: ModelSummary, entry: Entry | None) -> Iterator[str]:
    architecture = (entry.target.memory.architecture if entry is not None else "") or target.architecture
    copies = target.sizes.copies
    if copies is None and not (entry is not None and entry.target.memory.architecture):
        return
    if not runtime_support.runs_state_of(architecture):
        yield "hybrid: not run by this version, since its recurrent state cannot be rolled back after a draft"
    if copies is not None:
        yield (
            f"recurrent state: {amount(copies.size)} a copy; counted: {copies.in_context} copies to take back rejected "
            f"tokens, {copies.saved} saved near the ends of prompts"
        )
    else:
        yield "recurrent state: of unknown size"
