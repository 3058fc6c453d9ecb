"""Lossless, whatever drafts, verifies and controls; in step after every event; and done when it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from edgespec.backends import Interrupt, Vocabulary
from edgespec.backends.toy import END, Bytes, Rule, ToySession, blend, ngram_rule, scripted
from edgespec.backends.tree_layout import is_chain
from edgespec.controller import Controller
from edgespec.controller.adaptive import Adaptive
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Engine, Event, Finished, Request, Started, Text
from edgespec.errors import ContextOverflow, EngineError, OptionError
from edgespec.prices import Prices
from edgespec.sampling import Sampling
from edgespec.types import Draft, Evaluated, Floats, Round
from edgespec.verify import RoundContext, verifier

from .helpers import ALL_ON, Clock, Priced, RuleDrafter, TreeController, WrongFirstDrafter, decode_plain

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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The engine's clock, moved by priced sessions alone: by the real one no price here would mean anything."""
    clock = Clock()
    monkeypatch.setattr("edgespec.engine.time", clock)
    return clock


def speaking(clock: Clock | None = None) -> Priced:
    return Priced(TARGET, VOCAB, clock or Clock(), STAIRS)


def drafting(rule: Rule, clock: Clock | None = None) -> ModelDrafter:
    return ModelDrafter(Priced(rule, VOCAB, clock or Clock(), [0.05]), VOCAB, step_price=0.05)


DRAFTERS: dict[str, Callable[[Clock], list[Drafter]]] = {
    "lookup": lambda _clock: [Lookup()],
    "of an earlier text": lambda _clock: [Lookup(earlier=[decode_plain(TARGET, [3, 1], Sampling(), 60)])],
    "itself": lambda clock: [drafting(TARGET, clock)],
    "often wrong": lambda clock: [drafting(blend(TARGET, OTHER, 0.4), clock)],
    "always wrong": lambda clock: [drafting(wrong, clock)],
    "both": lambda clock: [Lookup(), drafting(blend(TARGET, OTHER, 0.3), clock)],
    "point masses": lambda _clock: [RuleDrafter(blend(TARGET, OTHER, 0.4))],
    "wrong first": lambda _clock: [WrongFirstDrafter(blend(TARGET, OTHER, 0.2))],
    "several": lambda clock: [
        Lookup(),
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
    assert stats.drafted == sum(len(r.draft) for r in rounds) == sum(k * n for k, n in stats.k_histogram.items())
    assert stats.accepted == sum(len(r.path) for r in rounds) <= stats.drafted
    assert (stats.drafted, stats.accepted) == tuple(map(sum, zip((0, 0), *stats.by_drafter.values(), strict=True)))
    assert stats.seconds >= stats.engine_seconds >= 0
    for text in said:
        assert text.tokens == text.round.tokens
        assert text.text == "".join(span.text for span in text.spans)
        assert text.round.width == 1 + len(text.round.draft)


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
    elif drafters not in ("lookup", "of an earlier text", *(["always wrong"] if "auto" in k else [])):
        assert stats.drafted >= 10, "this test means nothing if nothing is drafted"
    if drafters == "itself" and k not in ("0", "auto, trees", "whole"):
        assert stats.accepted == stats.drafted, "the draft model has lost its place"
    if drafters == "always wrong" and sampling.greedy:
        assert stats.accepted == 0
    if drafters in ("often wrong", "wrong first", "several") and k in ("8", "auto, trees", "whole"):
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


class Careless:
    """A controller that heeds no limit: it buys what it was told to, right or not."""

    drafters: tuple[Drafter, ...] = ()

    def __init__(self, propose: Callable[[Sequence[int]], Draft]) -> None:
        self._propose = propose

    def choose(self, round_context: RoundContext, limit: int) -> Draft:
        return self._propose(round_context.tokens)

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        pass


def says(text: str, ends: str = END) -> tuple[Rule, list[int]]:
    """A rule that says `text` and its end after a prompt of one token, and those tokens."""
    tokens = SPOKEN.tokenize(text + ends, special=True)
    return scripted(SPOKEN.size, [0, *tokens]), tokens


def answer(target: ToySession, controller: Controller, **options: Any) -> tuple[str, list[int], str]:
    """The text, the tokens and the reason of an answer to a prompt of one token."""
    events = list(engine(target, controller).generate(Request([0], **options)))
    finished = events[-1]
    assert isinstance(finished, Finished)
    texts = [event for event in events if isinstance(event, Text)]
    check_figures(texts, finished)
    return "".join(e.text for e in texts), [t for e in texts for t in e.tokens], finished.reason


@pytest.mark.parametrize("k", [0, 1, 2, 3, 8, 15])
def test_stop_strings_span_tokens_and_rounds(k: int) -> None:
    """A byte a token: the stop string lies in many tokens, over rounds, or inside one draft."""
    rule, tokens = says("one STOP two ST")
    target = ToySession(rule, SPOKEN.size)
    text, said, reason = answer(target, Fixed([RuleDrafter(rule)], k), stop=("STOP", "never"))
    assert (text, reason) == ("one ", "stop")
    assert said == tokens[:8], "the token that completes the stop string is the last"
    text, said, reason = answer(target, Fixed([RuleDrafter(rule)], k), stop=("two STO",))
    assert (text, reason) == ("one STOP two ST", "end"), "what only might have become a stop string is shown"
    assert said == tokens


@pytest.mark.parametrize("k", [0, 1, 2, 3, 8, 15])
def test_the_end_inside_a_draft_ends_the_answer(k: int) -> None:
    """Whatever was drafted behind it: it is accepted by the target, and never shown, counted or held."""
    rule, tokens = says("all 😀")
    target = ToySession(rule, SPOKEN.size)
    for _ in range(2):
        text, said, reason = answer(target, Fixed([RuleDrafter(rule)], k))
        assert (text, said, reason) == ("all 😀", tokens, "end")
        assert list(target.tokens) == [0, *tokens[:-1]], "what plain decoding leaves"


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
def test_the_end_inside_a_tree_leaves_what_plain_decoding_leaves(n: int) -> None:
    """Stopped by a limit, in the middle of the right branch, which is not the first."""
    rule, tokens = says("abcdefgh")
    target = ToySession(rule, SPOKEN.size)

    def tree(context: Sequence[int]) -> Draft:
        right = tokens[len(context) - 1 :][:3]
        return Draft((5, *right, 6), (-1, -1, *range(1, len(right)), -1), ("test",) * (len(right) + 2))

    for _ in range(2):
        text, said, reason = answer(target, Careless(tree), max_tokens=n)
        assert (text, said, reason) == ("abcdefgh"[:n], tokens[:n], "length")
        assert list(target.tokens) == [0, *tokens[: n - 1]]


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_max_tokens_cuts_inside_an_accepted_draft(n: int) -> None:
    """The engine cuts by itself, even where a controller drafts beyond its limit."""
    rule, tokens = says("abcdefgh")
    target = ToySession(rule, SPOKEN.size)
    controller = Careless(lambda context: Draft.chain(tokens[len(context) - 1 :][:4], "test"))
    for _ in range(2):
        text, said, reason = answer(target, controller, max_tokens=n)
        assert (text, said, reason) == ("abcdefgh"[:n], tokens[:n], "length")


@pytest.mark.parametrize("k", CONTROLLERS)
def test_no_more_is_drafted_than_max_tokens_can_use(k: str, clock: Clock) -> None:
    target = speaking(clock)
    events = list(engine(target, CONTROLLERS[k]([RuleDrafter(TARGET)], clock)).generate(Request(PROMPT, max_tokens=7)))
    rounds = [event.round for event in events if isinstance(event, Text)]
    assert sum(len(r.tokens) for r in rounds) == 7
    assert all(len(r.path) < len(r.tokens) for r in rounds), "a draft longer than what was left"


def test_half_a_character_at_the_end_is_never_shown() -> None:
    rule, _ = says("ab😀")
    text, said, reason = answer(ToySession(rule, SPOKEN.size), Fixed([], 0), max_tokens=5)
    assert (text, len(said), reason) == ("ab", 5, "length")


@pytest.mark.parametrize("k", CONTROLLERS)
def test_a_full_context_ends_the_answer(k: str, clock: Clock) -> None:
    """All of it is used, the last token said needs no place; nothing overflows, however long the drafts."""
    target = ToySession(TARGET, VOCAB, context=30)
    drafters: list[Drafter] = [ModelDrafter(ToySession(blend(TARGET, OTHER, 0.3), VOCAB, context=20), VOCAB)]
    said, finished = run(engine(target, CONTROLLERS[k](drafters, clock)).generate(Request(PROMPT)), target, PROMPT)
    assert said == decode_plain(TARGET, PROMPT, Sampling(), 31 - len(PROMPT))
    assert finished.reason == "context"


def test_a_prompt_that_does_not_fit_is_refused_before_any_work() -> None:
    target = ToySession(TARGET, VOCAB, context=8)
    list(engine(target).generate(Request([1, 2, 3], max_tokens=2)))
    held, passes = list(target.tokens), list(target.passes)
    with pytest.raises(ContextOverflow, match="8 tokens, but the context holds 8"):
        engine(target).generate(Request([1] * 8))
    assert (list(target.tokens), target.passes) == (held, passes)
    assert len(list(engine(target).generate(Request([1] * 7, max_tokens=5)))) > 1


@pytest.mark.parametrize("k", CONTROLLERS)
@pytest.mark.parametrize("reach", [1, 3])
def test_a_session_goes_back_once_a_round_and_not_far(reach: int, k: str, clock: Clock) -> None:
    """As recurrent states do: no draft is longer, and texts that end inside a draft need no second rollback."""

    class Recurrent(Priced):
        def __init__(self) -> None:
            super().__init__(TARGET, VOCAB, clock, STAIRS)
            self.reach, self.can_tree, self.leaves = reach, False, 0

    target = Recurrent()
    drafter = RuleDrafter(blend(TARGET, OTHER, 0.2))
    controller = Fixed([drafter], 8) if k == "whole" else CONTROLLERS[k.replace(", trees", "")]([drafter], clock)
    speaker = engine(target, controller)
    right = decode_plain(TARGET, PROMPT, Sampling(), 60)
    for n in (60, 21, 22, 23):
        said, _ = run(speaker.generate(Request(PROMPT, max_tokens=n)), target, PROMPT)
        assert said == right[:n]
    assert all(len(r.draft) <= reach for r in drafter.rounds)
    longer = [*PROMPT, *right[:23], 5]
    started, *_ = speaker.generate(Request(longer, max_tokens=9))
    assert isinstance(started, Started)
    assert started.cached == len(longer) - 2, "a prompt that goes on from what is held"
    started, *_ = speaker.generate(Request([*PROMPT, 1], max_tokens=9))
    assert isinstance(started, Started)
    assert started.cached == 0, "others are computed again"
    assert not target.owed


@pytest.mark.parametrize("k", CONTROLLERS)
def test_tokens_that_must_be_computed_again_ride_in_the_next_pass(k: str, clock: Clock) -> None:
    class Replays(Priced):
        def __init__(self) -> None:
            super().__init__(TARGET, VOCAB, clock, STAIRS)
            self.replays, self.can_tree, self.leaves = True, False, 0

    target, rounds = Replays(), list[Round]()
    drafter = RuleDrafter(blend(TARGET, OTHER, 0.4))
    controller = Fixed([drafter], 5) if k == "whole" else CONTROLLERS[k.replace(", trees", "")]([drafter], clock)
    for event in engine(target, controller).generate(Request(PROMPT, max_tokens=60)):
        rounds += [event.round] if isinstance(event, Text) else []
    assert [token for each in rounds for token in each.tokens] == decode_plain(TARGET, PROMPT, Sampling(), 60)
    assert target.passes == [each.width for each in rounds]
    for before, after in pairwise(rounds):
        rejected = len(before.path) < len(before.draft)
        owed = before.owed + 1 + len(before.path) if rejected else 0
        assert after.owed == (owed if owed <= 16 else 0), "more are computed before the round"


@pytest.mark.parametrize("n", range(1, 12))
def test_a_round_takes_one_rollback_also_where_the_text_ends(n: int) -> None:
    target, rollbacks = ToySession(TARGET, VOCAB), list[int]()
    rollback = target.rollback

    def counted(length: int, keep: Sequence[int] = ()) -> None:
        rollbacks.append(length)
        rollback(length, keep)

    def with_a_wrong_end(context: Sequence[int]) -> Draft:
        here = right[len(context) - len(PROMPT) :]
        return Draft.chain([*here[:4], (here[4] + 1) % VOCAB], "test")

    right = decode_plain(TARGET, PROMPT, Sampling(), 20)
    target.rollback = counted  # type: ignore[method-assign]
    events = engine(target, Careless(with_a_wrong_end)).generate(Request(PROMPT, max_tokens=n))
    said, finished = run(events, target, PROMPT)
    assert said == right[:n]
    assert len(rollbacks) == 1 + finished.stats.rounds, "one before the prompt"


def test_requests_that_make_no_sense_are_refused() -> None:
    with pytest.raises(OptionError, match="prompt is empty"):
        Request([])
    with pytest.raises(OptionError, match="max_tokens is 0"):
        Request([1], max_tokens=0)


def interrupting(rule: Rule, interrupt: Interrupt, call: int) -> Rule:
    """Sets the interrupt while it computes its row number `call`."""
    calls = iter(range(1, 10**9))

    def wrapped(context: Sequence[int]) -> Floats:
        if next(calls) == call:
            interrupt.set()
        return rule(context)

    return wrapped


@pytest.mark.parametrize("call", range(1, 16))
@pytest.mark.parametrize("where", ["target", "draft"])
def test_cancelling_at_any_moment_leaves_everything_usable(where: str, call: int) -> None:
    """In the target's pass, between rounds, within a draft; then the same engine answers anew."""
    interrupt = Interrupt()
    rules = {"target": TARGET, "draft": blend(TARGET, OTHER, 0.3)}
    rules[where] = interrupting(rules[where], interrupt, call)
    target = ToySession(rules["target"], VOCAB, interrupt=interrupt)
    drafter = ModelDrafter(ToySession(rules["draft"], VOCAB, interrupt=interrupt), VOCAB)
    speaker = engine(target, Fixed([drafter], 3), interrupt=interrupt)
    right = decode_plain(TARGET, PROMPT, Sampling(), 20)

    said, finished = run(speaker.generate(Request(PROMPT, max_tokens=20)), target, PROMPT)
    assert finished.reason == "cancelled"
    assert said == right[: len(said)] != right

    interrupt.clear()
    said, finished = run(speaker.generate(Request(PROMPT, max_tokens=20)), target, PROMPT)
    assert (said, finished.reason) == (right, "length")


def test_cancelling_works_with_an_engine_that_cannot_stop_in_a_pass() -> None:
    """Then it takes until the end of the round."""
    interrupt = Interrupt()
    target = ToySession(interrupting(TARGET, interrupt, 5), VOCAB)
    events = engine(target, Fixed([], 0), interrupt=interrupt).generate(Request(PROMPT, max_tokens=20))
    said, finished = run(events, target, PROMPT)
    assert (len(said), finished.reason) == (5, "cancelled")


def test_cancelled_before_the_prompt_is_read() -> None:
    interrupt = Interrupt()
    interrupt.set()
    target = ToySession(TARGET, VOCAB, interrupt=interrupt)
    (only,) = engine(target, interrupt=interrupt).generate(Request(PROMPT))
    assert isinstance(only, Finished)
    assert (only.reason, only.stats.tokens, list(target.tokens)) == ("cancelled", 0, [])


@pytest.mark.parametrize("events", range(6))
def test_a_reader_may_leave_at_any_event(events: int) -> None:
    target = ToySession(TARGET, VOCAB)
    speaker = engine(target, Fixed([drafting(blend(TARGET, OTHER, 0.4))], 4))
    stream = speaker.generate(Request(PROMPT, max_tokens=20))
    for _ in range(events):
        next(stream)
    del stream
    other = [5, 5, 1]
    said, _ = run(speaker.generate(Request(other, max_tokens=20)), target, other)
    assert said == decode_plain(TARGET, other, Sampling(), 20)


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
