"""What `edgespec distill` says of the draft before and after its training."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import Mock

from edgespec.distill.training import Checkup
from edgespec.terminal.distill_kinds import Place
from edgespec.terminal.distill_report import DistillReport
from edgespec.tools.draft_value import DraftValue


def test_a_report_says_on_how_many_drafts_a_rate_rests() -> None:
    before = DraftValue(((200, 100), (100, 75)), (1.0, 1.1, 1.2), 0.1)
    kind = Mock(guesses=8, draft=Path("pair/draft.gguf"))
    place = Place(Path("pair"), "gguf", Path("target.gguf"))
    report = DistillReport(place, kind, 10, 2, 900, [0.0], 40, before, DraftValue((), before.curve, before.step))
    *_, checkup, first, second, _ = report.lines([Checkup(0, 0, math.nan, 0.25, 1.5, 1.1)])
    assert checkup.split() == ["0", "25.0%", "1.50"]
    assert first.startswith("before acceptance by depth 50% 75% (200 drafts on 40 held-out prompts); speedup expected")
    assert first.endswith("x at K = 2")
    assert second.startswith("after  acceptance by depth not known: too few drafts were verified (0 drafts on 40")
