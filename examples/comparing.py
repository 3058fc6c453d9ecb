"""Answer one question by plain decoding and with speculation, and compare the text and the number of passes.

    python examples/comparing.py [MODEL]

With one seed the text is the same whatever is drafted. One exception: engines compute logits a little differently in
passes of different width, which may decide between two tokens that are almost equally likely. `edgespec check` finds
such places, and `edgespec.Device(exact=4)` makes logits the same to the last bit on the CPU.
"""

from __future__ import annotations

import sys

import edgespec
from edgespec import models

MESSAGES = [{"role": "user", "content": "Please book a taxi from the station to the museum."}]
SAMPLING = edgespec.Sampling(temperature=0.7, seed=1)
WAYS = {
    "plain": edgespec.Speculation(k=0),
    "adaptive": edgespec.Speculation(),
    "K = 3": edgespec.Speculation(k=3),
}


def answer(runtime: edgespec.Runtime, speculation: edgespec.Speculation) -> tuple[str, int]:
    """The text of the answer, and how many passes of the target it took."""
    text, passes = "", 0
    for event in runtime.chat(MESSAGES, SAMPLING, max_tokens=60, speculation=speculation):
        if isinstance(event, edgespec.Text):
            text += event.text
        elif isinstance(event, edgespec.Finished):
            passes = event.stats.rounds
    return text, passes


def main(model: str = "") -> None:
    with edgespec.load(model or models.demo().target, device=edgespec.Device(exact=4)) as runtime:
        for name, speculation in WAYS.items():
            text, passes = answer(runtime, speculation)
            print(f"{name:>8}: {passes} passes: {text}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except edgespec.EdgespecError as error:
        sys.exit(f"Error: {error}")
