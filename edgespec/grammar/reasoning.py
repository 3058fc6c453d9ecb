"""The reasoning before an answer, as a rule of Lark: the grammar of an answer begins where its reasoning has ended.

The rule is a part of the grammar rather than a state beside it, so a draft may cross the end of the reasoning, and
rollback needs nothing of its own. The text of reasoning is free, but cannot end the answer.
"""

from __future__ import annotations

import json

from ..text.reasoning import Reasoning

_TEXT = "TEXT: /(.|\\n)*/\nGAP: /[ \\n]{0,4}/\n"  # text, and the blank lines that templates have around markers


def reasoning_before(reasoning: Reasoning | None, think: str = "auto") -> str:
    """The rule `before` of `GrammarTokens.bind` for the answer to a prompt; empty if there is no reasoning before it.

    If the prompt opens the reasoning, the answer has to end it. If the model opens it by itself, it may reason or not.

    Args:
        reasoning: how it is marked in the answer to that prompt.
        think: as for `Runtime.chat`; "off" keeps a model from opening it.
    """
    if reasoning is None or reasoning.closed or not reasoning.known:
        return ""
    if reasoning.tags is None:
        return _messages(reasoning) if think != "off" else _final(reasoning)
    opening, closing, _ = reasoning.tags
    close, rules = _until(reasoning, closing, "close")
    if reasoning.opened:
        return f"before: {close} GAP\n{rules}{_TEXT}"
    if think == "off":
        return ""
    return f"before: (GAP {_written(reasoning, opening)} {close} GAP)?\n{rules}{_TEXT}"


def _messages(reasoning: Reasoning) -> str:
    """Messages with headers: any that are not final, then the header of the final one."""
    channel, message, end, _, start = reasoning.headers
    close, rules = _until(reasoning, end, "close")
    thought = (
        f"{_written(reasoning, channel)} HEADER {_written(reasoning, message)} {close} {_written(reasoning, start)}"
    )
    header = "HEADER: /(analysis|commentary)[^<]*/\n"
    return f'before: ({thought} "assistant")* final\n{_final_rule(reasoning)}{header}{rules}{_TEXT}'


def _final(reasoning: Reasoning) -> str:
    return f"before: final\n{_final_rule(reasoning)}"


def _final_rule(reasoning: Reasoning) -> str:
    channel, message = (_written(reasoning, marker) for marker in reasoning.headers[:2])
    return f'final: {channel} "final" {message}\n'


def _until(reasoning: Reasoning, marker: str, name: str) -> tuple[str, str]:
    """Any text up to the first `marker`, which is included: an expression, and the rules it needs."""
    first, *rest = reasoning.parts(marker)
    after = " ".join(map(_item, rest))
    if isinstance(first, int):
        return f"TEXT {_item(first)} {after}", ""
    return f"{name} {after}", f"{name}[lazy]: TEXT {_item(first)}\n"


def _written(reasoning: Reasoning, marker: str) -> str:
    return " ".join(map(_item, reasoning.parts(marker)))


def _item(part: str | int) -> str:
    """A text, or a token by its number."""
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part)
