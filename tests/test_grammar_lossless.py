"""Speculation under a grammar is plain decoding under it: the same tokens, whoever drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import jsonschema
import numpy as np
import pytest

from edgespec.controller.fixed import Fixed
from edgespec.sampling import Sampling
from edgespec.types import Draft

from .engine_runs import CONTROLLERS
from .grammar_runs import DRAFTERS, GRAMMARS, PERSON, SPOKEN, TARGET, answer, bound, constrained_plain, round_context

SAMPLINGS = {
    "greedy": Sampling(),
    "0.8": Sampling(temperature=0.8, seed=3),
    "filters": Sampling(temperature=1.2, top_k=40, top_p=0.9, min_p=0.01, repetition_penalty=1.3, seed=5),
    "bias": Sampling(temperature=0.8, logit_bias=((97, 30.0), (120, 5.0), (100, -3.0)), seed=7),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("control", ["0", "8", "8, merged", "auto", "auto, trees", "whole"])
def test_the_text_is_that_of_constrained_plain_decoding(control: str, grammar: str, sampling: str) -> None:
    chosen = SAMPLINGS[sampling]
    wanted = constrained_plain(TARGET, chosen, 60, bound(grammar))
    for drafters in DRAFTERS:
        said, reason, _ = answer(drafters, CONTROLLERS[control], chosen, bound(grammar))
        assert said == wanted, drafters
        assert reason == ("length" if len(said) == 60 else "end")


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_greedy_text_is_the_same_under_every_verifier(grammar: str, rule: str) -> None:
    wanted = constrained_plain(TARGET, Sampling(), 60, bound(grammar))
    for drafters in DRAFTERS:
        for control in ("8", "8, merged", "auto"):
            said, _, _ = answer(drafters, CONTROLLERS[control], Sampling(), bound(grammar), rule=rule)
            assert said == wanted, (drafters, control)


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_drawn_answers_are_valid(rule: str) -> None:
    for seed in range(10):
        said, reason, _ = answer(
            "several", CONTROLLERS["8, merged"], Sampling(temperature=1.0, seed=seed), bound("schema"), rule=rule, n=200
        )
        assert reason == "end"
        jsonschema.validate(json.loads(bytes(said)), PERSON)


def test_forced_tokens_draft() -> None:
    _, _, by_drafter = answer("grammar", CONTROLLERS["8"], Sampling(), bound("schema"))
    drafted, accepted = by_drafter["grammar"]
    assert accepted == drafted >= len('{"name":"","n":[],"kind":')


def test_the_answer_ends_where_the_grammar_does() -> None:
    """Without an end token, and what was drafted beyond is not committed."""
    said, reason, _ = answer("itself", CONTROLLERS["8"], Sampling(), bound("gbnf"))
    assert (bytes(said).count(b"("), reason) == (bytes(said).count(b")"), "end")
    assert not any(map(SPOKEN.is_eog, said))


def test_an_end_token_ends_the_answer_only_where_the_grammar_is_satisfied() -> None:
    """With a strong bias for it: not before `ddd`."""
    end = tuple((token, 1e3) for token in range(SPOKEN.size) if SPOKEN.is_eog(token))
    for drafters in DRAFTERS:
        said, reason, _ = answer(drafters, CONTROLLERS["8"], Sampling(logit_bias=end), bound("regex"))
        assert reason == "end"
        assert SPOKEN.is_eog(said[-1])
        assert bytes(said[:-1]).endswith(b"ddd")


@pytest.mark.parametrize("drafters", ["several", "always wrong", "point masses, always wrong"])
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_drafts_hold_what_the_grammar_admits_only(drafters: str, rule: str) -> None:
    """No pass computes a token that cannot be said."""
    seen: list[tuple[Draft, int]] = []

    class Watching(Fixed):
        def choose(self, round_context: object, limit: int) -> Draft:
            draft = super().choose(round_context, limit)  # type: ignore[arg-type]
            constraint = round_context.constraint  # type: ignore[attr-defined]
            for node in range(len(draft)):
                path = draft.path(node)
                assert constraint.admits(path) == len(path)
                assert not constraint.ended(path[:-1])
            seen.append((draft, len(draft)))
            return draft

    answer(drafters, lambda d, _clock: Watching(d, 6, 12), Sampling(temperature=0.9), bound("schema"), rule=rule)
    assert sum(n for _, n in seen) > 0


def test_a_bias_against_all_that_is_allowed_is_one_error() -> None:
    bans = tuple((token, -np.inf) for token in b"{")
    with pytest.raises(Exception, match="all that the grammar allows"):
        answer("several", CONTROLLERS["8"], Sampling(logit_bias=bans), bound("schema"))


def all_paths() -> Sequence[bytes]:
    return [b"", b"(", b"((", b"(1", b"(12", b"(12)", b"1", b"12", b"(x", b"((1))", b"((1)", b"(1)", b")", b"((2"]


def test_rollback_leaves_no_trace() -> None:
    """Paths in any order, and commits between: as a new constraint that has read it all."""
    random = np.random.default_rng(0)
    constraint, said = bound("gbnf").begin(), list[int]()
    for step in b"((7":
        for at in random.permutation(len(all_paths()) * 3) % len(all_paths()):
            path = list(all_paths()[at])
            fresh = bound("gbnf").begin()
            for token in said:
                fresh.commit(token)
            assert constraint.admits(path) == fresh.admits(path)
            assert constraint.ended(path) == fresh.ended(path)
            assert constraint.forced(path) == fresh.forced(path)
            assert (constraint.allowed(path) == fresh.allowed(path)).all()
        constraint.commit(step)
        said.append(step)


def test_a_context_says_what_is_over() -> None:
    place = round_context(bound("gbnf").begin())
    assert [place.is_over(list(path)) for path in (b"", b"(1", b"(1)", b"12")] == [False, False, True, True]
