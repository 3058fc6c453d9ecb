"""Scopes: the subset of answers that a figure is computed from. Free and replayed answers are kept apart."""

from __future__ import annotations

from dataclasses import dataclass

from .records import AnswerRecord, Run


@dataclass(frozen=True, slots=True)
class Scope:
    """Answers of a category (None: all), and free ones, replayed ones, or (None) both."""

    category: str | None = None
    replayed: bool | None = None

    def holds(self, answer: AnswerRecord) -> bool:
        return self.category in (None, answer.category) and self.replayed in (None, answer.replayed)

    @property
    def label(self) -> str:
        """The label of its figures, which contains "replayed" where it holds replayed answers."""
        if self.category is not None:
            return f"{self.category} (replayed)" if self.replayed else self.category
        return {None: "total, free and replayed", False: "total, free", True: "total, replayed"}[self.replayed]


ALL = Scope()
FREE = Scope(replayed=False)
REPLAYED = Scope(replayed=True)


def categories(run: Run) -> list[Scope]:
    """The scopes of the answered categories, in the suite's order."""
    said = {(answer.category, answer.replayed) for answer in run.answers}
    return [Scope(name, kind) for name in run.categories for kind in (False, True) if (name, kind) in said]


def totals(run: Run, contender: str | None = None) -> list[Scope]:
    """The scopes of all free and of all replayed answers, and of both together where there are both; with `contender`
    only of the kinds that it answered."""
    kinds = {answer.replayed for answer in run.answers if contender in (None, answer.contender)}
    return [scope for scope in (FREE, REPLAYED) if scope.replayed in kinds] + [ALL] * (len(kinds) > 1)


def covers(run: Run, contender: str, scope: Scope) -> bool:
    """Whether a contender's figure in `scope` is comparable with others: a contender that cannot replay texts has no
    total over free and replayed answers."""
    return scope.category is not None or scope in totals(run, contender)
