"""`edgespec distill`: the target's answers, the training of a draft or a head on them, and the pair that results."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import click

from edgespec import converters
from edgespec.converters import pair
from edgespec.distill import estimate, prompts, student
from edgespec.distill.collecting import Wanted, collect
from edgespec.distill.example import Example
from edgespec.distill.shards import Shards
from edgespec.distill.simulation import simulated
from edgespec.distill.states import States
from edgespec.distill.training import Checkup, Trainer, Training
from edgespec.models.graph_file import is_graph
from edgespec.models.memory import machine_memory
from edgespec.storage import pair_file as pairfile

from ..backends import Device
from ..errors import Interrupted, OptionError
from ..extras import require
from ..library import checkpoint, resolve
from ..library import run as iterate
from ..runtime.loading import Files
from ..runtime.runtime import Runtime
from ..runtime.speculation import Speculation
from ..sampling import Sampling
from ..tools.check import check
from ..tools.draft_value import DEPTH, DraftValue
from . import background
from .check_report import CheckReport
from .distill_kinds import DraftKind, HeadKind, Kind, Place, is_checkpoint, known_draft, made, require_tokenizer
from .distill_options import DistillOptions
from .distill_report import DistillReport
from .measured_draft import measured, opened
from .progress import progress
from .remarks import remark
from .terminal_job import terminal_job

_WORK, _TRAINING, _ANSWERS, _STATES = ".distill", "training", "answers", "states"
_MEASURED = 40  # held-out prompts that the pair answers before and after
_CHECKED = 4  # of them, in the losslessness check


@dataclass(frozen=True, slots=True)
class _Answers:
    """What was collected: the answers, what they depend on, and held-out prompts."""

    examples: Sequence[Example]
    plan: dict[str, object]
    asked: Sequence[Sequence[int]]

    @property
    def tokens(self) -> int:
        return sum(len(each.answer) for each in self.examples)


def distill(options: DistillOptions) -> bool:
    """Collect, train, convert, measure, and write the pair file. Returns whether the losslessness check passed.

    Raises:
        OptionError: a wrong option, prompts that cannot be read, or a disk that is too small.
        MissingPackage: torch or transformers is not installed, or, for a Medusa head, onnx.
        EngineError: there is not enough memory.
        ConversionError: a checkpoint cannot be converted or trained, or a file cannot be written.
        VocabularyMismatch: target and draft have different tokens.
    """
    _require_one_kind(options)
    if options.head == "medusa" and not options.collect:
        require("onnx", "converting a Medusa head")  # before it is trained
    if not options.collect or options.from_scratch is not None:
        student.require_packages()
    sources = prompts.of_files(options.prompts)
    _check_out(options)
    with pair.held(options.out):
        if options.force:
            shutil.rmtree(options.out / _WORK / _TRAINING, ignore_errors=True)
        run, helping = _prepared(options)
        try:
            answers = run.collected(helping, sources)
            if options.collect:
                click.echo(
                    f"{len(answers.examples)} answers, {answers.tokens} tokens; without --collect they are trained on"
                )
                return True
            before = run.before(answers)
            history = run.trained(answers, before)
            return run.finished(answers, before, history)
        except (KeyboardInterrupt, Interrupted):
            remark("The same command goes on from here.")
            raise


def _require_one_kind(options: DistillOptions) -> None:
    """OptionError for options that exclude each other, and for a new draft that no tokenizer is known for."""
    given = {"DRAFT": options.draft, "--from-scratch": options.from_scratch, "--head": options.head}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise OptionError(f"give {' or '.join(named)}, not {'both' if len(named) == 2 else 'all'}")
    if options.lora is not None and {"--from-scratch", "--head"} & {*named}:
        raise OptionError(f"--lora changes a trained draft; {named[0]} begins with a new one, so leave --lora out")
    if options.from_scratch is not None:
        require_tokenizer(options.target)


def _check_out(options: DistillOptions) -> None:
    """ConversionError unless --out is new, or holds an unfinished run, or --force replaces a pair."""
    known = options.out / _WORK
    if not known.is_dir() or (options.out / pairfile.NAME).is_file():
        pair.check_folder(options.out, options.force)


def _prepared(options: DistillOptions) -> tuple[_Run, tuple[Path, ...]]:
    """The target, which is converted if it is a checkpoint, what is trained, and files that help to collect."""
    work = options.out / _WORK
    work.mkdir(exist_ok=True)
    with terminal_job(yes=options.yes) as job:
        if is_checkpoint(options.target):
            target, fmt = pair.output(options.out, "target", "gguf"), "gguf"
            part = pair.ModelConversion(options.target, target, fmt, converters.chosen_quantization(fmt, options.quant))
            iterate(pair.convert_part(part, force=True), job)
        else:
            target = resolve(options.target.as_posix(), "none", job).target
            fmt = "onnx" if is_graph(target) else "gguf"
        place = Place(options.out, fmt, target)
        kind: Kind
        if options.head is not None:
            kind = HeadKind(options, place, options.head)
        elif options.from_scratch is not None:
            kind = DraftKind(options, place, made(options, work / "initial"))
        else:
            kind = DraftKind(options, place, checkpoint(options.draft or known_draft(options.target), job))
        return _Run(options, place, kind), kind.prepare(job)


@dataclass(frozen=True, slots=True)
class _Run:
    """A distillation: what `kind` says is trained, with its files in `place`."""

    options: DistillOptions
    place: Place
    kind: Kind

    def collected(self, helping: tuple[Path, ...], sources: Sequence[prompts.Source]) -> _Answers:
        """The target's answers, which the drafts in `helping` make sooner."""
        drafters = Speculation(("lookup", self.kind.drafter) if helping else ("lookup",), through_text=False)
        with opened(Files(self.place.target, helping), drafters, self._device()) as runtime:
            room = runtime.context - self.options.max_tokens
            of_sources = chain.from_iterable(source.prompts(runtime) for source in sources)
            remembered = prompts.of_earlier_texts(runtime) if self.options.remembered else ()
            chosen = prompts.chosen(chain(of_sources, remembered), room)
            wanted = Wanted(chosen, sorted(set(self.options.temps)), self.options.answers, self.options.max_tokens)
            plan = wanted.plan(runtime.weights)
            shards = Shards(self.place.work / _ANSWERS, plan, force=self.options.force)
            missing = [number for number in range(wanted.shards) if not shards.holds(number)]
            if not self.options.collect:
                self._estimate(wanted, runtime.prices.plain() if missing else 0.0)
            total = len(wanted.tasks)
            with progress("collecting answers") as tell:
                for done in background.stream(collect(runtime, wanted, shards, drafters), runtime.cancel):
                    tell("collecting answers", done, total)
            examples = self._read(runtime, shards, wanted)
        asked = [prompt.tokens for prompt in chosen if prompt.held_out][:_MEASURED]
        return _Answers(examples, plan, asked)

    def _read(self, runtime: Runtime, shards: Shards, wanted: Wanted) -> list[Example]:
        """The examples of all shards, with the target's hidden rows if they are read."""
        found = [shards.read(number) for number in range(wanted.shards)]
        if self.kind.read is None or self.options.collect:
            return list(chain.from_iterable(found))
        states = States(self.place.work / _STATES, self.kind.read, wanted.plan(runtime.weights))
        with progress("computing hidden states") as tell:
            for done in states.collect(runtime, shards, wanted.shards):
                tell("computing hidden states", done, wanted.shards)
        return [each for number, examples in enumerate(found) for each in states.examples(number, examples)]

    def _device(self) -> Device:
        return Device(context=self.options.ctx, threads=self.options.threads)

    def _estimate(self, wanted: Wanted, plain: float) -> None:
        sizes = self.kind.sizes
        found = estimate.estimated(sizes, wanted, self._training(), plain)
        found.require(self.place.folder, machine_memory().free)
        pace = estimate.training_pace(self.kind.learner(()), found.answered, sizes.row)
        click.echo(found.line(pace), err=True)

    def _training(self) -> Training:
        rate = self.kind.rate if self.options.rate is None else self.options.rate
        return Training(self.options.epochs, rate, self.options.batch)

    def before(self, answers: _Answers) -> DraftValue:
        """The value of the draft before it is trained."""
        with terminal_job() as job:
            self.kind.begin(answers.examples, job)
        with opened(Files(self.place.target, (self.kind.before,)), self._alone(), self._device()) as runtime:
            return self._measured(runtime, answers, "before")

    def _measured(self, runtime: Runtime, answers: _Answers, when: str) -> DraftValue:
        """The value of the draft; its prices are those of as many guesses as it makes."""
        value = measured(runtime, answers.asked, Sampling(), self.options.max_tokens, f"measuring acceptance {when}")
        return replace(value, curve=value.curve[: self.kind.guesses + 1])

    def _alone(self) -> Speculation:
        """How a draft is measured."""
        return Speculation((self.kind.drafter,), DEPTH, through_text=False)

    def trained(self, answers: _Answers, prices: DraftValue) -> Sequence[Checkup]:
        """Train, and write the checkpoint; returns the checkups."""
        learner = self.kind.learner(answers.examples)
        trainer = Trainer(
            learner,
            answers.examples,
            self._training(),
            lambda right: simulated(right, prices),
            self.place.work / _TRAINING,
            {"answers": answers.plan, "draft": self.kind.name, "lora": self.options.lora},
        )
        with progress("training") as tell:
            for done, total in trainer.run():
                tell("training", done, total)
        learner.to("cpu")
        self.kind.write(learner, self.place.trained)
        return trainer.history

    def finished(self, answers: _Answers, before: DraftValue, history: Sequence[Checkup]) -> bool:
        """Convert what was trained, measure and check the pair, print the report, and write the pair file."""
        with terminal_job() as job:
            self.kind.convert(self.place.trained, self.kind.draft, job)
        with opened(Files(self.place.target, (self.kind.draft,)), self._alone(), self._device()) as runtime:
            after = self._measured(runtime, answers, "after")
            checked = _check(runtime, answers.asked[:_CHECKED], self.options.max_tokens)
        report = DistillReport(
            self.place,
            self.kind,
            answers=len(answers.examples),
            held_out=sum(each.held_out for each in answers.examples),
            tokens=answers.tokens,
            temperatures=sorted(set(self.options.temps)),
            prompts=len(answers.asked),
            before=replace(before, curve=after.curve, step=after.step),  # the same prices for both
            after=after,
        )
        report.write()
        for used in (_TRAINING, _STATES):  # the answers stay, for another training
            shutil.rmtree(self.place.work / used, ignore_errors=True)
        for line in report.lines(history):
            click.echo(line)
        click.echo(f"check: {checked.text().splitlines()[-1]}")
        click.echo(f"edgespec chat {self.place.folder}")
        return checked.passed or not checked.drafted


def _check(runtime: Runtime, asked: Sequence[Sequence[int]], max_tokens: int) -> CheckReport:
    report = CheckReport(len(asked))
    with progress("checking") as tell:
        for verdict in background.stream(check(runtime, asked, Sampling(), max_tokens), runtime.cancel):
            report.add(verdict)
            tell("checking", report.done, len(asked))
    return report
