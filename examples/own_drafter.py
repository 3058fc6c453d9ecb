"""A drafter of your own: what mostly followed the last two tokens, or the last one, in all that it has read."""

# Run it on the demo pair, or on the model that you name: python examples/own_drafter.py [MODEL]
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

import edgespec
from edgespec import Guess, RoundContext, Target


class Bigrams(edgespec.Drafter):
    name = "bigrams"

    def __init__(self, target: Target) -> None:  # noqa: ARG002 - it needs to know nothing
        self.followed: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        self.read: list[int] = []

    def begin(self, round_context: RoundContext) -> None:
        self.is_eog, context = round_context.is_eog, list(round_context.tokens)
        known = len(self.read) if context[: len(self.read)] == self.read else 0  # else it is another text
        for n in range(max(1, known), len(context)):
            for start in {max(0, n - 2), n - 1}:
                self.followed[tuple(context[start:n])][context[n]] += 1
        self.read = context

    def guess(self, path: Sequence[int], most: int) -> Sequence[Guess]:
        last = (*self.read[-2:], *path)[-2:]
        if path and self.is_eog(path[-1]):
            return []
        counts = self.followed.get(last) or self.followed.get(last[-1:]) or Counter()
        return [Guess(token, n / (1 + counts.total())) for token, n in counts.most_common(most)]


if __name__ == "__main__":
    prompt = "The lazy dog, the lazy dog, the lazy dog, the"
    with edgespec.load(sys.argv[1] if sys.argv[1:] else "demo", drafters=[Bigrams]) as runtime:
        for event in runtime.complete(prompt, max_tokens=100, speculation=edgespec.Speculation(("bigrams",), 3)):
            if isinstance(event, edgespec.Finished):
                print({name: f"{right} of {guessed}" for name, (guessed, right) in event.stats.by_drafter.items()})
