"""Chat messages to the model's prompt, by the Jinja template that the model carries.

Templates come from strangers, so they run in Jinja's sandbox; and what a user typed must not be able to spell
special tokens, so wherever it does it is broken in two, and the parts are tokenized apart.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .backends import Vocabulary, tokens_up_to
from .errors import OptionError, TemplateError

Message = Mapping[str, str]

#: A Unicode noncharacter: it never stands in text that is interchanged, so it can mark where to part content.
_BREAK = "\ufdd0"


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
            reason = " ".join(str(error).split())
            raise TemplateError(f"the model's chat template is not valid: {reason}") from error

    def tokens(self, messages: Sequence[Message], most: int | None = None) -> list[int]:
        """The prompt that makes the model answer the last of `messages`; see `tokens_up_to` for `most`.

        Raises:
            OptionError: a message without role or content.
            TemplateError: the template refuses these messages.
        """
        tokens: list[int] = []
        for part in self.render([checked(message) for message in messages]).split(_BREAK):
            if most is None:
                tokens += self._vocabulary.tokenize(part, special=True)
            elif len(tokens) <= most:
                tokens += tokens_up_to(self._vocabulary, part, most, special=True)
        bos = self._vocabulary.bos
        starts = self._vocabulary.tokenize("", start=True)  # the bos, of a model that asks for one
        return [*starts, *tokens] if starts and tokens[:1] != [bos] else tokens

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt as text. Where content spells a special token, a mark stands inside."""
        safe = [{**message, "content": self._broken(message["content"])} for message in messages]
        try:
            return self._template.render(
                messages=safe, add_generation_prompt=True, bos_token=self._bos, eos_token="", tools=None
            )
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise TemplateError(f"the model's chat template refuses these messages: {reason}") from error

    def _broken(self, content: str) -> str:
        """Marks inside the special tokens, and not around: templates trim content and take it apart."""
        for special in self._specials:
            content = content.replace(special, f"{special[0]}{_BREAK}{special[1:]}")
        return content


def checked(message: Message) -> Message:
    """`message`, if it is one.

    Raises:
        OptionError: it lacks a role or a content.
    """
    if not isinstance(message, Mapping) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
        raise OptionError(f'a message is {{"role": ..., "content": ...}} with texts for both, not {message!r:.80}')
    return message


def _to_json(value: Any, indent: int | None = None) -> str:
    """As transformers has it: Jinja's own escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
