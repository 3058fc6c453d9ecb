"""`edgespec convert --pair`: two checkpoints become a pair, and the pair is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path

import click

from edgespec import converters
from edgespec.converters import pair
from edgespec.converters.atomic_file import whole
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.compatibility import Likeness
from edgespec.models import fit
from edgespec.storage import pair_file as pairfile

from ..backends import Device
from ..errors import OptionError
from ..library import checkpoint, fitted, open_model_files, run
from ..runtime.loading import Files
from ..runtime.pair import Speculation
from ..runtime.runtime import Runtime
from ..sampling import Sampling
from ..tools.check import check
from ..tools.draft_value import DEPTH, Worth, weigh
from . import background
from .check_report import Report, parsed, read_prompts
from .options import Choosing, Pairing
from .pair_report import Findings, Made
from .progress import progress
from .terminal_job import watched

_TOKENS = 64  # of each answer
_CHECKED = 4  # prompts that are decoded plainly, too


@dataclass(frozen=True, slots=True)
class _Order:
    """What is to be made of the two, where, and how it is measured."""

    folder: Path
    fmt: str
    prompts: Path | None
    max_tokens: int
    force: bool


def make(pairing: Pairing, folder: Path, fmt: str, quant: str | None, *, force: bool) -> bool:
    """Convert, measure, say what was found and write the pair file; whether drafts changed no word.

    What can be refused is refused before anything is fetched or converted; the pair file is written last.
    """
    quantizations = [converters.chosen_quantization(fmt, name) for name in (quant, pairing.draft_quant)]
    tokens = _TOKENS if pairing.max_tokens is None else pairing.max_tokens
    if tokens < 1:
        raise OptionError(f"--max-tokens is {tokens}; it must be 1 or more")
    parsed(pairing.prompts)
    pair.check_folder(folder, force)
    order = _Order(folder, fmt, pairing.prompts, tokens, force)
    given = pairing.pair or ()
    with watched(yes=pairing.yes) as job:
        sources = [checkpoint(source, job) for source in given]
    likeness = Likeness.of(*map(Checkpoint.open, sources))
    made = [
        Made(role, str(source), here.name if here != source else "", pair.output(folder, role, fmt), name)
        for role, source, here, name in zip(pair.ROLES, given, sources, quantizations, strict=True)
    ]
    found = Findings(likeness, made)
    for line in found.beforehand():
        click.echo(line, err=True)
    with pair.held(folder):
        _convert(order, sources, made)
        found = _measured(order, found)
        _write(folder / pairfile.NAME, found)
    click.echo(found.as_json() if pairing.as_json else "\n".join(found.lines()))
    return found.passed


def _convert(order: _Order, sources: Sequence[Path], made: Sequence[Made]) -> None:
    parts = [
        pair.Part(source, each.output, order.fmt, each.quantization) for source, each in zip(sources, made, strict=True)
    ]
    with watched() as job:
        run(pair.convert_pair(order.folder, parts, order.force), job)


def _measured(order: _Order, found: Findings) -> Findings:
    target, draft = (each.output for each in found.made)
    plan = fit.plan(target, draft)
    with _opened(found) as runtime:
        prompts = read_prompts(order.prompts, runtime)
        sampling = Choosing(*[None] * len(fields(Choosing))).sampling(runtime.sampling, seed=0)
        worth = _worth(runtime, prompts, sampling, order.max_tokens)
        report = _checked(runtime, prompts[:_CHECKED], sampling, order.max_tokens)
        return replace(
            found,
            worth=worth,
            report=report,
            plan=plan,
            prompts=len(prompts),
            file=str(order.prompts or ""),
            temperature=sampling.temperature,
        )


def _opened(found: Findings) -> Runtime:
    speculation = Speculation(("words" if found.likeness.mismatch else "model",), DEPTH)
    target, draft = (each.output for each in found.made)
    files = Files(target, draft)
    with watched() as job:
        device = fitted(files, Device(), job)
        return background.call(lambda: open_model_files(files, device, speculation, job), job.interrupt.set)


def _worth(runtime: Runtime, prompts: Sequence[Sequence[int]], sampling: Sampling, max_tokens: int) -> Worth:
    known: list[Worth] = []
    with progress("measuring acceptance") as tell:
        for found in background.stream(weigh(runtime, prompts, sampling, max_tokens), runtime.cancel):
            known.append(found)
            tell("measuring acceptance", len(known), len(prompts))
    return known[-1]


def _checked(runtime: Runtime, prompts: Sequence[Sequence[int]], sampling: Sampling, max_tokens: int) -> Report:
    report = Report(len(prompts))
    with progress("checking") as tell:
        for verdict in background.stream(check(runtime, prompts, sampling, max_tokens), runtime.cancel):
            report.add(verdict)
            tell("checking", report.done, len(prompts))
    return report


def _write(path: Path, found: Findings) -> None:
    data = pairfile.content({**found.as_pair(), "date": f"{datetime.now(timezone.utc):%Y-%m-%d}"})
    with whole(path, len(data), force=True) as file:
        file.write(data)
