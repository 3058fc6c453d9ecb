"""Two answers at once on an event loop: each conversation has a runtime of its own over the same weights.

    python examples/asyncio_chat.py [MODEL]

The second answer is stopped after some rounds, and the first one goes on.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

import edgespec
from edgespec import aio, models


async def answer(runtime: edgespec.Runtime, question: str, most_rounds: int | None = None) -> str:
    """The answer to a question, or its first rounds."""
    text, rounds = "", 0
    async with aclosing(aio.chat(runtime, [{"role": "user", "content": question}], max_tokens=40)) as events:
        async for event in events:
            if isinstance(event, edgespec.Text):
                text, rounds = text + event.text, rounds + 1
                if rounds == most_rounds:
                    return text + " [stopped]"
    return text


async def main(model: str = "") -> None:
    with edgespec.load(model or models.demo().target) as first, first.another() as second:
        answers = await asyncio.gather(
            answer(first, "I need a table for two in Oakland tonight."),
            answer(second, "I want to go to the cinema.", most_rounds=2),
        )
    for number, text in enumerate(answers, 1):
        print(f"{number}: {text}")


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except edgespec.EdgespecError as error:
        sys.exit(f"Error: {error}")
