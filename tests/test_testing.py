"""`edgespec.testing`: drafters and engines that are right keep its laws; each law is broken by one that is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgespec import BlockDrafter, Drafter, Guess, Round, RoundContext, Target
from edgespec.backends import Interrupt
from edgespec.backends.toy import Bytes, Rule, ToyModel, ToySession, ngram_rule
from edgespec.backends.tree_layout import Branches
from edgespec.drafters import Factory
from edgespec.drafters.cross_vocabulary import CrossVocabularyDrafter
from edgespec.drafters.lookahead import Lookahead
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.pard import PardDrafter
from edgespec.drafters.prediction import Prediction
from edgespec.drafters.recycling import Recycling
from edgespec.errors import RollbackError
from edgespec.sampling import Sampling, distribution
from edgespec.testing import (
    DRAFTER_LAWS,
    SESSION_LAWS,
    DrafterCase,
    EngineCase,
    LawError,
    Letters,
    Outcomes,
    check_drafter,
    check_model,
    make_round_context,
    noisy_script,
)
from edgespec.types import Distribution, Floats
from edgespec.verify import verifier

from .helpers import ToldMedusa, ToyHeads, in_blocks

SCRIPT = DrafterCase(lambda _target: Lookup()).script


def model(target: Target) -> ModelDrafter:
    """Half right in the text of the laws."""
    vocab = target.vocabulary.size
    rule = noisy_script(SCRIPT, loud=4) if vocab == Bytes.size else ngram_rule(vocab)
    return ModelDrafter(ToySession(rule, vocab), vocab, 0.1)


def medusa(target: Target) -> ToldMedusa:
    """Heads that know as much."""
    vocab = target.vocabulary.size
    rule = noisy_script(SCRIPT, loud=4) if vocab == Bytes.size else ngram_rule(vocab)
    return ToldMedusa(ToyHeads(rule, 3), vocab, 0.1)


def cross_vocabulary(target: Target) -> CrossVocabularyDrafter:
    """A model of bytes that drafts through text."""
    return CrossVocabularyDrafter(ToySession(noisy_script(SCRIPT), Bytes.size), target.vocabulary, Bytes(), 0.1)


def pard(target: Target) -> PardDrafter:
    """The same in blocks of four, with a mask that texts have, too."""
    vocab = target.vocabulary.size
    rule = noisy_script(SCRIPT, loud=4) if vocab == Bytes.size else ngram_rule(vocab)
    return PardDrafter(ToySession(in_blocks(rule, vocab - 1), vocab), vocab, vocab - 1, [0.1, 0.1, 0.1, 0.1])


BUILT_IN: dict[str, Factory] = {
    "lookup": lambda _target: Lookup(),
    "of an earlier text": lambda target: Lookup(earlier=[target.vocabulary.tokenize("the cat sat, cab abc " * 3)]),
    "recycling": lambda target: Recycling(target.vocabulary.size),
    "lookahead": lambda _target: Lookahead(),
    "prediction": lambda target: Prediction(target.vocabulary.tokenize("the cat sat, cab abc " * 3), 0),
    "model": model,
    "cross-vocabulary": cross_vocabulary,
    "pard": pard,
    "medusa": medusa,
}


@pytest.mark.parametrize("law", DRAFTER_LAWS)
@pytest.mark.parametrize("drafter", BUILT_IN)
def test_built_in_drafters_keep_the_laws(drafter: str, law: str) -> None:
    DRAFTER_LAWS[law](DrafterCase(BUILT_IN[drafter]))


@pytest.mark.parametrize("drafter", BUILT_IN)
def test_built_in_drafters_guess_in_that_text(drafter: str) -> None:
    check_drafter(BUILT_IN[drafter])


# --- drafters that are wrong


class Good(Drafter):
    """The token that followed the last one when it was there before."""

    name = "good"

    def __init__(self, target: Target) -> None:
        self.target = target
        self.place = make_round_context()

    def begin(self, round_context: RoundContext) -> None:
        self.place = round_context

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        text = [*self.place.tokens, *path]
        if path and self.place.is_eog(path[-1]):
            return ()
        found = [text[n + 1] for n in range(len(text) - 1) if text[n] == text[-1]]
        return [Guess(token, 0.5) for token in dict.fromkeys(reversed(found))][:most]


def test_a_class_that_inherits_needs_three_members() -> None:
    check_drafter(Good)


class Blocks(Good):
    """It says what a pass for several guesses costs."""

    step_price = 0.1
    block_prices: Sequence[float] = (0.1, 0.15, 0.2)

    def plan(self, guesses: int) -> None:
        """It makes as many as it can."""


def test_a_drafter_may_guess_several_tokens_in_one_pass() -> None:
    assert isinstance(Blocks(Target(Bytes(), 99)), BlockDrafter)
    assert not isinstance(Good(Target(Bytes(), 99)), BlockDrafter)
    check_drafter(Blocks)


class Dearer(Blocks):
    step_price = 0.3


class Closes(Good):
    def close(self) -> None:
        del self.place


class Named(Good):
    name = "a+b"


class Dear(Good):
    step_price = float("nan")


class Reads(Good):
    step_price = 0.1
    reading_price = float("nan")


class Holds(Good):
    def held(self, context: Sequence[int]) -> int:
        return len(context) + 1


class Generous(Good):
    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return super().guess(path, 9)


class Repeats(Good):
    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return [guess for guess in super().guess(path, 1) for _ in range(most)]


class Beyond(Good):
    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return [Guess(guess.token + 200, 0.5) for guess in super().guess(path, most)]


class Sure(Good):
    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return [Guess(guess.token, 1.5) for guess in super().guess(path, most)]


class PastTheEnd(Good):
    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        return super().guess(path, most) or [Guess(1, 0.1)]


class Appends(Good):
    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        self.place.tokens.append(7)  # type: ignore[attr-defined]
        return super().guess(path, most)


class Rewinds(Good):
    """It believes that texts only grow."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.seen = 0

    def begin(self, round_context: RoundContext) -> None:
        if len(round_context.tokens) < self.seen:
            raise RuntimeError("the text shrank")
        self.seen = len(round_context.tokens)
        super().begin(round_context)


class Strict(Good):
    """It believes that rounds are only of its own guesses."""

    def observe(self, round: Round) -> None:  # noqa: A002 - the protocol's word
        if set(round.draft.drafters) - {self.name}:
            raise RuntimeError("that was somebody else's draft")


class Full(Good):
    def begin(self, round_context: RoundContext) -> None:
        if len(round_context.tokens) > self.target.context - 4:
            raise RuntimeError("no room")
        super().begin(round_context)


class Liar(Good):
    """It draws, and says that it drew from another distribution."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        row = np.arange(self.target.vocabulary.size, dtype=np.float32)
        (drawn,) = self.place.draw(row, path)
        q = distribution(row[::-1], self.place.sampling, ())
        return [drawn._replace(q=q if drawn.q is not None and q.of(drawn.token) else drawn.q)]


class Peeks(Good):
    """It claims that a token it chose was drawn."""

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        size = self.target.vocabulary.size
        even = Distribution(np.arange(size), np.full(size, 1 / size))
        return [guess._replace(q=even) for guess in super().guess(path, 1)]


WRONG: list[tuple[type[Good], str, str]] = [
    (Closes, "has_the_members", "place"),
    (Named, "has_the_members", r"its name is 'a\+b'"),
    (Dear, "has_the_members", "its step_price is nan"),
    (Reads, "has_the_members", "its reading_price is nan"),
    (Holds, "has_the_members", "it holds 4 tokens of 3"),
    (Dearer, "has_the_members", "its step_price is not the first of its block_prices"),
    (Generous, "may_be_asked_anywhere", "guesses, but at most"),
    (Repeats, "may_be_asked_anywhere", "twice at one node"),
    (Beyond, "may_be_asked_anywhere", "guessed the token .*; the vocabulary has tokens 0 to 258"),
    (Sure, "may_be_asked_anywhere", "confidence is 1.5"),
    (PastTheEnd, "may_be_asked_anywhere", "which ends the text"),
    (Appends, "may_be_asked_anywhere", "guess changed the context"),
    (Rewinds, "may_be_asked_anywhere", "the text shrank"),
    (Rewinds, "serves_text_after_text", "the text shrank"),
    (Strict, "serves_text_after_text", "somebody else's draft"),
    (Full, "may_come_to_the_end_of_the_context", "no room"),
    (Liar, "keeps_the_distribution", "has the probability"),
    (Peeks, "keeps_the_distribution", "has the probability"),
]


@pytest.mark.parametrize(("wrong", "law", "says"), WRONG, ids=[f"{w.__name__}-{law}" for w, law, _ in WRONG])
def test_a_wrong_drafter_breaks_a_law(wrong: Factory, law: str, says: str) -> None:
    with pytest.raises(Exception, match=says) as raised:
        DRAFTER_LAWS[law](DrafterCase(wrong))
    assert isinstance(raised.value, (LawError, RuntimeError, AttributeError)) or "_price" in str(raised.value)


def test_texts_are_compared_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that took drafts on trust would say what is drafted."""
    monkeypatch.setattr("edgespec.verify.match.pick", lambda row, *_: 33)
    for law in ("keeps_the_text", "serves_text_after_text", "may_come_to_the_end_of_the_context"):
        with pytest.raises(LawError, match=r"differs from plain decoding from token 0 on: \[33, 33"):
            DRAFTER_LAWS[law](DrafterCase(Good))


def test_a_drafter_that_never_guesses_proves_nothing() -> None:
    with pytest.raises(LawError, match="it guessed nothing in 'abcdefg'; give a text"):
        check_drafter(lambda _target: Lookup(min_match=10_000), text="abcdefg")


def test_outcomes_need_draws_that_can_be_made_again() -> None:
    judge, sampling, turns = verifier("rejection"), Sampling(temperature=1), iter(range(99))

    def unsteady() -> int:
        row = np.zeros(2 + next(turns) % 2, np.float32)
        return judge.draw(row, sampling, [0], ()).token

    with Outcomes() as outcomes, pytest.raises(LawError, match="it makes other draws"):
        outcomes.of(unsteady)
    assert judge.draw(np.zeros(2, np.float32), sampling, [0], ()).token in (0, 1), "the verifiers are as they were"


# --- engines that are wrong


class Model(ToyModel):
    """A toy with sessions of some kind."""

    def __init__(self, kind: Callable[..., ToySession]) -> None:
        super().__init__()
        self.kind = kind

    def session(self, context: int, interrupt: Interrupt | None = None) -> ToySession:
        return self.kind(ngram_rule(Bytes.size), Bytes.size, context)


class Leaves(ToySession):
    """A rollback leaves a token of what was rejected in the cache, unseen."""

    trace = 0

    def _cut(self, length: int) -> int:
        self.trace = len(self._held)
        return length

    def _compute(self, tokens: Sequence[int], branches: Branches) -> None:
        super()._compute(tokens, branches)
        self._rows += 0.001 * self.trace


class FirstBranch(ToySession):
    """It keeps the first branch of a tree, whichever was accepted."""

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        super().rollback(length, range(len(keep)) if self._pending is not None else keep)


class Forgives(ToySession):
    """It goes where nothing is."""

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        try:
            super().rollback(length, keep)
        except Exception:  # noqa: BLE001
            self._held[length:] = []


class Roomy(ToySession):
    """It holds more than was asked for."""

    def __init__(self, rule: Rule, vocab: int, context: int = 4096) -> None:
        super().__init__(rule, vocab, context + 8)


class Wide(ToySession):
    """Wide passes give other logits."""

    def _logits(self, n: int) -> Floats:
        return self._rows[:n] * (1 + 0.001 * n)


class Keeps(ToySession):
    """A tree that nobody settled is taken for text."""

    def _prepare(self, tokens: Sequence[int]) -> None:
        if self._pending is not None:
            self._held.append(7)
            self._pending = None
        super()._prepare(tokens)


class Recurrent(ToySession):
    """It goes back over three tokens."""

    def __init__(self, rule: Rule, vocab: int, context: int = 4096) -> None:
        super().__init__(rule, vocab, context, reach=3)


class Shorter(Recurrent):
    """It says four."""

    def __init__(self, rule: Rule, vocab: int, context: int = 4096) -> None:
        super().__init__(rule, vocab, context)
        self.reach = 4

    def _cut(self, length: int) -> int:
        return length if len(self._held) - length <= 3 else 0


class Replays(ToySession):
    """It owes what stays of a pass."""

    def __init__(self, rule: Rule, vocab: int, context: int = 4096) -> None:
        super().__init__(rule, vocab, context, replays=True)


class Silent(Replays):
    """It says that it replays, and owes nothing."""

    def _cut(self, length: int) -> int:
        return length


class Debtor(Replays):
    """A prefill of nothing computes nothing."""

    def prefill(self, tokens: Sequence[int]) -> None:
        if tokens:
            super().prefill(tokens)


class OneBack(ToySession):
    """A second rollback before the next pass keeps a token too many."""

    again = False

    def decode(self, tokens: Sequence[int], tree: Sequence[int] | None = None) -> Floats:
        self.again = False
        return super().decode(tokens, tree)

    def rollback(self, length: int, keep: Sequence[int] = ()) -> None:
        super().rollback(length + (self.again and 0 < length < len(self._held)), keep)
        self.again = True


class Mixed(ToySession):
    """It promises texts that it does not keep."""

    def kept(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    def resume(self, tokens: Sequence[int]) -> None:
        """It goes on with its own text."""


BROKEN: list[tuple[Callable[..., ToySession], str]] = [
    (Leaves, "a_rollback_leaves_no_trace"),
    (Leaves, "a_rollback_keeps_what_was_accepted"),
    (Leaves, "rounds_leave_no_trace"),
    (Leaves, "rounds_at_the_end_of_the_context"),
    (Leaves, "a_tree_that_nobody_settles_is_forgotten"),
    (FirstBranch, "rounds_leave_no_trace"),
    (FirstBranch, "only_paths_of_a_tree_are_kept"),
    (Forgives, "what_cannot_be_kept_is_refused"),
    (Forgives, "only_paths_of_a_tree_are_kept"),
    (Roomy, "what_does_not_fit_is_refused"),
    (Roomy, "a_tree_may_fill_the_context"),
    (Wide, "passes_of_any_width_agree"),
    (Wide, "a_tree_may_begin_the_text"),
    (Shorter, "it_goes_back_as_far_as_it_says"),
    (Silent, "it_goes_back_as_far_as_it_says"),
    (Debtor, "it_goes_back_to_any_length"),
    (OneBack, "it_goes_back_to_any_length"),
    (Leaves, "it_goes_back_as_far_as_it_says"),
    (Keeps, "a_tree_that_nobody_settles_is_forgotten"),
    (Keeps, "a_chain_after_a_tree_is_a_chain"),
    (Mixed, "texts_in_turn_are_as_if_computed"),
]


@pytest.mark.parametrize(("kind", "law"), BROKEN, ids=[f"{kind.__name__}-{law}" for kind, law in BROKEN])
def test_a_wrong_session_breaks_a_law(kind: Callable[..., ToySession], law: str) -> None:
    with pytest.raises((LawError, RollbackError)):
        SESSION_LAWS[law](EngineCase(Model(kind)))


class Forgets(ToySession):
    """Positions begin anew with each prefill."""

    def prefill(self, tokens: Sequence[int]) -> None:
        super().prefill(tokens)
        self.begun = len(self._held) - len(tokens)

    def _logits(self, n: int) -> Floats:
        return self._rows[:n] + 0.001 * getattr(self, "begun", 0)


def test_a_prefill_in_parts_must_agree() -> None:
    with pytest.raises(LawError, match="after prefills of other lengths"):
        SESSION_LAWS["a_prefill_may_be_long"](EngineCase(Model(Forgets)))


def test_every_law_was_broken_by_somebody() -> None:
    tried = {law for _, law in BROKEN} | {"a_prefill_may_be_long"}
    assert tried == {*SESSION_LAWS}
    tried = {law for _, law, _ in WRONG} | {"keeps_the_text", "keeps_greedy_text_under_any_verifier"}
    assert tried == {*DRAFTER_LAWS}


def test_the_toy_keeps_all_laws() -> None:
    check_model(ToyModel())


def test_a_chain_only_engine_is_asked_for_no_trees() -> None:
    class Chains(ToySession):
        can_tree = False
        leaves = 0

    check_model(Model(Chains))


@pytest.mark.parametrize("kind", [Recurrent, Replays])
def test_sessions_with_a_recurrent_state_keep_all_laws(kind: Callable[..., ToySession]) -> None:
    check_model(Model(kind))


def test_it_takes_no_test_runner() -> None:
    code = "import edgespec.testing, sys; print({'pytest', 'unittest', 'llama_cpp', 'onnxruntime'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_letters_are_a_vocabulary() -> None:
    vocabulary = Letters("abc")
    assert vocabulary.tokenize("cab, abba") == [2, 0, 1, 0, 1, 1, 0]
    assert [vocabulary.token_bytes(n) for n in range(vocabulary.size)] == [b"a", b"b", b"c"]
