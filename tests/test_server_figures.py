"""Usage of answers."""

from __future__ import annotations

from edgespec.server.figures import usage
from edgespec.stats import Stats


def stats(by_drafter: dict[str, tuple[int, int]]) -> Stats:
    return Stats(
        prompt=7,
        cached=2,
        prompt_seconds=0.1,
        tokens=12,
        rounds=3,
        drafted=10,
        accepted=9,
        seconds=1.0,
        engine_seconds=0.9,
        plain_tokens_per_second=None,
        plain_error=0.0,
        by_drafter=by_drafter,
        k_histogram={},
        by_depth=(),
    )


def test_predicted_tokens_count_where_other_drafters_agree() -> None:
    answers = [stats({"prediction+lookup": (6, 5), "prediction": (3, 2), "lookup": (4, 4)}), stats({"lookup": (2, 1)})]
    details = usage(answers)["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (7, 2)


def test_a_prompt_counts_once_for_its_answers() -> None:
    found = usage([stats({}), stats({})])
    assert (found["prompt_tokens"], found["completion_tokens"], found["total_tokens"]) == (7, 24, 31)
