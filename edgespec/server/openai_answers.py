"""Answers of OpenAI's API: whole ones, and the chunks of streams."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine import Finished, Started, Text
from ..logprobs import TokenLogprobs
from ..stats import Stats
from . import logprobs
from .computing import Item
from .extension import end_as_json, round_as_json
from .figures import finish_reason, timings, usage
from .openai_requests import OpenAIRequest


@dataclass
class Choice:
    """One answer so far."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    end: Finished | None = None


class Answers:
    """Collects the events of the answers to one request, and writes them as JSON.

    Args:
        chat: whether it is a chat completion, else one of text.
        model: the name of the model.
        text_of: the text of tokens.
    """

    def __init__(
        self, request: OpenAIRequest, *, chat: bool, model: str, text_of: Callable[[Sequence[int]], str]
    ) -> None:
        self._request = request
        self._chat = chat
        self._text_of = text_of
        self._choices = [Choice() for _ in range(request.wanted.count)]
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def chunks(self, item: Item) -> Iterator[dict[str, Any]]:
        """The chunks of a stream for an event."""
        index, event = item
        match event:
            case Started():
                yield from self._beginning(index)
            case Text():
                if self._request.wanted.spans or event.text or event.reasoning or event.logprobs:
                    content = self._delta(event.text, event.reasoning)
                    yield self._chunk(index, content, extension=self._round(event), tokens=event.logprobs)
            case Finished():
                self.add(item)
                delta = {} if self._chat else {"text": ""}
                extra = {"timings": timings(event.stats)}
                end = end_as_json(event) if self._request.wanted.spans else None
                yield {**self._chunk(index, delta, finish_reason(event.reason), end), **extra}

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """The chunks after those of all answers: the usage, if the client asked for it."""
        if self._request.usage:
            yield {**self._head, "object": self._object(stream=True), "choices": [], "usage": self._usage()}

    def add(self, item: Item) -> None:
        """Add an event."""
        choice = self._choices[item.answer]
        match item.event:
            case Text() as event:
                choice.text.append(event.text)
                choice.reasoning.append(event.reasoning)
                choice.logprobs.extend(event.logprobs)
                if self._request.wanted.spans:
                    choice.rounds.append(round_as_json(event, self._text_of))
            case Finished() as event:
                choice.end = event

    def whole(self) -> dict[str, Any]:
        """The answer without a stream."""
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._choices)]
        answer = {
            **self._head,
            "object": self._object(stream=False),
            "choices": choices,
            "usage": self._usage(),
            "timings": timings(self._stats()[-1]),
        }
        if self._request.wanted.spans:
            answer["edgespec"] = [
                {"rounds": each.rounds, **end_as_json(each.end)} for each in self._choices if each.end is not None
            ]
        return answer

    def _beginning(self, index: int) -> Iterator[dict[str, Any]]:
        if self._chat:
            yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}})
        elif echo := self._echo(index):
            yield self._chunk(index, {"text": echo})

    def _delta(self, text: str, reasoning: str) -> dict[str, Any]:
        if not self._chat:
            return {"text": reasoning + text}
        delta = {"content": text} if text or not reasoning else {}
        return {"delta": {"reasoning_content": reasoning, **delta} if reasoning else delta}

    def _chunk(
        self,
        index: int,
        content: dict[str, Any],
        reason: str | None = None,
        extension: dict[str, Any] | None = None,
        tokens: Sequence[TokenLogprobs] = (),
    ) -> dict[str, Any]:
        if self._chat and "delta" not in content:
            content = {"delta": content}
        choice = {"index": index, **content, "logprobs": self._logprobs(tokens), "finish_reason": reason}
        chunk = {**self._head, "object": self._object(stream=True), "choices": [choice]}
        if self._request.usage:
            chunk["usage"] = None
        if extension is not None:
            chunk["edgespec"] = extension
        return chunk

    def _round(self, event: Text) -> dict[str, Any] | None:
        return round_as_json(event, self._text_of) if self._request.wanted.spans else None

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        reason = finish_reason(choice.end.reason) if choice.end is not None else None
        text, reasoning = "".join(choice.text), "".join(choice.reasoning)
        if not self._chat:
            text = self._echo(index) + reasoning + text
            tokens = self._logprobs(choice.logprobs)
            return {"index": index, "text": text, "logprobs": tokens, "finish_reason": reason}
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        tokens = self._logprobs(choice.logprobs)
        return {"index": index, "message": message, "logprobs": tokens, "finish_reason": reason}

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not tokens:
            return None
        return logprobs.chat(tokens) if self._chat else logprobs.completion(tokens)

    def _echo(self, index: int) -> str:
        return self._request.echo[index // self._request.wanted.n] if self._request.echo else ""

    def _object(self, *, stream: bool) -> str:
        if not self._chat:
            return "text_completion"
        return "chat.completion.chunk" if stream else "chat.completion"

    def _usage(self) -> dict[str, Any]:
        return usage(self._stats(), len(self._request.wanted.prompts))

    def _stats(self) -> list[Stats]:
        return [each.end.stats for each in self._choices if each.end is not None]
