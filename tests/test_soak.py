"""The soak of `benchmarks.soak`: a short one, and that it finds faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.soak import Soak, main
from edgespec.sampling import Sampling
from edgespec.types import Acceptance, Draft, Floats
from edgespec.verify import Match


@pytest.fixture(scope="module")
def soak(small_pair: dict[str, Path]) -> Iterator[Soak]:
    opened = Soak(small_pair["target"], small_pair["draft"])
    yield opened
    opened.close()


def verdicts(soak: Soak, seed: int, answers: int) -> Counter[str]:
    return Counter(outcome.verdict for outcome in soak.run(seed, range(answers)))


def test_answers_under_random_options_are_those_of_plain_decoding(soak: Soak) -> None:
    soak.seen.clear()
    found = verdicts(soak, 1, 40)
    assert found["DIFFERENT"] == 0, found
    assert found["equal"] >= 38
    assert min(soak.seen.values()) > 0
    assert {*soak.seen} == {"tokens", "drafted", "accepted", "trees", "cancelled"}


def test_an_answer_is_the_same_case_whenever_it_is_asked(soak: Soak) -> None:
    (seventh,) = soak.run(1, [7])
    *_, last = soak.run(1, range(8))
    assert seventh.case == last.case


def test_onnx_answers_are_those_of_plain_decoding(onnx_folders: Callable[[str], Path]) -> None:
    opened = Soak(onnx_folders("fp32"), None)
    found = verdicts(opened, 2, 10)
    opened.close()
    assert found["DIFFERENT"] == 0, found


def test_a_verifier_that_takes_a_wrong_token_is_found(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = Match.accept

    def careless(self: Match, draft: Draft, rows: Floats, sampling: Sampling, context: Sequence[int]) -> Acceptance:
        found = accept(self, draft, rows, sampling, context)
        if found.path or not draft:
            return found
        return Acceptance((0,), int(rows[1].argmax()))

    monkeypatch.setattr(Match, "accept", careless)
    assert verdicts(soak, 1, 12)["DIFFERENT"] > 0


def test_the_command_counts_and_ends_by_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(main, ["--answers", "3", "--from", "4"])
    assert done.exit_code == 0, done.output
    assert "seed 1, answers 4 to 6: 3 equal, 0 near tie, 0 DIFFERENT" in done.output
    assert "MB at most" in done.output

    def wrong(_self: Match, draft: Draft, _rows: Floats, _sampling: Sampling, _context: Sequence[int]) -> Acceptance:
        return Acceptance((), 7 if draft else 8)

    monkeypatch.setattr(Match, "accept", wrong)
    done = CliRunner().invoke(main, ["--answers", "3", "--from", "4"])
    assert done.exit_code == 1
    assert "python -m benchmarks.soak --seed 1 --from " in done.output
