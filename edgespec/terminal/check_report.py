"""The prompts that `edgespec check` reads, and its report."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ..backends import tokens_up_to
from ..errors import OptionError, TemplateError
from ..runtime.runtime import Runtime
from ..storage.files import regular
from ..text.template import Message, checked
from ..tools.check import Verdict


class CheckReport:
    """Counts the results of the prompts. With `exact` passes a near tie is a failure, too."""

    def __init__(self, prompts: int, *, exact: bool = False) -> None:
        self._prompts = prompts
        self._exact = exact
        self._verdicts: list[Verdict] = []

    @property
    def done(self) -> int:
        return len(self._verdicts)

    @property
    def drafted(self) -> int:
        return sum(verdict.drafted for verdict in self._verdicts)

    @property
    def passed(self) -> bool:
        """Whether every prompt was checked, tokens were drafted, and outputs differ only at near ties."""
        same = all(v.divergence is None or (v.divergence.near_tie and not self._exact) for v in self._verdicts)
        return same and self.done == self._prompts and self.drafted > 0

    def add(self, verdict: Verdict) -> None:
        self._verdicts.append(verdict)

    def text(self) -> str:
        """The report in lines; the last one is the summary."""
        lines = [self._line(i, verdict) for i, verdict in enumerate(self._verdicts, 1) if verdict.divergence]
        accepted = sum(verdict.accepted for verdict in self._verdicts)
        tokens = sum(verdict.tokens for verdict in self._verdicts)
        lines.append(f"{tokens} tokens decoded both ways; {self.drafted} drafted, {accepted} of them accepted")
        if not self.drafted:
            lines.append("nothing was drafted, so nothing was checked: leave out --k 0, or allow more tokens")
        return "\n".join([*lines, self._sum()])

    def _line(self, number: int, verdict: Verdict) -> str:
        parted = verdict.divergence
        if parted is None:
            return f"prompt {number}: identical"
        if math.isinf(parted.gap):  # one output ends there, or its token has probability 0
            return f"prompt {number}: DIFFERENT at token {parted.position}, and not by a near tie"
        kind = "near tie" if parted.near_tie else "DIFFERENT"
        how = ", and plain passes of the engine choose either" if parted.flips else ""
        return (
            f"prompt {number}: {kind} at token {parted.position}: the two best are {parted.gap:.4f} apart, "
            f"and logits differ by {parted.shift:.4f} between pass widths there{how}"
        )

    def _sum(self) -> str:
        same = sum(verdict.divergence is None for verdict in self._verdicts)
        ties = sum(verdict.divergence is not None and verdict.divergence.near_tie for verdict in self._verdicts)
        unlike = self.done - same - ties
        return f"{self.done} of {self._prompts} prompts: {same} identical, {ties} near ties, {unlike} different"


def read_prompts(file: Path | None, runtime: Runtime) -> list[list[int]]:
    """The prompts of a JSON-lines file in tokens, or the bundled ones.

    Raises:
        OptionError: the file cannot be read, or a line is not a prompt; the message names it.
    """
    return [_fitting(prompt_tokens(prompt, runtime), runtime, where) for where, prompt in parsed(file)]


def parsed(file: Path | None) -> list[tuple[str, dict[str, Any]]]:
    """The prompts of the same file as JSON, each with its place in the file. Raises as `read_prompts`."""
    name = str(file) if file else "the bundled prompts"
    try:
        text = regular(file).read_text("utf-8") if file else _bundled()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the prompts in {name}: {error}") from error
    lines = [(f"{name}, line {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise OptionError(f'{name} holds no prompt; expected lines of JSON with "messages" or "prompt"')
    return [(where, _prompt(line, where)) for where, line in lines]


def _fitting(prompt: list[int], runtime: Runtime, where: str) -> list[int]:
    if len(prompt) >= runtime.context:
        size = f"{len(prompt)} tokens or more, but the context holds {runtime.context}"
        raise OptionError(f"{where} has {size}; shorten it, or give a larger --ctx")
    return prompt


def _bundled() -> str:
    return (resources.files("edgespec") / "check_prompts.jsonl").read_text("utf-8")


def prompt_tokens(asked: dict[str, Any], runtime: Runtime) -> list[int]:
    """The tokens of a prompt of `parsed`. Raises TemplateError if the chat template refuses it."""
    if "messages" in asked:
        return _chat(asked["messages"], runtime)
    return raw_prompt(asked["prompt"], runtime)


def raw_prompt(text: str, runtime: Runtime) -> list[int]:
    """The tokens of a text without a template; of a text that is far too long for the context only the first ones."""
    return tokens_up_to(runtime.vocabulary, text, 2 * runtime.context + 1024, start=True)


def _prompt(line: str, where: str) -> dict[str, Any]:
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where} is not JSON: {error}") from error
    match asked:
        case {"messages": [*messages]} if messages:
            return {"messages": [_message(message, where) for message in messages]}
        case {"prompt": str(prompt)} if prompt:
            return {"prompt": prompt}
    raise OptionError(f'{where} has neither "messages" (a list) nor "prompt" (a text)')


def _message(message: Any, where: str) -> Message:
    try:
        return checked(message)
    except OptionError as error:
        raise OptionError(f"{where}: {error}") from error


def _chat(messages: Sequence[Message], runtime: Runtime) -> list[int]:
    try:
        return runtime.prompt(messages)
    except TemplateError:
        if runtime.vocabulary.template is None:  # a base model: the contents without a format
            return raw_prompt("\n".join(message.get("content") or "" for message in messages), runtime)
        raise
