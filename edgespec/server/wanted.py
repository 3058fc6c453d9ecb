"""What a request asks to be computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..grammar import Grammar
from ..runtime.answer import Answer
from ..runtime.runtime import Runtime
from ..sampling import Sampling
from ..text.template import Message

_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt of messages, for the chat template.

    Args:
        tools: descriptions of functions that the model may call.
        variables: further ones of the template.
    """

    messages: Sequence[Message]
    think: str = "auto"
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A text that begins as that of an earlier prompt does whose tokens this one begins with."""
        parts = (*((list(self.tools),) if self.tools else ()), *self.messages)
        return "".join(json.dumps(part, ensure_ascii=False) for part in parts)

    def answer(self, runtime: Runtime, wanted: Wanted, sampling: Sampling) -> Answer:
        """The answer of a runtime. Raises as `Runtime.chat`."""
        return runtime.chat(
            self.messages,
            sampling,
            max_tokens=wanted.max_tokens,
            stop=wanted.stop,
            speculation=wanted.speculation_of(runtime),
            think=self.think,
            tools=self.tools or None,
            chat_template_kwargs=self.variables or None,
            prediction=wanted.prediction,
            logprobs=wanted.logprobs,
            grammar=wanted.grammar,
        )


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt of text or tokens, which is continued."""

    prompt: str | Sequence[int]

    @property
    def key(self) -> str:
        """As that of a conversation."""
        return self.prompt if isinstance(self.prompt, str) else ",".join(map(str, self.prompt))

    def answer(self, runtime: Runtime, wanted: Wanted, sampling: Sampling) -> Answer:
        """The answer of a runtime. Raises as `Runtime.complete`."""
        return runtime.complete(
            self.prompt,
            sampling,
            max_tokens=wanted.max_tokens,
            stop=wanted.stop,
            speculation=wanted.speculation_of(runtime),
            prediction=wanted.prediction,
            logprobs=wanted.logprobs,
            grammar=wanted.grammar,
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """The answers that a request asks for, which are computed one after the other in one slot.

    Args:
        prompts: each is answered `n` times.
        key: by which the slot is chosen; that of the first prompt.
        sampling: of the first answer; the seed of the next one is one higher.
        max_tokens: of each answer; None continues to the end of the context.
        stop: texts that end an answer.
        speculation: fields of `Speculation` that differ from the server's.
        prediction: a text that the answers are expected to resemble.
        logprobs: how many of the likeliest tokens are given beside each token; None gives no log probabilities.
        grammar: what the answers may be; None for any text.
        spans: whether the client asked to see which text was drafted, and what was rejected.
    """

    prompts: tuple[Conversation | Continuation, ...]
    key: str
    sampling: Sampling
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    speculation: Mapping[str, Any] = field(default_factory=dict)
    prediction: str | None = None
    logprobs: int | None = None
    grammar: Grammar | None = None
    spans: bool = False

    @property
    def count(self) -> int:
        """The number of answers."""
        return self.n * len(self.prompts)

    def answer(self, runtime: Runtime, index: int) -> Answer:
        """The answer of this index, from 0. Raises as `Runtime.chat` and `Runtime.complete`."""
        sampling = replace(self.sampling, seed=(self.sampling.seed + index % self.n) & _WORD)
        return self.prompts[index // self.n].answer(runtime, self, sampling)

    def speculation_of(self, runtime: Runtime) -> Any:
        """The speculation of an answer; None for the runtime's own. Raises OptionError."""
        return replace(runtime.speculation, **self.speculation) if self.speculation else None
