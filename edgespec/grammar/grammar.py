"""The value of a grammar, checked when it is made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import GrammarError
from ..values import shown
from .llguidance import gbnf_to_lark, regex_to_lark, require_valid
from .tools import FORMATS, ToolFormat, tool_rules, trigger_rules

_LONGEST = 256 * 1024  # bytes of a schema or a grammar
_SCHEMA, _LARK = "json_schema", "lark_grammar"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer may be: made by `json_object`, `json_schema`, `lark`, `gbnf`, `regex` or `tools`.

    Args:
        kind: "json_schema" or "lark_grammar".
        text: the schema, or the grammar in Lark's syntax as llguidance extends it.
        trigger: for `tools`, the text or the label of the special token before calls.

    Raises:
        GrammarError: it is not valid, larger than 256 KB, or exceeds the limits of the parser.
        MissingPackage: llguidance is not installed.
    """

    kind: str
    text: str
    trigger: str = ""

    def __post_init__(self) -> None:
        if self.kind not in {_SCHEMA, _LARK}:
            raise GrammarError(f"a grammar is of the kind {shown(self.kind)}; it must be {_SCHEMA} or {_LARK}")
        _require_size(self.text)
        require_valid(json.dumps({"grammars": [self.part()]}))

    def part(self, trigger: int | None = None) -> dict[str, Any]:
        """The grammar as an entry of llguidance's list of grammars.

        Args:
            trigger: the special token that the `trigger` is in a vocabulary; None if it is text there.
        """
        if self.kind == _SCHEMA:
            return {"name": "answer", _SCHEMA: json.loads(self.text)}
        rules = trigger_rules(self.trigger, trigger) if self.trigger else ""
        return {"name": "answer", _LARK: f"{self.text}\n{rules}"}

    @classmethod
    def json_object(cls, *, whitespace: bool = False) -> Grammar:
        """Any JSON object. The arguments are those of `json_schema`."""
        return cls.json_schema({"type": "object"}, whitespace=whitespace)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, *, whitespace: bool = False) -> Grammar:
        """The JSON texts that a schema describes.

        A reference to another document, look-around in a pattern and keywords that llguidance does not know are
        refused.

        Args:
            schema: a JSON Schema, or its JSON text.
            whitespace: whether white space may stand between the parts of the text. Without it JSON is compact, and
                keys and punctuation are forced: they draft for nothing.
        """
        read = _parsed(schema)
        options = {"whitespace_flexible": whitespace}
        if read is True:
            read = {}
        if not isinstance(read, dict):
            raise GrammarError(f"the JSON schema is {shown(read)}; it must be an object")
        guidance = read.get("x-guidance")
        own = guidance if isinstance(guidance, dict) else {}
        return cls(_SCHEMA, _dumped({**read, "x-guidance": {**own, **options}}))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """A context-free grammar in Lark's syntax as llguidance extends it; its first rule is `start`."""
        return cls(_LARK, _text("a Lark grammar", text))

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """A context-free grammar in the syntax of llama.cpp; its first rule is `root`."""
        return cls(_LARK, gbnf_to_lark(_text("a GBNF grammar", text)))

    @classmethod
    def regex(cls, text: str) -> Grammar:
        """The texts that a regular expression matches whole, in the syntax of Rust's regex, without look-around."""
        return cls(_LARK, regex_to_lark(_text("a regular expression", text)))

    @classmethod
    def tools(
        cls,
        tools: Sequence[Mapping[str, Any]],
        *,
        required: bool = False,
        parallel: bool = True,
        style: str | ToolFormat = "hermes",
    ) -> Grammar:
        """Answers that call tools: the name of a call is one of theirs, and its arguments are held to that schema.

        Args:
            tools: as in OpenAI's API, {"type": "function", "function": {"name", "parameters"}}, or the inner object.
            required: whether the answer is a call; else it is free text in which calls may be.
            parallel: whether there may be several calls.
            style: how the model writes calls: "hermes" (also Qwen), "qwen3-coder", "llama3", "mistral", or another
                format.
        """
        form = FORMATS.get(style) if isinstance(style, str) else style
        if not isinstance(form, ToolFormat):
            raise GrammarError(f"style is {shown(style)}; it must be one of {', '.join(FORMATS)}, or a ToolFormat")
        return cls(_LARK, tool_rules(tools, form, required=required, parallel=parallel), form.trigger)


def _text(what: str, text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise GrammarError(f"{what} is {shown(text)}; it must be a text that is not empty")
    _require_size(text)
    return text


def _require_size(text: str) -> None:
    size = len(text.encode("utf-8", "replace"))
    if size > _LONGEST:
        raise GrammarError(f"the grammar has {size // 1024} KB, the limit is {_LONGEST // 1024} KB; make it simpler")


def _parsed(schema: Any) -> Any:
    """A schema as Python has JSON."""
    if not isinstance(schema, str):
        return json.loads(_dumped(schema))
    try:
        _require_size(schema)
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the JSON schema is not valid JSON: {error}; correct it") from error


def _dumped(schema: Any) -> str:
    try:
        text = json.dumps(dict(schema) if isinstance(schema, Mapping) else schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the JSON schema cannot be written as JSON: {error}; give a dict or a text") from error
    _require_size(text)
    return text
