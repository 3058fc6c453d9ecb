"""`edgespec convert --pair`: converts two checkpoints to a pair and measures the pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path

import click

from edgespec import converters
from edgespec.converters import pair
from edgespec.converters.atomic_file import atomic_file
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.compatibility import Compatibility
from edgespec.models import fit
from edgespec.models.model_summary import of_path
from edgespec.storage import pair_file as pairfile

from ..errors import OptionError
from ..library import checkpoint, run
from ..runtime.loading import Files
from ..runtime.runtime import Runtime
from ..runtime.speculation import Speculation
from ..sampling import Sampling
from ..tools.check import check
from ..tools.draft_value import DEPTH
from . import background
from .check_report import CheckReport, parsed, read_prompts
from .measured_draft import measured, opened
from .options import PairOptions, SamplingOptions
from .pair_report import ConvertedModel, PairReport
from .progress import progress
from .remarks import remark
from .terminal_job import terminal_job

_TOKENS = 64  # of each answer
_CHECKED = 4  # prompts of the losslessness check


@dataclass(frozen=True, slots=True)
class _Settings:
    """The output folder and format, and how the pair is measured."""

    folder: Path
    fmt: str
    prompts: Path | None
    max_tokens: int
    force: bool


def make(options: PairOptions, folder: Path, fmt: str, quant: str | None, *, force: bool) -> bool:
    """Convert, measure, print the report and write the pair file. Returns whether the losslessness check passed.

    Options are checked before anything is fetched or converted; the pair file is written last.

    Raises:
        OptionError: a wrong option, or a malformed file of prompts.
        ConversionError: a checkpoint cannot be converted, or the output cannot be written.
        HubError: a checkpoint cannot be fetched.
    """
    quantizations = [converters.chosen_quantization(fmt, name) for name in (quant, options.draft_quant)]
    tokens = _TOKENS if options.max_tokens is None else options.max_tokens
    if tokens < 1:
        raise OptionError(f"--max-tokens is {tokens}; it must be 1 or more")
    parsed(options.prompts)
    pair.check_folder(folder, force)
    settings = _Settings(folder, fmt, options.prompts, tokens, force)
    given = options.pair or ()
    with terminal_job(yes=options.yes) as job:
        sources = [checkpoint(source, job) for source in given]
    compatibility = Compatibility.of(*map(Checkpoint.open, sources))
    made = [
        ConvertedModel(role, str(source), here.name if here != source else "", pair.output(folder, role, fmt), name)
        for role, source, here, name in zip(pair.ROLES, given, sources, quantizations, strict=True)
    ]
    report = PairReport(compatibility, made)
    for line in report.compatibility_lines():
        remark(line)
    with pair.held(folder):
        _convert(settings, sources, made)
        report = _measured(settings, report)
        _write(folder / pairfile.NAME, report)
    click.echo(report.as_json() if options.as_json else "\n".join(report.lines()))
    return report.passed


def _convert(settings: _Settings, sources: Sequence[Path], made: Sequence[ConvertedModel]) -> None:
    parts = [
        pair.ModelConversion(source, each.output, settings.fmt, each.quantization)
        for source, each in zip(sources, made, strict=True)
    ]
    with terminal_job() as job:
        run(pair.convert_pair(settings.folder, parts, settings.force), job)


def _measured(settings: _Settings, report: PairReport) -> PairReport:
    target, draft = (each.output for each in report.made)
    plan = fit.plan(target, draft)
    with _opened(report) as runtime:
        prompts = read_prompts(settings.prompts, runtime)
        sampling = SamplingOptions(*[None] * len(fields(SamplingOptions))).sampling(runtime.sampling, seed=0)
        value = measured(runtime, prompts, sampling, settings.max_tokens, "measuring acceptance")
        checked = _check(runtime, prompts[:_CHECKED], sampling, settings.max_tokens)
        return replace(
            report,
            value=value,
            check=checked,
            plan=plan,
            prompts=len(prompts),
            file=str(settings.prompts or ""),
            temperature=sampling.temperature,
        )


def _opened(report: PairReport) -> Runtime:
    target, draft = (each.output for each in report.made)
    same = "pard" if of_path(draft).guesses > 1 else "model"
    speculation = Speculation(("cross-vocabulary" if report.compatibility.mismatch else same,), DEPTH)
    return opened(Files(target, (draft,)), speculation)


def _check(runtime: Runtime, prompts: Sequence[Sequence[int]], sampling: Sampling, max_tokens: int) -> CheckReport:
    report = CheckReport(len(prompts))
    with progress("checking") as tell:
        for verdict in background.stream(check(runtime, prompts, sampling, max_tokens), runtime.cancel):
            report.add(verdict)
            tell("checking", report.done, len(prompts))
    return report


def _write(path: Path, report: PairReport) -> None:
    data = pairfile.content({**report.as_pair(), "date": f"{datetime.now(timezone.utc):%Y-%m-%d}"})
    with atomic_file(path, len(data), force=True) as file:
        file.write(data)
