"""The result of `edgespec distill`: what it prints, and the pair file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from edgespec.converters.atomic_file import atomic_file
from edgespec.distill.training import Checkup
from edgespec.storage import pair_file as pairfile

from ..tools.draft_value import DraftValue
from .distill_kinds import Kind, Place
from .pair_report import measurement, versions


@dataclass(frozen=True, slots=True)
class DistillReport:
    """What was collected and gained.

    Args:
        answers: how many were collected.
        held_out: how many of them were.
        tokens: of all answers.
        temperatures: of the answers.
        prompts: held-out prompts of the measurements.
        before: the draft's value.
        after: the trained draft's.
    """

    place: Place
    kind: Kind
    answers: int
    held_out: int
    tokens: int
    temperatures: Sequence[float]
    prompts: int
    before: DraftValue
    after: DraftValue

    def lines(self, history: Sequence[Checkup]) -> Iterator[str]:
        """For users; `history` has the checkups of the training."""
        yield f"{self.answers} answers, {self.tokens} tokens; {self.held_out} answers were held out"
        yield "simulated on the held-out answers:"
        width = f"tokens a pass of {self.kind.guesses} guesses"
        yield f"tokens seen   loss  acceptance of the first guess  {width}"
        for each in history:
            loss = "" if math.isnan(each.loss) else f"{each.loss:.3f}"
            yield f"{each.tokens:11,}  {loss:>5}  {each.acceptance:28.1%}  {each.length:{len(width)}.2f}"
        for name, value in (("before", self.before), ("after", self.after)):
            shares = " ".join(f"{share:.0%}" for share in value.acceptance) or "not known: too few drafts were verified"
            drafts = next((tested for tested, _ in value.depths), 0)
            k, gain = value.best
            speedup = f"{gain:.2f}x at K = {k}" if k else "none, plain decoding is fastest"
            yield (
                f"{name:6} acceptance by depth {shares} ({drafts} drafts on {self.prompts} held-out prompts); "
                f"speedup expected at the prices of this machine: {speedup}"
            )
        yield f"checkpoint {self.place.trained}, converted to {self.kind.draft}"

    def write(self) -> None:
        """Write the pair file. Raises ConversionError if it cannot be written."""
        name, folder = f"{self.prompts} held-out prompts", self.place.folder.resolve()
        target = self.place.target.resolve()
        data = pairfile.content(
            {
                "target": str(target.relative_to(folder) if target.is_relative_to(folder) else target),
                "draft": self.kind.draft.name,
                "measured": measurement(self.after, name, 0.0),
                "distilled": {
                    "draft": self.kind.name,
                    "answers": self.answers,
                    "tokens": self.tokens,
                    "temperatures": list(self.temperatures),
                    "before": measurement(self.before, name, 0.0),
                },
                "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
                "versions": versions(self.place.target),
            }
        )
        with atomic_file(self.place.folder / pairfile.NAME, len(data), force=True) as file:
            file.write(data)
