"""Chat messages to the model's prompt, by the Jinja template that the model carries.

Templates come from strangers, so they run in a sandbox with a budget (`sandbox`); and what a user typed must not be
able to spell special tokens, so wherever it does it is broken in two, and the parts are tokenized apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..backends import Vocabulary, tokens_up_to
from ..errors import Interrupted, OptionError, TemplateError
from .template_budget import TemplateBudget
from .template_sandbox import Sandbox

#: "role" and "content", both texts; and what else the template reads: "name", "tool_calls", "tool_call_id", ... as JSON
#: has it. Where there are "tool_calls" there need be no content.
Message = Mapping[str, Any]

#: A Unicode noncharacter: it never stands in text that is interchanged, so it can mark where to part content.
_BREAK = "\ufdd0"
#: The names that an earlier answer's reasoning goes by; templates read the first one, gpt-oss's the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_QUOTED = 300  # characters of a template's own message


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
        self._specials = tuple(vocabulary.specials())
        self._lock = threading.Lock()
        self._sandbox = Sandbox()
        self._template = _compiled(self._sandbox, vocabulary.template)

    def tokens(
        self, messages: Sequence[Message], stop: Callable[[], bool] = lambda: False, most: int | None = None
    ) -> list[int]:
        """The prompt that makes the model answer the last of `messages`; see `tokens_up_to` for `most`.

        Args:
            stop: asked now and then whether to give up.

        Raises:
            OptionError: a message without role or content.
            TemplateError: the template refuses these messages, or takes more time or memory than they can need.
            Interrupted: `stop` said so.
        """
        tokens: list[int] = []
        text = self.render([checked(message) for message in messages], stop)
        for part in text.split(_BREAK):
            if stop():
                raise Interrupted
            if most is None:
                tokens += self._vocabulary.tokenize(part, special=True)
            elif len(tokens) <= most:
                tokens += tokens_up_to(self._vocabulary, part, most, special=True)
        starts = self._vocabulary.tokenize("", start=True)  # the bos, of a model that asks for one
        return tokens if self._begins(text) else [*starts, *tokens]

    def render(self, messages: Sequence[Message], stop: Callable[[], bool] = lambda: False) -> str:
        """The prompt as text. Where a message spells a special token, a mark stands inside."""
        values = _Values(self._specials)
        safe = [_reasoned(values.copied(message)) for message in messages]
        with self._lock:
            self._sandbox.budget = TemplateBudget(values.size, values.count, stop)
            try:
                text = self._template.render(
                    messages=safe,
                    add_generation_prompt=True,
                    bos_token=self._label(self._vocabulary.bos),
                    eos_token=self._label(self._vocabulary.eos),
                    tools=None,
                    documents=None,
                )
                return self._sandbox.budget.accept(text)
            except (TemplateError, Interrupted):
                raise
            except Exception as error:
                reason = _reason(error)
                raise TemplateError(f"the model's chat template refuses these messages: {reason}") from error

    def _begins(self, text: str) -> bool:
        """Whether the template itself wrote a bos first."""
        bos = self._label(self._vocabulary.bos)
        return bool(bos) and text.lstrip().startswith(bos)

    def _label(self, token: int | None) -> str:
        return "" if token is None else self._vocabulary.label(token)


class _Values:
    """Copies of what messages hold, in which no text spells a special token; and their size."""

    def __init__(self, specials: Sequence[str]) -> None:
        self.size = 0
        self.count = 0
        self._specials = specials

    def copied(self, message: Message) -> dict[str, Any]:
        """`message` without what is None: to templates that is not the same as what is not there."""
        try:
            copy: dict[str, Any] = self._copied({key: value for key, value in message.items() if value is not None})
        except RecursionError:
            raise OptionError("a message's lists within lists are too deep; give what JSON can hold") from None
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
            f"a message holds {value!r:.80}; it takes what JSON can hold: texts, numbers, lists and dictionaries"
        )

    def _broken(self, text: str) -> str:
        """Marks inside the special tokens, and not around: templates trim content and take it apart."""
        for special in self._specials:
            # Again, for what is left may spell it again: "<<" in "<<<". A single character cannot be broken.
            while special in text:
                text = text.replace(special, f"{special[0]}{_BREAK}{special[1:]}")
                if len(special) == 1:
                    break
        return text


def checked(message: Message) -> Message:
    """`message`, if it is one.

    Raises:
        OptionError: it lacks a role or a content.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not _has_content(message):
        raise OptionError(f'a message is {{"role": ..., "content": ...}} with texts for both, not {message!r:.80}')
    return message


def _has_content(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, str) or (content is None and bool(message.get("tool_calls")))


def _reasoned(message: dict[str, Any]) -> dict[str, Any]:
    """`message` with its reasoning under the names that templates know it by, as transformers has it."""
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _compiled(sandbox: Sandbox, source: str) -> Any:
    try:
        source.encode()
        return sandbox.compiled(source)
    except TemplateError:
        raise
    except UnicodeEncodeError as error:  # engines hand on as lone surrogates what they cannot read
        raise TemplateError(
            f"the model's chat template is not valid: it is not UTF-8 at character {error.start}; use another file of "
            "this model, or give it a prompt (`complete`)"
        ) from error
    except Exception as error:  # Python compiles what Jinja makes of it: too deep, too large a number, ...
        raise TemplateError(f"the model's chat template is not valid: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason if len(reason) <= _QUOTED else f"{reason[:_QUOTED]}..."
