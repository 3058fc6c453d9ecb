"""Sampling: from logits to a distribution, and from a distribution to a token.

Filters are applied in the order logit bias, penalties, temperature, top-k, top-p, min-p; each of the last three is
applied to the tokens that the one before kept.

The noise is a pure function of (seed, position, token), not a stream of random numbers.
`argmax(log p + gumbel(seed, position, token))` is an exact sample from p (the Gumbel-max trick), and two models that
share the noise choose the same token with high probability without communicating: "drafter-invariant speculative
decoding", Daliri, Musco and Suresh, 2024. The same seed gives the same text, whichever tokens were drafted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import OptionError
from .types import Distribution, Doubles, Floats, Ints, Top
from .values import MOST, real, shown, whole

# The purposes of random numbers. Numbers for different purposes at one position must be independent.
SHARED, DRAFTING, ACCEPTING, RESIDUAL, _ROUND, _PURPOSES = range(6)

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# The same constants and the shifts as NumPy scalars: converting them takes longer than using them.
_ONE, _STEP, _FIRST, _SECOND = (np.uint64(word) for word in (1, _GAMMA, *_MIX))
_11, _27, _30, _31 = (np.uint64(shift) for shift in (11, 27, 30, 31))

_STRONGEST = 1e9  # a logit bias: added to any logit, the sum stays within the range of a float32
_COLDEST = 1e-30  # a lower temperature gives the same tokens, and logits divided by it overflow a float64
_BLOCK = 64  # tokens of a large vocabulary of which only the maximum is compared at first
_EXACT = 1 << 15  # the largest vocabulary whose probabilities are exact in `likeliest`
_SAMPLED = 16  # in a larger one, one of so many probabilities is computed
_MANY = 4  # blocks per requested token from which on that is faster
_WIDER = 4  # times as many of the likeliest tokens are looked at where those before had too little probability
_NEAR = 1 + 1e-9  # more than what float64 rounds


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled. The default is greedy decoding.

    Whole numbers may be given as floats, as in some model files: `Sampling(**runtime.sampling)` works.

    Args:
        temperature: 0 takes the likeliest token; 1 is the model's own distribution.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens whose probabilities sum to this (Holtzman et al. 2020).
        min_p: keep tokens whose probability is at least this share of the likeliest one's (Nguyen et al. 2024).
        repetition_penalty: divides positive and multiplies negative logits of recent tokens (Keskar et al. 2019).
        presence_penalty: subtracted once from the logit of each recent token.
        frequency_penalty: subtracted once per recent occurrence.
        penalty_window: how many of the newest tokens count as recent.
        logit_bias: pairs (token, addend), each from -1e9 to 1e9; -inf bans a token.
        seed: the same seed gives the same text.

    Raises:
        OptionError: a value that is not a number, or outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in _REALS.items():
            object.__setattr__(self, name, real(name, getattr(self, name), low, high))
        for name, most in _WHOLES.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), 0, most))
        if self.top_p == 0:
            raise OptionError("top_p is 0; it must be above 0, and 1 switches it off")
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always chosen."""
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Whether logits depend on the tokens before through a penalty."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def check(self, vocab: int) -> None:
        """Raises OptionError if the logit bias has a token outside a vocabulary of size `vocab`, or bans all tokens."""
        for token, _ in self.logit_bias:
            _require_token(token, vocab)
        if len({token for token, bias in self.logit_bias if bias == -np.inf}) == vocab:
            _require_choice(-np.inf)

    def recent(self, context: Sequence[int], drafted: Sequence[int] = ()) -> tuple[int, ...]:
        """The tokens that penalties apply to after `context` and `drafted`; empty without penalties, which costs
        nothing."""
        if not (self.penalises and self.penalty_window):
            return ()
        return (*context[-self.penalty_window :], *drafted)[-self.penalty_window :]


_REALS: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (1e-4, 1e4),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
}
_WHOLES = {"top_k": MOST, "penalty_window": MOST, "seed": _WORD}
SAMPLING_FIELDS = tuple(field.name for field in fields(Sampling))


def _biases(given: Any) -> tuple[tuple[int, float], ...]:
    """A logit bias as pairs. Raises OptionError."""
    if isinstance(given, Mapping):
        raise OptionError("logit_bias takes pairs, not a mapping: tuple(biases.items())")
    try:
        pairs = [(token, bias) for token, bias in given]
    except (TypeError, ValueError):
        raise OptionError(f"logit_bias is {shown(given)}; it must be pairs (token, addend)") from None
    return tuple((whole("the token of a logit bias", token, -MOST), _bias(bias)) for token, bias in pairs)


def _bias(bias: Any) -> float:
    if isinstance(bias, float | np.floating) and bias == -np.inf:
        return -np.inf
    try:
        return real("a logit bias", bias, -_STRONGEST, _STRONGEST)
    except OptionError as error:
        raise OptionError(f"{error}; -inf bans a token") from None


def distribution(row: Floats, sampling: Sampling, recent: Sequence[int] = ()) -> Distribution:
    """The distribution from which the next token is sampled.

    Args:
        row: logits, float32 [vocabulary].
        recent: the result of `sampling.recent` for the tokens before.

    Raises:
        OptionError: the logit bias bans every token, or has a token outside the vocabulary.
    """
    row = adjusted(row, sampling, recent)
    if sampling.greedy:
        return Distribution(np.array([_likeliest(row)], dtype=np.int64), np.ones(1))
    tokens, logits = _top_k(row, sampling.top_k)
    weights = _weights(logits, sampling.temperature)
    if sampling.top_p < 1:
        kept = _top_p(logits, weights, sampling.top_p)
        tokens, weights = tokens[kept], weights[kept]
    keep = weights >= sampling.min_p if sampling.min_p > 0 else weights > 0
    if not keep.all():
        tokens, weights = tokens[keep], weights[keep]
    return Distribution(tokens, weights / weights.sum())


def _weights(logits: Floats, temperature: float) -> Doubles:
    """Probabilities at `temperature` over that of the likeliest token, float64 [c]."""
    scaled = logits.astype(np.float64)
    highest = scaled.max()
    _require_choice(highest)
    scaled -= highest
    scaled /= max(temperature, _COLDEST)
    weights: Doubles = np.exp(scaled, out=scaled)
    return weights


def _top_p(logits: Floats, weights: Doubles, share: float) -> Ints:
    """The indices of the likeliest tokens that have `share` of all weight together, the likeliest first. The token at
    which the sum reaches it is kept: the mass kept is at least `share`."""
    wanted, near = share * weights.sum(), np.empty(0, np.int64)
    count = _BLOCK
    while len(near) < len(logits):
        # To sort a whole vocabulary takes longer than all the rest.
        near = _near_top(logits, count) if _MANY * count * _BLOCK <= len(logits) else np.arange(len(logits))
        if weights[near].sum() >= wanted:
            break
        count *= _WIDER
    near = near[logits[near].argsort()[::-1]]
    reached = weights[near].cumsum()
    return near[: int(reached.searchsorted(min(wanted, reached[-1]))) + 1]


def pick(row: Floats, sampling: Sampling, position: int, recent: Sequence[int] = ()) -> int:
    """The token sampled from the logits `row` for `position`, by the noise that target and drafters share."""
    if sampling.greedy:
        return _likeliest(adjusted(row, sampling, recent))
    return draw(distribution(row, sampling, recent), sampling.seed, position, SHARED)


def picks(row: Floats, sampling: Sampling, position: int, recent: Sequence[int], most: int) -> list[tuple[int, float]]:
    """The token that `pick` takes, the one that it would take if that were banned, and so on: at most `most` pairs of
    token and probability.

    For greedy sampling the probabilities are those at temperature 1, as a measure of confidence.
    """
    if sampling.greedy:
        row = adjusted(row, sampling, recent)
        highest = row.max()
        _require_choice(highest)
        weights = np.exp(row - highest)
        tokens = _best(weights, most)
        return list(zip(tokens.tolist(), (weights[tokens] / weights.sum()).tolist(), strict=True))
    choices = distribution(row, sampling, recent)
    scores = np.log(choices.probs) + gumbel(sampling.seed, position, choices.tokens, SHARED)
    best = _best(scores, most)
    return list(zip(choices.tokens[best].tolist(), choices.probs[best].tolist(), strict=True))


def _likeliest(row: Floats) -> int:
    token = int(row.argmax())
    _require_choice(row[token])
    return token


def _require_token(token: int, vocab: int) -> None:
    if not 0 <= token < vocab:
        raise OptionError(f"logit bias for token {token}, but the vocabulary has tokens 0 to {vocab - 1}")


def _require_choice(highest: Any) -> None:
    """Raises OptionError if the highest logit is -inf: no token can be chosen."""
    if highest == -np.inf:
        raise OptionError(
            "no token is left to choose: logit_bias bans them all, or all that the grammar allows; leave at least one"
        )


def _best(values: npt.NDArray[np.floating[Any]], most: int) -> Ints:
    """The indices of the `most` largest of `values`, the largest first; ties as in `argmax`."""
    values = values.copy()
    best = np.empty(min(most, len(values)), dtype=np.int64)
    for i in range(len(best)):  # faster than sorting for the two or three that are requested
        best[i] = values.argmax()
        values[best[i]] = -np.inf
    return best


def draw(choices: Distribution, seed: int, position: int, purpose: int) -> int:
    """One token sampled exactly from `choices`."""
    if len(choices.tokens) == 1:
        return int(choices.tokens[0])
    noise = uniform(seed, position, choices.tokens, purpose)
    # argmax(log p + gumbel) is argmin(-log u / p), and -log u >= 1 - u: a large vocabulary needs few logarithms.
    # Infinity is right where a probability is 0 or near the smallest number.
    with np.errstate(over="ignore", divide="ignore"):
        least = (1.0 - noise) / choices.probs
    first = int(least.argmin())
    near = np.flatnonzero(least <= _NEAR * -np.log(noise[first]) / choices.probs[first])
    scores = np.log(choices.probs[near]) - np.log(-np.log(noise[near]))
    return int(choices.tokens[near[scores.argmax()]])


def happens(chance: float, seed: int, position: int, node: int) -> bool:
    """True with probability `chance`, by the random number of `node` of a draft: always from 1 on, never at 0."""
    return chance >= 1 or bool(uniform(seed, position, np.array([node], dtype=np.int64), ACCEPTING)[0] < chance)


def drafting(stream: int) -> int:
    """The purpose of what the drafter number `stream` of a round draws: no two of them share random numbers."""
    return DRAFTING + _PURPOSES * stream


def round_seed(seed: int, start: int) -> int:
    """The seed of the random numbers that belong only to the round after `start` committed tokens."""
    return _key(seed, start, _ROUND)


def gumbel(seed: int, position: int, tokens: Ints, purpose: int = SHARED) -> Doubles:
    """Standard Gumbel noise, float64 [c], one number per token of `tokens` [c]."""
    noise: Doubles = -np.log(-np.log(uniform(seed, position, tokens, purpose)))
    return noise


def uniform(seed: int, position: int, tokens: Ints, purpose: int) -> Doubles:
    """Uniform noise in (0, 1), float64 [c], one number per token of `tokens` [c].

    SplitMix64 (Steele, Lea and Flood 2014): seed, purpose and position determine the state, the token its index.
    """
    key = _key(seed, position, purpose)
    words = tokens.astype(np.uint64)  # unsigned arithmetic of NumPy wraps around, as SplitMix64 requires
    words += _ONE
    words *= _STEP
    words += np.uint64(key)
    words ^= words >> _30
    words *= _FIRST
    words ^= words >> _27
    words *= _SECOND
    words ^= words >> _31
    # Half a step from both ends: 0 and 1 must not occur, because their logarithms are infinite.
    numbers: Doubles = ((words >> _11).astype(np.float64) + 0.5) * 2.0**-53
    return numbers


def _key(seed: int, position: int, purpose: int) -> int:
    return _mix_int(_mix_int(_mix_int(seed + _GAMMA) + purpose * _GAMMA) + position * _GAMMA)


def _mix_int(word: int) -> int:
    word &= _WORD
    word = (word ^ (word >> 30)) * _MIX[0] & _WORD
    word = (word ^ (word >> 27)) * _MIX[1] & _WORD
    return word ^ (word >> 31)


def adjusted(row: Floats, sampling: Sampling, recent: Sequence[int]) -> Floats:
    """The logits `row` with logit bias and penalties applied; `row` itself if there are none.

    Raises:
        OptionError: a logit bias for a token outside the vocabulary.
    """
    if not sampling.logit_bias and not recent:
        return row
    row = row.copy()
    for token, bias in sampling.logit_bias:
        _require_token(token, len(row))
        row[token] += bias
    if recent:
        counts = Counter(recent)
        tokens = np.fromiter(counts, dtype=np.int64)
        logits = row[tokens]
        logits = np.where(logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty)
        often = np.fromiter(counts.values(), dtype=np.float32)
        row[tokens] = logits - sampling.presence_penalty - sampling.frequency_penalty * often
    return row


def _top_k(row: Floats, k: int) -> tuple[Ints, Floats]:
    if not 0 < k < len(row):
        return np.arange(len(row), dtype=np.int64), row
    if len(row) < _MANY * k * _BLOCK:
        tokens = np.argpartition(row, -k)[-k:].astype(np.int64)
    else:
        near = _near_top(row, k)
        tokens = near[np.argpartition(row[near], -k)[-k:]]
    return tokens, row[tokens]


def likeliest(rows: Floats, most: int) -> Top:
    """The `most` likeliest tokens by each row of logits, float32 [n, vocabulary]; all if the vocabulary is smaller.

    In a vocabulary above 32768 the probabilities are estimates, a few percent off.
    """
    most = min(most, rows.shape[1])
    tokens, probs = np.empty((len(rows), most), np.int64), np.empty((len(rows), most))
    for n, row in enumerate(rows):
        found, values = _top_k(row, most)
        order = np.argsort(-values, kind="stable")
        tokens[n] = found[order]
        weights = np.exp(values[order] - values[order[0]])
        probs[n] = weights / max(_total_weight(row, values[order[0]]), float(weights.sum()))
    return Top(tokens, probs)


def _total_weight(row: Floats, highest: np.float32) -> float:
    """The sum of exp(row - highest).

    Exponentials of a large vocabulary would take most of the time of `likeliest`. There the likeliest token of each
    block is counted, and one in `_SAMPLED` of the others stands for all.
    """
    if len(row) <= _EXACT:
        return float(np.exp(row - highest).sum())
    blocks = row[: len(row) // _BLOCK * _BLOCK].reshape(_BLOCK, -1)
    best = blocks.max(axis=0)
    sampled = blocks[:, ::_SAMPLED]
    others = np.exp(sampled[sampled < best[::_SAMPLED]] - highest)
    return float(np.exp(best - highest).sum() + (others.mean() * (len(row) - len(best)) if len(others) else 0.0))


def _near_top(row: Floats, k: int) -> Ints:
    """A superset of the k likeliest tokens, small for a large vocabulary, so that only few need to be sorted."""
    blocks = len(row) // _BLOCK
    best = (
        row[: blocks * _BLOCK].reshape(_BLOCK, blocks).max(axis=0)
    )  # each block is a stride of the row, so this is vectorized
    # k blocks have a token that is at least as likely as this threshold, so each of the k likeliest is.
    return np.flatnonzero(row >= np.partition(best, -k)[-k])


def stated(field: str, value: Any) -> float | None:
    """The value of a model file for a field of `Sampling`, converted; None if it is not valid."""
    try:
        found: float = getattr(Sampling(**{field: value}), field)
    except OptionError:
        return None
    return found
