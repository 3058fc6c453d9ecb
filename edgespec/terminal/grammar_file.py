"""The grammar of an answer from the options of `chat`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .text_files import text_of

if TYPE_CHECKING:
    from ..grammar import Grammar


def chosen_grammar(schema: Path | None, file: Path | None, *, json_object: bool) -> Grammar | None:
    """The grammar that options ask for; None if they do not.

    Args:
        schema: a file with a JSON Schema.
        file: one with a grammar, whose suffix is .lark or .gbnf.
        json_object: any JSON object.

    Raises:
        GrammarError: the grammar is not valid.
        MissingPackage: llguidance is not installed.
        OptionError: the file cannot be read.
        click.UsageError: more than one of them is given, or a suffix is another.
    """
    if sum((schema is not None, file is not None, json_object)) > 1:
        raise click.UsageError("--json-schema, --json-object and --grammar exclude each other; give one of them")
    if schema is None and file is None and not json_object:
        return None
    from ..grammar import Grammar  # noqa: PLC0415

    if schema is not None:
        return Grammar.json_schema(text_of(schema))
    if file is None:
        return Grammar.json_object()
    makers: dict[str, Callable[[str], Grammar]] = {".lark": Grammar.lark, ".gbnf": Grammar.gbnf}
    make = makers.get(file.suffix.lower())
    if make is None:
        raise click.UsageError(f"{file} has the suffix {file.suffix!r}; a grammar is a .lark or a .gbnf file")
    return make(text_of(file))
