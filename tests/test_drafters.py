"""Drafters: what they propose, and that they keep in line with a context that does as it likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgespec.backends import require_same_tokens
from edgespec.backends.toy import Bytes, ToySession, ngram_rule
from edgespec.drafters.lookup import Lookup
from edgespec.drafters.model import ModelDrafter
from edgespec.errors import OptionError, VocabularyMismatch
from edgespec.sampling import Sampling, distribution
from edgespec.verify import VERIFIERS

from .helpers import Freely, plainly

VOCAB = 16
RULE = ngram_rule(VOCAB, order=3, seed=1)


def look(context: Sequence[int], limit: int = 4, drafter: Lookup | None = None) -> tuple[int, ...]:
    return (drafter or Lookup()).propose(context, Freely(limit, context)).tokens


def by_hand(context: list[int], lengths: range, limit: int) -> tuple[int, ...]:
    """Prompt lookup by trying every place: the longest suffix, of its occurrences the newest."""
    for n in reversed(lengths):
        for at in range(len(context) - 1, n - 1, -1):
            if n < len(context) and context[at - n : at] == context[-n:]:
                said = list(context)
                for i in range(limit):
                    said.append(said[at + i])
                return tuple(said[len(context) :])
    return ()


@pytest.mark.parametrize("lengths", [(1, 1), (1, 4), (2, 3), (2, 8), (3, 3)])
def test_lookup_is_what_trying_every_place_finds(lengths: tuple[int, int]) -> None:
    """Over a context that grows as it does in use, the index must hold just what a search would see."""
    random = np.random.default_rng(0)
    found = 0
    for alphabet in (2, 3, 6):
        drafter, context = Lookup(*lengths), [0]
        for _ in range(60):
            got = look(context, 5, drafter)
            assert got == by_hand(context, range(lengths[0], lengths[1] + 1), 5)
            found += bool(got)
            context += random.integers(0, alphabet, random.integers(1, 4)).tolist()
    assert found > 30


def test_lookup_takes_the_longest_suffix_before_a_newer_shorter_one() -> None:
    assert look([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 1) == (7,)
    assert look([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], 1, Lookup(2, 2)) == (8,)


def test_lookup_takes_the_newest_of_equals() -> None:
    assert look([1, 2, 7, 1, 2, 8, 1, 2], 2) == (8, 1)


def test_lookup_goes_on_where_a_match_overlaps_the_end() -> None:
    assert look([5, 1, 2, 1, 2], 6) == (1, 2, 1, 2, 1, 2)
    assert look([9, 4, 4, 4], 5) == (4,) * 5


def test_lookup_has_nothing_to_say_without_a_match() -> None:
    drafter = Lookup()
    for context in ([], [1], [1, 2, 3, 4]):
        assert look(context, 4, drafter) == ()
    assert look([1, 2, 9, 2], 4) == (), "one token is too short a match by default"
    assert drafter.propose([1], Freely(3)).drafter == "lookup"


def test_lookup_forgets_another_text() -> None:
    """A context that shrinks or changes (another chat): the old text must not be proposed."""
    drafter = Lookup()
    assert look([1, 2, 3, 1, 2], 1, drafter) == (3,)
    assert look([1, 2], 1, drafter) == ()
    assert look([1, 2, 4, 1, 2], 1, drafter) == (4,)
    assert look([9, 1, 2, 3, 5, 5, 1, 2], 1, drafter) == (3,)
    assert look([6, 7, 8, 9, 1, 2], 1, drafter) == ()


def test_lookup_keeps_to_its_terms() -> None:
    context = [1, 2, 3, 4, 5, 6, 1, 2]
    assert look(context, 3) == (3, 4, 5)
    assert look(context, 0) == ()
    ends = Freely(9, context, ends=lambda token: token == 4)
    assert Lookup().propose(context, ends).tokens == (3, 4), "nothing follows an end"
    shy = Freely(9, context, more=lambda top: top < 0.4)
    draft = Lookup(2, 8).propose(context, shy)
    assert draft.tokens == (3, 4)
    assert draft.confidence == pytest.approx((2 / 9, 3 / 9))
    assert shy.tops == pytest.approx([2 / 9, 3 / 9, 4 / 9])


def test_lookup_is_surer_the_longer_the_match_and_never_quite() -> None:
    draft = Lookup(1, 3).propose([1, 2, 3, 4, 5, 6, 7, 1], Freely(6))
    assert draft.confidence == pytest.approx((1 / 4, 2 / 4, 3 / 4, 3 / 4, 3 / 4, 3 / 4))
    assert draft.q is None


def test_lookup_lengths_must_make_a_range() -> None:
    for lengths in ((0, 3), (4, 3), (-1, -1)):
        with pytest.raises(OptionError, match="min_ngram"):
            Lookup(*lengths)


def model(context: int = 4096) -> tuple[ModelDrafter, ToySession]:
    session = ToySession(RULE, VOCAB, context)
    return ModelDrafter(session, VOCAB, 0.1), session


def propose(drafter: ModelDrafter, context: Sequence[int], limit: int = 4) -> list[int]:
    draft = drafter.propose(context, Freely(limit, context))
    assert draft.is_chain
    return list(draft.tokens)


def test_model_says_what_its_rule_says_and_does_no_work_twice() -> None:
    """Passes are counted: after full acceptance or a rejection anywhere only what is new is decoded."""
    drafter, session = model()
    context = [1, 2, 3]
    said = plainly(RULE, context, Sampling(), 4)
    assert propose(drafter, context) == said
    assert session.passes == [3, 1, 1, 1]
    assert list(session.tokens) == [*context, *said[:3]], "the last token drafted was never decoded"

    session.passes.clear()
    context += [*said, 5]  # all accepted, and a bonus
    said = plainly(RULE, context, Sampling(), 4)
    assert propose(drafter, context) == said
    assert session.passes == [2, 1, 1, 1], "the last drafted and the bonus"

    session.passes.clear()
    context += [*said[:2], (said[2] + 1) % VOCAB]  # two accepted, then a correction
    said = plainly(RULE, context, Sampling(), 4)
    assert propose(drafter, context) == said
    assert session.passes == [1, 1, 1, 1]

    session.passes.clear()
    context += [(said[0] + 1) % VOCAB]  # nothing accepted
    assert propose(drafter, context) == plainly(RULE, context, Sampling(), 4)
    assert session.passes == [1, 1, 1, 1]

    session.passes.clear()
    assert propose(drafter, context, 2) == plainly(RULE, context, Sampling(), 2)
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
        assert propose(drafter, context, limit) == plainly(RULE, context, Sampling(), limit)
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
        assert said == plainly(RULE, context, Sampling(), min(4, max(0, 13 - length)))
        assert len(session.tokens) <= 12


def test_model_keeps_to_its_terms() -> None:
    drafter, session = model()
    said = plainly(RULE, [1, 2], Sampling(), 6)
    assert drafter.propose([1, 2], Freely(6, [1, 2], ends=lambda t: t == said[2])).tokens == tuple(said[:3])
    assert len(session.passes) == 3
    terms = Freely(6, [1, 2], more=lambda _top: len(terms.tops) < 3)
    draft = drafter.propose([1, 2], terms)
    assert draft.tokens == tuple(said[:2]), "the third was looked at and not wanted"
    assert len(terms.tops) == 3
    assert len(draft.confidence) == 2
    nothing = drafter.propose([1, 2], Freely(3, [1, 2], more=lambda _top: False))
    assert (nothing.tokens, nothing.q, nothing.drafter) == ((), None, "model")
    assert drafter.propose([1, 2], Freely(0, [1, 2])).tokens == ()


def test_model_carries_q_under_rejection_only() -> None:
    drafter, _ = model()
    sampling = Sampling(temperature=0.9, seed=3)
    shared = drafter.propose([1, 2], Freely(4, [1, 2], sampling))
    assert shared.q is None
    assert list(shared.tokens) == plainly(RULE, [1, 2], sampling, 4), "under match it draws by the shared noise"
    draft = drafter.propose([1, 2], Freely(4, [1, 2], sampling, rule="rejection"))
    assert draft.q is not None
    for node, q in enumerate(draft.q):
        want = distribution(RULE([1, 2, *draft.tokens[:node]]), sampling)
        assert (q.tokens == want.tokens).all()
        assert (q.probs == want.probs).all()
        assert draft.confidence[node] == want.probs.max()
    assert drafter.propose([1, 2], Freely(4, [1, 2], rule="rejection")).q is None, "greedy drafts are point masses"


def test_model_draws_under_the_penalties_of_the_longer_text() -> None:
    """Its drafts repeat themselves otherwise, and are rejected."""
    drafter, _ = model()
    sampling = Sampling(frequency_penalty=3.0, penalty_window=4)
    assert list(drafter.propose([1, 2], Freely(8, [1, 2], sampling)).tokens) == plainly(RULE, [1, 2], sampling, 8)


def test_model_with_a_padded_vocabulary_never_drafts_padding() -> None:
    """The target knows 10 tokens: a 16-token draft must not say the others, though they are its likeliest."""
    drafter = ModelDrafter(ToySession(RULE, VOCAB), 10)
    tokens = drafter.propose([1, 2], Freely(8, [1, 2])).tokens
    assert len(tokens) == 8
    assert max(tokens) < 10


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)])
@pytest.mark.parametrize("options", [{}, {"logit_bias": ((12, 5.0),)}, {"presence_penalty": 1.0}])
def test_a_target_with_more_tokens_than_the_draft_model(options: dict[str, Any], sampling: Sampling) -> None:
    """Biases and penalties may name tokens that the draft model lacks; it raised on them."""
    drafter = ModelDrafter(ToySession(ngram_rule(10), 10), VOCAB)
    sampling = replace(sampling, **options)
    for rule in VERIFIERS:
        draft = drafter.propose([1, 2], Freely(8, [1, 2], sampling, rule=rule))
        assert len(draft) == 8
        assert max(draft.tokens) < 10
        unknown = [1, 12, 2]
        assert not drafter.propose(unknown, Freely(8, unknown, sampling, rule=rule)), "it cannot read this context"


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
