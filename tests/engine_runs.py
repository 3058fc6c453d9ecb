"""Drafters, controllers and runs of the engine for its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np

from edgespec.backends import Interrupt, Vocabulary
from edgespec.backends.toy import Bytes, Rule, ToySession, blend, ngram_rule
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookahead import Lookahead
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.pard import PardDrafter
from edgespec.drafters.prediction import Prediction
from edgespec.drafters.recycling import Recycling
from edgespec.engine import Engine, Event, Finished, Text
from edgespec.prices import Prices
from edgespec.sampling import Sampling, likeliest
from edgespec.types import Evaluated, Floats
from edgespec.verify import verifier

from .helpers import (
    Clock,
    Priced,
    RuleDrafter,
    ToldMedusa,
    ToyHeads,
    TreeController,
    WrongFirstDrafter,
    decode_plain,
    in_blocks,
)

VOCAB = 24
PROMPT = [1, 2, 3, 1, 2, 5, 1, 2]
SPOKEN = Bytes()

# What comes next depends on the last two tokens: with one alone a mixed-up branch would not show.
TARGET = ngram_rule(VOCAB, order=2, seed=46, sharpness=1.5)
OTHER = ngram_rule(VOCAB, order=2, seed=1046, sharpness=1.5)
#: A curve on which drafting pays at some widths.
STAIRS = (1.0, 1.2, 1.3, 1.3, 1.8, 1.9, 1.9, 1.9, 2.5, 2.6, 2.6, 2.6, 3.0, 3.0, 3.0, 3.0)


def wrong(context: Sequence[int]) -> Floats:
    return -TARGET(context)


def speaking(clock: Clock | None = None) -> Priced:
    return Priced(TARGET, VOCAB, clock or Clock(), STAIRS)


def drafting(rule: Rule, clock: Clock | None = None, name: str = "model", price: float = 0.05) -> ModelDrafter:
    return ModelDrafter(Priced(rule, VOCAB, clock or Clock(), [price]), VOCAB, step_price=price, name=name)


def block_drafting(rule: Rule, clock: Clock | None = None, guesses: int = 5) -> PardDrafter:
    """A drafter whose passes cost more the more they guess."""
    prices = [0.05 * (1 + 0.1 * n) for n in range(guesses)]
    session = Priced(in_blocks(rule, VOCAB - 1), VOCAB, clock or Clock(), prices)
    return PardDrafter(session, VOCAB, VOCAB - 1, prices)


class WrongLookahead(Lookahead):
    """Every second token that it keeps is another one than the target's."""

    def evaluated(self, what: Evaluated) -> None:
        if what.top is not None:
            wrong = (what.top.tokens + np.arange(len(what.tokens))[:, None] % 2) % VOCAB
            what = what._replace(top=what.top._replace(tokens=wrong))
        super().evaluated(what)


def heads(rule: Rule, price: float = 0.05) -> ToldMedusa:
    return ToldMedusa(ToyHeads(rule, 4), VOCAB, price)


class WrongRecycling(Recycling):
    """Keeps rows from which the likeliest tokens were taken."""

    def evaluated(self, what: Evaluated) -> None:
        if what.top is not None:
            what = what._replace(top=what.top._replace(tokens=(what.top.tokens + 1) % VOCAB))
        super().evaluated(what)


@cache
def all_pairs() -> list[Evaluated]:
    """A pass over each two tokens: what follows depends on no more."""
    passes = []
    for pair in product(range(VOCAB), repeat=2):
        top = likeliest(np.stack([TARGET(pair[:1]), TARGET(pair)]), Recycling.top)
        passes.append(Evaluated(0, pair, (-1, 0), (0, 1), top))
    return passes


def knowing_recycling() -> Recycling:
    """With a row for every two tokens."""
    drafter = Recycling(VOCAB)
    for each in all_pairs():
        drafter.evaluated(each)
    return drafter


def predicting(wrong_every: int = 0) -> Prediction:
    """The greedy answer to `PROMPT`; perhaps every so many tokens another one, an additional one, or one less."""
    tokens = list[int]()
    for n, token in enumerate(decode_plain(TARGET, PROMPT, Sampling(), 60), 1):
        edit = n // wrong_every % 3 if wrong_every and n % wrong_every == 0 else -1
        tokens += {-1: [token], 0: [(token + 1) % VOCAB], 1: [(token + 1) % VOCAB, token], 2: []}[edit]
    return Prediction(tokens, len(PROMPT))


DRAFTERS: dict[str, Callable[[Clock], list[Drafter]]] = {
    "lookup": lambda _clock: [Lookup()],
    "prediction": lambda _clock: [predicting()],
    "prediction, often wrong": lambda _clock: [predicting(4)],
    "prediction and others": lambda clock: [predicting(5), Lookup(), drafting(blend(TARGET, OTHER, 0.3), clock)],
    "of an earlier text": lambda _clock: [Lookup(earlier=[decode_plain(TARGET, [3, 1], Sampling(), 60)])],
    "itself": lambda clock: [drafting(TARGET, clock)],
    "often wrong": lambda clock: [drafting(blend(TARGET, OTHER, 0.4), clock)],
    "always wrong": lambda clock: [drafting(wrong, clock)],
    "blocks": lambda clock: [block_drafting(TARGET, clock)],
    "blocks, often wrong": lambda clock: [block_drafting(blend(TARGET, OTHER, 0.4), clock)],
    "blocks, always wrong": lambda clock: [block_drafting(wrong, clock)],
    "blocks and others": lambda clock: [
        Lookup(),
        drafting(blend(TARGET, OTHER, 0.3), clock),
        block_drafting(blend(TARGET, OTHER, 0.2), clock, 3),
    ],
    "two models, one always wrong": lambda clock: [
        drafting(wrong, clock),
        drafting(blend(TARGET, OTHER, 0.3), clock, "model2"),
    ],
    "heads": lambda _clock: [heads(TARGET)],
    "heads, often wrong": lambda _clock: [heads(blend(TARGET, OTHER, 0.4))],
    "heads, always wrong": lambda _clock: [heads(wrong)],
    "both": lambda clock: [Lookup(), drafting(blend(TARGET, OTHER, 0.3), clock)],
    "recycling": lambda _clock: [Recycling(VOCAB)],
    "recycling that knows": lambda _clock: [knowing_recycling()],
    "recycling that forgets": lambda _clock: [Recycling(VOCAB, pairs=3)],
    "recycling, mostly wrong": lambda _clock: [WrongRecycling(VOCAB)],
    "lookahead": lambda _clock: [Lookahead()],
    "lookahead, often wrong": lambda _clock: [WrongLookahead(4, 3)],
    "lookahead and others": lambda clock: [Lookup(), Lookahead(2, 4), drafting(blend(TARGET, OTHER, 0.3), clock)],
    "point masses": lambda _clock: [RuleDrafter(blend(TARGET, OTHER, 0.4))],
    "wrong first": lambda _clock: [WrongFirstDrafter(blend(TARGET, OTHER, 0.2))],
    "several": lambda clock: [
        Lookup(),
        Recycling(VOCAB),
        WrongFirstDrafter(OTHER),
        RuleDrafter(TARGET),
        drafting(blend(TARGET, OTHER, 0.3), clock),
    ],
}
CONTROLLERS: dict[str, Callable[[list[Drafter], Clock], Controller]] = {
    "0": lambda drafters, _clock: Fixed(drafters, 0),
    "1": lambda drafters, _clock: Fixed(drafters, 1),
    "2": lambda drafters, _clock: Fixed(drafters, 2),
    "8": lambda drafters, _clock: Fixed(drafters, 8),
    "15": lambda drafters, _clock: Fixed(drafters, 15),
    "8, merged": lambda drafters, _clock: Fixed(drafters, 8, nodes=15),
    "auto": lambda drafters, clock: Adaptive(drafters, Prices(STAIRS), clock=clock.perf_counter),
    "auto, trees": lambda drafters, clock: Adaptive(drafters, Prices(STAIRS), trees=True, clock=clock.perf_counter),
    "whole": lambda drafters, _clock: TreeController(drafters, 12),
}


def engine(
    target: ToySession,
    controller: Controller | None = None,
    rule: str = "match",
    *,
    vocabulary: Vocabulary = SPOKEN,
    interrupt: Interrupt | None = None,
) -> Engine:
    controller = controller or Fixed([RuleDrafter(blend(TARGET, OTHER, 0.4))], 4)
    return Engine(target, vocabulary, controller, verifier(rule), interrupt or Interrupt())


def run(events: Iterator[Event], target: ToySession, prompt: Sequence[int]) -> tuple[list[int], Finished]:
    """All that is said; after every event the cache must be in step with the context."""
    context = list(prompt)
    said: list[Text] = []
    for event in events:
        if isinstance(event, Finished):
            check_figures(said, event)
            return context[len(prompt) :], event
        if isinstance(event, Text):
            context += event.tokens
            said.append(event)
        assert list(target.tokens) == context[:-1], "cache and context are out of step"
    raise AssertionError("the stream ended without Finished")


def check_figures(said: Sequence[Text], finished: Finished) -> None:
    stats, rounds = finished.stats, [text.round for text in said]
    assert stats.tokens == sum(len(text.tokens) for text in said)
    assert stats.rounds == len(rounds) == sum(stats.k_histogram.values())
    assert stats.passengers == sum(len(r.draft.passengers.tokens) for r in rounds)
    assert stats.drafted == sum(len(r.draft) for r in rounds) == sum(k * n for k, n in stats.k_histogram.items())
    assert stats.accepted == sum(len(r.path) for r in rounds) <= stats.drafted
    assert (stats.drafted, stats.accepted) == tuple(map(sum, zip((0, 0), *stats.by_drafter.values(), strict=True)))
    assert stats.seconds >= stats.engine_seconds >= 0
    for text in said:
        assert text.tokens == text.round.tokens
        assert text.text == "".join(span.text for span in text.spans)
        assert text.round.width == 1 + len(text.round.draft) + len(text.round.draft.passengers.tokens)
