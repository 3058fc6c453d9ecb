"""Stream an answer, then print what speculation did for it.

    python examples/streaming.py [MODEL] [QUESTION]

MODEL is a GGUF file, the folder of an ONNX model, or the folder of a pair; without one it is the bundled demo pair.
"""

from __future__ import annotations

import sys

import edgespec
from edgespec import models


def main(model: str = "", question: str = "I need a table for two in Oakland tonight.") -> None:
    with edgespec.load(model or models.demo().target) as runtime:
        for event in runtime.chat([{"role": "user", "content": question}], max_tokens=60):
            if isinstance(event, edgespec.Text):
                print(event.text, end="", flush=True)
            elif isinstance(event, edgespec.Finished):
                stats = event.stats
                print(f"\n[{stats.tokens} tokens in {stats.rounds} passes; ended by: {event.reason}]")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except edgespec.EdgespecError as error:
        sys.exit(f"Error: {error}")
