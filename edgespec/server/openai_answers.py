"""Answers of OpenAI's API: whole ones, and the chunks of streams."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine import Finished, Started, Text
from ..logprobs import TokenLogprobs
from ..runtime.runtime import Runtime
from ..stats import Stats
from ..text.call_parser import ContentDelta, Delta, ToolCallParser
from . import logprobs
from .computing import Item
from .extension import end_as_json, round_as_json
from .figures import finish_reason, timings, usage
from .openai_requests import OpenAIRequest
from .tools import CallChunks


@dataclass
class Choice:
    """One answer so far.

    Args:
        parser: of the calls of tools in its text; None where there are no tools.
    """

    parser: ToolCallParser | None = None
    calls: CallChunks = field(default_factory=CallChunks)
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    characters: int = 0  # in the chunks so far
    end: Finished | None = None

    def grown(self, text: str, reasoning: str) -> tuple[str, list[dict[str, Any]]]:
        """Add the text of a round; the text without calls, and the parts of calls."""
        parts = self.parser.push(text) if self.parser is not None else [ContentDelta(text)]
        return self._added(parts, reasoning)

    def flushed(self) -> tuple[str, list[dict[str, Any]]]:
        """The same for the text that was held back until the end."""
        return self._added(self.parser.flush() if self.parser is not None else (), "")

    @property
    def reason(self) -> str | None:
        """OpenAI's word for the reason of its end."""
        if self.end is None:
            return None
        return "tool_calls" if self.calls.calls and self.end.reason == "end" else finish_reason(self.end.reason)

    def _added(self, parts: Sequence[Delta], reasoning: str) -> tuple[str, list[dict[str, Any]]]:
        text, calls = self.calls.deltas(parts)
        self.text.append(text)
        self.reasoning.append(reasoning)
        return text, calls


class Answers:
    """Collects the events of the answers to one request, and writes them as JSON.

    Args:
        chat: whether it is a chat completion, else one of text.
        model: the name of the model.
        runtime: gives the text of tokens, and parsers of calls of tools.
    """

    def __init__(self, request: OpenAIRequest, *, chat: bool, model: str, runtime: Runtime) -> None:
        self._request = request
        self._chat = chat
        self._text_of = runtime.text
        called = request.tools
        parsers = (runtime.call_parser(called) if called else None for _ in range(request.wanted.count))
        self._choices = [Choice(parser) for parser in parsers]
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
                text, calls = self._choices[index].grown(event.text, event.reasoning)
                if self._request.wanted.spans or text or calls or event.reasoning or event.logprobs:
                    content = self._delta(text, event.reasoning, calls)
                    yield self._chunk(index, content, extension=self._round(event), tokens=event.logprobs)
            case Finished():
                choice = self._choices[index]
                text, calls = choice.flushed()
                if text or calls:
                    yield self._chunk(index, self._delta(text, "", calls))
                choice.end = event
                delta = {} if self._chat else {"text": ""}
                extra = {"timings": timings(event.stats)}
                end = end_as_json(event) if self._request.wanted.spans else None
                yield {**self._chunk(index, delta, choice.reason, end), **extra}

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """The chunks after those of all answers: the usage, if the client asked for it."""
        if self._request.usage:
            yield {**self._head, "object": self._object(stream=True), "choices": [], "usage": self._usage()}

    def add(self, item: Item) -> None:
        """Add an event."""
        choice = self._choices[item.answer]
        match item.event:
            case Text() as event:
                choice.grown(event.text, event.reasoning)
                choice.logprobs.extend(event.logprobs)
                if self._request.wanted.spans:
                    choice.rounds.append(round_as_json(event, self._text_of))
            case Finished() as event:
                choice.flushed()
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

    def _delta(self, text: str, reasoning: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        if not self._chat:
            return {"text": reasoning + text}
        delta: dict[str, Any] = {"reasoning_content": reasoning} if reasoning else {}
        if text or not (reasoning or calls):
            delta["content"] = text
        return {"delta": {**delta, "tool_calls": calls} if calls else delta}

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
        offset = self._choices[index].characters
        self._choices[index].characters += len(content.get("text", ""))
        choice = {"index": index, **content, "logprobs": self._logprobs(tokens, offset), "finish_reason": reason}
        chunk = {**self._head, "object": self._object(stream=True), "choices": [choice]}
        if self._request.usage:
            chunk["usage"] = None
        if extension is not None:
            chunk["edgespec"] = extension
        return chunk

    def _round(self, event: Text) -> dict[str, Any] | None:
        return round_as_json(event, self._text_of) if self._request.wanted.spans else None

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        reason = choice.reason
        text, reasoning = "".join(choice.text), "".join(choice.reasoning)
        if not self._chat:
            text = self._echo(index) + reasoning + text
            tokens = self._logprobs(choice.logprobs)
            return {"index": index, "text": text, "logprobs": tokens, "finish_reason": reason}
        calls = choice.calls.calls
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = calls
        if reasoning:
            message["reasoning_content"] = reasoning
        tokens = self._logprobs(choice.logprobs)
        return {"index": index, "message": message, "logprobs": tokens, "finish_reason": reason}

    def _logprobs(self, tokens: Sequence[TokenLogprobs], offset: int = 0) -> dict[str, Any] | None:
        if not tokens:
            return None
        return logprobs.chat(tokens) if self._chat else logprobs.completion(tokens, offset)

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
