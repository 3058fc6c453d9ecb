"""The budget of work of one rendering of a template."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from jinja2.utils import Namespace

from ..errors import Interrupted, TemplateError

STEP = 64  # the price of a step, where a character costs 1: about a microsecond, or some 400 bytes
NODE = 16  # a piece of an expression
ITEM = 8  # an item of a list, beside its text
#: The budget: known templates take at most 40 a character of long messages, and 16 000 a value of 3 000 short ones.
_BASE, _PER_CHARACTER, _PER_VALUE, _MOST = 1 << 25, 128, 1 << 14, 1 << 29
#: Characters of a prompt: what the longest known templates add is a tenth of it. All of it has to be tokenized.
_PROMPT, _PROMPT_PER_CHARACTER, _PROMPT_PER_VALUE = 1 << 18, 8, 1 << 10
_SECONDS = 20.0  # of the thread's own time: only where a step's cost was misjudged
_POLL = 64  # charges between two looks at the clock
_CONTAINERS: Any = (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
SIZED: Any = (*_CONTAINERS, dict, range)


class TemplateBudget:
    """What a rendering may still cost.

    Args:
        size: of what is rendered, in characters.
        values: how many texts, numbers and lists that is.
        stop: asked now and then whether to give up.
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
        """Take `cost` off.

        Raises:
            TemplateError: it is more than is left.
            Interrupted: `stop` said so.
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
        """`prompt`, if it is not far longer than what it is made of.

        Raises:
            TemplateError: it is.
        """
        if len(prompt) > self._prompt:
            raise TemplateError(
                f"the model's chat template makes {len(prompt)} characters of messages that can need {self._prompt} at "
                "most; use another file of this model, or give it a prompt (`complete`)"
            )
        return prompt

    def weigh(self, value: Any) -> None:
        """Charge what it costs to write `value` as text, or to compare it: all that is in it, as often as it is."""
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
        """Charge what it costs to go through `value` once."""
        if isinstance(value, (str, bytes)):
            self.charge(len(value))
        elif isinstance(value, SIZED):
            self.charge(ITEM * len(value))


def exhausted() -> TemplateError:
    return TemplateError(
        "the model's chat template was ended: it took more time or memory than these messages can need; use another "
        "file of this model, or give it a prompt (`complete`)"
    )
