"""Chat messages to the model's prompt, by the Jinja template that the model carries.

Templates come from strangers, so they run in Jinja's sandbox; and what a user typed must not be able to spell
special tokens, so it is marked and tokenized as plain text.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .backends import Vocabulary
from .errors import OptionError, TemplateError

Message = Mapping[str, str]

#: Unicode noncharacters: they never stand in text that is interchanged, so they can mark where content is.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"


class ChatTemplate:
    """The chat template of one vocabulary.

    Raises:
        TemplateError: the model has none, or it is not valid Jinja.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.template:
            raise TemplateError("this model has no chat template; give it a prompt (`complete`), or convert a chat model")
        self._vocabulary = vocabulary
        self._specials = tuple(vocabulary.specials())
        self._bos = vocabulary.label(vocabulary.bos) if vocabulary.bos is not None else ""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().astimezone().strftime(form)
        try:
            self._template = environment.from_string(vocabulary.template)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template is not valid: {error}") from error

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """The prompt that makes the model answer the last of `messages`.

        Raises:
            OptionError: a message without role or content.
            TemplateError: the template refuses these messages.
        """
        tokens: list[int] = []
        plain = False
        text = self.render([_checked(message) for message in messages])
        for part in _split(text):
            if part in (_OPEN, _CLOSE):
                plain = part == _OPEN
            else:
                tokens += self._vocabulary.tokenize(part, special=not plain)
        bos = self._vocabulary.bos
        starts = self._vocabulary.tokenize("", start=True)  # the bos, of a model that asks for one
        return [*starts, *tokens] if starts and tokens[:1] != [bos] else tokens

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt as text. Content that spells special tokens is enclosed in two marks."""
        safe = [{**message, "content": self._marked(message["content"])} for message in messages]
        try:
            return self._template.render(
                messages=safe, add_generation_prompt=True, bos_token=self._bos, eos_token="", tools=None
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise TemplateError(f"the model's chat template refuses these messages: {error}") from error

    def _marked(self, content: str) -> str:
        """Only content that needs it is marked: marks part the text where the tokenizer might have merged."""
        content = content.replace(_OPEN, "").replace(_CLOSE, "")
        if not any(special in content for special in self._specials):
            return content
        return f"{_OPEN}{content.strip()}{_CLOSE}"


def _split(text: str) -> list[str]:
    parts = itertools.groupby(text, key=lambda c: c if c in (_OPEN, _CLOSE) else "")
    return [mark or "".join(group) for mark, group in parts]


def _checked(message: Message) -> Message:
    if not isinstance(message, Mapping) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
        raise OptionError(f'a message is {{"role": ..., "content": ...}} with texts for both, not {message!r:.80}')
    return message


def _to_json(value: Any, indent: int | None = None) -> str:
    """As transformers has it: Jinja's own escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
