"""The dialogues that benchmarks run on: lines of {"messages": [...]}."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from edgespec.backends import Vocabulary
from edgespec.terminal.options import grouped_options
from edgespec.text.template import ChatTemplate, Message

R = TypeVar("R")
FILE = click.Path(path_type=Path, exists=True)


@dataclass(frozen=True, slots=True)
class Dialogues:
    """The first `limit` dialogues of a file."""

    file: Path
    limit: int

    def read(self) -> list[list[Message]]:
        """Their messages."""
        return [json.loads(line)["messages"] for line in self.file.read_text("utf-8").splitlines()[: self.limit]]

    def turns(self, vocabulary: Vocabulary, longest: int) -> list[list[list[int]]]:
        """For each dialogue the prompts of its answers, those below `longest` tokens; the history is the true one."""
        template, dialogues = ChatTemplate(vocabulary), []
        for messages in self.read():
            users = [i for i, message in enumerate(messages) if message["role"] == "user"]
            prompts = [template.tokens(messages[: i + 1]) for i in users]
            dialogues.append([prompt for prompt in prompts if len(prompt) < longest])
        return dialogues

    def openings(self, vocabulary: Vocabulary, longest: int) -> list[list[int]]:
        """For each dialogue the prompt of its first answer, if it is below `longest` tokens."""
        return [turns[0] for turns in self.turns(vocabulary, longest) if turns]


def dialogues(limit: int) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Hands a command its `dialogues`, `limit` of them unless said otherwise."""
    return grouped_options(
        Dialogues,
        "dialogues",
        click.argument("file", metavar="DIALOGUES", type=FILE),
        click.option("--dialogues", "limit", default=limit, show_default=True, help="How many of them"),
    )
