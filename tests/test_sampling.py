"""Filters against their definitions written out by brute force, and the noise against its promises."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from edgespec.errors import OptionError
from edgespec.sampling import (
    ACCEPTING,
    DRAFTING,
    RESIDUAL,
    SAMPLING_FIELDS,
    SHARED,
    Sampling,
    distribution,
    draw,
    gumbel,
    happens,
    likeliest,
    pick,
    picks,
    round_seed,
    uniform,
)
from edgespec.types import Distribution, Floats

from .helpers import ALL_ON, count, fits, logits


def brute(row: Floats, sampling: Sampling, recent: tuple[int, ...] = ()) -> dict[int, float]:
    """What `distribution` must give, token by token, in the order the module states."""
    scores = {token: float(logit) for token, logit in enumerate(row)}
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    for token in set(recent):
        score = scores[token]
        score = score / sampling.repetition_penalty if score > 0 else score * sampling.repetition_penalty
        scores[token] = score - sampling.presence_penalty - sampling.frequency_penalty * recent.count(token)
    if sampling.temperature == 0:
        return {max(scores, key=lambda token: scores[token]): 1.0}
    ranked = sorted(scores, key=lambda token: -scores[token])
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    weights = {token: np.exp((scores[token] - scores[ranked[0]]) / sampling.temperature) for token in ranked}
    probs = {token: weight / sum(weights.values()) for token, weight in weights.items() if weight > 0}
    mass, inside = 0.0, []
    for token in ranked:
        if token in probs and (mass < sampling.top_p or sampling.top_p == 1):
            inside.append(token)
            mass += probs[token]
    inside = [token for token in inside if probs[token] >= sampling.min_p * probs[ranked[0]]]
    left = sum(probs[token] for token in inside)
    return {token: probs[token] / left for token in inside}


def as_dict(got: Distribution) -> dict[int, float]:
    assert len(set(got.tokens.tolist())) == len(got.tokens), "a token twice"
    assert (got.probs > 0).all()
    return dict(zip(got.tokens.tolist(), got.probs.tolist(), strict=True))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.0),
        Sampling(temperature=0.3),
        Sampling(temperature=2.5),
        Sampling(temperature=1.0, top_k=1),
        Sampling(temperature=0.7, top_k=5),
        Sampling(temperature=0.7, top_k=500),
        Sampling(temperature=1.0, top_p=0.01),
        Sampling(temperature=1.0, top_p=0.6),
        Sampling(temperature=1.0, min_p=0.2),
        Sampling(temperature=1.0, min_p=1.0),
        Sampling(temperature=1.0, logit_bias=((2, -np.inf), (5, 3.0), (5, 1.0))),
        Sampling(logit_bias=((2, -np.inf), (5, 30.0))),
        Sampling(temperature=1.0, repetition_penalty=1.8),
        Sampling(temperature=1.0, presence_penalty=1.5),
        Sampling(temperature=1.0, frequency_penalty=0.7),
        Sampling(repetition_penalty=3.0, frequency_penalty=2.0),
        ALL_ON,
    ],
)
def test_filters_are_what_their_definitions_say(sampling: Sampling) -> None:
    random = np.random.default_rng(5)
    for _ in range(50):
        row = random.normal(0, 2, 20).astype(np.float32)
        recent = tuple(random.integers(0, 20, 12).tolist())
        given = sampling.recent(recent)
        got, want = as_dict(distribution(row, sampling, given)), brute(row, sampling, given)
        assert got.keys() == want.keys()
        assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("size", [64 * 40 * 4 - 1, 64 * 40 * 4, 32_003, 151_936])
@pytest.mark.parametrize("crowd", [0, 39, 40, 4000])
def test_the_likeliest_of_a_large_vocabulary_are_those_of_a_full_sort(size: int, crowd: int) -> None:
    """Vocabularies with banned tokens, and with likely ones side by side and in the last, incomplete block."""
    random = np.random.default_rng(0)
    row = random.standard_normal(size).astype(np.float32)
    row[random.permutation(size)[: size // 3]] = -np.inf
    row[size - crowd :] += 9
    ranked = np.argsort(-row, kind="stable")[:40]
    found = distribution(row, Sampling(temperature=1.0, top_k=40))
    assert sorted(found.tokens.tolist()) == sorted(ranked.tolist())


@pytest.mark.parametrize("share", [1e-6, 0.5, 0.95, 0.9999])
@pytest.mark.parametrize("steepness", [0.3, 1.1, 3.0])
def test_the_top_p_of_a_large_vocabulary_are_those_of_a_full_sort(share: float, steepness: float) -> None:
    """Tokens whose probabilities fall as a power of their rank, so that few or nearly all are kept."""
    ranks = np.random.default_rng(0).permutation(60_000)
    row = (-steepness * np.log(ranks + 1)).astype(np.float32)
    weights = np.exp(row[np.argsort(ranks)].astype(np.float64) / 0.8)
    kept = int(np.searchsorted(weights.cumsum() / weights.sum(), share)) + 1
    found = distribution(row, Sampling(temperature=0.8, top_p=share))
    assert abs(len(found.tokens) - kept) <= 1, "the sums may be rounded otherwise"
    assert sorted(ranks[found.tokens].tolist()) == list(range(len(found.tokens)))
    assert found.probs.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [0.0, 0.5, 4.0])
def test_a_draw_is_the_highest_sum_of_log_probability_and_noise(scale: float) -> None:
    random = np.random.default_rng(3)
    for position in range(40):
        choices = distribution(random.normal(0, scale, 5000).astype(np.float32), Sampling(temperature=1.0))
        scores = np.log(choices.probs) + gumbel(7, position, choices.tokens)
        assert draw(choices, 7, position, SHARED) == choices.tokens[scores.argmax()]


def test_a_probability_near_the_smallest_number_is_drawn_from_without_a_warning() -> None:
    rare = Distribution(np.array([3, 5, 8]), np.array([0.5, 5e-324, 0.5]))
    assert {draw(rare, seed, 1, SHARED) for seed in range(40)} == {3, 8}


def test_a_probability_that_is_too_small_for_a_number_is_never_drawn_and_gives_no_warning() -> None:
    """exp(-800) is 0. Seen on a card, where a column bans the tokens that a small model does not have."""
    probs = np.exp(np.array([-0.7, -800.0, -0.7, -800.0]))
    choices = Distribution(np.arange(4), probs / probs.sum())
    assert {draw(choices, 0, position, SHARED) for position in range(200)} == {0, 2}


def test_filters_look_at_what_the_one_before_left() -> None:
    """top-p of all tokens would keep three here; of the two that top-k left, it keeps one."""
    row = logits(0.5, 0.25, 0.15, 0.1)
    assert distribution(row, Sampling(temperature=1, top_p=0.66)).tokens.tolist() == [0, 1]
    assert distribution(row, Sampling(temperature=1, top_p=0.66, top_k=2)).tokens.tolist() == [0]


def test_temperature_comes_before_top_p_and_min_p() -> None:
    row = logits(0.5, 0.25, 0.15, 0.1)
    assert len(distribution(row, Sampling(temperature=1, top_p=0.74)).tokens) == 2
    assert len(distribution(row, Sampling(temperature=5, top_p=0.74)).tokens) == 3
    assert len(distribution(row, Sampling(temperature=1, min_p=0.4)).tokens) == 2
    assert len(distribution(row, Sampling(temperature=5, min_p=0.4)).tokens) == 4


def test_bias_comes_before_penalties() -> None:
    """A penalty divides or multiplies by the sign of the logit: the bias may change that sign."""
    row = np.array([-1.0, -1.5], dtype=np.float32)
    biased = Sampling(repetition_penalty=2.0, logit_bias=((0, 3.0), (1, 2.5)))
    assert pick(row, biased, 0, (0,)) == 0  # 2 / 2 = 1 against 1
    assert pick(row, Sampling(repetition_penalty=2.0, logit_bias=((0, 3.0), (1, 2.6))), 0, (0,)) == 1


def test_a_row_is_never_changed_in_place() -> None:
    """It is a view of the engine's own memory, and a sibling in a tree reads it again."""
    row = np.linspace(-2, 2, 30).astype(np.float32)
    before = row.copy()
    distribution(row, ALL_ON, (1, 2, 2))
    pick(row, Sampling(frequency_penalty=1.0), 0, (1, 2))
    assert (row == before).all()


def test_recent_is_a_window_and_nothing_without_penalties() -> None:
    assert Sampling().recent([1, 2, 3]) == ()
    assert Sampling(presence_penalty=1, penalty_window=2).recent([1, 2, 3]) == (2, 3)
    assert Sampling(presence_penalty=1, penalty_window=0).recent([1, 2, 3]) == ()
    assert Sampling(presence_penalty=1).recent(range(100)) == tuple(range(36, 100))


def test_a_banned_token_never_comes_even_if_it_is_the_likeliest() -> None:
    row = logits(0.97, 0.02, 0.01)
    ban = ((0, -np.inf),)
    assert pick(row, Sampling(logit_bias=ban), 0) == 1
    assert all(pick(row, Sampling(temperature=1, logit_bias=ban, seed=s), s) for s in range(200))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; it must be from 0 to 100"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1; it must be 0 or more"),
        ({"top_p": 0.0}, "above 0"),
        ({"top_p": 1.1}, "top_p is 1.1; it must be from 0 to 1"),
        ({"min_p": -1.0}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be from 0.0001 to 10000"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"repetition_penalty": 1e300}, "repetition_penalty"),
        ({"presence_penalty": 1e9}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"penalty_window": -1}, "penalty_window"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number, from 0 to 100"),
        ({"temperature": True}, "temperature is True; it must be a number"),
        ({"temperature": None}, "temperature is None"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"temperature": 10**5000}, "temperature is int that cannot be shown"),
        ({"temperature": 1j}, "temperature is 1j"),
        ({"top_k": 20.5}, "top_k is 20.5; it must be a whole number, from 0"),
        ({"top_k": "40"}, "top_k is '40'; it must be a whole number"),
        ({"top_k": False}, "top_k is False; it must be a whole number"),
        ({"top_k": float("nan")}, "top_k is nan; it must be a whole number"),
        ({"top_k": float("inf")}, "top_k is inf; it must be a whole number"),
        ({"top_k": 10**400}, "top_k is 1000"),
        ({"top_k": [40]}, r"top_k is \[40\]"),
        ({"top_p": "0.9"}, "top_p is '0.9'"),
        ({"min_p": [0.1]}, "min_p is"),
        ({"presence_penalty": "a\nb"}, "presence_penalty is"),
        ({"penalty_window": 1e300}, "penalty_window is 1000"),
        ({"seed": "7"}, "seed is '7'"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"logit_bias": ((1, 1e300),)}, "a logit bias is 1e[+]300; it must be from -1e[+]09 to 1e[+]09; -inf bans"),
        ({"logit_bias": ((1, "high"),)}, "a logit bias is 'high'"),
        ({"logit_bias": ((1, True),)}, "a logit bias is True"),
        ({"logit_bias": ((1.5, 1.0),)}, "the token of a logit bias is 1.5"),
        ({"logit_bias": (("a", 1.0),)}, "the token of a logit bias is 'a'"),
        ({"logit_bias": (1, 2)}, "logit_bias is .* pairs"),
        ({"logit_bias": ((1, 2.0, 3.0),)}, "logit_bias is .* pairs"),
        ({"logit_bias": 5}, "logit_bias is 5; it must be pairs"),
        ({"logit_bias": None}, "logit_bias is None; it must be pairs"),
        ({"logit_bias": ((1, float("nan")),)}, "logit bias"),
        ({"logit_bias": ((1, float("inf")),)}, "logit bias"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        Sampling(**options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_numbers_that_say_the_same_are_taken() -> None:
    """Files state a top_k of 20.0, and arrays hold numbers of NumPy."""
    given: dict[str, Any] = {"temperature": 1, "top_k": 20.0, "penalty_window": np.int64(8), "seed": np.float32(3)}
    given["logit_bias"] = [[np.int64(2), np.float32(-np.inf)], [1.0, 2]]
    sampling = Sampling(**given, min_p=np.float32(0.25))
    bias = ((2, -np.inf), (1, 2.0))
    assert sampling == Sampling(1.0, 20, min_p=0.25, penalty_window=8, logit_bias=bias, seed=3)
    numbers = [sampling.top_k, sampling.penalty_window, sampling.seed, *(token for token, _ in sampling.logit_bias)]
    assert {type(number) for number in numbers} == {int}
    assert type(sampling.min_p) is float


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-3, 1.0, 100.0])
def test_extreme_values_choose_a_token_without_a_warning(temperature: float) -> None:
    """Warnings are errors here."""
    row = np.array([-3e4, 0.0, 5.0, 3e4], dtype=np.float32)
    penalties: dict[str, Any] = {"presence_penalty": 100.0, "frequency_penalty": -100.0}
    for repetition in (1e-4, 1e4):
        for bias in (-1e9, 1e9, -np.inf):
            sampling = Sampling(
                temperature, repetition_penalty=repetition, logit_bias=((2, bias), (3, bias)), **penalties
            )
            choices = distribution(row, sampling, (0, 1, 2, 2, 3))
            assert choices.probs.sum() == pytest.approx(1)
            assert pick(row, sampling, 9, (0, 1, 2, 2, 3)) in choices.tokens
            assert picks(row, sampling, 9, (0, 1, 2, 2, 3), 2)
            if bias == -np.inf:
                assert not {2, 3} & set(choices.tokens.tolist())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_when_every_token_is_banned_none_is_chosen(temperature: float) -> None:
    row = logits(0.25, 0.25, 0.25, 0.25)
    sampling = Sampling(temperature, logit_bias=tuple((token, -np.inf) for token in range(4)))
    for choose in (
        lambda: distribution(row, sampling),
        lambda: pick(row, sampling, 0),
        lambda: picks(row, sampling, 0, (), 2),
    ):
        with pytest.raises(OptionError, match="logit_bias bans them all"):
            choose()


def test_the_ends_of_the_ranges_are_allowed() -> None:
    Sampling(temperature=100, top_k=10**9, top_p=1e-9, min_p=1, presence_penalty=-100, seed=(1 << 64) - 1)


def test_bias_for_a_token_that_is_not_there_is_refused() -> None:
    """A negative token would silently count from the end."""
    for token in (-1, 4):
        with pytest.raises(OptionError, match="tokens 0 to 3"):
            distribution(logits(0.25, 0.25, 0.25, 0.25), Sampling(temperature=1, logit_bias=((token, 1.0),)))


def test_sampling_fields_name_the_fields() -> None:
    assert SAMPLING_FIELDS[:2] == ("temperature", "top_k")
    assert set(SAMPLING_FIELDS) == set(Sampling.__slots__)


PROBS = (0.4, 0.3, 0.15, 0.1, 0.05)


@pytest.mark.parametrize("purpose", [SHARED, DRAFTING, RESIDUAL])
@pytest.mark.parametrize("vary", ["seed", "position"])
def test_draws_follow_the_distribution(purpose: int, vary: str) -> None:
    choices = Distribution(np.array([9, 4, 0, 77, 30]), np.array(PROBS))
    places = ((n, 3) if vary == "seed" else (3, n) for n in range(10000))
    drawn = count(draw(choices, seed, position, purpose) for seed, position in places)
    assert fits(drawn, dict(zip(choices.tokens.tolist(), PROBS, strict=True)))


@pytest.mark.parametrize(
    "other",
    [
        (1, 0, SHARED),
        (0, 1, SHARED),
        (0, 0, DRAFTING),
        (0, 0, ACCEPTING),
        (0, 0, RESIDUAL),
        (1 << 63, 0, SHARED),
    ],
)
def test_noise_of_another_seed_place_or_purpose_is_independent(other: tuple[int, int, int]) -> None:
    """Pairs of draws must fill their square evenly: a seed that is only added to the position would not."""
    tokens = np.arange(40000)
    here, there = uniform(0, 0, tokens, SHARED), uniform(*other[:2], tokens, other[2])
    cells = zip((here * 6).astype(int).tolist(), (there * 6).astype(int).tolist(), strict=True)
    assert fits(count(cells), dict.fromkeys(product(range(6), repeat=2), 1 / 36))


def test_noise_at_neighbouring_places_is_independent() -> None:
    """The same token at position n and n + 1, and token and position exchanged."""
    token = np.array([5])
    at = [float(uniform(0, n, token, SHARED)[0]) for n in range(20001)]
    pairs: list[tuple[int, ...]] = [(int(a * 5), int(b * 5)) for a, b in pairwise(at)]
    assert fits(count(pairs), dict.fromkeys(product(range(5), repeat=2), 1 / 25))
    assert uniform(0, 3, np.array([8]), SHARED) != uniform(0, 8, np.array([3]), SHARED)
    assert uniform(1, 2, token, SHARED) != uniform(2, 1, token, SHARED)


def test_noise_is_inside_the_open_interval_and_reproducible() -> None:
    tokens = np.arange(50000)
    noise = uniform(11, 4, tokens, SHARED)
    assert 0 < noise.min() < 1e-4
    assert 1 - 1e-4 < noise.max() < 1
    assert (noise == uniform(11, 4, tokens, SHARED)).all()
    assert np.isfinite(gumbel(11, 4, tokens)).all()
    picked = noise[[7, 3, 40000]]
    assert (uniform(11, 4, np.array([7, 3, 40000]), SHARED) == picked).all(), "noise must belong to the token alone"


def test_noise_is_the_same_on_every_machine() -> None:
    """A seed is a promise across versions: these numbers must never change."""
    noise = uniform(42, 7, np.array([0, 1, 151935]), SHARED)
    assert noise.tolist() == pytest.approx([0.938127353204413, 0.02137608223599713, 0.3368162163016765])


def test_chances_come_true_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(happens(0.3, seed, 4, 1) for seed in range(10000)) == pytest.approx(3000, abs=140)
    assert not any(happens(0.0, seed, 4, 1) for seed in range(1000))
    monkeypatch.setattr("edgespec.sampling.uniform", lambda *_: np.ones(1))  # the greatest number there is, rounded
    assert happens(1.0, 0, 4, 1)


def test_rounds_have_seeds_of_their_own() -> None:
    assert len({round_seed(seed, start) for seed in range(30) for start in range(30)}) == 900


def test_models_that_share_the_noise_agree_often() -> None:
    """The point of `match`: independent draws would agree in sum(p * q) = .3 of the cases."""
    p, q = logits(*PROBS), logits(0.3, 0.4, 0.1, 0.15, 0.05)
    agreed = sum(pick(p, s, n) == pick(q, s, n) for s in [Sampling(temperature=1)] for n in range(4000))
    assert 0.74 < agreed / 4000 < 0.85


@pytest.mark.parametrize("vocab", [5, 300, 40_000])
@pytest.mark.parametrize("most", [1, 4, 8])
def test_the_likeliest_tokens_of_rows(vocab: int, most: int) -> None:
    rows = np.random.default_rng(vocab).normal(size=(3, vocab)).astype(np.float32) * 3
    rows[1, : vocab // 2] = -np.inf
    top = likeliest(rows, most)
    assert top.tokens.shape == top.probs.shape == (3, min(most, vocab))
    for row, tokens, probs in zip(rows.astype(np.float64), top.tokens, top.probs, strict=True):
        assert row[tokens].tolist() == sorted(row.tolist(), reverse=True)[:most]
        np.testing.assert_allclose(
            probs, np.exp(row[tokens]) / np.exp(row).sum(), rtol=1e-4 if vocab < 40_000 else 0.05
        )
