"""Each drafter alone and all together, by kind of text: wall clock over plain decoding, the same answers for all.

    python -m benchmarks.drafters TARGET --draft DRAFT.gguf --draft EAGLE3.gguf --draft MEDUSA.onnx [--backend openvino]

Answers are replayed: the target's passes are computed in full and paid for, and its choice is overruled by the answer
(see `benchmarks/kinds.py`). Each configuration has a runtime with a session of its own, and they take turns by the
round: a slow spell of the machine falls on all alike. Each begins every kind of text without calibration; with
`--warm-up` it answers other questions of that kind before, with `--later-run` it begins with the calibration that an
earlier run over other questions of all kinds has left, as the program does. "plain, again" is plain decoding once more,
and shows how far figures can be trusted.

In a cell of a few hundred tokens a few rounds change the result by several per cent, and of drafters that are equally
fast one is the best by chance. So find the best single drafter in one run, and compare it with all together in a longer
one (`--only lookup --only "all together" --tokens 2000`; the bundled dialogues are few, `--dialogues` adds others).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from itertools import accumulate
from pathlib import Path

import click

from edgespec import Device, Interrupt, Runtime, Sampling, Speculation
from edgespec.backends import FittedHead, Model, open_model
from edgespec.bench.replay import ReplaySession, SharedModel
from edgespec.controller.calibration import Calibration
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.recycling import Recycling
from edgespec.engine import Event, Text
from edgespec.runtime.learned import Learned
from edgespec.runtime.loading import assemble

from .acceptance import drafter_of
from .bench import take_turns
from .categories import Timed, Times
from .dialogues import FILE, Dialogues
from .kinds import KINDS, MIX, Item, items, texts

_DIALOGUES = 1000  # of a file, at most
PLAIN, AGAIN, TOGETHER = "plain", "plain, again", "all together"


class LaterRun(Learned):
    """What a configuration begins with that ran before: the calibration that is kept from run to run."""

    def __init__(self, earlier: Learned) -> None:
        super().__init__(None)
        self._earlier = earlier

    def calibration(self, verifier: str) -> Calibration:
        if verifier not in self._calibrations:
            self._calibrations[verifier] = Calibration.of(self._earlier.calibration(verifier).kept())
        return self._calibrations[verifier]


class Configurations:
    """The models, opened once, and for each configuration a runtime over them."""

    def __init__(self, target: Path, drafts: Sequence[Path], device: Device) -> None:
        self._device, self._interrupt = device, Interrupt()
        self._open = ExitStack()
        self._target = SharedModel(self._opened(target, device))
        found = {drafter_of(draft): self._opened(draft, device.of_draft(draft)) for draft in drafts}
        self._drafts = {
            name: each if isinstance(each, FittedHead) else SharedModel(each) for name, each in found.items()
        }
        self.names = (PLAIN, AGAIN, Lookup.name, Recycling.name, *self._drafts, TOGETHER)

    def _opened(self, path: Path, device: Device) -> Model:
        model = open_model(path, device, self._interrupt)
        self._open.callback(model.close)
        return model

    def require(self, chosen: Iterable[str]) -> None:
        """Raises click.ClickException if there is no such configuration."""
        if unknown := {*chosen} - {*self.names}:
            raise click.ClickException(f"no configuration {', '.join(unknown)}; there are {', '.join(self.names)}")

    def runtime(self, name: str, learned: Learned | None = None) -> tuple[Runtime, ReplaySession]:
        """A runtime of the configuration `name`, by default without calibration, and its session."""
        self._interrupt.clear()  # set when a runtime was closed
        chosen = tuple(self._drafts) if name == TOGETHER else (name,) if name in self._drafts else ()
        drafts = [self._drafts[each] for each in chosen]
        own = [copy(each) if isinstance(each, FittedHead) else each for each in drafts]  # a runtime closes its heads
        runtime = assemble(
            self._target,
            own,
            device=self._device,
            speculation=_speculation(name),
            interrupt=self._interrupt,
            learned=learned or Learned(None),
        )
        return runtime, self._target.sessions[-1]

    def runtimes(
        self, names: Sequence[str], learned: Mapping[str, Learned]
    ) -> dict[str, tuple[Runtime, ReplaySession]]:
        """Those of several configurations.

        That with the rows for all heads is opened first: a graph engine that returns them serves the others with the
        same copy of the weights. With copies of their own, which take turns in the processor's caches, heads that draft
        nothing came to 0.95 of plain decoding.
        """
        opened = {name: self.runtime(name, learned.get(name)) for name in reversed(names)}
        return {name: opened[name] for name in names}

    def close(self) -> None:
        self._open.close()


def _speculation(name: str) -> Speculation:
    if name in {PLAIN, AGAIN}:
        return Speculation((), 0)
    return Speculation() if name == TOGETHER else Speculation((name,))


def race(speakers: Mapping[str, tuple[Runtime, ReplaySession]], item: Item) -> Iterator[tuple[str, Timed]]:
    """The rounds of all, who take turns: next is who has said the least."""
    answers: dict[str, Iterator[Event]] = {}
    for name, (runtime, session) in speakers.items():
        session.text = (*item.prompt, *item.answer)
        answers[name] = iter(runtime.complete(item.prompt, Sampling(), max_tokens=len(item.answer)))
    for name, event, seconds in take_turns(answers):
        if isinstance(event, Text):
            yield name, Timed(event.round.width, len(event.tokens), seconds)


@click.command()
@click.argument("target", type=FILE)
@click.option("--draft", "drafts", type=FILE, multiple=True, required=True, help="A draft model or a head; repeatable")
@click.option("--threads", default=2, show_default=True)
@click.option("--backend", default="auto", show_default=True, help="The target's engine")
@click.option("--tokens", default=400, show_default=True, help="Tokens of each kind of text, about; twice for mix")
@click.option("--warm-up", "before", default=0, show_default=True, help="Tokens of each kind that are not measured")
@click.option("--later-run", is_flag=True, help="Answer --warm-up tokens of all kinds in an earlier run")
@click.option("--longest", default=160, show_default=True, help="Tokens of an answer, at most")
@click.option("--dialogues", type=FILE, help='Dialogues that follow the bundled ones, lines of {"messages": [...]}')
@click.option("--whole-mix", is_flag=True, help="Measure the mix alone, of all texts, whatever --tokens says")
@click.option("--kind", "kinds", multiple=True, default=KINDS, help="Kinds of text [default: all]")
@click.option("--only", "chosen", multiple=True, help="Configurations to measure, with plain [default: all]")
@click.option("--out", type=click.Path(path_type=Path), help="Append a line of JSON for each kind to this file")
def main(  # noqa: PLR0913, PLR0917 - click passes every option
    target: Path,
    drafts: tuple[Path, ...],
    threads: int,
    backend: str,
    tokens: int,
    before: int,
    later_run: bool,
    longest: int,
    dialogues: Path | None,
    whole_mix: bool,
    kinds: tuple[str, ...],
    chosen: tuple[str, ...],
    out: Path | None,
) -> None:
    """Measure TARGET with each draft alone, and with all."""
    kinds = (MIX,) if whole_mix else kinds
    configurations = Configurations(target, drafts, Device(2048, threads, backend=backend))
    configurations.require(chosen)
    names = [name for name in configurations.names if not chosen or name in {PLAIN, *chosen}]
    runtime, _ = configurations.runtime(PLAIN)
    with runtime:
        more = Dialogues(dialogues, _DIALOGUES).read() if dialogues is not None else ()
        asked = (
            {MIX: list(texts(runtime, MIX, longest))} if whole_mix else items(runtime, tokens + before, longest, more)
        )
    for kind in kinds:
        _require_more(kind, asked[kind], before)
    learned: dict[str, Learned] = {}
    if later_run:
        split = {kind: _split(asked[kind], before) for kind in kinds}
        learned = _earlier_run(configurations, names, [item for first, _ in split.values() for item in first])
        asked, before = {kind: later for kind, (_, later) in split.items()}, 0
    times = Times(names)
    for kind in kinds:
        speakers = configurations.runtimes(names, {name: LaterRun(each) for name, each in learned.items()})
        if kind == kinds[0]:
            click.echo(_prices(speakers[names[-1]][0]))
        parts = Times(names)
        for name, part, timed in measured(speakers, asked[kind], before):
            times.add(name, kind, timed)
            parts.add(name, part, timed)
        for speaker, _ in speakers.values():
            speaker.close()
        click.echo(times.report())
        singles = [name for name in names if name not in {PLAIN, AGAIN, TOGETHER}]
        if kind == MIX and singles:
            click.echo(_parts(parts, singles))
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"target": target.name, "backend": backend, "kind": kind, **times.ratios(kind)}) + "\n"
                )
    configurations.close()


def _require_more(kind: str, asked: Sequence[Item], tokens: int) -> None:
    """Raises click.ClickException if there is no item after the first `tokens` tokens."""
    if sum(len(item.answer) for item in asked[:-1]) < tokens:
        raise click.ClickException(f"the texts of {kind} end before {tokens} tokens; give a smaller --warm-up")


def _split(asked: list[Item], tokens: int) -> tuple[list[Item], list[Item]]:
    """The items with the first `tokens` tokens or a little more, and those after them."""
    said = list(accumulate(len(item.answer) for item in asked))
    first = bisect_left(said, tokens) + 1 if tokens else 0
    return asked[:first], asked[first:]


def _earlier_run(configurations: Configurations, names: Iterable[str], asked: Iterable[Item]) -> dict[str, Learned]:
    """What each configuration has learned in a run over these texts."""
    learned = {name: Learned(None) for name in names}
    speakers = configurations.runtimes([*learned], learned)
    for item in asked:
        for _ in race(speakers, item):
            pass
    for runtime, _ in speakers.values():
        runtime.close()
    return learned


def measured(
    speakers: Mapping[str, tuple[Runtime, ReplaySession]], asked: Iterable[Item], before: int
) -> Iterator[tuple[str, str, Timed]]:
    """The configuration, the kind of text and the time of each round after the first `before` tokens."""
    said = 0
    for item in asked:
        for name, timed in race(speakers, item):
            if said >= before:
                yield name, item.kind, timed
        said += len(item.answer)


def _parts(parts: Times, singles: Sequence[str]) -> str:
    """What the best choice of one drafter for each kind of text brings over one drafter for all of them."""
    kinds = parts.best_by_kind(singles)
    oracle = parts.chosen(kinds)
    best = max(parts.chosen(dict.fromkeys(kinds, name)) for name in singles)
    said = ", ".join(f"{kind} {name}" for kind, name in kinds.items())
    return (
        f"{parts.report()}\nthe best single drafter of each kind ({said}): {oracle:.3f}, "
        f"{oracle / best:.3f} of the best one for all"
    )


def _prices(runtime: Runtime) -> str:
    plain = runtime.prices.plain()
    curve = " ".join(f"{runtime.prices.price(n) / plain:.2f}" for n in range(1, 17))
    steps = ", ".join(f"{name} {step / plain:.3f}" for name, step in runtime.step_prices.items())
    return (
        f"plain step {plain * 1e3:.2f} ms; price(n)/price(1), n = 1..16: {curve}; of a plain step, a guess of: {steps}"
    )


if __name__ == "__main__":
    main()
