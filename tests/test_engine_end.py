"""Where an answer ends: stop strings, the end of the turn, limits, the context; and the one rollback of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from edgespec.backends.toy import END, Rule, ToySession, blend, scripted
from edgespec.controller import Controller
from edgespec.controller.fixed import Fixed
from edgespec.drafters import Drafter
from edgespec.drafters.model import ModelDrafter
from edgespec.engine import Finished, Request, Started, Text
from edgespec.sampling import Sampling
from edgespec.types import Draft, Round
from edgespec.verify import RoundContext

from .engine_runs import CONTROLLERS, OTHER, PROMPT, SPOKEN, STAIRS, TARGET, VOCAB, check_figures, engine, run, speaking
from .helpers import Clock, Priced, RuleDrafter, decode_plain


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
