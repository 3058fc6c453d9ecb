"""What is called of the package llguidance to check and translate grammars."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import GrammarError
from ..extras import import_package

R = TypeVar("R")

# The parser of grammars descends rule by rule, about 5 KB of stack for each; 256 KB of text has at most 40000 rules.
_STACK = 256 * 1024 * 1024
_STARTING = threading.Lock()
# Intersections of expressions take exponential time within the limits of fuel, and the package cannot be interrupted.
_PATIENCE = 20.0  # seconds
# One that does not end leaves room for others; more of them would take all cores.
_READINGS = threading.BoundedSemaphore(2)


def package() -> Any:
    """llguidance. Raises MissingPackage."""
    return import_package("llguidance", "a grammar")


def limits() -> Any:
    """The parser's limits: its own, and short messages."""
    return package().LLParserLimits(verbose_errors=False)


def with_deep_stack(work: Callable[[], R]) -> R:
    """The result of `work`, on a thread whose stack holds the deepest grammar: an overflow would end the process.

    Raises:
        GrammarError: it takes longer than 20 seconds, and the thread goes on until it is done; or two others in this
            process took as long before.
    """
    readings = _READINGS
    if not readings.acquire(timeout=_PATIENCE):
        raise GrammarError("other grammars take too long to read; try again when they are done")
    done: list[R] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)
        finally:
            readings.release()

    with _STARTING:
        before = threading.stack_size(_STACK)
        try:
            thread = threading.Thread(target=run, name="edgespec-grammar", daemon=True)
            thread.start()
        except RuntimeError:
            readings.release()
            raise
        finally:
            threading.stack_size(before)
    thread.join(_PATIENCE)
    if thread.is_alive():
        raise GrammarError(f"the grammar takes more than {_PATIENCE:.0f} seconds to read; use a simpler one")
    if failed:
        raise failed[0]
    return done[0]


def require_valid(source: str, tokenizer: Any = None) -> None:
    """Check a list of grammars in llguidance's JSON.

    Raises:
        GrammarError: it is not valid, or exceeds the limits.
    """
    check = package().LLMatcher.validate_grammar_with_warnings
    failed, messages = with_deep_stack(lambda: check(source, tokenizer, limits=limits()))
    if failed:
        raise refused(messages[0] if messages else "")


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
