"""Log probabilities of answers: by the model's own rows, whatever was drafted and however tokens were sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgespec import OptionError, Runtime, Sampling, Speculation, Text
from edgespec.backends.toy import Bytes, blend, ngram_rule
from edgespec.logprobs import TokenLogprobs
from edgespec.testing import TreeController, WrongFirstDrafter
from edgespec.verify import VERIFIERS

from .toy_runtime import TALK, opened

PROMPT = "abc"


def told(runtime: Runtime, **options: Any) -> tuple[list[int], list[TokenLogprobs]]:
    texts = [event for event in runtime.complete(PROMPT, **options) if isinstance(event, Text)]
    for text in texts:
        assert [each.token for each in text.logprobs] == list(text.tokens)[: len(text.logprobs)]
    return [t for text in texts for t in text.tokens], [each for text in texts for each in text.logprobs]


def by_hand(context: list[int]) -> Any:
    row = TALK(context).astype(np.float64)
    return row - np.log(np.exp(row).sum())


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("k", [0, 5])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.8, top_k=3, presence_penalty=1.0, logit_bias=((101, 5.0),), seed=4)]
)
def test_they_are_those_of_the_rows_before_any_filter(sampling: Sampling, k: int, verifier: str) -> None:
    runtime, _ = opened(draft=blend(TALK, ngram_rule(Bytes.size, seed=6), 0.3), k=k, verifier=verifier)
    tokens, found = told(runtime, sampling=sampling, max_tokens=40, logprobs=3)
    assert len(found) == len(tokens) == 40
    context = list(PROMPT.encode())
    for token, each in zip(tokens, found, strict=True):
        expected = by_hand(context)
        assert (each.token, each.piece) == (token, Bytes().token_bytes(token))
        assert each.logprob == pytest.approx(expected[token], abs=1e-6)
        best = np.argsort(-expected)[:3].tolist()
        assert [other.token for other in each.top] == best
        assert [other.logprob for other in each.top] == pytest.approx(expected[best], abs=1e-6)
        assert [other.piece for other in each.top] == [Bytes().token_bytes(other) for other in best]
        context.append(token)


def test_trees_have_the_rows_of_the_accepted_branch() -> None:
    runtime, _ = opened()
    drafter = WrongFirstDrafter(blend(TALK, ngram_rule(Bytes.size, seed=6), 0.2))
    _, drafted = told(runtime, max_tokens=40, logprobs=2, controlled=lambda _: TreeController([drafter], 12))
    assert any(list(each.path) != list(range(len(each.path))) for each in drafter.rounds), "only first branches"
    _, plain = told(runtime, max_tokens=40, speculation=Speculation(k=0), logprobs=2)
    assert drafted == plain


def test_only_where_they_are_asked_for() -> None:
    runtime, _ = opened()
    assert told(runtime, max_tokens=5)[1] == []
    tokens, alone = told(runtime, max_tokens=5, logprobs=0)
    assert len(alone) == len(tokens) == 5
    assert not any(each.top for each in alone)
    assert len(told(runtime, max_tokens=1, logprobs=10_000)[1][0].top) == Bytes.size


@pytest.mark.parametrize("logprobs", [-1, 1.5, "3", True])
def test_a_number_of_alternatives(logprobs: Any) -> None:
    with pytest.raises(OptionError, match="logprobs is"):
        opened()[0].complete(PROMPT, logprobs=logprobs)


def test_an_answer_that_a_stop_text_ends_has_those_of_its_tokens() -> None:
    runtime, _ = opened(draft=TALK, k=6)
    tokens, _ = told(runtime, max_tokens=20)
    stop = bytes(tokens[6:8]).decode("latin-1")
    cut, found = told(runtime, max_tokens=20, stop=stop, logprobs=1)
    assert len(found) == len(cut) <= 20
