"""The tables of the reports, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..figures import Figures, figures
from ..records import OURS, PLAIN, ContenderEntry, Depth, Run
from ..scopes import Scope, categories, covers, totals
from ..speedups import FEWEST_QUESTIONS, FEWEST_TOKENS, speedup
from .wording import NONE, counted, drafted_nothing, milliseconds, sameness, three, with_bounds

#: Titles that charts share.
SPEEDUP, ACCEPTANCE, LENGTHS = "Speedup over plain decoding", "Acceptance by drafter and depth", "Draft length K"


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of texts with a head; the first cell of a row is its name.

    Args:
        note: how to read the table.
        words: the columns, from 0, that hold text instead of figures.
    """

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)


def tables(run: Run) -> list[ReportTable]:
    """The tables with rows."""
    found = [_speedups(run), _others(run), _acceptance(run), _lengths(run), _contenders(run)]
    return [table for table in found if table.rows]


def taking_part(run: Run) -> list[str]:
    """The names of the contenders that answered."""
    said = {answer.contender for answer in run.answers}
    return [each.name for each in run.contenders if each.name in said]


def _speedups(run: Run) -> ReportTable:
    scopes = [*totals(run), *categories(run)]
    asked = {scope: speedup(run, PLAIN, scope).questions for scope in scopes}
    names = taking_part(run)
    rows = [[name, *(_speedup(run, name, scope, asked[scope]) for scope in scopes)] for name in names]
    if rows:
        rows.insert(0, ["questions", *(str(asked[scope]) for scope in scopes)])
    return ReportTable(
        SPEEDUP,
        "The ratio of the times per token, without the prompt, over the questions that both answered; in brackets the "
        f"95% interval (bootstrap-t over questions), which takes at least {FEWEST_QUESTIONS} questions. "
        '"Of" gives the number of questions where it is not all. There is no figure for fewer than '
        f'{FEWEST_TOKENS} tokens. "No drafts": edgespec decoded plainly there. Replayed: the output is a given text, '
        "and the passes are computed in full.",
        ["contender", *(scope.label for scope in scopes)],
        rows,
    )


def _speedup(run: Run, contender: str, scope: Scope, asked: int) -> str:
    if not covers(run, contender, scope):
        return NONE
    if contender == PLAIN:
        return "1" if asked else NONE
    found = speedup(run, contender, scope)
    few = f", of {found.questions}" if 0 < found.questions < asked else ""
    plainly = ", no drafts" if contender == OURS and drafted_nothing(figures(run, OURS, scope)) else ""
    return with_bounds(found.decoding) + few + plainly


def _others(run: Run) -> ReportTable:
    found = [figures(run, name, scope) for name in taking_part(run) for scope in totals(run, name)]
    return ReportTable(
        "Other figures",
        "The speedup with the prompt is over the questions with equally many tokens of both; the median is of the "
        "speedups of single questions. Milliseconds between tokens and between bursts are the 50th / 95th / 99th "
        "percentiles, where there are enough values; tokens of a burst have 0 ms between them. Energy is that of the "
        "processors, other programs included. "
        "Replayed answers are the same by construction, so they do not count as the same text.",
        [
            "contender",
            "answers",
            "questions",
            "speedup with the prompt",
            "median question",
            "tokens/s",
            "tokens a pass",
            "ms to the first token",
            "ms between tokens",
            "ms between bursts",
            "joules a token",
            "same text as plain",
        ],
        [_row(each) for each in found],
        words=(0, 1),
    )


def _row(found: Figures) -> list[str]:
    plain = found.contender == PLAIN
    return [
        found.contender,
        _kind(found.scope),
        str(found.speedup.questions),
        "1" if plain else with_bounds(found.speedup.whole),
        "1" if plain else three(found.speedup.median),
        three(found.tokens_per_second),
        three(found.mean_accepted_length),
        three(found.first, 1e3),
        milliseconds(found.gaps),
        milliseconds(found.waits),
        three(found.joules),
        NONE if plain else sameness(found.same),
    ]


def _kind(scope: Scope) -> str:
    return scope.label.removeprefix("total, ")


def _acceptance(run: Run) -> ReportTable:
    rows = {f"{name}, {_kind(s)}": each for s in totals(run) for name, each in figures(run, OURS, s).depths.items()}
    deepest = max(map(len, rows.values()), default=0)
    return ReportTable(
        ACCEPTANCE,
        "The share of a drafter's guesses that was accepted, by depth in the draft. Names with a plus sign: drafters "
        "with the same guess.",
        ["drafter", *(f"depth {depth}" for depth in range(1, deepest + 1))],
        [[name, *_rates(depths, deepest)] for name, depths in rows.items()],
    )


def _rates(depths: Sequence[Depth], deepest: int) -> Iterator[str]:
    for drafted, accepted in depths:
        yield f"{accepted / drafted:.0%} of {drafted}" if drafted else NONE
    yield from [NONE] * (deepest - len(depths))


def _lengths(run: Run) -> ReportTable:
    found = {_kind(scope): figures(run, OURS, scope).lengths for scope in totals(run)}
    lengths = sorted({k for each in found.values() for k in each})
    return ReportTable(
        LENGTHS,
        "The number of rounds of edgespec by drafted tokens (K).",
        ["K", *map(str, lengths)],
        [[name, *(str(each.get(k, 0)) for k in lengths)] for name, each in found.items() if each],
    )


def _contenders(run: Run) -> ReportTable:
    return ReportTable(
        "Contenders",
        "Peak memory is that of the contender's process; the contenders of edgespec share one.",
        ["contender", "what it is", "peak memory, MB", "took part"],
        [[each.name, each.title, three(each.memory, 1e-6), _part(run, each)] for each in run.contenders],
        words=(0, 1, 3),
    )


def _part(run: Run, taking: ContenderEntry) -> str:
    if taking.skipped:
        return f"left out: {taking.skipped}"
    answers = run.by(taking.name)
    questions = len({(answer.category, answer.question) for answer in answers})
    turns = f" in the turns of {counted(questions, 'question')}" if questions < len(answers) else ""
    return counted(len(answers), "answer") + turns
