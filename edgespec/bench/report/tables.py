"""The tables that both reports show, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..figures import Figures, figures
from ..records import OURS, PLAIN, Depth, Run, Taking
from ..scopes import Scope, categories, covers, totals
from ..speedups import FEWEST_QUESTIONS, FEWEST_TOKENS, speedup
from .wording import NONE, counted, milliseconds, sameness, three, with_bounds

#: Titles that charts have too.
SPEEDUP, ACCEPTANCE, LENGTHS = "Speedup over plain decoding", "Acceptance by drafter and depth", "Draft length K"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text below a head, the first cell of each its name. `note` says how to read it; `words` are the columns,
    from 0, that hold no figures."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)


def tables(run: Run) -> list[Table]:
    """Those that have rows."""
    found = [_speedups(run), _others(run), _acceptance(run), _lengths(run), _contenders(run)]
    return [table for table in found if table.rows]


def taking_part(run: Run) -> list[str]:
    """The names of the contenders that answered."""
    said = {answer.contender for answer in run.answers}
    return [each.name for each in run.contenders if each.name in said]


def _speedups(run: Run) -> Table:
    scopes = [*totals(run), *categories(run)]
    asked = {scope: speedup(run, PLAIN, scope).questions for scope in scopes}
    names = taking_part(run)
    rows = [[name, *(_speedup(run, name, scope, asked[scope]) for scope in scopes)] for name in names]
    if rows:
        rows.insert(0, ["questions", *(str(asked[scope]) for scope in scopes)])
    return Table(
        SPEEDUP,
        "How many times faster a token came, without the time of the prompt, over the questions that both answered; in "
        f"brackets the 95% interval (bootstrap-t over questions), which {FEWEST_QUESTIONS} questions are needed for. "
        '"Of" tells how many questions, where it is not all. There is no figure of fewer than '
        f"{FEWEST_TOKENS} tokens. Replayed: contenders are made to say a given text, and their passes are paid for in "
        "full.",
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
    return with_bounds(found.decoding) + few


def _others(run: Run) -> Table:
    found = [figures(run, name, scope) for name in taking_part(run) for scope in totals(run, name)]
    return Table(
        "Other figures",
        "The speedup with the prompt is over the questions on which both said as many tokens; the median is of the "
        "speedups of single questions. Milliseconds between tokens and between bursts are those not exceeded in "
        "50 / 95 / 99% of the cases, where there are enough of them; tokens that come together have none between them, "
        "so the first may be 0. Energy is all that the processors took. "
        "Replayed answers are the same by force, so they do not count as the same text.",
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


def _acceptance(run: Run) -> Table:
    rows = {f"{name}, {_kind(s)}": each for s in totals(run) for name, each in figures(run, OURS, s).depths.items()}
    deepest = max(map(len, rows.values()), default=0)
    return Table(
        ACCEPTANCE,
        "How many of a drafter's guesses were right, by how far ahead they were made. Names with a plus sign: drafters "
        "that guessed the same.",
        ["drafter", *(f"depth {depth}" for depth in range(1, deepest + 1))],
        [[name, *_rates(depths, deepest)] for name, depths in rows.items()],
    )


def _rates(depths: Sequence[Depth], deepest: int) -> Iterator[str]:
    for drafted, accepted in depths:
        yield f"{accepted / drafted:.0%} of {drafted}" if drafted else NONE
    yield from [NONE] * (deepest - len(depths))


def _lengths(run: Run) -> Table:
    found = {_kind(scope): figures(run, OURS, scope).lengths for scope in totals(run)}
    lengths = sorted({k for each in found.values() for k in each})
    return Table(
        LENGTHS,
        "How many rounds of edgespec drafted so many tokens (K).",
        ["K", *map(str, lengths)],
        [[name, *(str(each.get(k, 0)) for k in lengths)] for name, each in found.items() if each],
    )


def _contenders(run: Run) -> Table:
    return Table(
        "Contenders",
        "Peak memory is that of a contender's process; those of edgespec share one.",
        ["contender", "what it is", "peak memory, MB", "took part"],
        [[each.name, each.title, three(each.memory, 1e-6), _part(run, each)] for each in run.contenders],
        words=(0, 1, 3),
    )


def _part(run: Run, taking: Taking) -> str:
    if taking.skipped:
        return f"left out: {taking.skipped}"
    return counted(len(run.by(taking.name)), "answer")
