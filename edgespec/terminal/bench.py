"""`edgespec bench`: starts the contenders, has the questions answered, writes the report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import click

from ..backends import Device, Interrupt, state_head_kind
from ..backends.head_header import is_head_file
from ..backends.machine import physical_cores
from ..bench import edgespec_contender, environment, journal, output_folder, peers, records, report, suites
from ..bench.contender import Contender, ContenderFailed
from ..bench.report.wording import headline
from ..bench.runner import RequestSettings, Runner
from ..errors import Interrupted, OptionError
from ..extras import require
from ..runtime.runtime import Runtime
from ..sampling import Sampling
from ..text.template import Message
from . import background
from .bench_options import BenchOptions
from .check_report import raw_prompt
from .options import MachineOptions, SamplingOptions
from .progress import Tell, progress
from .remarks import remark
from .terminal_job import terminal_job

R = TypeVar("R")
_MAX_TOKENS = 128


@dataclass
class Bench:
    """A run of the benchmark."""

    machine: MachineOptions
    sampling_options: SamplingOptions
    options: BenchOptions
    interrupted: bool = False
    #: Greedy by default, so that outputs can be compared.
    sampling: Sampling = field(init=False)
    most: int = field(init=False)
    _interrupt: Interrupt = field(default_factory=Interrupt)
    _contenders: list[Contender] = field(default_factory=list)
    _left_out: list[records.ContenderEntry] = field(default_factory=list)
    _problems: list[records.Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sampling = self.sampling_options.sampling({"temperature": 0.0}, seed=0)
        self.most = _MAX_TOKENS if self.sampling_options.max_tokens is None else self.sampling_options.max_tokens
        if self.most < 1:
            raise OptionError(f"--max-tokens is {self.most}; it must be 1 or more")

    def run(self) -> list[Path]:
        """Run the benchmark and write the report; after an interrupt, of the answers so far. Returns its files.

        Raises:
            OptionError: wrong options; nothing was measured.
            MissingPackage: matplotlib is not installed; nothing was measured.
            and as `edgespec.load`.
        """
        # Imported only for the report: the peak memory of this process is measured before.
        require("matplotlib", "the report of a benchmark")
        answered = self._journal_path()
        suite = suites.read(self.options.suite).limited(self.options.limit)
        names = _names(self.options.compare)
        for problem in suite.problems:
            self._problem(problem)
        with ExitStack() as stack, progress("measuring this machine") as tell:
            factory = self._factory(tell)
            stack.callback(factory.close)
            stack.callback(self._close)
            plain = self._start_contenders(names, factory)
            about = self._description(factory, plain.context)
            kept = journal.Journal(answered, _shared_settings(about, suite), resume=self.options.resume)
            stack.callback(kept.close)
            runner = Runner(suite, self._contenders, self._request_settings(plain), kept.answers)
            answers = self._answers(runner, kept, tell)
            found = self._finished(suite, about, answers)
            written = report.write(found, self.options.out)
            click.echo(headline(found))
            return written

    @property
    def whole(self) -> bool:
        """Whether the run was completed without problems."""
        return not self._problems and not self.interrupted

    def _journal_path(self) -> Path:
        """The path of the journal; that of an earlier run is overwritten only with --force."""
        out = self.options.out
        path = output_folder.prepared(out, resume=self.options.resume, force=self.options.force)
        if self.options.resume and not journal.holds_run(path):
            remark(f"{out} holds no run to continue: this is a new one")
        return path

    def _factory(self, tell: Tell) -> edgespec_contender.ContenderFactory:
        with terminal_job(yes=self.machine.yes) as job:
            files, device = self.machine.resolved(job)
        device = replace(device, threads=device.threads or physical_cores())

        def show(what: str, share: float) -> None:
            tell(f"measuring passes of the {what}", share, 1.0)

        return self._call(lambda: edgespec_contender.ContenderFactory(files, device, self._interrupt, show))

    def _start_contenders(self, names: Sequence[str], factory: edgespec_contender.ContenderFactory) -> Runtime:
        """Start the contenders; those that fail are left out with the reason. Returns plain decoding's runtime."""
        plain = self._call(lambda: factory.contender(records.PLAIN))
        self._contenders.append(plain)
        setup = self._setup(factory, plain.runtime.context)
        for name in names[1:]:

            def made(name: str = name) -> Contender:
                return peers.peer(name, setup) if name in peers.PEERS else factory.contender(name)

            try:
                self._contenders.append(self._call(made))
            except ContenderFailed as error:
                self._left_out.append(records.ContenderEntry(name, peers.PEERS[name], peer=True, skipped=str(error)))
                remark(f"Left out: {name}: {str(error).removeprefix(f'{name}: ')}")
        return plain.runtime

    def _setup(self, factory: edgespec_contender.ContenderFactory, context: int) -> peers.Setup:
        options, device = self.options, factory.device
        heads = tuple(path for path in factory.files.drafts if state_head_kind(path) or is_head_file(path))
        drafts = [path for path in factory.files.drafts if path not in heads]
        return peers.Setup(
            target=factory.files.target,
            draft=next(iter(drafts), None),
            heads=heads,
            source=options.source,
            draft_source=options.draft_source,
            genai=options.genai,
            genai_draft=options.genai_draft,
            openvino_genai=options.openvino_genai,
            openvino_genai_draft=options.openvino_genai_draft,
            threads=device.threads,
            context=context,
            gpu_layers=device.gpu_layers,
            server=options.llama_server,
            python=options.python,
        )

    def _request_settings(self, plain: Runtime) -> RequestSettings:
        return RequestSettings(
            self.sampling, self.most, plain.context, _prompter(plain), plain.vocabulary.tokenize, plain.text
        )

    def _description(self, factory: edgespec_contender.ContenderFactory, context: int) -> dict[str, str]:
        paths = factory.files
        drafts = [
            environment.model(path, draft.description) for path, draft in zip(paths.drafts, factory.drafts, strict=True)
        ]
        return {
            "date": environment.date(),
            "machine": environment.machine(),
            "versions": environment.versions(),
            "target": environment.model(paths.target, factory.target.description),
            "draft": "; ".join(drafts) or "none",
            "settings": settings(factory.device, context, self.most, self.sampling),
            "command": environment.command(sys.argv[1:]),
        }

    def _answers(self, runner: Runner, kept: journal.Journal, tell: Tell) -> list[records.AnswerRecord]:
        """Run until the end or an interrupt, and add the answers to `kept`. Returns those of an earlier run, too."""
        answers, total = list(kept.answers), runner.total
        try:
            # Closed in any case: the models must not be closed while a thread still uses them.
            with closing(background.stream(runner.run(), self._stop)) as events:
                for event in events:
                    if isinstance(event, records.Problem):
                        self._problem(event)
                        continue
                    kept.add(event)
                    answers.append(event)
                    tell(f"question {event.question}, {event.contender}", len(answers), total)
        except (Interrupted, KeyboardInterrupt):
            self.interrupted = True
        return answers

    def _stop(self) -> None:
        """Cancel the current answer, from another thread."""
        self.interrupted = True
        for contender in self._contenders:
            if isinstance(contender, edgespec_contender.EdgespecContender):
                contender.runtime.cancel()
            else:
                contender.close()

    def _problem(self, problem: records.Problem) -> None:
        if not self.interrupted:  # a peer that is stopped reports a failure
            self._problems.append(problem)
            click.echo(f"Problem: {problem.where}: {problem.what}", err=True)

    def _call(self, work: Callable[[], R]) -> R:
        """Call `work`; Ctrl-C ends engines and peers that are being started."""

        def stop() -> None:
            self._interrupt.set()
            peers.close_all()

        return background.call(work, stop)

    def _close(self) -> None:
        for contender in self._contenders:
            contender.close()

    def _finished(
        self, suite: suites.Suite, about: dict[str, str], answers: Sequence[records.AnswerRecord]
    ) -> records.Run:
        ours = [
            each
            for each in self._contenders
            if isinstance(each, edgespec_contender.EdgespecContender) and each.name == records.OURS
        ]
        return records.Run(
            about=about,
            suite=suite.name,
            questions=suite.categories,
            contenders=[*map(_entry, self._contenders), *self._left_out],
            prices=edgespec_contender.priced(ours[0].runtime) if ours else None,
            answers=answers,
            problems=self._problems,
            interrupted=self.interrupted,
        )


def _names(compare: str) -> list[str]:
    """The names of the contenders, plain decoding and edgespec first; `peers` means all other engines."""
    asked = [name.strip() for name in compare.split(",") if name.strip()]
    every = [each for name in asked for each in (peers.PEERS if name == "peers" else (name,))]
    for name in every:
        if name not in peers.PEERS and not edgespec_contender.is_name(name):
            known = ", ".join((*edgespec_contender.NAMES, "peers", *peers.PEERS))
            raise OptionError(f"--compare has {name!r}; known are {known}")
    return list(dict.fromkeys((records.PLAIN, records.OURS, *every)))


def settings(device: Device, context: int, most: int, sampling: Sampling) -> str:
    """The settings that comparable answers share besides the models: those that differ from the defaults."""
    places = {"gpu_layers", "draft_gpu_layers", "provider", "backend", "draft_backend"}
    chosen = [
        f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}"
        for given, usual, named in ((device, Device(), places), (sampling, Sampling(), {*asdict(sampling)}))
        for name, value in asdict(given).items()
        if name in named and (name == "temperature" or value != getattr(usual, name))
    ]
    return ", ".join([f"{device.threads} threads", f"context {context}", f"at most {most} tokens", *chosen])


def _shared_settings(about: dict[str, str], suite: suites.Suite) -> dict[str, str]:
    """What a resumed run must have in common with its earlier part."""
    shared = ("machine", "versions", "target", "draft", "settings")
    return {"suite": suite.digest, **{name: about[name] for name in shared}}


def _entry(contender: Contender) -> records.ContenderEntry:
    peer = not isinstance(contender, edgespec_contender.EdgespecContender)
    return records.ContenderEntry(contender.name, contender.title, peer, memory=contender.memory())


def _prompter(runtime: Runtime) -> Callable[[Sequence[Message]], list[int]]:
    """A function from messages to tokens, as in `chat`; without a template the contents are joined."""

    def prompt(messages: Sequence[Message]) -> list[int]:
        if runtime.vocabulary.template is None:
            return raw_prompt("\n".join(message["content"] for message in messages), runtime)
        return runtime.prompt(messages)

    return prompt
