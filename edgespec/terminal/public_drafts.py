"""What `edgespec models show` says of heads and PARD drafts that others published."""

from __future__ import annotations

from collections.abc import Iterator

from edgespec.models import public_drafts
from edgespec.models.public_drafts import PublicDraft
from edgespec.models.registry import Entry
from edgespec.models.sizes import amount

from ..runtime.speculation import DRAFTERS

_INDENT = 10 * " "
_SUFFIXES = {"eagle3": "gguf", "pard": "gguf"}  # of the files that `convert` writes; ONNX files of all others


def lines(entry: Entry) -> Iterator[str]:
    """Those for a target of the registry, with their prices by the sizes of tensors, and how to get them."""
    found = public_drafts.made_for(entry.name)
    if found:
        yield "heads and PARD drafts that others published, of which none was fetched or tried here:"
    for draft in found:
        yield f"  {draft.kind:6}  {_about(draft, entry.target.size)}"
        yield f"{_INDENT}{_command(draft, entry.name)}"
        yield f"{_INDENT}verified: {draft.verified}"


def of_repository(draft: PublicDraft) -> Iterator[str]:
    """One of them alone."""
    yield f"{draft.kind:6}  {_about(draft)}"
    yield f"made for: {draft.made_for}"
    yield f"to get it: {_command(draft, *(draft.targets[:1] if len(draft.targets) == 1 else ()))}"
    yield f"verified: {draft.verified}; it was neither fetched nor tried here"


def _about(draft: PublicDraft, target: int = 0) -> str:
    size = amount(draft.size) if draft.size else "size unknown"
    return f"{draft.repo} {draft.file}".rstrip() + f"  {size}  {_price(draft, target)}"


def _price(draft: PublicDraft, target: int) -> str:
    what = "a guess" if draft.kind.startswith("eagle") else "a pass, for several guesses,"
    if not draft.reads:
        return "price not known" + f"; {draft.note}" * bool(draft.note)
    share = f", {draft.share(target):.0%} of the target's bytes" if target else ""
    return f"{what} reads {draft.reads / 1e6:,.0f} M weights{share}" + f" ({draft.note})" * bool(draft.note)


def _command(draft: PublicDraft, name: str = "") -> str:
    if draft.kind not in DRAFTERS:
        return f"not used by this version, which has no drafter {draft.kind}"
    if draft.file:
        return f"edgespec chat {name or 'TARGET'} --draft hf.co/{draft.repo}/blob/main/{draft.file}"
    output = f"{name or draft.repo.partition('/')[2]}.{draft.kind}.{_SUFFIXES.get(draft.kind, 'onnx')}"
    purpose = "" if draft.kind == "pard" else f" --for {name or 'TARGET'}"
    return f"edgespec convert {draft.repo}{purpose} --out {output}"
