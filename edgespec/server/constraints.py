"""What an answer may be: the fields `response_format` and `grammar`."""

from __future__ import annotations

from ..errors import GrammarError
from ..grammar import Grammar
from .errors import Refused
from .fields import Fields

_LONGEST = 256 * 1024  # characters


def grammar(fields: Fields, given_format: Fields | None = None) -> Grammar | None:
    """The grammar of an answer; None for any text.

    `response_format` is that of OpenAI; `grammar` has the syntax of Lark, or, where it contains `::=`, of llama.cpp.

    Args:
        given_format: the fields of the format where they are not in `response_format`.

    Raises:
        Refused: both, or one that is not valid.
        MissingPackage: llguidance is not installed.
    """
    given = given_format if given_format is not None else fields.below("response_format")
    kind = given.text("type", "text")
    own = fields.text("grammar", most=_LONGEST)
    if own and kind != "text":
        raise Refused("grammar and response_format exclude each other; send one of them", param="grammar")
    try:
        if own:
            return Grammar.gbnf(own) if "::=" in own else Grammar.lark(own)
        return _format(given, kind)
    except GrammarError as error:
        raise Refused(str(error), param="grammar" if own else "response_format") from None


def _format(given: Fields, kind: str) -> Grammar | None:
    if kind == "text":
        return None
    if kind == "json_object":
        # llama.cpp's server has the schema here.
        return Grammar.json_schema(given.raw("schema")) if given.has("schema") else Grammar.json_object()
    if kind == "json_schema":
        described = given.below("json_schema")
        if not described.has("schema"):
            raise described.wrong("schema", "a JSON schema")
        return Grammar.json_schema(described.raw("schema"))
    raise given.wrong("type", "text, json_object or json_schema")
