"""The calls of Ollama that common clients use. Durations are in nanoseconds, streams are lines of JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from typing import Any

from ..engine import Finished, Started, Text
from ..errors import GrammarError
from ..grammar import Grammar
from ..text.tool_calls import format_of
from . import options
from .errors import Refused
from .fields import Fields
from .ollama_tools import WholeCalls, conversation, without_pictures
from .openai_requests import check_model, unsupported
from .outgoing import LINES, Outgoing
from .service import Service
from .settings import Settings
from .tools import tools
from .wanted import Continuation, Conversation, Wanted

_VERSION = "0.6.4"  # whose calls these are; clients compare it


def about() -> dict[str, Any]:
    """`GET /api/version`."""
    return {"version": _VERSION, "edgespec": version("edgespec")}


def tags(service: Service) -> dict[str, Any]:
    """`GET /api/tags`: the models."""
    name = service.settings.name
    details = {"format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(service.started))
    return {"models": [{"name": name, "model": name, "modified_at": made, "size": 0, "digest": "", "details": details}]}


async def show(service: Service, fields: Fields, out: Outgoing) -> None:
    """`POST /api/show`: the model."""
    check_model(fields, service.settings)
    runtime = service.runtime
    await out.json(
        {
            "modelfile": "",
            "parameters": "",
            "template": runtime.vocabulary.template or "",
            "details": tags(service)["models"][0]["details"],
            "model_info": {"general.name": runtime.description, "general.context_length": runtime.context},
            "capabilities": ["completion", *(["tools"] if format_of(runtime.vocabulary.template or "") else [])],
        }
    )


async def chat(service: Service, fields: Fields, out: Outgoing) -> None:
    """`POST /api/chat`."""
    settings = service.settings
    if not fields.items("messages", most=1 << 20):  # it loads the model, which is loaded
        await out.json({**_head(settings), **_message("", "", []), "done": True, "done_reason": "load"})
        return
    vocabulary = service.runtime.vocabulary
    called = await asyncio.to_thread(tools, fields, vocabulary.template or "")

    def wanted() -> Wanted:
        prompt = Conversation(conversation(fields), _think(fields), called.described)
        asked = _wanted(fields, settings, prompt)
        if called.grammar is None:
            return asked
        if asked.grammar is not None:
            raise Refused("the answer cannot be held to a format and call tools; leave one of them out", param="tools")
        return replace(asked, grammar=called.grammar)

    parser = service.runtime.call_parser(called.described) if called.described else None
    await _answer(service, fields, out, wanted, _message, WholeCalls(parser))


async def generate(service: Service, fields: Fields, out: Outgoing) -> None:
    """`POST /api/generate`: an answer to the prompt by the chat template, or with `raw` its continuation."""
    settings, prompt = service.settings, fields.text("prompt")
    if fields.text("suffix"):
        raise unsupported("suffix")
    without_pictures(fields)
    if not prompt:
        await out.json({**_head(settings), "response": "", "done": True, "done_reason": "load"})
        return

    def wanted() -> Wanted:
        if fields.flag("raw"):
            return _wanted(fields, settings, Continuation(prompt))
        system = fields.text("system")
        first = [{"role": "system", "content": system}] if system else []
        asked = [*first, {"role": "user", "content": prompt}]
        return _wanted(fields, settings, Conversation(asked, _think(fields)))

    await _answer(service, fields, out, wanted, _response, WholeCalls(None))


async def _answer(
    service: Service,
    fields: Fields,
    out: Outgoing,
    wanted: Callable[[], Wanted],
    shown: Callable[[str, str, list[dict[str, Any]]], dict[str, Any]],
    calls: WholeCalls,
) -> None:
    began = time.perf_counter()
    stream = fields.flag("stream", default=True)
    parts: list[tuple[str, str, list[dict[str, Any]]]] = []
    asked = await asyncio.to_thread(wanted)
    async with service.computing.answers(asked) as channel:
        if stream:
            await out.begin(LINES)
        async for _, event in out.kept_alive(channel):
            if isinstance(event, Started):
                continue
            thought = event.reasoning if isinstance(event, Text) else ""
            text, whole_calls = calls.push(event.text) if isinstance(event, Text) else calls.flush()
            if stream and (text or thought or whole_calls):
                await out.item({**_head(service.settings), **shown(text, thought, whole_calls), "done": False})
            elif not stream:
                parts.append((text, thought, whole_calls))
            if isinstance(event, Finished):
                last = _end(event, time.perf_counter() - began)
    texts, thoughts, called = zip(*parts, strict=True) if parts else ((), (), ())
    whole = shown("".join(texts), "".join(thoughts), [*chain.from_iterable(called)])
    value = {**_head(service.settings), **whole, **last}
    if stream:
        await out.item(value)
        await out.end()
    else:
        await out.json(value)


def _wanted(fields: Fields, settings: Settings, prompt: Conversation | Continuation) -> Wanted:
    check_model(fields, settings)
    own = fields.below("options")
    return Wanted(
        prompts=(prompt,),
        key=prompt.key,
        sampling=options.sampling(own, settings),
        max_tokens=options.most_tokens(own, settings, "num_predict"),
        stop=options.stops(own),
        grammar=_grammar(fields),
    )


def _grammar(fields: Fields) -> Grammar | None:
    given = fields.raw("format")
    try:
        if given in (None, ""):
            return None
        return Grammar.json_object() if given == "json" else Grammar.json_schema(given)
    except GrammarError as error:
        raise Refused(str(error), param="format") from None


def _think(fields: Fields) -> str:
    given = fields.raw("think")
    if isinstance(given, bool):
        return "on" if given else "off"
    return given if given in ("low", "medium", "high") else "auto"


def _message(text: str, thoughts: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    more = {"thinking": thoughts, "tool_calls": calls}
    message = {"role": "assistant", "content": text, **{name: value for name, value in more.items() if value}}
    return {"message": message}


def _response(text: str, thoughts: str, _calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"response": text, **({"thinking": thoughts} if thoughts else {})}


def _head(settings: Settings) -> dict[str, Any]:
    now = time.time()
    made = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    return {"model": settings.name, "created_at": f"{made}.{int(now % 1 * 1e6):06}Z"}


def _end(event: Finished, seconds: float) -> dict[str, Any]:
    stats = event.stats
    return {
        "done": True,
        "done_reason": "length" if event.reason in ("length", "context") else "stop",
        "total_duration": int(1e9 * seconds),
        "load_duration": 0,
        "prompt_eval_count": stats.prompt,
        "prompt_eval_duration": int(1e9 * stats.prompt_seconds),
        "eval_count": stats.tokens,
        "eval_duration": int(1e9 * stats.seconds),
    }
