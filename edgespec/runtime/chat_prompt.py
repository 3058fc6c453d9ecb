"""The prompt of a chat: the messages as tokens, without the oldest turns where they exceed the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import OptionError
from ..text.template import Message, checked

#: Roles of a first message that is never dropped.
_LEADING = ("system", "developer")


def checked_messages(messages: Any) -> Sequence[Message]:
    """`messages`, each checked.

    Raises:
        OptionError: it is not a list of messages, or an empty one.
    """
    if not messages or not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise OptionError('no messages to answer; give a list of them, the last {"role": "user", "content": ...}')
    return [checked(message) for message in messages]


def fitted_prompt(
    render: Callable[[Sequence[Message]], list[int]], messages: Sequence[Message], room: int
) -> tuple[list[int], int]:
    """The tokens of `messages` without the oldest turns that exceed `room`, and the number of messages dropped.

    A turn is a user's message with all that follows it up to the next one: templates require a user's message first,
    and the result of a tool call needs the call. A leading system message and the last turn are never dropped,
    so the prompt may still be longer than `room`. Turns are dropped in blocks: as long as the same ones are dropped,
    the next prompt begins with the same tokens, and the KV cache is reused.

    Args:
        render: returns the tokens of messages; what it raises is not caught.
        room: tokens that the prompt should have at most.
    """
    first = 1 if messages[0].get("role") in _LEADING else 0
    starts = [first, *(i for i in range(first + 1, len(messages)) if messages[i].get("role") == "user")]
    turns = len(starts) - 1  # that may be dropped

    def without(dropped: int) -> list[int]:
        return render([*messages[:first], *messages[starts[dropped] :]])

    tokens = without(0)
    if len(tokens) <= room or not turns:
        return tokens, 0
    fewest = bisect_left(range(turns), True, key=lambda dropped: len(without(dropped)) <= room)
    block = 1 << max(0, ((turns - fewest) // 3).bit_length() - 1)
    dropped = min(turns, -(-fewest // block) * block)
    return without(dropped), starts[dropped] - first
