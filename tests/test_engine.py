"""Lossless, whatever drafts, verifies and controls, and in step after every event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.backends import Interrupt
from edgespec.backends.toy import Bytes, Rule, ToySession, blend
from edgespec.backends.tree_layout import is_chain
from edgespec.controller.fixed import Fixed
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Finished, Request, Started, Text
from edgespec.errors import ContextOverflow, EngineError, OptionError
from edgespec.prices import Prices
from edgespec.sampling import Sampling, likeliest
from edgespec.types import Evaluated, Floats, Top
from edgespec.verify import RoundContext, verifier

from .engine_runs import CONTROLLERS, DRAFTERS, OTHER, PROMPT, SPOKEN, TARGET, VOCAB, engine, run, speaking
from .helpers import ALL_ON, Clock, Priced, RuleDrafter, TreeController, WrongFirstDrafter, decode_plain

#: Drafters of which the controller buys little in so short a text.
UNSURE = (
    "always wrong",
    "blocks, always wrong",
    "lookahead",
    "lookahead, often wrong",
    "heads, always wrong",
    "recycling",
    "recycling that forgets",
    "recycling, mostly wrong",
)


@pytest.mark.parametrize("k", CONTROLLERS)
@pytest.mark.parametrize("drafters", DRAFTERS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=2), ALL_ON], ids=["0", "0.8", "all"])
def test_speculation_does_not_change_the_text(sampling: Sampling, drafters: str, k: str, clock: Clock) -> None:
    target = speaking(clock)
    controller = CONTROLLERS[k](DRAFTERS[drafters](clock), clock)
    said, finished = run(engine(target, controller).generate(Request(PROMPT, sampling, 60)), target, PROMPT)
    assert said == decode_plain(TARGET, PROMPT, sampling, 60)
    assert finished.reason == "length"
    stats = finished.stats
    if k == "0":
        assert stats.drafted == 0
    elif drafters not in ("lookup", "of an earlier text", *(UNSURE if "auto" in k else [])):
        assert stats.drafted >= 10, "this test means nothing if nothing is drafted"
    if drafters == "recycling that knows" and sampling == Sampling() and k in ("1", "2", "8", "15"):
        assert stats.accepted == stats.drafted, "the rows are those of other tokens"
    if drafters.startswith("prediction") and sampling.greedy and k == "8":
        assert finished.stats.of_drafter("prediction")[1] >= (40 if drafters == "prediction" else 15)
    if drafters == "itself" and k not in ("0", "auto, trees", "whole"):
        assert stats.accepted == stats.drafted, "the draft model has lost its place"
    if drafters in ("always wrong", "blocks, always wrong") and sampling.greedy:
        assert stats.accepted == 0
    if drafters == "blocks" and sampling.greedy and k not in ("0", "auto, trees", "whole"):
        assert stats.accepted == stats.drafted
    if drafters == "heads" and sampling.greedy and k not in ("0", "auto, trees", "whole"):
        assert stats.drafted - stats.accepted <= 4, "heads do not know the end of the prompt, and what follows only"
    often_wrong = ("often wrong", "blocks, often wrong", "heads, often wrong", "wrong first", "several")
    if drafters in often_wrong and k in ("8", "auto, trees", "whole"):
        assert 0 < stats.accepted < stats.drafted


@pytest.mark.parametrize("k", CONTROLLERS)
@pytest.mark.parametrize("drafters", DRAFTERS)
def test_rejection_is_lossless_at_temperature_0_and_always_in_step(drafters: str, k: str, clock: Clock) -> None:
    for sampling in (Sampling(), Sampling(presence_penalty=1.0, logit_bias=((3, -np.inf),)), ALL_ON):
        target = speaking(clock)
        controller = CONTROLLERS[k](DRAFTERS[drafters](clock), clock)
        request = Request(PROMPT, sampling, 40)
        said, _ = run(engine(target, controller, "rejection").generate(request), target, PROMPT)
        if sampling.greedy:
            assert said == decode_plain(TARGET, PROMPT, sampling, 40)
        assert len(said) == 40
        assert 4 not in said or sampling is not ALL_ON


def test_a_tree_is_verified_in_one_pass_and_keeps_the_right_branch() -> None:
    target = ToySession(TARGET, VOCAB)
    drafter = WrongFirstDrafter(blend(TARGET, OTHER, 0.2))
    _, finished = run(
        engine(target, TreeController([drafter], 12)).generate(Request(PROMPT, max_tokens=60)), target, PROMPT
    )
    assert any(not r.draft.is_chain for r in drafter.rounds)
    assert any(list(r.path) != list(range(len(r.path))) for r in drafter.rounds), "only first branches were right"
    assert any(len(r.path) > 1 for r in drafter.rounds)
    assert len(target.passes) == finished.stats.rounds


def test_the_prompt_cache_spans_turns() -> None:
    """What the prompt shares with what is held is not computed again."""
    target = ToySession(TARGET, VOCAB)
    speaker = engine(target)

    def cached(prompt: Sequence[int]) -> int:
        started, *rest = speaker.generate(Request(prompt, max_tokens=10))
        assert isinstance(started, Started)
        assert started.prompt == len(prompt)
        assert isinstance(rest[-1], Finished)
        assert rest[-1].stats.cached == started.cached
        said = [token for event in rest if isinstance(event, Text) for token in event.tokens]
        assert said == decode_plain(TARGET, prompt, Sampling(), 10)
        prompts.append([*prompt, *said])
        return started.cached

    prompts: list[list[int]] = []
    assert cached(PROMPT) == 0
    assert cached([*prompts[0], 7, 8]) == len(prompts[0]) - 1  # the last token said was never decoded
    assert cached([*prompts[0], 7, 9, 9]) == len(prompts[0]) + 1
    assert cached(PROMPT) == len(PROMPT) - 1
    assert cached([9, *PROMPT]) == 0
    assert cached([9]) == 0


def test_a_prompt_that_does_not_fit_is_refused_before_any_work() -> None:
    target = ToySession(TARGET, VOCAB, context=8)
    list(engine(target).generate(Request([1, 2, 3], max_tokens=2)))
    held, passes = list(target.tokens), list(target.passes)
    with pytest.raises(ContextOverflow, match="8 tokens, but the context holds 8"):
        engine(target).generate(Request([1] * 8))
    assert (list(target.tokens), target.passes) == (held, passes)
    assert len(list(engine(target).generate(Request([1] * 7, max_tokens=5)))) > 1


def test_requests_that_make_no_sense_are_refused() -> None:
    with pytest.raises(OptionError, match="prompt is empty"):
        Request([])
    with pytest.raises(OptionError, match="max_tokens is 0"):
        Request([1], max_tokens=0)


def test_every_drafter_is_told_of_every_round() -> None:
    drafters = [RuleDrafter(OTHER, "one"), RuleDrafter(TARGET, "two")]
    events = engine(ToySession(TARGET, VOCAB), Fixed(drafters, 2)).generate(Request(PROMPT, max_tokens=9))
    rounds = [event.round for event in events if isinstance(event, Text)]
    assert drafters[0].rounds == rounds == drafters[1].rounds


class Following(RuleDrafter):
    """A follower that puts together what it is told."""

    def __init__(self, rule: Rule, top: int | None) -> None:
        super().__init__(rule, "following")
        self.top = top
        self.told: list[Evaluated] = []
        self.text: list[int] = []

    def evaluated(self, what: Evaluated) -> None:
        self.told.append(what)
        self.text[what.start :] = [what.tokens[node] for node in what.kept]


@pytest.mark.parametrize("k", ["0 drafted", "8", "whole"])
@pytest.mark.parametrize("top", [0, 3, VOCAB + 5])
def test_a_follower_is_told_of_all_that_is_evaluated(top: int, k: str, clock: Clock) -> None:
    """Prompts and rounds alike: the text is what was kept, and the likeliest tokens are right at every node."""
    target, follower = ToySession(TARGET, VOCAB), Following(blend(TARGET, OTHER, 0.3), top)
    controller = TreeController([follower], 0) if k == "0 drafted" else CONTROLLERS[k]([follower], clock)
    speaker = engine(target, controller)
    for prompt in (PROMPT, [*PROMPT, 9, 9, 9], [7], [*PROMPT, 3, 4]):
        before = len(follower.told)
        for event in speaker.generate(Request(prompt, Sampling(temperature=0.8, seed=4), max_tokens=30)):
            if isinstance(event, Text):
                assert follower.text == list(target.tokens)
        texts: dict[int, list[int]] = {}
        for what in follower.told[before:]:
            told, text = what.top, follower.text[: what.start]
            assert (told is None) == (top == 0 or what.start + len(what.tokens) < len(prompt))
            for node, parent in enumerate(what.parents):
                texts[node] = [*(texts[parent] if parent >= 0 else text), what.tokens[node]]
                if told is not None:
                    row = TARGET(texts[node]).astype(np.float64)
                    best = np.argsort(-row)[:top]
                    assert told.tokens[node].tolist() == best.tolist()
                    np.testing.assert_allclose(told.probs[node], (np.exp(row) / np.exp(row).sum())[best], rtol=1e-4)
    trees = [what for what in follower.told if not is_chain(what.parents)]
    assert bool(trees) == (k == "whole")


def test_who_follows_nothing_is_told_of_nothing() -> None:
    follower = Following(TARGET, None)
    list(engine(ToySession(TARGET, VOCAB), Fixed([follower], 3)).generate(Request(PROMPT, max_tokens=9)))
    assert follower.told == []
    assert follower.rounds


def test_what_a_follower_takes_is_not_counted_as_plain_decoding(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(rows: Floats, most: int) -> Top:
        clock.now += 1.0
        return likeliest(rows, most)

    monkeypatch.setattr("edgespec.engine.likeliest", slow)
    follower = Following(TARGET, 3)
    target = Priced(TARGET, VOCAB, clock, [2.0])
    speaker = Engine(target, SPOKEN, TreeController([follower], 0), verifier("match"), Interrupt(), Prices([2.0] * 16))
    *_, finished = speaker.generate(Request(PROMPT, max_tokens=50))
    assert isinstance(finished, Finished)
    assert finished.stats.seconds == 150.0
    assert finished.stats.speedup == pytest.approx(2 / 3)


def test_prices_are_corrected_by_the_rounds(clock: Clock) -> None:
    prices = Prices([1.0] * 16)
    target = Priced(TARGET, VOCAB, clock, [2.0])
    speaker = Engine(target, SPOKEN, Fixed([], 0), verifier("match"), Interrupt(), prices)
    *_, finished = speaker.generate(Request(PROMPT, max_tokens=50))
    assert isinstance(finished, Finished)
    assert prices.plain() == pytest.approx(2.0, rel=0.02)
    assert finished.stats.seconds == 100.0
    assert finished.stats.speedup == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_no_numbers_are_an_error(value: float, temperature: float) -> None:
    """Of damaged weights: greedy text went on with the first token, all else ended in NumPy."""
    session = ToySession(lambda _context: np.full(Bytes.size, value, np.float32), Bytes.size)
    engine = Engine(session, Bytes(), Fixed([], 0), verifier("match"), Interrupt())
    with pytest.raises(EngineError, match="the target model computes no numbers"):
        list(engine.generate(Request([1, 2], Sampling(temperature, seed=1))))
    drafter = ModelDrafter(session, Bytes.size)
    drafter.begin(RoundContext(verifier("match"), Sampling(temperature, seed=1), [1, 2], Bytes().is_eog))
    with pytest.raises(EngineError, match="the draft model computes no numbers"):
        drafter.guess((), 1)
