"""The table of methods: its questions, its look-ups of fixed n-grams, its figures, and a run that is gone on with."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import methods, spec_bench
from benchmarks.methods import AGAIN, PLAIN, Field, Method, answered, figures, table, written_into
from benchmarks.prompt_lookup import PromptLookup, followers
from edgespec import Device
from edgespec.backends.toy import ToySession, blend
from edgespec.bench import suites
from edgespec.bench.records import AnswerRecord, Pass
from edgespec.controller.adaptive import Adaptive
from edgespec.drafters import Drafter, Target
from edgespec.drafters.lookahead import Lookahead
from edgespec.engine import Finished, Request, Text
from edgespec.prices import Prices
from edgespec.testing import check_drafter

from .engine_runs import OTHER, PROMPT, TARGET, VOCAB, engine
from .helpers import Clock, Priced, RuleDrafter, round_context

# --- look-ups of fixed n-grams


def plainly(text: Sequence[int], longest: int, drafted: int) -> list[int]:
    """The first window that is the text's end and has all of a draft after it; longer windows first."""
    for length in range(longest, 0, -1):
        for start in range(len(text)):
            end = start + length
            if text[start:end] == text[-length:] and end + drafted <= len(text) and end < len(text) - length:
                return [*text[end : end + drafted]]
    return []


def test_followers_are_those_of_the_earliest_window() -> None:
    rng, found = random.Random(5), 0  # noqa: S311 - no secret
    for _ in range(2000):
        text = [rng.randrange(4) for _ in range(rng.randrange(1, 30))]
        longest, drafted = rng.randrange(1, 4), rng.randrange(1, 6)
        wanted = plainly(text, longest, drafted)
        assert followers(np.array(text), longest, drafted) == wanted
        found += bool(wanted)
    assert 500 < found < 1900


def test_it_drafts_that_chain_and_nothing_else() -> None:
    drafter = PromptLookup(2, 3)
    drafter.begin(round_context([1, 2, 3, 4, 5, 1, 2]))
    assert [drafter.guess(path, 4)[0].token for path in ([], [3], [3, 4])] == [3, 4, 5]
    assert not any(drafter.guess(path, 4) for path in ([3, 4, 5], [4], [3, 9], [3, 4, 5, 1]))
    drafter.begin(round_context([1, 2, 3, 4, 5, 6]))
    assert not drafter.guess([], 4)
    drafter.begin(round_context([7, 2, 8, 8, 8, 2]))
    assert drafter.guess([], 4)[0].token == 8, "another text"


def test_it_keeps_the_laws_of_drafters() -> None:
    def made(_target: Target) -> PromptLookup:
        return PromptLookup()

    check_drafter(made)


# --- Spec-Bench's questions

QUESTIONS: list[spec_bench.Line] = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
    {"question_id": 111, "category": "math", "turns": ["Area?", "And?"], "reference": ["3", "5pi"]},
    {"question_id": 131, "category": "extraction", "turns": ["Which?", "And?"], "reference": ["[5, 1, 3]", ""]},
    {"question_id": 401, "category": "math_reasoning", "turns": ["So?"], "reference": ["He pays 4*5=<<4*5=20>>20"]},
    {"question_id": 481, "category": "rag", "turns": ["Who?"], "reference": [["James Ray", "George Harrison"]]},
    {"question_id": 482, "category": "rag", "turns": ["Who?"], "reference": ["James", "George"]},
]


def test_references_are_replayed_where_each_turn_has_one() -> None:
    lines = list(spec_bench.joined(QUESTIONS, {}))
    assert [line["question_id"] for line in lines] == [line["question_id"] for line in QUESTIONS]
    assert {line["question_id"]: line["replay"] for line in lines if "replay" in line} == {
        111: ["3", "5pi"],
        401: ["He pays 4*5=20"],
        481: ["James Ray, George Harrison"],
        482: ["James, George"],
    }


def test_answers_of_a_model_take_the_place_of_references(tmp_path: Path) -> None:
    kept = [
        {"question_id": 81, "choices": [{"turns": ["One.", "Two."]}, {"turns": ["no", "no"]}]},
        {"question_id": 401, "choices": [{"turns": ["Twenty."]}]},
        {"question_id": 111, "choices": [{"turns": ["only one"]}]},
    ]
    paths = [tmp_path / name for name in ("questions.jsonl", "suite.jsonl", "answers.jsonl")]
    for path, lines in ((paths[0], QUESTIONS), (paths[2], kept)):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(spec_bench.main, [str(paths[0]), str(paths[1]), "--answers", str(paths[2])])
    assert done.output == "4 of 6 questions have answers to replay: writing 1, math_reasoning 1, rag 2\n"
    suite = suites.read(str(paths[1]))
    replayed = {question.id: question.replay for question in suite.questions if question.replay}
    assert (replayed["81"], replayed["401"]) == (("One.", "Two."), ("Twenty.",))
    assert len(replayed) == 4
    assert len(suite.questions) == 6
    assert not suite.problems


# --- figures


def record(
    question: str, method: str, passes: Sequence[tuple[int, float]], category: str = "qa", prompt_seconds: float = 9.0
) -> AnswerRecord:
    """An answer with the tokens and seconds of its passes."""
    rounds = tuple(Pass(4, n - 1, n, seconds) for n, seconds in passes)
    seconds = prompt_seconds + sum(each.seconds for each in rounds)
    tokens = sum(each.tokens for each in rounds)
    return AnswerRecord(question, category, 0, method, True, 9, "", tokens, "", seconds, prompt_seconds, (), rounds)


def test_figures_are_of_all_tokens_and_passes_and_leave_prompts_out() -> None:
    answers = [
        record("1", PLAIN, [(1, 1.0)] * 6),
        record("1", "x", [(4, 2.0), (2, 1.0)], prompt_seconds=50.0),
        record("2", PLAIN, [(1, 2.0)] * 3, "rag"),
        record("2", "x", [(1, 3.0)] * 3, "rag"),
        record("3", PLAIN, [(1, 9.0)] * 9),
    ]
    found = figures(answers, [PLAIN, "x"])
    assert list(found) == ["qa", "rag", "overall"]
    assert [own["x"].per_pass for own in found.values()] == [3.0, 1.0, pytest.approx(9 / 5)]
    assert [own["x"].times(own[PLAIN]) for own in found.values()] == [2.0, pytest.approx(2 / 3), 1.0]
    assert found["qa"][PLAIN].tokens == 6, "a question that one of them has not answered does not count"
    lines = table(found).splitlines()
    assert lines[0] == "|  | qa | rag | overall |"
    assert lines[3] == "| x | 2.00x (3.00) | 0.67x (1.00) | 1.00x (1.80) |"
    assert lines[4] == "| tokens | 6 | 3 | 9 |"


def test_speed_is_by_the_token_where_answers_differ() -> None:
    found = figures([record("1", PLAIN, [(1, 1.0)] * 6), record("1", "x", [(2, 1.0)])], [PLAIN, "x"])
    assert found["qa"]["x"].times(found["qa"][PLAIN]) == 2.0


def test_a_table_takes_the_place_of_the_one_before() -> None:
    page = "# Page\n\n<!-- demo -->\nold\n<!-- end of demo -->\n\n<!-- b -->\n<!-- end of b -->\n"
    new = written_into(page, "demo", "| new |")
    assert "old" not in new
    assert written_into(new, "demo", "| new |") == new
    assert new.startswith("# Page\n\n<!-- demo -->\n\n| new |\n\n<!-- end of demo -->")
    assert new.endswith("<!-- b -->\n<!-- end of b -->\n")
    with pytest.raises(click.ClickException, match="no lines <!-- other --> and <!-- end of other -->"):
        written_into(page, "other", "")


def test_each_method_stands_alone_and_at_each_length() -> None:
    rows = {row.name: row for row in methods.methods(Path("draft.gguf"), {}, ["auto", "flat", "4"])}
    assert next(iter(rows)) == PLAIN
    assert list(rows)[-2:] == ["edgespec", AGAIN]
    assert rows["PLD, K = 4"].k == 4
    assert (rows["PLD"].k, rows["PLD"].flat, rows["PLD, flat"].flat) == (None, False, True)
    assert rows["SpS (draft model), K = 4"].draft == rows["edgespec"].draft == Path("draft.gguf")
    assert rows["edgespec"].drafters is None
    assert rows["Lookahead"].drafters == ("lookahead",)
    for wrong in ("0", "-1", "x", ""):
        with pytest.raises(click.BadParameter, match="must be auto, flat, or 1 or more"):
            rows["PLD"].drafting(wrong)
    assert methods.chosen(list(rows.values()), ()) == [*rows.values()]
    assert [row.name for row in methods.chosen(list(rows.values()), ("edgespec", AGAIN))] == [PLAIN, "edgespec", AGAIN]
    with pytest.raises(click.BadParameter, match="no row EAGLE"):
        methods.chosen(list(rows.values()), ("EAGLE",))


def test_flat_drafts_are_long_whatever_passes_take(clock: Clock) -> None:
    """Also where each pass takes a hundred times as long and brings little, for which a controller gives up."""
    drafted = []
    for flat in (True, False):
        drafters: list[Drafter] = [RuleDrafter(blend(TARGET, OTHER, 0.55), confidence=0.9)]
        adaptive = Adaptive(drafters, Prices([1e-3] * 16))
        target = Priced(TARGET, VOCAB, clock, [1e-3, 9.0])
        controller = methods.AsIfFlat(drafters, 16, trees=True) if flat else adaptive
        *_, finished = engine(target, controller).generate(Request(PROMPT, max_tokens=400))
        assert isinstance(finished, Finished)
        drafted.append(finished.stats.drafted / finished.stats.rounds)
    assert drafted[0] > 1 > 5 * drafted[1]


def test_where_passes_are_flat_each_carries_the_window() -> None:
    """Also beside a draft of 15 tokens, the most at known prices."""
    drafters: list[Drafter] = [RuleDrafter(TARGET, confidence=0.9), Lookahead()]
    controller = methods.AsIfFlat(drafters, 16, trees=True)
    events = engine(ToySession(TARGET, VOCAB), controller).generate(Request(PROMPT, max_tokens=400))
    rounds = [event.round for event in events if isinstance(event, Text)]
    assert max(len(each.draft) for each in rounds) == 15
    assert all(each.draft.passengers.tokens for each in rounds if each.held < 300)


# --- a run


ROWS = (
    PLAIN,
    "SpS (draft model), K = 4",
    "PLD, K = 4",
    "Lookahead, K = 4",
    "Token Recycling, K = 4",
    "SAM (lookup), K = 4",
    "SAM (lookup), flat",
)


def test_a_run_replays_or_answers_and_is_gone_on_with(small_pair: dict[str, Path], tmp_path: Path) -> None:
    text = "one two three, one two three, one two three"
    questions = [
        {"question_id": 1, "category": "qa", "turns": ["Say it.", "Again."], "replay": [text, text]},
        {"question_id": 2, "category": "rag", "turns": ["I need a table for two in Oakland tonight."]},
        {"question_id": 3, "category": "rag", "turns": ["too long " * 200]},
    ]
    path = tmp_path / "suite.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in questions))
    suite = suites.read(str(path))
    rows: list[Method] = [row for row in methods.methods(small_pair["draft"], {}, ["flat", "4"]) if row.name in ROWS]
    place = Field(small_pair["target"], rows, Device(256, threads=1))
    said = list(answered(place, suite, (), 24))
    records = [answer for found, _ in said for answer in found]
    assert [remark for _, remark in said if remark] == ["question 3, turn 1: 410 tokens, too long"]
    assert len(records) == 3 * len(rows)
    size = min(24, len(place.plain.vocabulary.tokenize(text)))
    for answer in records:
        assert sum(each.tokens for each in answer.passes) == answer.tokens
        if answer.replayed:
            assert (answer.tokens, answer.text) == (size, "")
    free = {answer.text for answer in records if not answer.replayed}
    assert len(free) == 1, "the same answer, as the target gives it"
    found = figures(records, ROWS)
    passes = {name: found["qa"][name].passes for name in ROWS}
    assert passes[PLAIN] == 2 * size
    assert passes["SAM (lookup), flat"] < passes["SAM (lookup), K = 4"] < 1.2 * size
    assert passes["PLD, K = 4"] < 2 * size
    # Cut short, and gone on with: only what is missing is asked.
    again = list(answered(place, suite, records[: len(rows) + 2], 24))
    assert [(found[0].question, found[0].turn) for found, _ in again if found] == [("1", 1), ("2", 0)]
    assert not any(found for found, _ in answered(place, suite, records, 24))
    place.close()
