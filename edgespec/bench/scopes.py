"""Which answers a figure is of. What was replayed is never among the free unless it is said."""

from __future__ import annotations

from dataclasses import dataclass

from .records import Answer, Run


@dataclass(frozen=True, slots=True)
class Scope:
    """A category, None for all; free answers, replayed ones, or, with None, both."""

    category: str | None = None
    replayed: bool | None = None

    def holds(self, answer: Answer) -> bool:
        return self.category in (None, answer.category) and self.replayed in (None, answer.replayed)

    @property
    def label(self) -> str:
        """What it is called wherever its figures stand; the word "replayed" is never missing."""
        if self.category is not None:
            return f"{self.category} (replayed)" if self.replayed else self.category
        return {None: "total, free and replayed", False: "total, free", True: "total, replayed"}[self.replayed]


ALL = Scope()
FREE = Scope(replayed=False)
REPLAYED = Scope(replayed=True)


def categories(run: Run) -> list[Scope]:
    """Those that were answered, in the suite's order."""
    said = {(answer.category, answer.replayed) for answer in run.answers}
    return [Scope(name, kind) for name in run.categories for kind in (False, True) if (name, kind) in said]


def totals(run: Run, contender: str | None = None) -> list[Scope]:
    """Of free answers and of replayed ones, apart; and together, where there are both. Of one contender those that it
    gave."""
    kinds = {answer.replayed for answer in run.answers if contender in (None, answer.contender)}
    return [scope for scope in (FREE, REPLAYED) if scope.replayed in kinds] + [ALL] * (len(kinds) > 1)


def covers(run: Run, contender: str, scope: Scope) -> bool:
    """Whether a contender's figure may stand beside others of `scope`: a total of one that cannot be made to say a text
    must not stand beside totals that hold such texts."""
    return scope.category is not None or scope in totals(run, contender)
