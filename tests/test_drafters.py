"""Drafters: what they guess, and that they keep in line with a context that does as it likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgespec.backends import require_same_tokens
from edgespec.backends.toy import Bytes, ToySession, ngram_rule
from edgespec.controller.fixed import straight
from edgespec.drafters import Drafter
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import ClosedError, VocabularyMismatch
from edgespec.sampling import Sampling, distribution, picks
from edgespec.types import Guess
from edgespec.verify import VERIFIERS

from .helpers import decode_plain, never, round_context

VOCAB = 16
RULE = ngram_rule(VOCAB, order=3, seed=1)


def guesses(
    drafter: Drafter,
    context: Sequence[int],
    n: int = 4,
    sampling: Sampling | None = None,
    rule: str = "match",
    is_eog: Callable[[int], bool] = never,
) -> list[Guess]:
    """The likeliest guess of a new round, and so on, `n` times."""
    place = round_context(context, sampling, rule, is_eog)
    drafter.begin(place)
    return straight(drafter, place, n)


def says(drafter: Drafter, context: Sequence[int], n: int = 4) -> tuple[int, ...]:
    return tuple(guess.token for guess in guesses(drafter, context, n))


# --- what holds for any look-up: how it matches is in tests of its own


def test_lookup_says_what_followed() -> None:
    assert says(Lookup(), [1, 2, 3, 4, 5, 6, 1, 2], 3) == (3, 4, 5)
    assert says(Lookup(), [1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 1) == (7,), "the longest match before a newer shorter one"


def test_lookup_has_nothing_to_say_without_a_match() -> None:
    drafter = Lookup()
    for context in ([1], [1, 2, 3, 4]):
        assert says(drafter, context) == ()
    drafter.begin(round_context([1, 2, 3, 4]))
    assert not drafter.guess([9], 1)


def test_lookup_goes_on_from_another_drafters_guess() -> None:
    """The path it is asked about need not be its own."""
    drafter = Lookup()
    drafter.begin(round_context([1, 2, 3, 4, 5, 6, 7, 8]))
    assert not drafter.guess([], 1)
    assert [guess.token for guess in drafter.guess([2, 3], 1)] == [4]
    assert [guess.token for guess in drafter.guess([5, 6], 1)] == [7]
    assert [guess.token for guess in drafter.guess([2, 3, 4], 1)] == [5]


def test_lookup_knows_where_another_text_begins() -> None:
    """A context that shrinks or changes (another chat): the old text is known still, but as another: no guess
    goes on from one into the other."""
    drafter = Lookup()
    assert says(drafter, [1, 2, 3, 1, 2], 1) == (3,)
    assert says(drafter, [1, 2], 1) == (3,)
    assert says(drafter, [1, 2, 4, 1, 2], 1) == (4,)
    assert says(drafter, [9, 1, 2, 3, 5, 5, 1, 2], 1) == (3,)
    assert says(drafter, [6, 7, 8], 1) == ()
    assert says(drafter, [5, 5, 8], 1) == (), "that text ended there, and this one does not follow it"
    assert says(drafter, [6, 7, 8, 9, 1, 2], 1) == (3,)


def test_lookup_guesses_point_masses_for_nothing() -> None:
    for rule in VERIFIERS:
        said = guesses(Lookup(), [1, 2, 3, 4, 1, 2], 3, Sampling(temperature=0.8), rule)
        assert [guess.token for guess in said] == [3, 4, 1]
        assert all(guess.q is None and 0 <= guess.confidence <= 1 for guess in said)
    assert Lookup().step_price == 0


# --- a model


def model(context: int = 4096) -> tuple[ModelDrafter, ToySession]:
    session = ToySession(RULE, VOCAB, context)
    return ModelDrafter(session, VOCAB, 0.1), session


def propose(drafter: ModelDrafter, context: Sequence[int], n: int = 4) -> list[int]:
    return list(says(drafter, context, n))


def test_model_says_what_its_rule_says_and_does_no_work_twice() -> None:
    """Passes are counted: after full acceptance or a rejection anywhere only what is new is decoded."""
    drafter, session = model()
    context = [1, 2, 3]
    said = decode_plain(RULE, context, Sampling(), 4)
    assert propose(drafter, context) == said
    assert session.passes == [3, 1, 1, 1]
    assert list(session.tokens) == [*context, *said[:3]], "the last token drafted was never decoded"

    session.passes.clear()
    context += [*said, 5]  # all accepted, and a bonus
    said = decode_plain(RULE, context, Sampling(), 4)
    assert propose(drafter, context) == said
    assert session.passes == [2, 1, 1, 1], "the last drafted and the bonus"

    session.passes.clear()
    context += [*said[:2], (said[2] + 1) % VOCAB]  # two accepted, then a correction
    said = decode_plain(RULE, context, Sampling(), 4)
    assert propose(drafter, context) == said
    assert session.passes == [1, 1, 1, 1]

    session.passes.clear()
    context += [(said[0] + 1) % VOCAB]  # nothing accepted
    assert propose(drafter, context) == decode_plain(RULE, context, Sampling(), 4)
    assert session.passes == [1, 1, 1, 1]

    session.passes.clear()
    assert propose(drafter, context, 2) == decode_plain(RULE, context, Sampling(), 2)
    assert session.passes == [1, 1], "asked again for the same context: its last token gives the row"


def test_model_follows_any_context() -> None:
    """Longer, shorter, another one: nobody tells it, and what it says depends on the context alone."""
    drafter, session = model()
    random = np.random.default_rng(3)
    context = [1]
    for _ in range(200):
        keep = int(random.integers(0, len(context) + 1))
        context = [*context[:keep], *random.integers(0, VOCAB, random.integers(1, 30)).tolist()][:100]
        limit = int(random.integers(1, 6))
        assert propose(drafter, context, limit) == decode_plain(RULE, context, Sampling(), limit)
        assert list(session.tokens[: len(context)]) == context


def test_model_reads_a_long_context_without_logits() -> None:
    """Logits for each token of a prompt would be 600 MB at 1000 tokens of a real model."""
    drafter, session = model()
    propose(drafter, [n % VOCAB for n in range(1000)], 2)
    assert session.passes == [1, 1]


def test_model_stops_where_its_context_is_full() -> None:
    drafter, session = model(context=12)
    for length in range(8, 16):
        context = [n % 7 for n in range(length)]
        said = propose(drafter, context, 4)
        assert said == decode_plain(RULE, context, Sampling(), min(4, max(0, 13 - length)))
        assert len(session.tokens) <= 12


def test_model_goes_where_it_is_asked() -> None:
    """Paths of other drafters, branches, steps back: what it says depends on context and path alone, and a token
    more is one pass."""
    drafter, session = model()
    random = np.random.default_rng(5)
    context = random.integers(0, VOCAB, 20).tolist()
    drafter.begin(round_context(context))
    path: list[int] = []
    for _ in range(300):
        keep = int(random.integers(0, len(path) + 1)) if random.random() < 0.4 else len(path)
        path = [*path[:keep], *random.integers(0, VOCAB, int(random.integers(0, 4))).tolist()][:12]
        (guess,) = drafter.guess(path, 1)
        assert guess.token == int(RULE([*context, *path]).argmax())
        assert list(session.tokens) == [*context, *path]
    session.passes.clear()
    drafter.guess([*path, 3], 1)
    drafter.guess([*path, 3, 4], 1)
    assert session.passes == [1, 1]


def test_model_that_was_told_nothing_says_what_to_do() -> None:
    drafter, _ = model()
    with pytest.raises(ClosedError, match="before begin"):
        drafter.guess([], 1)


def test_model_guesses_nothing_after_the_end() -> None:
    drafter, session = model()
    said = decode_plain(RULE, [1, 2], Sampling(), 6)
    ended = guesses(drafter, [1, 2], 6, is_eog=lambda token: token == said[2])
    assert [guess.token for guess in ended] == said[:3]
    assert len(session.passes) == 3, "nothing is paid for a token that nobody asked for"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=3)], ids=["0", "0.9"])
def test_model_says_its_second_best_where_several_are_wanted(sampling: Sampling) -> None:
    """The likeliest first, by the noise that the target shares; one pass for all of them."""
    drafter, session = model()
    drafter.begin(round_context([1, 2], sampling))
    for path in ((), (3,), (3, 5), (3, 5, 1)):
        session.passes.clear()
        said = drafter.guess(path, 3)
        assert len(session.passes) == 1
        assert [guess[:2] for guess in said] == picks(RULE([1, 2, *path]), sampling, 2 + len(path), (), 3)
        assert all(guess.q is None for guess in said)
        assert len({guess.token for guess in said}) == 3
    drafter.begin(round_context([1, 2], Sampling(temperature=0.9), "rejection"))
    assert len(drafter.guess((), 3)) == 1, "what is drawn is bought: no alternatives"


def test_model_carries_q_under_rejection_only() -> None:
    drafter, _ = model()
    sampling = Sampling(temperature=0.9, seed=3)
    shared = guesses(drafter, [1, 2], 4, sampling)
    assert all(guess.q is None for guess in shared)
    assert [guess.token for guess in shared] == decode_plain(RULE, [1, 2], sampling, 4), (
        "under match by the shared noise"
    )
    drawn = guesses(drafter, [1, 2], 4, sampling, "rejection")
    path = [1, 2]
    for guess in drawn:
        want = distribution(RULE(path), sampling)
        assert guess.q is not None
        assert (guess.q.tokens == want.tokens).all()
        assert (guess.q.probs == want.probs).all()
        assert guess.confidence == want.probs.max()
        path.append(guess.token)
    assert len(drawn) == 4
    greedy = guesses(drafter, [1, 2], 4, rule="rejection")
    assert all(guess.q is None for guess in greedy), "greedy guesses are point masses"


def test_model_draws_under_the_penalties_of_the_longer_text() -> None:
    """Its drafts repeat themselves otherwise, and are rejected."""
    drafter, _ = model()
    sampling = Sampling(frequency_penalty=3.0, penalty_window=4)
    said = [guess.token for guess in guesses(drafter, [1, 2], 8, sampling)]
    assert said == decode_plain(RULE, [1, 2], sampling, 8) != decode_plain(RULE, [1, 2], Sampling(), 8)


def test_model_with_a_padded_vocabulary_never_drafts_padding() -> None:
    """The target knows 10 tokens: a 16-token draft must not say the others, though they are its likeliest."""
    drafter = ModelDrafter(ToySession(RULE, VOCAB), 10)
    tokens = says(drafter, [1, 2], 8)
    assert len(tokens) == 8
    assert max(tokens) < 10


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)])
@pytest.mark.parametrize("options", [{}, {"logit_bias": ((12, 5.0),)}, {"presence_penalty": 1.0}])
def test_a_target_with_more_tokens_than_the_draft_model(options: dict[str, Any], sampling: Sampling) -> None:
    """Biases and penalties may name tokens that the draft model lacks; it raised on them."""
    drafter = ModelDrafter(ToySession(ngram_rule(10), 10), VOCAB)
    sampling = replace(sampling, **options)
    for rule in VERIFIERS:
        said = guesses(drafter, [1, 2], 8, sampling, rule)
        assert len(said) == 8
        assert max(guess.token for guess in said) < 10
        assert not drafter.guess([3, 12], 1), "it cannot read this path"
        assert drafter.guess([3, 2], 1), "and is none the worse for it"
        assert not guesses(drafter, [1, 12, 2], 8, sampling, rule), "it cannot read this context"


class Other(Bytes):
    """Like the bytes, but of another size, and one label is another."""

    def __init__(self, size: int = Bytes.size, differs: int = -1) -> None:
        self.size = size
        self._differs = differs

    def label(self, token: int) -> str:
        if token == self._differs:
            return "other"
        return super().label(token) if token < Bytes.size else f"<pad {token}>"


def test_a_pair_must_speak_the_same_tokens() -> None:
    require_same_tokens(Bytes(), Bytes())
    for token in (0, 100, Bytes.size - 1):
        with pytest.raises(VocabularyMismatch, match=rf"token {token} is .* in the target and 'other' in the draft"):
            require_same_tokens(Bytes(), Other(differs=token))


def test_padding_is_no_difference_but_another_size_is() -> None:
    require_same_tokens(Other(Bytes.size + 384), Bytes())
    require_same_tokens(Bytes(), Other(Bytes.size + 1024))
    for pair in ((Bytes(), Other(Bytes.size + 1025)), (Other(5000), Bytes())):
        with pytest.raises(VocabularyMismatch, match=f"so token {Bytes.size} exists in one only.*--draft to let it"):
            require_same_tokens(*pair)
