"""The trained pair that tests run on: tests/pair, a target of 15 million parameters and its draft of 2 million.

It is smaller than the bundled demo pair, so that thousands of tests take minutes.
"""

from __future__ import annotations

from pathlib import Path

from edgespec.models import Pair

_FOLDER = Path(__file__).parent / "pair"
SMALL_PAIR = Pair(_FOLDER / "target.gguf", (_FOLDER / "draft.gguf",))
