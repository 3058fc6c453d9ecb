"""What is called of the package llguidance to check and translate grammars."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import GrammarError
from ..extras import import_package
from .reading import READERS

R = TypeVar("R")

# As in the process that reads grammars: what was read there is read here without an overflow.
_STACK = 256 * 1024 * 1024
_STARTING = threading.Lock()


def package() -> Any:
    """llguidance. Raises MissingPackage."""
    return import_package("llguidance", "a grammar")


def limits() -> Any:
    """The parser's limits: its own, and short messages."""
    return package().LLParserLimits(verbose_errors=False)


def with_deep_stack(work: Callable[[], R]) -> R:
    """The result of `work`, on a thread whose stack holds the deepest grammar."""
    done: list[R] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    with _STARTING:
        before = threading.stack_size(_STACK)
        try:
            thread = threading.Thread(target=run, name="edgespec-grammar", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def require_valid(source: str) -> None:
    """Check a list of grammars in llguidance's JSON.

    Raises:
        GrammarError: it is not valid, exceeds the limits, or takes too long to read.
        MissingPackage: llguidance is not installed.
    """
    package()
    message = READERS.read(source, _read_here)
    if message is not None:
        raise refused(message)


def _read_here(source: str) -> str | None:
    check = package().LLMatcher.validate_grammar_with_warnings
    failed, messages = with_deep_stack(lambda: check(source, None, limits=limits()))
    return (messages[0] if messages else "") if failed else None


def refused(message: str) -> GrammarError:
    """The error for a message of llguidance."""
    return GrammarError(f"the grammar cannot be used: {message.strip() or 'no reason is given'}; correct it")


def gbnf_to_lark(text: str) -> str:
    """A grammar in the syntax of llama.cpp, or one in Lark's, in Lark's. Raises GrammarError."""
    convert = import_package("llguidance.gbnf_to_lark", "a grammar").any_to_lark
    try:
        lark: str = convert(text)
    except Exception as error:
        raise GrammarError(f"the GBNF grammar is not valid: {error or type(error).__name__}; correct it") from error
    return lark


def regex_to_lark(text: str) -> str:
    """A grammar of one regular expression."""
    return f"start: /{package().regex_to_lark(text, '')}/"
