"""Requests of OpenAI's API as values: chat completions and completions. Unknown fields are ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import constraints, options
from .errors import Refused
from .fields import Fields
from .messages import messages, text_of
from .settings import Settings
from .tools import tools
from .wanted import Continuation, Conversation, Wanted

#: `think` by OpenAI's `reasoning_effort`.
EFFORTS = {"none": "off", "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
_MOST_PROMPTS, _MOST_LOGPROBS = 64, 20


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """What to compute, and how to answer.

    Args:
        stream: whether as server-sent events.
        usage: whether a stream ends with the usage of tokens.
        tools: those that the model may call.
        echo: a text to repeat before each answer to a prompt of the same index, for completions.
    """

    wanted: Wanted
    stream: bool = False
    usage: bool = False
    echo: tuple[str, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()


def chat(fields: Fields, settings: Settings, template: str) -> OpenAIRequest:
    """A chat completion.

    Args:
        template: the model's chat template.

    Raises:
        Refused: a field is wrong, or would change the answer and is not supported.
    """
    check_model(fields, settings)
    for name in ("functions", "audio"):
        if fields.has(name):
            raise unsupported(name)
    called = tools(fields, template)
    variables = fields.below("chat_template_kwargs").values
    prompt = Conversation(messages(fields), think(fields), called.described, variables)
    request = _request(fields, settings, (prompt,), "max_completion_tokens", "max_tokens")
    if called.grammar is None:
        return replace(request, tools=called.described)
    if request.wanted.grammar is not None:
        raise Refused(
            "the answer cannot be held to a format and call tools; send tool_choice none, or no format", param="tools"
        )
    return replace(request, tools=called.described, wanted=replace(request.wanted, grammar=called.grammar))


def completion(fields: Fields, settings: Settings) -> OpenAIRequest:
    """A completion of text. Raises Refused."""
    check_model(fields, settings)
    if fields.text("suffix"):
        raise unsupported("suffix")
    prompts = _prompts(fields)
    echo: tuple[str, ...] = ()
    if fields.flag("echo"):
        echo = tuple(each.prompt if isinstance(each.prompt, str) else "" for each in prompts)
    return _request(fields, settings, prompts, "max_tokens", "max_completion_tokens", echo=echo)


def generation(fields: Fields, settings: Settings) -> OpenAIRequest:
    """A request of `/generate`: a prompt of text, which is continued. Raises Refused."""
    if not fields.text("prompt"):
        raise fields.wrong("prompt", "a text, and not empty")
    request = _request(fields, settings, (Continuation(fields.text("prompt")),), "max_tokens")
    speculation = {**options.length(fields), **request.wanted.speculation}
    return replace(request, wanted=replace(request.wanted, n=1, speculation=speculation))


def think(fields: Fields) -> str:
    """How the model thinks: by the fields `reasoning_effort` and `chat_template_kwargs`."""
    switch = fields.below("chat_template_kwargs").raw("enable_thinking")
    if isinstance(switch, bool):
        return "on" if switch else "off"
    effort = fields.raw("reasoning_effort")
    return EFFORTS.get(effort, "auto") if isinstance(effort, str) else "auto"


def check_model(fields: Fields, settings: Settings) -> None:
    """Raises Refused for another model, if the settings are strict."""
    name = fields.text("model", settings.name)
    if settings.strict_model and name != settings.name:
        raise no_model(name, settings)


def no_model(name: str, settings: Settings) -> Refused:
    """The error for a model that is not served."""
    return Refused(
        f"there is no model {name[:80]!r}; this server has {settings.name!r}",
        404,
        param="model",
        code="model_not_found",
    )


def _request(
    fields: Fields,
    settings: Settings,
    prompts: tuple[Conversation | Continuation, ...],
    *lengths: str,
    echo: tuple[str, ...] = (),
) -> OpenAIRequest:
    speculation, spans = options.extension(fields)
    wanted = Wanted(
        prompts=prompts,
        key=prompts[0].key,
        sampling=options.sampling(fields, settings),
        n=options.count(fields),
        max_tokens=options.most_tokens(fields, settings, *lengths),
        stop=options.stops(fields),
        speculation=speculation,
        prediction=_prediction(fields),
        logprobs=_logprobs(fields),
        grammar=constraints.grammar(fields),
        spans=spans,
    )
    usage = fields.below("stream_options").flag("include_usage")
    return OpenAIRequest(wanted, fields.flag("stream"), usage, echo)


def _prompts(fields: Fields) -> tuple[Continuation, ...]:
    given = fields.raw("prompt")
    if isinstance(given, str):
        return (_continuation(given, fields),)
    several = fields.items("prompt", most=1 << 20)
    if several and all(type(token) is int for token in several):
        return (_continuation(several, fields),)
    if not 0 < len(several) <= _MOST_PROMPTS:
        raise fields.wrong("prompt", f"a text, tokens, or a list of at most {_MOST_PROMPTS} of these")
    return tuple(_continuation(each, fields) for each in several)


def _continuation(prompt: Any, fields: Fields) -> Continuation:
    tokens = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not prompt or not (tokens or isinstance(prompt, str)):
        raise fields.wrong("prompt", "a text, or a list of tokens, and not empty")
    return Continuation(prompt)


def _prediction(fields: Fields) -> str | None:
    """The text that the answer is expected to resemble; None without one."""
    given = fields.below("prediction")
    return text_of(given, "content") or None if given.has("content") else None


def _logprobs(fields: Fields) -> int | None:
    """How many alternatives each token has: a number in completions, a switch and a number in chats."""
    if isinstance(fields.raw("logprobs"), bool) or not fields.has("logprobs"):
        wanted, number = fields.flag("logprobs"), fields.whole("top_logprobs", 0, _MOST_LOGPROBS)
        if number and not wanted:
            raise fields.wrong("top_logprobs", "left out, or given with logprobs true")
        return (number or 0) if wanted else None
    return fields.whole("logprobs", 0, _MOST_LOGPROBS)


def unsupported(name: str) -> Refused:
    """The error for a field that would change the answer, and that is not supported."""
    return Refused(f"{name} is not supported by this server; leave it out", param=name, code="unsupported_parameter")
