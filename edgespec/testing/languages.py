"""Rules (functions from a context to logits) for toy models, and their output by plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from ..backends.toy import Bytes, Rule, ngram_rule
from ..sampling import Sampling, distribution, pick
from ..types import Floats
from ..verify import RoundContext, verifier

#: All filters and penalties together.
ALL_ON = Sampling(
    temperature=0.8,
    top_k=12,
    top_p=0.95,
    min_p=0.02,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    penalty_window=16,
    logit_bias=((3, 1.5), (4, -np.inf)),
    seed=7,
)

_LOUD = 6.0  # the logit of the script's token above the noise


class Letters:
    """A vocabulary of a few letters, small enough to enumerate all texts. There is no end-of-generation token."""

    bos: int | None = None
    eos: int | None = None
    template: str | None = None

    def __init__(self, letters: str = "abc") -> None:
        self._letters = letters
        self.size = len(letters)

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:  # noqa: ARG002
        """The letters of `text` that are in the vocabulary; others are dropped."""
        return [self._letters.index(letter) for letter in text if letter in self._letters]

    def token_bytes(self, token: int) -> bytes:
        return self._letters[token].encode()

    def label(self, token: int) -> str:
        return self._letters[token]

    def is_eog(self, token: int) -> bool:  # noqa: ARG002
        return False

    def specials(self) -> Sequence[str]:
        return ()


def never(_token: int) -> bool:
    """An `is_eog` for texts that do not end."""
    return False


def logits(*probs: float) -> Floats:
    """Logits with these probabilities, float32 [vocab]."""
    with np.errstate(divide="ignore"):
        row: Floats = np.log(np.array(probs)).astype(np.float32)
    return row


def table(rows: Mapping[tuple[int, ...], Sequence[float]], default: Sequence[float], skip: int = 0) -> Rule:
    """A rule with the probabilities of `rows` by the whole text after the first `skip` tokens, `default` for others."""
    known = {text: logits(*probs) for text, probs in rows.items()}
    other = logits(*default)
    return lambda context: known.get(tuple(context[skip:]), other)


def noisy_script(script: Sequence[int], vocab: int = Bytes.size, loud: float = _LOUD) -> Rule:
    """A rule that repeats `script` by the length of the context, with noise by the last two tokens.

    Greedy decoding gives the script; at temperature 0.8 about one token in four differs, with a vocabulary of 259
    tokens.
    """
    noise = ngram_rule(vocab, order=2, seed=7, sharpness=0.5)

    def rule(context: Sequence[int]) -> Floats:
        row: Floats = noise(context).copy()
        row[script[len(context) % len(script)]] += loud
        return row

    return rule


def decode_plain(
    rule: Rule, prompt: Sequence[int], sampling: Sampling, n: int, is_eog: Callable[[int], bool] = never
) -> list[int]:
    """Plain decoding of a rule, independent of the engine: `n` tokens at most, the expected output."""
    context = list(prompt)
    while len(context) < len(prompt) + n:
        context.append(pick(rule(context), sampling, len(context), sampling.recent(context)))
        if is_eog(context[-1]):
            break
    return context[len(prompt) :]


def text_probabilities(
    target: Rule, vocab: int, context: Sequence[int], sampling: Sampling, n: int
) -> dict[tuple[int, ...], float]:
    """The probability of each text of `n` tokens after `context`."""
    probs: dict[tuple[int, ...], float] = {}
    for text in product(range(vocab), repeat=n):
        probs[text] = 1.0
        for at in range(n):
            above = (*context, *text[:at])
            probs[text] *= distribution(target(above), sampling, sampling.recent(above)).of(text[at])
    return probs


def make_round_context(
    context: Sequence[int] = (1, 2, 3),
    sampling: Sampling | None = None,
    rule: str = "match",
    is_eog: Callable[[int], bool] = never,
) -> RoundContext:
    """A `RoundContext` for `Drafter.begin`, by default greedy and without an end of the text. `rule` is the
    verifier."""
    return RoundContext(verifier(rule), sampling or Sampling(), context, is_eog)
