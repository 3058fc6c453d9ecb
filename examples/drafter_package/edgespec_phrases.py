"""A drafter that knows phrases by heart: once the text has begun one, it guesses the rest.

The phrases are those of a booking desk; write your own.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec import Drafter, Guess, RoundContext, Target

PHRASES = (
    "What time do you want to eat?",
    "Is there anything else I can help you with?",
    "Please confirm the following details:",
    "Have a good day.",
)
_BEGUN = 2  # tokens of a phrase that must stand in the text before the rest is guessed


class Phrases(Drafter):
    name = "phrases"

    def __init__(self, target: Target) -> None:
        spelled = [text for phrase in PHRASES for text in (phrase, f" {phrase}")]
        self._phrases = [tuple(target.vocabulary.tokenize(text)) for text in spelled]
        self._longest = max(map(len, self._phrases))
        self._place: RoundContext | None = None

    def begin(self, round_context: RoundContext) -> None:
        self._place = round_context

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        if self._place is None or (path and self._place.is_eog(path[-1])):
            return ()
        text = (*self._place.tokens[-self._longest :], *path)
        found: dict[int, Guess] = {}
        for phrase in self._phrases:
            for begun in range(min(len(phrase) - 1, len(text)), _BEGUN - 1, -1):
                if text[-begun:] == phrase[:begun]:
                    found.setdefault(phrase[begun], Guess(phrase[begun], begun / len(phrase)))
                    break
        return sorted(found.values(), key=lambda guess: -guess.confidence)[:most]
