"""What quantization costs: divergence, perplexity and agreement, by hand and on a trained pair."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgespec import Interrupt, converters
from edgespec.backends.toy import Bytes, Rule, ToyModel, ToySession, blend, ngram_rule

from . import checkpoints
from .helpers import logits

pytest.importorskip("benchmarks", reason="the benchmarks are not beside the tests, and no part of an install")

from benchmarks.quality import Score, compare, main, report

DIALOGUE = [
    {"role": "user", "content": "I need a table for two in Oakland tonight."},
    {"role": "assistant", "content": "What kind of food would you like?"},
]


def scores(rules: list[Rule], *texts: list[int]) -> list[Score]:
    return compare([ToyModel(rule) for rule in rules], texts, lambda _what, _done, _total: None)


def always(*probs: float) -> Rule:
    return lambda _context: logits(*probs)


def test_it_is_what_is_computed_by_hand() -> None:
    """KL: 1/2 log 2 - 1/4 log 2. The text without its first token is likely by 1/2, 1/4, 1/2, 1/4 and 1/4, 1/2, 1/4,
    1/4."""
    ours, other = scores([always(0.5, 0.25, 0.25), always(0.25, 0.5, 0.25)], [2, 0, 1, 0, 2])
    assert (ours.tokens, other.tokens) == (4, 4)
    assert ours.divergence == 0
    assert other.divergence / 4 == pytest.approx(0.25 * np.log(2))
    assert ours.perplexity == pytest.approx(2**1.5)
    assert other.perplexity == pytest.approx(2**1.75)
    assert (ours.agreed, other.agreed) == (4, 0)


def test_what_the_reference_never_says_costs_nothing_and_what_the_other_never_says_all() -> None:
    narrow, wide = always(0.5, 0.5, 0.0), always(0.25, 0.25, 0.5)
    _, other = scores([narrow, wide], [0, 1, 0])
    assert other.divergence / 2 == pytest.approx(np.log(2))
    _, other = scores([wide, narrow], [0, 1, 0])
    assert other.divergence == np.inf
    assert other.agreed == 0


def test_long_texts_are_read_in_parts_and_each_from_its_beginning() -> None:
    """Against every prediction by itself: a token lost or read twice would change those after it."""
    rule = ngram_rule(Bytes.size, order=3)
    rules = [rule, blend(rule, ngram_rule(Bytes.size, order=3, seed=5), 0.3), ngram_rule(Bytes.size, seed=9)]
    random = np.random.default_rng(3)
    texts = [random.integers(0, Bytes.size, n).tolist() for n in (1, 2, 33, 100)]
    places = [text[:n] for text in texts for n in range(1, len(text))]
    probs = np.array([[np.exp(rule(place).astype(float)) for place in places] for rule in rules])
    probs /= probs.sum(axis=2, keepdims=True)
    said = [token for text in texts for token in text[1:]]
    for score, own in zip(scores(rules, *texts), probs, strict=True):
        assert score.tokens == len(said) == 132
        assert score.divergence == pytest.approx((probs[0] * np.log(probs[0] / own)).sum())
        assert score.surprise == pytest.approx(-np.log(own[range(132), said]).sum())
        assert score.agreed == (own.argmax(axis=1) == probs[0].argmax(axis=1)).sum()


def test_padding_that_one_alone_has_is_left_out() -> None:
    rule = ngram_rule(Bytes.size)

    class Padded(ToyModel):
        def session(self, context: int, interrupt: Interrupt | None = None) -> ToySession:
            return ToySession(lambda place: np.append(rule(place), np.float32(50)), Bytes.size + 1, context)

    for models in ([ToyModel(rule), Padded()], [Padded(), ToyModel(rule)]):
        ours, other = compare(models, [[1, 2, 3]], lambda _what, _done, _total: None)
        assert other.divergence == 0
        assert other.surprise == ours.surprise < 50


def test_texts_are_cut_where_a_context_ends_and_progress_is_told() -> None:
    told: list[tuple[float, float]] = []
    short = ToyModel()
    short.trained_context = 40
    ours, _ = compare([ToyModel(), short], [[7] * 50, [8] * 30], lambda _what, done, total: told.append((done, total)))
    assert ours.tokens == 39 + 29
    assert told == [(0, 70), (40, 70)]


def test_the_report_is_a_row_for_each() -> None:
    text = report(["one", "another"], [Score(10, -1e-12, 10.0, 10), Score(10, 0.5, 20.0, 9)])
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["one", "0.00000", "2.718", "1.0000", "100.00%"],
        ["another", "0.05000", "7.389", "2.7183", "90.00%"],
    ]


def run(*arguments: Path | str) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_command_on_the_demo_pair(small_pair: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "dialogues.jsonl"
    file.write_text(f"{json.dumps({'messages': DIALOGUE})}\n" * 3)
    done = run(
        file, small_pair["target"], small_pair["target"], small_pair["draft"], "--dialogues", "2", "--threads", "1"
    )
    assert done.exit_code == 0, done.output
    size, _, *rows = done.output.splitlines()
    assert size.startswith("2 dialogues, ")
    reference, same, draft = (row.split()[1:] for row in rows)
    assert reference == same
    assert (same[0], *same[2:]) == ("0.00000", "1.0000", "100.00%")
    assert 0.01 < float(draft[0]) < 1
    assert 0.5 < float(draft[1]) / float(same[1]) == pytest.approx(float(draft[2]), rel=1e-2)
    assert 40 < float(draft[3].rstrip("%")) < 100


def test_another_vocabulary_is_refused(small_pair: dict[str, Path], tmp_path: Path) -> None:
    file, other = tmp_path / "dialogues.jsonl", tmp_path / "other.gguf"
    file.write_text(json.dumps({"messages": DIALOGUE}))
    list(converters.convert(checkpoints.llama(tmp_path / "source"), other, quantization="f32"))
    done = run(file, small_pair["target"], other)
    assert done.exit_code == 1
    assert done.output.strip() == f"Error: {other} has not the reference's vocabulary; compare forms of one model"
