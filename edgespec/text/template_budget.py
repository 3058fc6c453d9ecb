"""The budget of one rendering of a template, for time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from jinja2.utils import Namespace

from ..errors import Interrupted, TemplateError

STEP = 64  # the cost of a step, relative to 1 for a character: about a microsecond, or some 400 bytes
NODE = 16  # the cost of a node of an expression
ITEM = 8  # the cost of an item of a list, without its text
#: The budget. Known templates take at most 40 per character of long messages, and 16 000 per value of 3 000 short ones.
_BASE, _PER_CHARACTER, _PER_VALUE, _MOST = 1 << 25, 128, 1 << 14, 1 << 29
#: The most characters of a prompt, which is tokenized as a whole. The longest known templates add a tenth of it.
_PROMPT, _PROMPT_PER_CHARACTER, _PROMPT_PER_VALUE = 1 << 18, 8, 1 << 10
_SECONDS = 20.0  # CPU time of the thread, in case the cost of a step was underestimated
_POLL = 64  # charges between two readings of the clock
_CONTAINERS: Any = (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
SIZED: Any = (*_CONTAINERS, dict, range)


class TemplateBudget:
    """The remaining budget of a rendering.

    Args:
        size: characters of the messages.
        values: number of texts, numbers and lists in the messages.
        stop: called regularly; True cancels.
    """

    __slots__ = ("_left", "_prompt", "_stop", "_unpolled", "_until", "depth")

    def __init__(self, size: int = 0, values: int = 0, stop: Callable[[], bool] = lambda: False) -> None:
        self.depth = 0
        self._prompt = _PROMPT + _PROMPT_PER_CHARACTER * size + _PROMPT_PER_VALUE * values
        self._left = min(_BASE + _PER_CHARACTER * size + _PER_VALUE * values, _MOST)
        self._stop = stop
        self._until = time.thread_time() + _SECONDS
        self._unpolled = 0

    def charge(self, cost: int = STEP) -> None:
        """Deduct `cost`.

        Raises:
            TemplateError: it is more than what remains.
            Interrupted: `stop` returned True.
        """
        self._left -= cost
        self._unpolled += 1
        if self._left < 0:
            raise exhausted()
        if self._unpolled >= _POLL or cost > _BASE // 32:
            self._unpolled = 0
            if self._stop():
                raise Interrupted
            if time.thread_time() > self._until:
                raise exhausted()

    def accept(self, prompt: str) -> str:
        """`prompt`, if its length is plausible for the messages.

        Raises:
            TemplateError: it is much longer than the messages.
        """
        if len(prompt) > self._prompt:
            raise TemplateError(
                f"the model's chat template makes a prompt of {len(prompt)} characters, and for these messages at most "
                f"{self._prompt} are allowed; use another file of this model, or give it a prompt (`complete`)"
            )
        return prompt

    def weigh(self, value: Any) -> None:
        """Charge the cost of converting `value` to text or comparing it: that of all values in it, with repetitions."""
        if isinstance(value, (str, bytes)):
            self.charge(len(value))
            return
        waiting = [value]
        while waiting:
            inner = waiting.pop()
            if isinstance(inner, (str, bytes)):
                self.charge(ITEM + len(inner))
            elif isinstance(inner, _CONTAINERS):
                self.charge(NODE + ITEM * len(inner))
                waiting.extend(inner)
            elif isinstance(inner, dict):
                self.charge(NODE + 2 * ITEM * len(inner))
                waiting.extend(inner)
                waiting.extend(inner.values())
            elif isinstance(inner, Namespace):
                waiting.append(object.__getattribute__(inner, "_Namespace__attrs"))
            else:
                self.charge(ITEM)

    def take(self, value: Any) -> None:
        """Charge the cost of iterating over `value` once."""
        if isinstance(value, (str, bytes)):
            self.charge(len(value))
        elif isinstance(value, SIZED):
            self.charge(ITEM * len(value))


def exhausted() -> TemplateError:
    """The error for an exhausted budget."""
    return TemplateError(
        "the model's chat template exceeds the limits of time and memory for these messages; use another "
        "file of this model, or give it a prompt (`complete`)"
    )
