"""What is trained when: copying of short texts first, then all tasks, then longer texts and dialogues.

The last stage is for a target whose training ended, and which is refined in what it does worst.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .packing import Chat
from .sources import Record
from .tasks import Maker, Texts

DIALOGUE = "dialogue"


@dataclass(frozen=True)
class Stage:
    """From this part of the training on (0 to 1): the shares of the tasks, and the longest passages, in words."""

    start: float
    shares: dict[str, int]
    longest: int


STAGES = (
    Stage(0.0, {"repeat": 8, "rewrite": 8, "quote": 2, "list": 1, "json": 1, "talk": 1}, 24),
    Stage(
        0.2,
        {"repeat": 4, "rewrite": 8, "quote": 3, "summarise": 2, "list": 2, "json": 3, "talk": 4, DIALOGUE: 1},
        40,
    ),
    Stage(
        0.6,
        {"repeat": 3, "rewrite": 7, "quote": 3, "summarise": 2, "list": 2, "json": 3, "talk": 5, DIALOGUE: 2},
        70,
    ),
    Stage(
        1.0,
        {"repeat": 3, "rewrite": 18, "quote": 4, "summarise": 1, "list": 3, "json": 2, "talk": 2, DIALOGUE: 4},
        70,
    ),
)


def chats(source: Texts, dialogues: list[Record], rng: random.Random, progress: Callable[[], float]) -> Iterator[Chat]:
    """Chats for ever, by the stage that `progress` (0 to 1) is in."""
    maker = Maker(source, rng)
    while True:
        now = progress()
        stage = [each for each in STAGES if each.start <= now][-1]
        maker.longest = stage.longest
        task = rng.choices(list(stage.shares), list(stage.shares.values()))[0]
        if task == DIALOGUE:
            yield rng.choice(dialogues)["messages"]
            continue
        case = maker.case(task)
        yield [{"role": "user", "content": case.prompt}, {"role": "assistant", "content": case.answer}]
