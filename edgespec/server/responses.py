"""`POST /v1/responses`: OpenAI's Responses API, for text and calls of functions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ..engine import Finished, Started, Text
from ..text.call_parser import CallDelta, ContentDelta, Delta
from .extension import end_as_json, round_as_json
from .fields import Fields
from .figures import finish_reason, usage
from .outgoing import SSE, Outgoing
from .responses_request import ResponsesRequest, responses_request
from .service import Service


async def responses(service: Service, fields: Fields, out: Outgoing) -> None:
    """Answer a request of the Responses API."""
    request = await asyncio.to_thread(responses_request, fields, service.settings, service.template)
    answer = _Response(request, service)
    async with service.computing.answers(request.wanted) as channel:
        if request.stream:
            await out.begin(SSE)
        async for _, event in out.kept_alive(channel):
            for value in answer.events(event):
                if request.stream:
                    await out.item(value, value["type"])
    if request.stream:
        await out.end()
    else:
        await out.json(answer.whole("completed"))


class _Response:
    """One response while it grows: items of reasoning, of messages and of calls, in the order of the answer."""

    def __init__(self, request: ResponsesRequest, service: Service) -> None:
        self._request = request
        self._service = service
        self._parser = service.runtime.call_parser(request.tools) if request.tools else None
        self._id = f"resp_{secrets.token_hex(24)}"
        self._created = int(time.time())
        self._number = -1
        self._items: list[dict[str, Any]] = []
        self._end: Finished | None = None

    def events(self, event: object) -> Iterator[dict[str, Any]]:
        """The events of a stream for one of the answer."""
        match event:
            case Started():
                for name in ("created", "in_progress"):
                    yield self._event(f"response.{name}", response=self.whole("in_progress"))
            case Text():
                extension = round_as_json(event, self._service.runtime.text) if self._request.wanted.spans else None
                if event.reasoning:
                    yield from self._grown("reasoning", event.reasoning)
                yield from self._parts(self._parsed(event.text), extension)
            case Finished():
                yield from self._parts([] if self._parser is None else self._parser.flush())
                self._end = event
                yield from self._closed() if self._items else self._grown("message", "")
                if self._items[-1]["status"] == "in_progress":
                    yield from self._closed()
                status = self._status()
                last = {"edgespec": end_as_json(event)} if self._request.wanted.spans else {}
                yield {**self._event(f"response.{status}", response=self.whole(status)), **last}

    def whole(self, status: str) -> dict[str, Any]:
        """The response."""
        if self._end is not None:
            status = self._status()
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._service.settings.name,
            "output": self._items,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": _usage([self._end]) if self._end is not None else None,
            **self._request.shown,
        }

    def _status(self) -> str:
        cut = self._end is not None and finish_reason(self._end.reason) == "length"
        return "incomplete" if cut else "completed"

    def _parsed(self, text: str) -> list[Delta]:
        if self._parser is not None:
            return self._parser.push(text)
        return [ContentDelta(text)] if text else []

    def _parts(self, parts: Sequence[Delta], extension: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Text and calls of a round. Its extension is in the first event that adds to an item."""
        if not parts and extension is not None:  # the parser holds the text back
            calling = bool(self._items) and self._items[-1]["type"] == "function_call"
            parts = [CallDelta(0, "", "") if calling else ContentDelta("")]
        for part in parts:
            if isinstance(part, CallDelta):
                yield from self._called(part, extension)
            else:
                yield from self._grown("message", part.text, extension)
            extension = None

    def _called(self, part: CallDelta, extension: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
        """A part of a call, which begins if the part has a name."""
        if part.name:
            if self._items:
                yield from self._closed()
            yield from self._call_opened(part.name)
        if part.arguments or extension is not None:
            self._items[-1]["arguments"] += part.arguments
            event = self._event("response.function_call_arguments.delta", **self._place(), delta=part.arguments)
            yield {**event, "edgespec": extension} if extension is not None else event

    def _call_opened(self, name: str) -> Iterator[dict[str, Any]]:
        ids = {"id": f"fc_{secrets.token_hex(16)}", "call_id": f"call_{secrets.token_hex(12)}"}
        item = {**ids, "type": "function_call", "name": name, "arguments": "", "status": "in_progress"}
        self._items.append(item)
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=dict(item))

    def _grown(self, kind: str, text: str, extension: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Text of the last item, which begins if it is of another kind."""
        if not self._items or self._items[-1]["type"] != kind:
            if self._items:
                yield from self._closed()
            yield from self._opened(kind)
        item = self._items[-1]
        item["content"][0]["text"] += text
        name = "output_text" if kind == "message" else "reasoning_text"
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        event = self._event(f"response.{name}.delta", **self._place(), content_index=0, delta=text, **more)
        yield {**event, "edgespec": extension} if extension is not None else event

    def _opened(self, kind: str) -> Iterator[dict[str, Any]]:
        if kind == "message":
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item: dict[str, Any] = {"id": f"msg_{secrets.token_hex(16)}", "type": "message", "role": "assistant"}
        else:
            part = {"type": "reasoning_text", "text": ""}
            item = {"id": f"rs_{secrets.token_hex(16)}", "type": "reasoning", "summary": []}
        self._items.append({**item, "status": "in_progress", "content": [part]})
        shown = {**self._items[-1], "content": []}
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=shown)
        yield self._event("response.content_part.added", **self._place(), content_index=0, part=dict(part))

    def _closed(self) -> Iterator[dict[str, Any]]:
        item = self._items[-1]
        yield from self._call_done(item) if item["type"] == "function_call" else self._content_done(item)
        item["status"] = "completed" if self._end is None else self._status()
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _call_done(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield self._event("response.function_call_arguments.done", **self._place(), **done)

    def _content_done(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        (part,) = item["content"]
        is_text = item["type"] == "message"
        name, more = "output_text" if is_text else "reasoning_text", {"logprobs": list[Any]()} if is_text else {}
        yield self._event(f"response.{name}.done", **self._place(), content_index=0, text=part["text"], **more)
        yield self._event("response.content_part.done", **self._place(), content_index=0, part=dict(part))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}


def _usage(ends: Sequence[Finished]) -> dict[str, Any]:
    """The usage by the names of this API."""
    known = usage([end.stats for end in ends])
    return {
        "input_tokens": known["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": known["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": known["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": known["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": known["total_tokens"],
    }
