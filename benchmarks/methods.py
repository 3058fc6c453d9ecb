"""Spec-Bench's table of methods, of the implementations here: tokens per pass, and speed over plain decoding.

    python -m benchmarks.methods TARGET.gguf DRAFT.gguf --questions SUITE --work DIR [--limit 10]
        [--medusa HEAD] [--eagle HEAD] [--eagle3 HEAD] [--drafts auto --drafts flat] [--markdown docs/spec-bench.md]

SUITE is a bundled one, or a file of questions in Spec-Bench's form; `benchmarks.spec_bench` joins Spec-Bench's own with
answers. Where a question has a `replay` text, the target's passes are computed in full and their choices overruled by
that text; else answers are the target's own, greedy, and the history of a later turn is plain decoding's.

Every method answers alone, once for each of --drafts: `auto`, as the adaptive controller drafts at the prices of this
machine, which may be not at all; `flat`, as it would if each pass over 1 to 16 tokens took a second, in trees where the
engine takes them, which shows what a method guesses whatever this machine is; or a number: chains of that length.
`edgespec` has all drafters that a pair has by default. Each has a session of its own and goes on with what it learned
from question to question. They take turns by the round in one process, so a slow spell of the machine falls on all
alike. `plain, again` is plain decoding once more: its distance from 1.00x is the error of a figure. The prompts are not
counted.

Answers are kept in DIR/answers.jsonl, one line each. A run that is started again goes on where it ended, also with more
questions. DIR/figures.jsonl has the table's figures; --markdown writes the table between the lines
`<!-- SUITE -->` and `<!-- end of SUITE -->` of a file, where SUITE is the file's name without its suffix.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click

from edgespec.backends import Device, Interrupt, Model, StateHead, open_model
from edgespec.bench import environment, rounds, suites
from edgespec.bench.journal import NAME, Journal
from edgespec.bench.records import AnswerRecord
from edgespec.bench.replay import ReplaySession, SharedModel
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import with_passengers
from edgespec.drafters import Drafter
from edgespec.engine import Finished, Started, Text
from edgespec.errors import OptionError
from edgespec.prices import Prices
from edgespec.runtime.learned import Learned
from edgespec.runtime.loading import assemble
from edgespec.runtime.runtime import Runtime
from edgespec.runtime.speculation import Speculation
from edgespec.sampling import Sampling
from edgespec.text.template import Message
from edgespec.types import Draft, Round
from edgespec.verify import RoundContext

from .acceptance import drafter_of
from .bench import take_turns
from .dialogues import FILE
from .prompt_lookup import PromptLookup

PLAIN, AGAIN = "plain", "plain, again"
_LEAST = 16  # tokens of an answer for which a context must have room
_OVERALL = "overall"
_WIDTHS, _SLOW = 16, 1.0  # tokens of a pass that are taken to cost the same, and seconds of it


class Method(NamedTuple):
    """A row of the table.

    Args:
        drafters: by name; None takes the default.
        draft: the file of its draft model or head.
        outside: drafters that edgespec does not have.
        k: tokens of every draft; None adapts.
        flat: whether it adapts to passes that all cost the same.
    """

    name: str
    drafters: tuple[str, ...] | None
    draft: Path | None = None
    outside: tuple[type[Drafter], ...] = ()
    k: int | None = None
    flat: bool = False

    def drafting(self, drafts: str) -> Method:
        """The same with other drafts: see the module's docstring. Raises click.BadParameter."""
        if drafts == "auto":
            return self
        if drafts == "flat":
            return self._replace(name=f"{self.name}, flat", flat=True)
        if not drafts.isdecimal() or not int(drafts):
            raise click.BadParameter(f"--drafts is {drafts}; it must be auto, flat, or 1 or more")
        return self._replace(name=f"{self.name}, K = {drafts}", k=int(drafts))


class AsIfFlat:
    """The adaptive controller as if each pass took `_SLOW`, whatever it holds: drafting costs next to nothing then."""

    def __init__(self, drafters: Sequence[Drafter], widest: int, *, trees: bool) -> None:
        self._inner = Adaptive(drafters, Prices([_SLOW] * widest), trees=trees)

    @property
    def drafters(self) -> Sequence[Drafter]:
        return self._inner.drafters

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        # A draft that is as wide as the prices known leaves no room for passengers, which cost nothing here.
        return with_passengers(self._inner.choose(round_context, limit), self.drafters, round_context, limit)

    def observe(self, round: Round) -> None:  # noqa: A002 - the field's word
        self._inner.observe(replace(round, verify_seconds=_SLOW))


def methods(draft: Path, heads: Mapping[str, Path], drafts: Sequence[str]) -> list[Method]:
    """The rows, in the order of the table; `heads` are files by the name of their method."""
    alone = [
        Method("SpS (draft model)", ("model",), draft),
        Method("PLD", (PromptLookup.name,), None, (PromptLookup,)),
        Method("SAM (lookup)", ("lookup",)),
        Method("Lookahead", ("lookahead",)),
        Method("Token Recycling", ("recycling",)),
        *(Method(name, (drafter_of(file),), file) for name, file in heads.items()),
    ]
    return [
        Method(PLAIN, (), k=0),
        *(each.drafting(kind) for each in alone for kind in drafts),
        Method("edgespec", None, draft),
        *(Method(f"edgespec with {name}", None, file) for name, file in heads.items()),
        Method(AGAIN, (), k=0),
    ]


def chosen(rows: Sequence[Method], names: Sequence[str]) -> list[Method]:
    """Those with these names, and plain decoding; all if there are none. Raises click.BadParameter."""
    if unknown := {*names} - {row.name for row in rows}:
        raise click.BadParameter(
            f"--only: no row {'; '.join(unknown)}. There are {'; '.join(row.name for row in rows)}"
        )
    return [row for row in rows if not names or row.name in {PLAIN, *names}]


@dataclass
class Speaker:
    """A method at work; `controller` in place of the runtime's own, if one is given."""

    runtime: Runtime
    session: ReplaySession
    controller: Callable[[Sequence[Drafter]], Controller] | None


@dataclass
class Said:
    """What one method says to a turn, while it does."""

    prompt_seconds: float = 0.0
    tokens: list[int] = field(default_factory=list)
    passes: list[tuple[Round, float]] = field(default_factory=list)


class Field:
    """The models, opened once, and all methods over them."""

    def __init__(self, target: Path, rows: Sequence[Method], device: Device) -> None:
        self._interrupt = Interrupt()
        self.speakers: dict[str, Speaker] = {}
        with ExitStack() as opened:
            loaded = open_model(target, device, self._interrupt)
            opened.callback(loaded.close)
            self.target = SharedModel(loaded)
            drafts: dict[Path, Model] = {}
            for row in rows:
                if row.draft is not None and row.draft not in drafts:
                    drafts[row.draft] = open_model(row.draft, device.of_draft(row.draft), self._interrupt)
                    opened.callback(drafts[row.draft].close)
                runtime = assemble(
                    self.target,
                    _lent(drafts[row.draft]) if row.draft is not None else None,
                    device=device,
                    drafters=[each() for each in row.outside],
                    speculation=Speculation(row.drafters, row.k),
                    interrupt=self._interrupt,
                    learned=Learned(None),
                )
                opened.callback(runtime.close)
                session = self.target.sessions[-1]
                self.speakers[row.name] = Speaker(runtime, session, _flat(session) if row.flat else None)
            self.close = opened.pop_all().close

    @property
    def plain(self) -> Runtime:
        """Plain decoding's, for its vocabulary and prompts."""
        return self.speakers[PLAIN].runtime

    def ask(self, prompt: Sequence[int], replay: Sequence[int] | None, most: int) -> dict[str, Said]:
        """What all say to a prompt, in turns by the round."""
        answers = {}
        for name, speaker in self.speakers.items():
            speaker.session.text = (*prompt, *replay) if replay is not None else ()
            answers[name] = speaker.runtime.complete(
                prompt, Sampling(temperature=0), max_tokens=most, controlled=speaker.controller
            )
        found = {name: Said() for name in answers}
        for name, event, seconds in take_turns(answers):
            said = found[name]
            if isinstance(event, Started):
                said.prompt_seconds = seconds
            elif isinstance(event, Text) and event.tokens:
                said.tokens += event.tokens
                said.passes.append((event.round, seconds))
            elif isinstance(event, Finished) and event.notices:
                raise click.ClickException(f"{name}: {event.notices[0]}")
        return found


def _flat(session: ReplaySession) -> Callable[[Sequence[Drafter]], Controller]:
    """One controller for all answers, made with the first."""

    @cache
    def controller(drafters: Sequence[Drafter]) -> Controller:
        return AsIfFlat(drafters, min(_WIDTHS, session.widest), trees=session.can_tree)

    return controller


def _lent(model: Model) -> Model:
    """For a runtime that closes what it is given."""
    return copy(model) if isinstance(model, StateHead) else SharedModel(model)


def answered(
    place: Field, suite: suites.Suite, known: Iterable[AnswerRecord], most: int
) -> Iterator[tuple[list[AnswerRecord], str]]:
    """The answers to each turn of each question, and a remark about those left out. Turns that are `known` are not
    asked again."""
    kept: defaultdict[tuple[str, int], dict[str, AnswerRecord]] = defaultdict(dict)
    for answer in known:
        kept[answer.question, answer.turn][answer.contender] = answer
    for question in suite.questions:
        messages: list[Message] = []
        for turn, asked in enumerate(question.turns):
            messages.append({"role": "user", "content": asked})
            before = kept[question.id, turn]
            if not before.keys() >= place.speakers.keys():
                prompt = place.plain.prompt(messages)
                replay = place.plain.vocabulary.tokenize(question.replay[turn]) if question.replay else None
                room = place.plain.context - len(prompt)
                if room < _LEAST:
                    yield [], f"question {question.id}, turn {turn + 1}: {len(prompt)} tokens, too long"
                    break
                limit = min(room, most, len(replay) if replay is not None else room)
                said = place.ask(prompt, replay, limit)
                found = [_record(place.plain, question, turn, len(prompt), *each) for each in said.items()]
                before = {answer.contender: answer for answer in found}
                yield found, ""
            messages.append(
                {"role": "assistant", "content": question.replay[turn] if question.replay else before[PLAIN].text}
            )


def _record(plain: Runtime, question: suites.Question, turn: int, prompt: int, name: str, said: Said) -> AnswerRecord:
    ended = bool(said.tokens) and plain.vocabulary.is_eog(said.tokens[-1])
    return AnswerRecord(
        question=question.id,
        category=question.category,
        turn=turn,
        contender=name,
        replayed=bool(question.replay),
        prompt=prompt,
        text="" if question.replay else plain.text(said.tokens[:-1] if ended else said.tokens),
        tokens=len(said.tokens),
        digest="",
        seconds=said.prompt_seconds + sum(seconds for _, seconds in said.passes),
        prompt_seconds=said.prompt_seconds,
        passes=rounds.passes(said.passes),
        depths=rounds.depths(each for each, _ in said.passes),
    )


@dataclass
class Figure:
    """Tokens, passes of the target and seconds, of one method in one category."""

    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0

    def add(self, answer: AnswerRecord) -> None:
        """Count an answer."""
        self.tokens += answer.tokens
        self.passes += len(answer.passes)
        self.seconds += answer.decoding or 0.0

    @property
    def per_pass(self) -> float:
        """Tokens committed per pass: accepted ones, and one of the target's own."""
        return self.tokens / self.passes if self.passes else 0.0

    def times(self, plain: Figure) -> float:
        """How many times as fast as `plain`, per token."""
        ours, theirs = self.tokens * plain.seconds, plain.tokens * self.seconds
        return ours / theirs if theirs else 0.0


def figures(answers: Iterable[AnswerRecord], names: Sequence[str]) -> dict[str, dict[str, Figure]]:
    """By category, "overall" last, and by method. Only turns that all of `names` answered count."""
    turns: defaultdict[tuple[str, int], dict[str, AnswerRecord]] = defaultdict(dict)
    for answer in answers:
        turns[answer.question, answer.turn][answer.contender] = answer
    found: dict[str, dict[str, Figure]] = {}
    overall = {name: Figure() for name in names}
    for said in turns.values():
        if said.keys() >= set(names):
            own = found.setdefault(said[names[0]].category, {name: Figure() for name in names})
            for name in names:
                own[name].add(said[name])
                overall[name].add(said[name])
    return {**found, _OVERALL: overall}


def table(found: Mapping[str, Mapping[str, Figure]]) -> str:
    """The table in Markdown: times as fast as plain decoding, and in brackets tokens per pass."""
    head = ["", *found]
    lines = [head, ["---"] * len(head)]
    for name in found[_OVERALL]:
        cells = (f"{own[name].times(own[PLAIN]):.2f}x ({own[name].per_pass:.2f})" for own in found.values())
        lines.append([name, *cells])
    lines.append(["tokens", *(str(own[PLAIN].tokens) for own in found.values())])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def written_into(page: str, name: str, text: str) -> str:
    """`page` with `text` between its lines for `name`. Raises click.ClickException where it has none."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise click.ClickException(f"the page has no lines {begin.strip()} and {end}; add them where the table belongs")
    return f"{before}{begin}\n{text}\n\n{end}{after}"


def about(place: Field, device: Device, most: int) -> dict[str, str]:
    """What answers that are compared have in common."""
    return {
        "machine": environment.machine(),
        "versions": environment.versions(),
        "target": place.target.description,
        "settings": f"{device.threads} threads, context {place.plain.context}, at most {most} tokens, greedy",
    }


@click.command()
@click.argument("target", type=FILE)
@click.argument("draft", type=FILE)
@click.option("--questions", required=True, help="A bundled suite, or a file of questions in Spec-Bench's form")
@click.option("--medusa", type=FILE, help="Medusa heads of TARGET")
@click.option("--eagle", type=FILE, help="An EAGLE-1 or 2 head of TARGET")
@click.option("--eagle3", type=FILE, help="An EAGLE-3 head of TARGET")
@click.option("--limit", type=int, help="Questions of each category [default: all]")
@click.option("--max-tokens", "most", default=128, show_default=True, help="Tokens of an answer")
@click.option("--drafts", multiple=True, default=("auto", "flat"), show_default=True, help="auto, flat, or a number K")
@click.option("--only", multiple=True, help="Rows to measure beside plain decoding [default: all]")
@click.option("--ctx", default=0, help="Tokens of prompt and answer [default: what the model was trained for]")
@click.option("--threads", default=2, show_default=True)
@click.option("--backend", default="auto", help="The target's engine [default: the first that opens the file]")
@click.option("--work", type=click.Path(path_type=Path), required=True, help="Folder of answers and figures")
@click.option("--markdown", type=FILE, help="Page to write the table into")
def main(target: Path, draft: Path, questions: str, work: Path, markdown: Path | None, **options: Any) -> None:
    """Measure all methods for TARGET, with DRAFT as the draft model."""
    suite = suites.read(questions).limited(options["limit"])
    name = Path(questions).stem
    if markdown is not None:
        written_into(markdown.read_text("utf-8"), name, "")  # before hours of work
    heads = {title: options[key] for key, title in _HEADS.items() if options[key] is not None}
    rows = chosen(methods(draft, heads, options["drafts"]), options["only"])
    device = Device(options["ctx"], options["threads"], backend=options["backend"])
    place = Field(target, rows, device)
    terms, curve = about(place, device, options["most"]), _curve(place.plain.prices)
    try:
        journal = Journal(work / NAME, {"suite": suite.digest, **terms}, resume=True)
    except OptionError as error:
        raise click.ClickException(f"{work} holds other answers: {error}; give another --work") from error
    answers, left_out = list(journal.answers), 0
    try:
        for found, remark in answered(place, suite, journal.answers, options["most"]):
            left_out += bool(remark)
            click.echo(
                remark or f"question {found[0].question}, {found[0].category}, turn {found[0].turn + 1}", err=True
            )
            for answer in found:
                journal.add(answer)
            answers += found
    finally:
        journal.close()
        place.close()
    asked = {question.id for question in suite.questions}
    result = figures((answer for answer in answers if answer.question in asked), [row.name for row in rows])
    _write_figures(work / "figures.jsonl", result)
    text = f"{table(result)}\n\n{environment.date()}: {'; '.join(terms.values())}. {_kinds(answers, left_out)} {curve}"
    click.echo(text)
    if markdown is not None:
        markdown.write_text(written_into(markdown.read_text("utf-8"), name, text), encoding="utf-8")


_HEADS = {"medusa": "Medusa", "eagle": "EAGLE", "eagle3": "EAGLE-3"}


def _curve(prices: Prices) -> str:
    """The prices that `auto` begins with."""
    curve = prices.curve()
    shown = (f"over {n} tokens {curve[n - 1] / curve[0]:.2f}" for n in (2, 4, 8, 16) if n <= len(curve))
    doubt = "" if prices.trusted else " (measured beside other programs: run it on a quiet machine)"
    return f"In plain passes, passes cost {', '.join(shown)}{doubt}."


def _kinds(answers: Sequence[AnswerRecord], left_out: int) -> str:
    replayed = sum(answer.replayed for answer in answers if answer.contender == PLAIN)
    turns = sum(answer.contender == PLAIN for answer in answers)
    return f"{turns} answers, {replayed} of them replayed; {left_out} questions were too long for the context."


def _write_figures(path: Path, found: Mapping[str, Mapping[str, Figure]]) -> None:
    lines = [
        {
            "category": category,
            "method": name,
            "tokens": figure.tokens,
            "passes": figure.passes,
            "seconds": figure.seconds,
            "tokens_per_pass": figure.per_pass,
            "speedup": figure.times(own[PLAIN]),
        }
        for category, own in found.items()
        for name, figure in own.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
