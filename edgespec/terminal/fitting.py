"""Loading what fits into memory, and saying where that is less than was hoped for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..backends import Device
from ..errors import ModelError, OptionError

if TYPE_CHECKING:
    from edgespec.models.fit import Plan


def placed(target: Path, draft: Path | None) -> Device:
    """Where these models run if nothing is asked for; nothing is said of it."""
    device, _ = _chosen(target, draft, Device(), anywhere=True)
    return device


def fitted(target: Path, draft: Path | None, device: Device, *, anywhere: bool) -> Device:
    """`device` with the context and the layers on GPUs that there is memory for.

    Args:
        anywhere: whether it is left to us how many layers go on GPUs.

    Raises:
        OptionError: what was asked for does not fit.
    """
    _require_onnx(device.provider, [path for path in (target, draft) if path is not None])
    chosen, lines = _chosen(target, draft, device, anywhere=anywhere)
    for line in lines:
        click.echo(line, err=True)
    return chosen


def _require_onnx(provider: str, paths: Sequence[Path]) -> None:
    """OptionError where a provider of ONNX Runtime is asked for, and it runs none of the models."""
    from edgespec.models.sizes import is_onnx  # noqa: PLC0415

    if provider != Device().provider and not any(map(is_onnx, paths)):
        raise OptionError(
            f"--provider {provider} is for ONNX models, and llama.cpp runs {paths[0]}; --gpu-layers puts layers of a "
            "GGUF file on a GPU"
        )


def _chosen(target: Path, draft: Path | None, device: Device, *, anywhere: bool) -> tuple[Device, list[str]]:
    from edgespec.models import fit  # noqa: PLC0415

    freely = None if not device.exact else 0  # bits are the same on the CPU alone
    layers = freely if anywhere else device.gpu_layers
    try:
        plan = fit.plan(target, draft, fit.Asked(device.context, layers, device.draft_gpu_layers))
    except (ModelError, OSError):  # what is wrong with the files is told when they are opened
        return device, []
    context = device.context or (plan.context if plan.shortened else 0)
    chosen = replace(device, context=context, gpu_layers=plan.gpu_layers, draft_gpu_layers=plan.draft_gpu_layers)
    return chosen, list(_notices(plan, freely=layers is None, shortened=bool(context) and not device.context))


def _notices(plan: Plan, *, freely: bool, shortened: bool) -> Iterator[str]:
    """What a user should know of a plan before the model is slow, or forgets; what he asked for himself he knows."""
    from edgespec.models.sizes import amount  # noqa: PLC0415

    if shortened:
        yield f"The context is {plan.context} tokens, for memory has room for no more; --ctx N insists on N."
    if freely and plan.gpu_layers >= 0:
        count = f"{plan.gpu_layers} of {plan.layers} layers fit" if plan.gpu_layers else "No layer fits"
        yield f"{count} on the GPU; the CPU runs the rest."
    if plan.lacking:
        yield (
            f"The model does not fit: {amount(plan.lacking)} of memory are lacking, so it may be very slow; one "
            f"of {amount(plan.largest)} would fit."
        )
