"""What a suffix automaton must say, by looking everywhere."""

from __future__ import annotations

from collections.abc import Sequence

Text = tuple[int, ...]


class Beginnings:
    """All beginnings of the texts read: two texts that begin alike are one up to where they part."""

    def __init__(self) -> None:
        self.text: Text = ()
        self._read_at: dict[Text, int] = {}

    def __len__(self) -> int:
        return len(self._read_at)

    def rewind(self, length: int) -> None:
        self.text = self.text[:length]

    def append(self, token: int) -> None:
        self.text = (*self.text, token)
        self._read_at.setdefault(self.text, len(self._read_at))

    def occurs(self, said: Text) -> int:
        return sum(begins[len(begins) - len(said) :] == said for begins in self._read_at if len(begins) >= len(said))

    def after(self, said: Text) -> dict[int, int]:
        """How often each token followed, the newest first."""
        at: dict[int, list[int]] = {}
        for begins, when in self._read_at.items():
            if len(begins) > len(said) and begins[len(begins) - 1 - len(said) : -1] == said:
                at.setdefault(begins[-1], []).append(when)
        return {token: len(at[token]) for token in sorted(at, key=lambda token: -max(at[token]))}

    def longest(self, path: Sequence[int] = ()) -> Text:
        """The longest end of the text and `path` that something followed."""
        said = (*self.text, *path)
        return next(said[i:] for i in range(len(said) + 1) if i == len(said) or self.after(said[i:]))

    def shorter(self, said: Text) -> Text:
        """The longest end of `said` that occurs more often."""
        often = self.occurs(said)
        return next(said[i:] for i in range(1, len(said) + 1) if i == len(said) or self.occurs(said[i:]) > often)
