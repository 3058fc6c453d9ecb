"""`edgespec distill`: the target's answers, the training of a draft on them, and the pair that results."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path

import click

from edgespec import converters
from edgespec.converters import decoder, pair
from edgespec.converters.atomic_file import atomic_file
from edgespec.converters.checkpoint import Checkpoint
from edgespec.distill import estimate, prompts, student
from edgespec.distill.collecting import Wanted, collect
from edgespec.distill.example import Example
from edgespec.distill.shards import Shards
from edgespec.distill.simulation import simulated
from edgespec.distill.training import Checkup, Trainer, Training
from edgespec.models.graph_file import is_graph
from edgespec.models.memory import machine_memory
from edgespec.storage import pair_file as pairfile

from ..backends import Device
from ..errors import Interrupted, OptionError
from ..library import checkpoint, resolve, run
from ..runtime.loading import Files
from ..runtime.runtime import Runtime
from ..runtime.speculation import Speculation
from ..sampling import Sampling
from ..tools.check import check
from ..tools.draft_value import DEPTH, DraftValue
from . import background
from .check_report import CheckReport
from .distill_options import DistillOptions
from .measured_draft import measured, opened
from .pair_report import measurement, versions
from .progress import progress
from .remarks import remark
from .terminal_job import terminal_job

_WORK, _TRAINING, _ANSWERS = ".distill", "training", "answers"
_RATE, _SCRATCH_RATE = 1e-4, 1e-3
_MEASURED = 40  # held-out prompts that the pair answers before and after
_CHECKED = 4  # of them, in the losslessness check
_ALONE = Speculation(("model",), DEPTH, through_text=False)  # how the draft is measured
_SOONEST = Speculation(("lookup", "model"))  # how answers are collected


@dataclass(frozen=True, slots=True)
class _Place:
    """The files of a distillation: the pair in `folder`, and everything that an unfinished run needs in `work`."""

    folder: Path
    fmt: str
    target: Path
    source: Path

    @property
    def work(self) -> Path:
        return self.folder / _WORK

    @property
    def before(self) -> Path:
        return self.work / ("before" if self.fmt == "onnx" else f"before.{self.fmt}")

    @property
    def draft(self) -> Path:
        return pair.output(self.folder, "draft", self.fmt)

    @property
    def trained(self) -> Path:
        """The checkpoint that the training writes."""
        return self.folder / "checkpoint"


@dataclass(frozen=True, slots=True)
class _Answers:
    """What was collected, and the draft's value before."""

    examples: Sequence[Example]
    asked: Sequence[Sequence[int]]
    before: DraftValue

    @property
    def tokens(self) -> int:
        return sum(len(each.answer) for each in self.examples)


def distill(options: DistillOptions) -> bool:
    """Collect, train, convert, measure, and write the pair file. Returns whether the losslessness check passed.

    Raises:
        OptionError: a wrong option, prompts that cannot be read, or a disk that is too small.
        MissingPackage: torch or transformers is not installed.
        EngineError: there is not enough memory.
        ConversionError: a checkpoint cannot be converted or trained, or a file cannot be written.
        VocabularyMismatch: target and draft have different tokens.
    """
    if options.draft is not None and options.from_scratch is not None:
        raise OptionError("give DRAFT or --from-scratch, not both")
    if not options.collect or options.from_scratch is not None:
        student.require_packages()
    sources = prompts.of_files(options.prompts)
    _check_out(options)
    with pair.held(options.out):
        if options.force:
            shutil.rmtree(options.out / _WORK / _TRAINING, ignore_errors=True)
        place = _prepared(options)
        try:
            answers = _collected(options, place, sources)
            if options.collect:
                click.echo(
                    f"{len(answers.examples)} answers, {answers.tokens} tokens; without --collect they are trained on"
                )
                return True
            history = _trained(options, place, answers)
            return _finished(options, place, answers, history)
        except (KeyboardInterrupt, Interrupted):
            remark("The same command goes on from here.")
            raise


def _check_out(options: DistillOptions) -> None:
    """ConversionError unless --out is new, or holds an unfinished run, or --force replaces a pair."""
    known = options.out / _WORK
    if not known.is_dir() or (options.out / pairfile.NAME).is_file():
        pair.check_folder(options.out, options.force)


def _prepared(options: DistillOptions) -> _Place:
    """Find the target and the draft's checkpoint, and convert both."""
    work = options.out / _WORK
    work.mkdir(exist_ok=True)
    with terminal_job(yes=options.yes) as job:
        if _is_checkpoint(options.target):
            target, fmt = pair.output(options.out, "target", "gguf"), "gguf"
            part = pair.ModelConversion(options.target, target, fmt, converters.chosen_quantization(fmt, options.quant))
            run(pair.convert_part(part, force=True), job)
        else:
            target = resolve(options.target.as_posix(), "none", job).target
            fmt = "onnx" if is_graph(target) else "gguf"
        if options.from_scratch is not None:
            source = _made(options, work / "initial")
        else:
            source = checkpoint(options.draft or _known_draft(options.target), job)
        place = _Place(options.out, fmt, target, source)
        part = pair.ModelConversion(source, place.before, fmt, converters.chosen_quantization(fmt, options.quant))
        run(pair.convert_part(part, force=True), job)
    return place


def _is_checkpoint(path: Path) -> bool:
    files = {each.suffix for each in path.iterdir()} if path.is_dir() else set()
    return bool(files & {".safetensors", ".bin"}) and not files & {".gguf", ".onnx", ".xml"}


def _made(options: DistillOptions, folder: Path) -> Path:
    """A new draft, or the one that an unfinished run made."""
    size = student.parameters_of(options.from_scratch or "")
    if not _is_checkpoint(options.target):
        raise OptionError(
            "--from-scratch takes the tokenizer of the target's checkpoint; give that folder as TARGET, not the model "
            "that was converted from it"
        )
    if not folder.exists():
        student.make(options.target, size, folder)
    return folder


def _known_draft(target: Path) -> Path:
    """The checkpoint of the draft of a pair that `edgespec convert --pair` made."""
    file = pairfile.at(target)
    source = pairfile.read(file).about.get("made_of", {}).get("draft", {}).get("source") if file is not None else None
    if not source:
        raise OptionError(
            f"no draft is known for {target}; give the Hugging Face checkpoint of a small model with the same "
            "tokenizer as DRAFT, or --from-scratch SIZE"
        )
    return Path(source)


def _collected(options: DistillOptions, place: _Place, sources: Sequence[prompts.Source]) -> _Answers:
    device = Device(context=options.ctx, threads=options.threads)
    with opened(Files(place.target, (place.before,)), _ALONE, device) as runtime:
        room = runtime.context - options.max_tokens
        of_sources = chain.from_iterable(source.prompts(runtime) for source in sources)
        remembered = prompts.of_earlier_texts(runtime) if options.remembered else ()
        chosen = prompts.chosen(chain(of_sources, remembered), room)
        wanted = Wanted(chosen, sorted(set(options.temps)), options.answers, options.max_tokens)
        shards = Shards(place.work / _ANSWERS, wanted.plan(runtime.weights), force=options.force)
        missing = [number for number in range(wanted.shards) if not shards.holds(number)]
        if not options.collect:
            _estimate(options, place, wanted, runtime.prices.plain() if missing else 0.0)
        total = len(wanted.tasks)
        with progress("collecting answers") as tell:
            for done in background.stream(collect(runtime, wanted, shards, _SOONEST), runtime.cancel):
                tell("collecting answers", done, total)
        examples = [example for number in range(wanted.shards) for example in shards.read(number)]
        asked = [prompt.tokens for prompt in chosen if prompt.held_out][:_MEASURED]
        before = measured(runtime, asked, Sampling(), options.max_tokens, "measuring acceptance before")
    return _Answers(examples, asked, before)


def _estimate(options: DistillOptions, place: _Place, wanted: Wanted, plain: float) -> None:
    graph = decoder.read(Checkpoint.open(place.source))
    sizes = estimate.Student(graph.parameters(), graph.vocabulary, graph.hidden, graph.layers)
    found = estimate.estimated(sizes, wanted, _training(options), plain)
    found.require(place.folder, machine_memory().free)
    click.echo(found.line(estimate.training_pace(student.open_student(place.source))), err=True)


def _training(options: DistillOptions) -> Training:
    usual = _RATE if options.from_scratch is None else _SCRATCH_RATE
    return Training(options.epochs, usual if options.rate is None else options.rate, options.batch)


def _trained(options: DistillOptions, place: _Place, answers: _Answers) -> Sequence[Checkup]:
    """Train the draft and write its checkpoint; returns the checkups."""
    prices = answers.before
    plan = json.loads((place.work / _ANSWERS / "plan.json").read_text("utf-8"))
    model = student.open_student(place.source)
    trainer = Trainer(
        model,
        answers.examples,
        _training(options),
        lambda right: simulated(right, prices),
        place.work / _TRAINING,
        {"answers": plan, "draft": str(place.source)},
    )
    with progress("training") as tell:
        for done, total in trainer.run():
            tell("training", done, total)
    student.write(model, place.source, place.trained)
    return trainer.history


def _finished(options: DistillOptions, place: _Place, answers: _Answers, history: Sequence[Checkup]) -> bool:
    """Convert the trained draft, measure and check the pair, print the report, and write the pair file."""
    quant = converters.chosen_quantization(place.fmt, options.quant)
    with terminal_job() as job:
        run(converters.convert(place.trained, place.draft, fmt=place.fmt, quantization=quant, force=True), job)
    device = Device(context=options.ctx, threads=options.threads)
    with opened(Files(place.target, (place.draft,)), _ALONE, device) as runtime:
        after = measured(runtime, answers.asked, Sampling(), options.max_tokens, "measuring acceptance after")
        checked = _check(runtime, answers.asked[:_CHECKED], options.max_tokens)
    before = replace(answers.before, curve=after.curve, step=after.step)  # the same prices for both
    answers = replace(answers, before=before)
    _write(options, place, answers, after)
    shutil.rmtree(place.work / _TRAINING, ignore_errors=True)  # the answers stay, for another training
    for line in _lines(place, answers, after, history):
        click.echo(line)
    click.echo(f"check: {checked.text().splitlines()[-1]}")
    click.echo(f"edgespec chat {place.folder}")
    return checked.passed or not checked.drafted


def _check(runtime: Runtime, asked: Sequence[Sequence[int]], max_tokens: int) -> CheckReport:
    report = CheckReport(len(asked))
    with progress("checking") as tell:
        for verdict in background.stream(check(runtime, asked, Sampling(), max_tokens), runtime.cancel):
            report.add(verdict)
            tell("checking", report.done, len(asked))
    return report


def _lines(place: _Place, answers: _Answers, after: DraftValue, history: Sequence[Checkup]) -> Iterator[str]:
    """What was collected and how acceptance changed."""
    held_out = sum(each.held_out for each in answers.examples)
    yield f"{len(answers.examples)} answers, {answers.tokens} tokens; {held_out} answers were held out"
    yield "simulated on the held-out answers:"
    yield "tokens seen   loss  acceptance of the first guess  tokens a pass of 8 guesses"
    for each in history:
        loss = "" if math.isnan(each.loss) else f"{each.loss:.3f}"
        yield f"{each.tokens:11,}  {loss:>5}  {each.acceptance:28.1%}  {each.length:26.2f}"
    for name, value in (("before", answers.before), ("after", after)):
        shares = " ".join(f"{share:.0%}" for share in value.acceptance) or "not known: too few drafts were verified"
        k, gain = value.best
        speedup = f"{gain:.2f}x at K = {k}" if k else "none, plain decoding is fastest"
        yield f"{name:6} acceptance by depth {shares}; speedup expected at the prices of this machine: {speedup}"
    yield f"checkpoint {place.trained}, converted to {place.draft}"


def _write(options: DistillOptions, place: _Place, answers: _Answers, after: DraftValue) -> None:
    """Write the pair file."""
    name = f"{len(answers.asked)} held-out prompts"
    target = place.target.resolve()
    inside = target.is_relative_to(place.folder.resolve())
    data = pairfile.content(
        {
            "target": str(target.relative_to(place.folder.resolve()) if inside else target),
            "draft": place.draft.name,
            "measured": measurement(after, name, 0.0),
            "distilled": {
                "draft": options.from_scratch or str(place.source),
                "answers": len(answers.examples),
                "tokens": answers.tokens,
                "temperatures": sorted(set(options.temps)),
                "before": measurement(answers.before, name, 0.0),
            },
            "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
            "versions": versions(place.fmt),
        }
    )
    with atomic_file(place.folder / pairfile.NAME, len(data), force=True) as file:
        file.write(data)
