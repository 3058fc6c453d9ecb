"""Contenders on one pair, beside those of `edgespec bench`: without trees, with the first draft model alone, and with a
drafter that is always wrong."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from edgespec import Device, Interrupt, Speculation
from edgespec.backends import Model, Session
from edgespec.bench import peers
from edgespec.bench.contender import Contender, ContenderFailed
from edgespec.bench.edgespec_contender import ContenderFactory, EdgespecContender
from edgespec.bench.records import OURS, PLAIN, AnswerRecord, ContenderEntry, Pass, Run
from edgespec.bench.replay import SharedModel
from edgespec.bench.runner import RequestSettings, Runner
from edgespec.bench.scopes import Scope, categories, totals
from edgespec.bench.speedups import Estimate, speedup
from edgespec.bench.suites import Suite
from edgespec.drafters import Target
from edgespec.drafters.model import ModelDrafter
from edgespec.prices import measure, sample_text
from edgespec.runtime.learned import Learned
from edgespec.runtime.loading import Files, assemble
from edgespec.sampling import Sampling

from ..bench import Wrong
from .setting import Setting

WRONG, CHAINS, FIRST = "always-wrong", "chains", "first-draft"
Found = dict[str, Any]


class _Chains(SharedModel):
    """A model whose sessions take no trees."""

    def session(self, context: int, interrupt: Interrupt | None = None) -> Session:
        session = super().session(context, interrupt)
        self.sessions[-1].can_tree = False
        self.sessions[-1].leaves = 0
        return session


class Factory(ContenderFactory):
    """Makes the contenders of one pair."""

    def contender(self, name: str) -> EdgespecContender:
        if name == CHAINS:
            return self._assembled(name, _Chains(self.target._model), Speculation(), self.drafts)
        if name == FIRST:
            return self._assembled(name, self.target, Speculation(("model",)), self.drafts[:1])
        if name == WRONG:
            return self._assembled(name, self.target, Speculation((WRONG,)), (), drafters=(self._wrong,))
        return super().contender(name)

    def _wrong(self, target: Target) -> Wrong:
        session = self.drafts[0].session(target.context)
        price = measure(session, text=sample_text(target.vocabulary), budget=0.5)[0]
        drafter = Wrong(ModelDrafter(session, target.vocabulary.size, price), target.vocabulary.size)
        drafter.name = WRONG
        return drafter

    def _assembled(
        self, name: str, target: SharedModel, speculation: Speculation, drafts: Sequence[Model], **more: Any
    ) -> EdgespecContender:
        runtime = assemble(
            target,
            drafts,
            device=self.device,
            speculation=speculation,
            interrupt=self._interrupt,
            learned=Learned(None),
            **more,
        )
        return EdgespecContender(name, name, runtime, target.sessions[-1])


@contextmanager
def contenders(
    target: Path,
    drafts: Sequence[Path],
    device: Device,
    names: Sequence[str],
    setting: Setting,
    source: Path | None = None,
) -> Iterator[tuple[list[Contender], dict[str, str]]]:
    """Those that start, plain decoding and edgespec first, and why others do not."""
    with ExitStack() as stack:
        factory = Factory(Files(target, tuple(drafts)), device, Interrupt(), lambda _what, _share: None)
        stack.callback(factory.close)
        given = peers.Setup(
            target,
            drafts[0],
            source=source,
            threads=device.threads,
            context=device.context,
            gpu_layers=device.gpu_layers,
            server=setting.server if setting.server.exists() else None,
            patience=120.0,
        )
        found, left_out = list[Contender](), dict[str, str]()
        for name in dict.fromkeys((PLAIN, OURS, *names)):
            try:
                found.append(peers.peer(name, given) if name in peers.PEERS else factory.contender(name))
            except ContenderFailed as error:
                left_out[name] = str(error)
                continue
            stack.callback(found[-1].close)
        yield found, left_out


def answered(found: Sequence[Contender], suite: Suite, temperature: float, tokens: int) -> Run:
    """The suite's questions, answered by all in turn, with at most `tokens` tokens."""
    plain = found[0]
    assert isinstance(plain, EdgespecContender)  # noqa: S101 - for mypy: `contenders` puts it first
    runtime = plain.runtime
    terms = RequestSettings(
        Sampling(temperature=temperature, seed=1),
        tokens,
        runtime.context,
        runtime.prompt,
        runtime.vocabulary.tokenize,
        runtime.text,
    )
    events = list(Runner(suite, found, terms).run())
    entries = [ContenderEntry(each.name, each.title, each.name in peers.PEERS) for each in found]
    answers = [event for event in events if isinstance(event, AnswerRecord)]
    problems = [event for event in events if not isinstance(event, AnswerRecord)]
    return Run({}, suite.name, suite.categories, entries, None, answers, problems)


def figures(run: Run) -> Found:
    """By contender: its speedup over plain decoding, by category and in total, and what its rounds were."""
    found = Found()
    for each in run.contenders:
        scopes = [*categories(run), *totals(run)]
        own = run.by(each.name)
        passes = [one for answer in own for one in answer.passes]
        seconds = [took for answer in own if (took := answer.decoding) is not None]
        tokens = sum(answer.tokens for answer in own)
        found[each.name] = {
            "x plain": {scope.label: value(speedup(run, each.name, scope).decoding) for scope in scopes},
            "tokens": tokens,
            "tokens a second": round(tokens / sum(seconds), 1) if sum(seconds) else None,
            "drafted": sum(one.drafted for one in passes),
            "accepted": sum(one.accepted for one in passes),
            "rounds": len(passes),
            "ms of a round by drafted tokens": _by_drafted(passes),
            "answers": [_answer(answer) for answer in own],
        }
    return {"contenders": found, "problems": [f"{each.where}: {each.what}" for each in run.problems]}


def _answer(answer: AnswerRecord) -> Found:
    """An answer's tokens and milliseconds without its prompt, and drafted and accepted tokens and milliseconds of each
    round."""
    took = answer.decoding
    return {
        "question": answer.question,
        "tokens": answer.tokens,
        "ms": None if took is None else round(1e3 * took, 3),
        "rounds": [[one.drafted, one.accepted, round(1e3 * one.seconds, 3)] for one in answer.passes],
    }


def _by_drafted(passes: Sequence[Pass]) -> dict[str, list[float]]:
    """By drafted tokens how many rounds there were, and their median milliseconds."""
    found: dict[int, list[float]] = {}
    for each in passes:
        found.setdefault(each.drafted, []).append(1e3 * each.seconds)
    return {str(n): [len(ms), round(statistics.median(ms), 3)] for n, ms in sorted(found.items())}


def prices_of(contenders: Sequence[Contender]) -> Found:
    """By contender of edgespec, the milliseconds of passes and of a step of each drafter that it believes in now."""
    return {
        each.name: {
            "passes": [round(1e3 * seconds, 3) for seconds in each.runtime.prices.curve(256)],
            "steps": {name: round(1e3 * seconds, 3) for name, seconds in each.runtime.step_prices.items()},
        }
        for each in contenders
        if isinstance(each, EdgespecContender)
    }


def over(run: Run, contender: str, base: str) -> list[float] | None:
    """The speedup of one contender over another, with its interval, in total."""
    return value(speedup(run, contender, Scope(replayed=False), base=base).decoding)


def value(estimate: Estimate | None) -> list[float] | None:
    """A figure, and its interval where it has one."""
    if estimate is None:
        return None
    return [round(each, 4) for each in (estimate.value, *(estimate.interval or ()))]
