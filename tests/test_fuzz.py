"""The fuzz campaign in small: a thousand inputs, and that its judge sees what it is there to see."""

from __future__ import annotations

from .fuzz import campaign
from .fuzz.kinds import KINDS

_INPUTS = 1000


def test_a_thousand_inputs_do_no_harm() -> None:
    """The corpus of every kind first, then inputs of random numbers; `python -m tests.fuzz` runs more."""
    summary = campaign.Summary()
    for outcome in campaign.run(campaign.plan(_INPUTS, 1, tuple(KINDS)), jobs=2):
        summary.add(outcome)
    lines = "\n".join(outcome.line for outcome in summary.failures)
    assert not summary.failures, f"{summary.text()}\n{lines}"
