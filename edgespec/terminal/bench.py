"""What `edgespec bench` does: contenders made ready, questions answered, a report written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import click

from ..backends import Device, Interrupt
from ..backends.machine import physical_cores
from ..bench import edgespec_contender, environment, journal, output_folder, peers, records, report, suites
from ..bench.contender import Contender, ContenderFailed
from ..bench.report.wording import headline
from ..bench.runner import Course, Terms
from ..errors import Interrupted, OptionError
from ..extras import require
from ..runtime.runtime import Runtime
from ..sampling import Sampling
from ..text.template import Message
from . import background
from .bench_options import Benching
from .check_report import raw_prompt
from .options import Choosing, Machine
from .progress import Tell, progress
from .terminal_job import watched

R = TypeVar("R")
_MAX_TOKENS = 128


@dataclass
class Bench:
    """A run in the making."""

    machine: Machine
    choosing: Choosing
    benching: Benching
    interrupted: bool = False
    #: Greedy unless said otherwise: then outputs can be compared.
    sampling: Sampling = field(init=False)
    most: int = field(init=False)
    _interrupt: Interrupt = field(default_factory=Interrupt)
    _contenders: list[Contender] = field(default_factory=list)
    _absent: list[records.Taking] = field(default_factory=list)
    _problems: list[records.Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sampling = self.choosing.sampling({"temperature": 0.0}, seed=0)
        self.most = _MAX_TOKENS if self.choosing.max_tokens is None else self.choosing.max_tokens
        if self.most < 1:
            raise OptionError(f"--max-tokens is {self.most}; it must be 1 or more")

    def run(self) -> list[Path]:
        """Answer the questions and write the report, of what was answered if it is interrupted. Its files.

        Raises:
            OptionError: options that make no sense; nothing was measured then.
            MissingPackage: the report could not be drawn; nothing was measured then.
            and as `edgespec.load`.
        """
        # Not imported until the report is drawn: the report states how much memory this process took.
        require("matplotlib", "the report of a benchmark")
        answered = self._answered()
        suite = suites.read(self.benching.suite).limited(self.benching.limit)
        names = _names(self.benching.compare)
        for problem in suite.problems:
            self._problem(problem)
        with ExitStack() as stack, progress("measuring this machine") as tell:
            workshop = self._workshop(tell)
            stack.callback(workshop.close)
            stack.callback(self._close)
            plain = self._gather(names, workshop)
            said = self._about(workshop, plain.context)
            kept = journal.Journal(answered, _terms(said, suite), resume=self.benching.resume)
            stack.callback(kept.close)
            course = Course(suite, self._contenders, self._asked(plain), kept.answers)
            answers = self._answers(course, kept, tell)
            found = self._finished(suite, said, answers)
            written = report.write(found, self.benching.out)
            click.echo(headline(found))
            return written

    @property
    def whole(self) -> bool:
        """Whether all went well."""
        return not self._problems and not self.interrupted

    def _answered(self) -> Path:
        """Where answers are kept; those of an earlier run took their time, and are not lost by a word left out."""
        out = self.benching.out
        path = output_folder.prepared(out, resume=self.benching.resume, force=self.benching.force)
        if self.benching.resume and not journal.holds_run(path):
            click.echo(f"{out} holds no run to go on with: this is a new one", err=True)
        return path

    def _workshop(self, tell: Tell) -> edgespec_contender.Workshop:
        with watched(yes=self.machine.yes) as job:
            files, device = self.machine.settled(job)
        device = replace(device, threads=device.threads or physical_cores())

        def told(what: str, share: float) -> None:
            tell(f"measuring passes of the {what}", share, 1.0)

        return self._call(
            lambda: edgespec_contender.Workshop(
                edgespec_contender.Files(files.target, files.draft), device, self._interrupt, told
            )
        )

    def _gather(self, names: Sequence[str], workshop: edgespec_contender.Workshop) -> Runtime:
        """Make the contenders ready; what cannot be had is left out, for a reason. Returns plain decoding."""
        plain = self._call(lambda: workshop.contender(records.PLAIN))
        self._contenders.append(plain)
        setup = self._setup(workshop, plain.runtime.context)
        for name in names[1:]:

            def made(name: str = name) -> Contender:
                return peers.peer(name, setup) if name in peers.PEERS else workshop.contender(name)

            try:
                self._contenders.append(self._call(made))
            except ContenderFailed as error:
                self._absent.append(records.Taking(name, peers.PEERS[name], peer=True, skipped=str(error)))
                click.echo(f"Left out: {name}: {str(error).removeprefix(f'{name}: ')}", err=True)
        return plain.runtime

    def _setup(self, workshop: edgespec_contender.Workshop, context: int) -> peers.Setup:
        benching, device = self.benching, workshop.device
        return peers.Setup(
            target=workshop.files.target,
            draft=workshop.files.draft,
            source=benching.source,
            draft_source=benching.draft_source,
            genai=benching.genai,
            genai_draft=benching.genai_draft,
            threads=device.threads,
            context=context,
            gpu_layers=device.gpu_layers,
            server=benching.llama_server,
            python=benching.python,
        )

    def _asked(self, plain: Runtime) -> Terms:
        return Terms(self.sampling, self.most, plain.context, _prompter(plain), plain.vocabulary.tokenize, plain.text)

    def _about(self, workshop: edgespec_contender.Workshop, context: int) -> dict[str, str]:
        paths, draft = workshop.files, workshop.draft
        return {
            "date": environment.date(),
            "machine": environment.machine(),
            "versions": environment.versions(),
            "target": environment.model(paths.target, workshop.target.description),
            "draft": environment.model(paths.draft, draft.description) if paths.draft and draft else "none",
            "settings": settings(workshop.device, context, self.most, self.sampling),
            "command": environment.command(sys.argv[1:]),
        }

    def _answers(self, course: Course, kept: journal.Journal, tell: Tell) -> list[records.Answer]:
        """What is answered until the end or an interrupt, with what `kept` holds of an earlier run; added to it."""
        answers, total = list(kept.answers), course.total
        try:
            # Closed whatever happens here, or the models would be closed below a thread that still answers.
            with closing(background.stream(course.run(), self._stop)) as events:
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
        """End what answers, from another thread than the one that waits for it."""
        self.interrupted = True
        for contender in self._contenders:
            if isinstance(contender, edgespec_contender.Own):
                contender.runtime.cancel()
            else:
                contender.close()

    def _problem(self, problem: records.Problem) -> None:
        if not self.interrupted:  # a peer that was stopped says that it broke down
            self._problems.append(problem)
            click.echo(f"Problem: {problem.where}: {problem.what}", err=True)

    def _call(self, work: Callable[[], R]) -> R:
        """What `work` returns; Ctrl-C ends engines and peers that are being started."""

        def stop() -> None:
            self._interrupt.set()
            peers.close_all()

        return background.call(work, stop)

    def _close(self) -> None:
        for contender in self._contenders:
            contender.close()

    def _finished(self, suite: suites.Suite, said: dict[str, str], answers: Sequence[records.Answer]) -> records.Run:
        ours = [
            each for each in self._contenders if isinstance(each, edgespec_contender.Own) and each.name == records.OURS
        ]
        return records.Run(
            about=said,
            suite=suite.name,
            questions=suite.categories,
            contenders=[*map(_taking, self._contenders), *self._absent],
            prices=edgespec_contender.priced(ours[0].runtime) if ours else None,
            answers=answers,
            problems=self._problems,
            interrupted=self.interrupted,
        )


def _names(compare: str) -> list[str]:
    """The contenders by name, plain decoding and edgespec first; `peers` stands for all of those."""
    asked = [name.strip() for name in compare.split(",") if name.strip()]
    every = [each for name in asked for each in (peers.PEERS if name == "peers" else (name,))]
    for name in every:
        if name not in peers.PEERS and not edgespec_contender.is_name(name):
            known = ", ".join((*edgespec_contender.NAMES, "peers", *peers.PEERS))
            raise OptionError(f"--compare has {name!r}; there are {known}")
    return list(dict.fromkeys((records.PLAIN, records.OURS, *every)))


def settings(device: Device, context: int, most: int, sampling: Sampling) -> str:
    """What answers must have in common besides the models, where it is not the usual."""
    places = {"gpu_layers", "draft_gpu_layers", "provider", "backend"}
    chosen = [
        f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {value}"
        for given, usual, named in ((device, Device(), places), (sampling, Sampling(), {*asdict(sampling)}))
        for name, value in asdict(given).items()
        if name in named and (name == "temperature" or value != getattr(usual, name))
    ]
    return ", ".join([f"{device.threads} threads", f"context {context}", f"at most {most} tokens", *chosen])


def _terms(said: dict[str, str], suite: suites.Suite) -> dict[str, str]:
    """What the answers of a run that is gone on with must have in common with those to come."""
    shared = ("machine", "versions", "target", "draft", "settings")
    return {"suite": suite.digest, **{name: said[name] for name in shared}}


def _taking(contender: Contender) -> records.Taking:
    peer = not isinstance(contender, edgespec_contender.Own)
    return records.Taking(contender.name, contender.title, peer, memory=contender.memory())


def _prompter(runtime: Runtime) -> Callable[[Sequence[Message]], list[int]]:
    """Messages to tokens, as `chat` has it; the words alone where the model has no template."""

    def prompt(messages: Sequence[Message]) -> list[int]:
        if runtime.vocabulary.template is None:
            return raw_prompt("\n".join(message["content"] for message in messages), runtime)
        return runtime.prompt(messages)

    return prompt
