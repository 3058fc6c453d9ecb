"""Chat messages to a prompt, by the Jinja template in the model's file.

Templates are untrusted, so they run in a sandbox with a budget (`template_sandbox`). Text of a user must not become
special tokens, so wherever it contains the text of one, it is split inside, and the parts are tokenized separately.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..backends import Vocabulary, tokens_up_to
from ..errors import Interrupted, OptionError, TemplateError
from .call_parser import ToolCallParser
from .called_tools import CalledTools
from .reasoning import Reasoning
from .template_budget import TemplateBudget
from .template_sandbox import Sandbox
from .think import has_switch, variables
from .tool_calls import format_of, parser_of

#: "role" and "content", both strings, and further fields that the template reads, such as "name", "tool_calls" and
#: "tool_call_id", with values as in JSON. With "tool_calls", "content" may be missing.
Message = Mapping[str, Any]

#: A Unicode noncharacter, which does not occur in interchanged text: marks where content is split.
_BREAK = "\ufdd0"
#: Names for the reasoning of an earlier answer; most templates read the first one, that of gpt-oss the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_QUOTED = 300  # characters of a template's error message that are quoted


class ChatTemplate:
    """The chat template of one vocabulary.

    Raises:
        TemplateError: the model has none, or it is not valid Jinja.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.template:
            raise TemplateError(
                "this model has no chat template; give it a prompt (`complete`), or convert a chat model"
            )
        self._vocabulary = vocabulary
        self._source = vocabulary.template
        self._reasoning = Reasoning.of(vocabulary, vocabulary.template)
        self._specials = tuple(dict.fromkeys((*vocabulary.specials(), *self._reasoning.protected)))
        self._lock = threading.Lock()
        self._sandbox = Sandbox()
        self._template = _compiled(self._sandbox, vocabulary.template)
        self._tools = CalledTools(vocabulary.template, self.render)

    def reasoning(self, prompt: Sequence[int]) -> Reasoning:
        """How reasoning is marked in the answer to `prompt`."""
        return self._reasoning.after(prompt, self._vocabulary)

    def call_markers(self) -> dict[int, bytes]:
        """The bytes of special tokens that are markers of tool calls, which have no text otherwise."""
        found, vocabulary = format_of(self._source), self._vocabulary
        each = ((text, vocabulary.tokenize(text, special=True)) for text in (found.markers if found else ()))
        alone = ((text, tokens[0]) for text, tokens in each if len(tokens) == 1)
        return {
            token: text.encode()
            for text, token in alone
            if vocabulary.label(token) == text and not vocabulary.token_bytes(token) and not vocabulary.is_eog(token)
        }

    def call_parser(self, names: Collection[str]) -> ToolCallParser | None:
        """A parser of the calls in one answer; None if the template writes them in no known format.

        Args:
            names: the functions that may be called, as a mapping with the JSON schemas of their parameters.
        """
        return parser_of(self._source, names)

    def has_switch(self) -> bool:
        """Whether the template reads a variable that `think` of `tokens` sets."""
        return has_switch(self._sandbox.names(self._source))

    def tokens(
        self,
        messages: Sequence[Message],
        stop: Callable[[], bool] = lambda: False,
        most: int | None = None,
        think: str = "auto",
        given: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The tokens of the prompt for an answer to the last of `messages`.

        Args:
            stop: called regularly; True cancels.
            most: tokens after which the prompt is not tokenized further, see `tokens_up_to`; None tokenizes all.
            think: one of `THINK`.
            given: further variables of the template, as `checked_variables` returns them.

        Raises:
            OptionError: a message without role or content.
            TemplateError: the template refuses these messages, or exceeds its limits of time and memory.
            Interrupted: `stop` returned True.
        """
        tokens: list[int] = []
        text = self.render([self._tools.prepared(checked(message)) for message in messages], stop, think, given)
        for part in text.split(_BREAK):
            if stop():
                raise Interrupted
            if most is None:
                tokens += self._vocabulary.tokenize(part, special=True)
            elif len(tokens) <= most:
                tokens += tokens_up_to(self._vocabulary, part, most, special=True)
        starts = self._vocabulary.tokenize("", start=True)  # the bos, if the model requires one
        return tokens if self._begins(text) else [*starts, *tokens]

    def render(
        self,
        messages: Sequence[Message],
        stop: Callable[[], bool] = lambda: False,
        think: str = "auto",
        given: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text, with a mark inside each text of a special token that comes from a message, from the
        description of a tool or from another variable."""
        values = _Values(self._specials, keeps_none=self._tools.keeps_none)
        safe = [_reasoned(values.copied(message)) for message in messages]
        more = {"tools": None, "documents": None, **variables(think, self._source), **values.copied(given or {})}
        with self._lock:
            self._sandbox.budget = TemplateBudget(values.size, values.count, stop)
            try:
                text = self._template.render(
                    messages=safe,
                    add_generation_prompt=True,
                    bos_token=self._label(self._vocabulary.bos),
                    eos_token=self._label(self._vocabulary.eos),
                    **more,
                )
                return self._sandbox.budget.accept(text)
            except (TemplateError, Interrupted):
                raise
            except Exception as error:
                reason = _reason(error)
                raise TemplateError(f"the model's chat template refuses these messages: {reason}") from error

    def _begins(self, text: str) -> bool:
        """Whether the template has written a bos at the beginning."""
        bos = self._label(self._vocabulary.bos)
        return bool(bos) and text.lstrip().startswith(bos)

    def _label(self, token: int | None) -> str:
        return "" if token is None else self._vocabulary.label(token)


class _Values:
    """Copies the values of messages with marks inside the texts of special tokens, and counts their size."""

    def __init__(self, specials: Sequence[str], *, keeps_none: bool = False) -> None:
        self.size = 0
        self.count = 0
        self._specials = specials
        self._kept = ("content",) if keeps_none else ()

    def copied(self, message: Message) -> dict[str, Any]:
        """A copy of `message` without the fields that are None, which templates would treat as present."""
        there = {key: value for key, value in message.items() if value is not None or key in self._kept}
        try:
            copy: dict[str, Any] = self._copied(there)
        except RecursionError:
            raise OptionError("a message or a tool is nested too deep; give what JSON can represent") from None
        return copy

    def _copied(self, value: Any) -> Any:
        self.count += 1
        if isinstance(value, str):
            self.size += len(value)
            return self._broken(str(value))
        if value is None or type(value) in (bool, int, float):
            return value
        if isinstance(value, Mapping):
            return {self._copied(key): self._copied(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._copied(each) for each in value]
        raise OptionError(
            f"a message or a tool contains {value!r:.80}; give what JSON can represent: texts, numbers, lists, "
            "dictionaries"
        )

    def _broken(self, text: str) -> str:
        """`text` with marks inside the texts of special tokens. Marks around them would be lost if a template trims
        text."""
        for special in self._specials:
            # Repeated, because the rest may contain it again: "<<" in "<<<". A single character cannot be split.
            while special in text:
                text = text.replace(special, f"{special[0]}{_BREAK}{special[1:]}")
                if len(special) == 1:
                    break
        return text


def checked(message: Message) -> Message:
    """`message`, if it is a valid one.

    Raises:
        OptionError: it has no role or no content.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not _has_content(message):
        raise OptionError(f'a message is {{"role": ..., "content": ...}} with texts for both, not {message!r:.80}')
    return message


def _has_content(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, str) or (content is None and bool(message.get("tool_calls")))


def _reasoned(message: dict[str, Any]) -> dict[str, Any]:
    """`message` with its reasoning under the names that templates read, as in transformers."""
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _compiled(sandbox: Sandbox, source: str) -> Any:
    try:
        source.encode()
        return sandbox.compiled(source)
    except TemplateError:
        raise
    except UnicodeEncodeError as error:  # engines return bytes that are not UTF-8 as lone surrogates
        raise TemplateError(
            f"the model's chat template is not valid: it is not UTF-8 at character {error.start}; use another file of "
            "this model, or give it a prompt (`complete`)"
        ) from error
    except Exception as error:  # from Python, which compiles the code that Jinja generates: nested too deep, ...
        raise TemplateError(f"the model's chat template is not valid: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason if len(reason) <= _QUOTED else f"{reason[:_QUOTED]}..."
