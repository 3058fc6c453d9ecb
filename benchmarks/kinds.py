"""Kinds of text, with the answers to replay: dialogues, copies, rewritten texts, lists, and a mix of them.

The questions are in kinds.jsonl: dialogues of the test split of Schema-Guided Dialogue (Google LLC, CC BY-SA 4.0, as is
that file), and requests to repeat, rewrite and list them. The target answers dialogues by itself; the other answers are
made from the question, as a larger model would give them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec import Runtime, Sampling, Speculation
from edgespec.bench.suites import Question, read
from edgespec.engine import Text
from edgespec.text.template import Message

_QUESTIONS = Path(__file__).with_suffix(".jsonl")
MIX = "mix"
KINDS = ("dialogue", "copy", "rewrite", "list", MIX)
_CATEGORIES = {"copy": "repeat"}  # names of the suite's that differ


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt and its answer, as tokens, and what kind of text the answer is."""

    kind: str
    prompt: Sequence[int]
    answer: Sequence[int]


def items(runtime: Runtime, tokens: int, longest: int, more: Sequence[list[Message]] = ()) -> dict[str, list[Item]]:
    """Items of each kind with about `tokens` tokens of answers, each of at most `longest`.

    `mix` has other items, with twice as many tokens, or fewer where the questions of a kind end, in equal shares.

    Args:
        runtime: of the target, which answers the dialogues by plain decoding.
        more: dialogues to ask after the bundled ones, of which there are some 1,800 tokens of answers.
    """
    streams = _streams(runtime, longest, more)
    found = {kind: list(taken(stream, tokens)) for kind, stream in streams.items()}
    return {**found, MIX: list(taken(_balanced(list(streams.values())), 2 * tokens))}


def texts(runtime: Runtime, kind: str, longest: int, more: Sequence[list[Message]] = ()) -> Iterator[Item]:
    """All items of one kind, each answered when it is taken; of `mix` those of all kinds in equal shares, until the
    questions of one end. See `items`."""
    streams = _streams(runtime, longest, more)
    return _balanced(list(streams.values())) if kind == MIX else streams[kind]


def _streams(runtime: Runtime, longest: int, more: Sequence[list[Message]] = ()) -> dict[str, Iterator[Item]]:
    """The items of each kind but the mix."""
    questions = [*read(str(_QUESTIONS)).questions, *map(_dialogue, more)]
    return {
        kind: _items(
            runtime, kind, [each for each in questions if each.category == _CATEGORIES.get(kind, kind)], longest
        )
        for kind in KINDS[:-1]
    }


def _dialogue(messages: Sequence[Message]) -> Question:
    turns = tuple(str(message["content"]) for message in messages if message["role"] == "user")
    return Question("", KINDS[0], turns)


def _items(runtime: Runtime, kind: str, questions: Sequence[Question], longest: int) -> Iterator[Item]:
    for question in questions:
        messages: list[dict[str, str]] = []
        for turn in question.turns:
            messages.append({"role": "user", "content": turn})
            prompt = runtime.prompt(messages)
            if len(prompt) + longest > runtime.context:
                break
            made = _ANSWERS.get(question.category)
            answer = (
                _said(runtime, prompt, longest) if made is None else runtime.vocabulary.tokenize(made(turn))[:longest]
            )
            yield Item(kind, prompt, answer)
            messages.append({"role": "assistant", "content": runtime.text(answer)})


def taken(stream: Iterator[Item], tokens: int) -> Iterator[Item]:
    """The first items with `tokens` tokens of answers or a little more; all if there are fewer."""
    while tokens > 0:
        item = next(stream, None)
        if item is None:
            return
        tokens -= len(item.answer)
        yield item


def _balanced(streams: Sequence[Iterator[Item]]) -> Iterator[Item]:
    """Items of all streams, the next one of the stream with the fewest tokens so far, until that stream ends."""
    tokens = [0] * len(streams)
    while True:
        fewest = tokens.index(min(tokens))
        item = next(streams[fewest], None)
        if item is None:
            return
        tokens[fewest] += len(item.answer)
        yield item


def _said(runtime: Runtime, prompt: Sequence[int], longest: int) -> list[int]:
    events = runtime.complete(prompt, Sampling(), max_tokens=longest, speculation=Speculation((), 0))
    return [token for event in events if isinstance(event, Text) for token in event.tokens]


def _passage(question: str) -> str:
    return question.partition("\n")[2]


def _rewritten(question: str) -> str:
    old, new = re.findall(r"with (\S+) replaced by (\S+)\.", question.partition("\n")[0])[0]
    return _passage(question).replace(old, new)


def _listed(question: str) -> str:
    lines = (line.partition(": ") for line in _passage(question).splitlines())
    return "\n".join(f"- {said}" for speaker, _, said in lines if speaker == "user")


_ANSWERS: dict[str, Callable[[str], str]] = {"repeat": _passage, "rewrite": _rewritten, "list": _listed}
