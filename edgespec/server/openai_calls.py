"""The calls of OpenAI's API that compute: chat completions and completions; and `/generate`."""

from __future__ import annotations

import asyncio

from ..engine import Finished, Text
from . import openai_requests
from .fields import Fields
from .figures import finish_reason, timings
from .openai_answers import Answers
from .openai_requests import OpenAIRequest
from .outgoing import SSE, Outgoing
from .service import Service


async def chat_completions(service: Service, fields: Fields, out: Outgoing) -> None:
    """`POST /v1/chat/completions`."""
    request = await asyncio.to_thread(openai_requests.chat, fields, service.settings, service.template)
    await _answer(service, request, out, chat=True)


async def completions(service: Service, fields: Fields, out: Outgoing) -> None:
    """`POST /v1/completions`."""
    request = await asyncio.to_thread(openai_requests.completion, fields, service.settings)
    await _answer(service, request, out, chat=False)


async def generate(service: Service, fields: Fields, out: Outgoing) -> None:
    """`POST /generate`: `{"prompt", "max_tokens", "stream", "k"}` to `{"output"}`; a stream has `{"text"}` before."""
    request = await asyncio.to_thread(openai_requests.generation, fields, service.settings)
    output: list[str] = []
    async with service.computing.answers(request.wanted) as channel:
        if request.stream:
            await out.begin(SSE)
        async for _, event in out.kept_alive(channel):
            if isinstance(event, Text):
                output.append(event.text)
                if request.stream and event.text:
                    await out.item({"text": event.text})
            if isinstance(event, Finished):
                whole = {
                    "output": "".join(output),
                    "finish_reason": finish_reason(event.reason),
                    "timings": timings(event.stats),
                }
    if request.stream:
        await out.item(whole)
        await out.end()
    else:
        await out.json(whole)


async def _answer(service: Service, request: OpenAIRequest, out: Outgoing, *, chat: bool) -> None:
    answers = Answers(request, chat=chat, model=service.settings.name, runtime=service.runtime)
    async with service.computing.answers(request.wanted) as channel:
        if not request.stream:
            async for item in out.kept_alive(channel):
                answers.add(item)
        else:
            await out.begin(SSE)
            async for item in out.kept_alive(channel):
                for chunk in answers.chunks(item):
                    await out.item(chunk)
    if not request.stream:
        await out.json(answers.whole())
        return
    for chunk in answers.last_chunks():
        await out.item(chunk)
    await out.item("[DONE]")
    await out.end()
