"""The context and the GPU layers that fit into memory, with notices if they are less than the default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..backends import Device
from ..errors import ModelError
from ..runtime.loading import Files
from ..runtime.speculation import Speculation
from .job import Job

if TYPE_CHECKING:
    from edgespec.models.fit import Plan


def fitted(
    files: Files, device: Device, job: Job, *, anywhere: bool = True, speculation: Speculation | None = None
) -> Device:
    """`device` with the context and the GPU layers that fit into memory.

    Args:
        anywhere: whether the number of GPU layers is chosen here, rather than given by the user.
        speculation: how to speculate, which says whether the head in the target's file drafts, if it has one; None
            takes the defaults.

    Raises:
        OptionError: the requested context or layers do not fit.
    """
    from edgespec.models import fit  # noqa: PLC0415

    if device.rpc:  # the memory is elsewhere; a worker that has too little says so
        return device
    freely = None if not device.exact else 0  # logits are bit-identical only on the CPU
    layers = freely if anywhere else device.gpu_layers
    try:
        asked = fit.Requested(device.context, layers, device.draft_gpu_layers)
        named = speculation.drafters if speculation is not None else None
        head = named is None or not {"mtp", "eagle3"}.isdisjoint(named)
        plan = fit.plan(files.target, files.drafts, asked, head=head, beside="mtp" in (named or ()))
    except (ModelError, OSError, ValueError):  # what is wrong with the files is told when they are opened
        return device
    context = device.context or (plan.context if plan.shortened else 0)
    for kind, text in _notices(plan, freely=layers is None, shortened=bool(context) and not device.context):
        job.notice(kind, text)
    return replace(device, context=context, gpu_layers=plan.gpu_layers, draft_gpu_layers=plan.draft_gpu_layers)


def _notices(plan: Plan, *, freely: bool, shortened: bool) -> Iterator[tuple[str, str]]:
    """Notices about a plan: a shorter context, fewer GPU layers, or too little memory, unless the user chose these."""
    from edgespec.models.sizes import amount  # noqa: PLC0415

    if shortened:
        yield "context", f"The context is {plan.context} tokens, for memory has room for no more; --ctx N insists on N."
    if freely and plan.gpu_layers >= 0:
        count = f"{plan.gpu_layers} of {plan.layers} layers fit" if plan.gpu_layers else "No layer fits"
        yield "layers", f"{count} on the GPU; the CPU runs the rest."
    if plan.lacking:
        lacking = f"The model does not fit: {amount(plan.lacking)} of memory are lacking, so it may be very slow"
        yield "memory", f"{lacking}; one of {amount(plan.largest)} would fit."
