"""Grammars that are too large, too deep or no grammars: one line, at once."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil
import pytest

from edgespec import Grammar, GrammarError
from edgespec.backends.toy import Bytes
from edgespec.grammar import GrammarTokens, llguidance
from edgespec.grammar.reading import GrammarReaders

TOKENS = GrammarTokens(Bytes())


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        found = {"type": "array", "items": found}
    return found


def chain(rules: int, name: str) -> str:
    lines = [f"{name}{n}: {name}{n + 1}" for n in range(rules)]
    return "\n".join([f"start: {name}0", *lines, f'{name}{rules}: "a"'])


REFUSED: dict[str, tuple[Callable[[], Grammar], str]] = {
    "no JSON": (lambda: Grammar.json_schema("{"), "not valid JSON"),
    "no object": (lambda: Grammar.json_schema("[1]"), "must be an object"),
    "no number": (lambda: Grammar.json_schema({"const": float("nan")}), "cannot be written as JSON"),
    "half a character": (lambda: Grammar.json_schema({"const": "\ud800"}), "cannot be used"),
    "an object of Python": (lambda: Grammar.json_schema({"const": object()}), "cannot be written as JSON"),
    "too large": (lambda: Grammar.json_schema({"enum": ["x" * 300_000]}), "the limit is 256 KB"),
    "too large a text": (lambda: Grammar.json_schema('{"a":"' + "x" * 300_000), "the limit is 256 KB"),
    "deep": (lambda: Grammar.json_schema(nested(400)), "recursion limit"),
    "deeper": (lambda: Grammar.json_schema(nested(20_000)), "recursion|JSON"),
    "deep text": (lambda: Grammar.json_schema('{"items":' * 20_000 + "{}" + "}" * 20_000), "recursion|JSON"),
    "a type of none": (lambda: Grammar.json_schema({"type": "nope"}), "nope"),
    "nothing there": (lambda: Grammar.json_schema({"$ref": "#/$defs/nope"}), "does not exist"),
    "elsewhere": (lambda: Grammar.json_schema({"$ref": "http://example.com/x.json"}), "example.com"),
    "a bad pattern": (lambda: Grammar.json_schema({"type": "string", "pattern": "(a"}), "unclosed group"),
    "look-around": (lambda: Grammar.json_schema({"type": "string", "pattern": "(?=a)b"}), "look-around"),
    "contradiction": (lambda: Grammar.json_schema({"type": "integer", "minimum": 2, "maximum": 1}), "Unsatisfiable"),
    "not": (lambda: Grammar.json_schema({"not": {"type": "string"}}), "not"),
    "nothing": (lambda: Grammar.json_schema(False), "must be an object"),
    "a bad regex": (lambda: Grammar.regex("(a"), "unclosed group"),
    "a deep regex": (lambda: Grammar.regex("(" * 50_000 + ")" * 50_000), "cannot be used"),
    "no text": (lambda: Grammar.lark(" "), "not empty"),
    "bytes": (lambda: Grammar.lark(b"start: x"), "must be a text"),  # type: ignore[arg-type]
    "no start": (lambda: Grammar.lark('begin: "a"'), "cannot be used"),
    "no rule": (lambda: Grammar.lark("start: nope"), "nope"),
    "a circle": (lambda: Grammar.lark("start: A\nA: B\nB: A"), "circular"),
    "brackets": (lambda: Grammar.lark("start: " + "[" * 50_000 + '"a"' + "]" * 50_000), "nested"),
    "no gbnf": (lambda: Grammar.gbnf("root = x"), "GBNF"),
    "deep gbnf": (lambda: Grammar.gbnf("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000), "GBNF"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_on_one_line(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(GrammarError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 1510  # as all messages, cut in the middle


#: Valid, and perhaps too complex to follow.
HEAVY: dict[str, Callable[[], Grammar]] = {
    "itself": lambda: Grammar.json_schema({"$ref": "#"}),
    "in a circle": lambda: Grammar.json_schema(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    ),
    "without end": lambda: Grammar.json_schema(
        {"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"], "additionalProperties": False}
    ),
    "long": lambda: Grammar.json_schema({"type": "string", "maxLength": 10**9}),
    "many items": lambda: Grammar.json_schema({"type": "array", "items": {"type": "string"}, "minItems": 10**9}),
    "choices": lambda: Grammar.json_schema({"enum": [f"{n} x" for n in range(10_000)]}),
    "automaton": lambda: Grammar.json_schema({"type": "string", "pattern": "^(a|b)*a(a|b){900}$"}),
    "repeats": lambda: Grammar.regex("((((a{1000}){1000}){1000}){1000})"),
    "intersection": lambda: Grammar.lark("start: T\nT: " + " & ".join(f"/.*a.{{{n}}}/" for n in range(12))),
    "itself only": lambda: Grammar.lark("start: a\na: a"),
    "a chain of rules": lambda: Grammar.lark(chain(8000, "r")),
    "a chain of terminals": lambda: Grammar.lark(chain(8000, "T")),
}


@pytest.mark.parametrize("case", HEAVY)
def test_it_is_followed_or_refused(case: str) -> None:
    """Some bytes, one after another, or one error; never a crash."""
    with suppress(GrammarError):
        constraint = TOKENS.bind(HEAVY[case]()).begin()
        for _ in range(12):
            if constraint.ended():
                break
            constraint.forced()
            constraint.commit(int(constraint.allowed().argmax()))


#: An intersection whose reading takes the longer by a third the more patterns there are, within all limits.
ENDLESS = json.dumps(
    {
        "grammars": [
            {"json_schema": {"allOf": [{"type": "string", "pattern": f"a.{{{n}}}$"} for n in range(60)]}},
        ]
    }
)
SIMPLE = json.dumps({"grammars": [{"json_schema": {"type": "object"}}]})


def not_here(source: str) -> str | None:
    raise AssertionError("another process reads it")


@pytest.fixture
def readers() -> Iterator[GrammarReaders]:
    found = GrammarReaders(patience=1.5)
    yield found
    found.close()


def test_one_that_takes_too_long_is_given_up_and_so_is_its_process(readers: GrammarReaders) -> None:
    """Its thread went on to its end, which was none."""
    before = {*psutil.Process().children()}
    assert readers.read(SIMPLE, not_here) is None
    (child,) = {*psutil.Process().children()} - before
    with pytest.raises(GrammarError, match=r"takes more than 1\.5 seconds"):
        readers.read(ENDLESS, not_here)
    assert not child.is_running()
    assert readers.read(SIMPLE, not_here) is None, "the next one has a new process"
    (next_child,) = {*psutil.Process().children()} - before
    readers.close()
    assert not next_child.is_running()


def test_two_are_read_at_once_and_others_wait(readers: GrammarReaders) -> None:
    with ThreadPoolExecutor(2) as threads:
        endless = [threads.submit(readers.read, ENDLESS, not_here) for _ in range(2)]
        deadline = time.monotonic() + 20
        while readers._free._value and time.monotonic() < deadline:
            time.sleep(0.01)
        other = GrammarReaders(patience=0.05)
        other._free = readers._free
        with pytest.raises(GrammarError, match="other grammars take too long"):
            other.read(SIMPLE, not_here)
        for each in endless:
            with pytest.raises(GrammarError, match="takes more than"):
                each.result(20)
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(lambda _: readers.read(SIMPLE, not_here), range(8))] == [None] * 8


def test_many_rules_need_a_deep_stack(readers: GrammarReaders) -> None:
    """The parser descends rule by rule; the stack that threads have by default holds some hundred."""
    for terminals in "rT":
        source = json.dumps({"grammars": [{"lark_grammar": chain(8000, terminals)}]})
        assert readers.read(source, not_here) is None


@pytest.mark.skipif(sys.platform != "linux", reason="psutil tells the limits of a process on Linux")
def test_a_process_that_reads_has_a_limit_of_memory(readers: GrammarReaders) -> None:
    assert readers.read(SIMPLE, not_here) is None
    process = psutil.Process(readers._idle[0]._running.pid)
    assert process.rlimit(psutil.RLIMIT_AS) == (4 << 30, 4 << 30)


def test_a_process_that_dies_is_one_error(readers: GrammarReaders) -> None:
    """As by the limit of its memory."""
    assert readers.read(SIMPLE, not_here) is None
    readers._idle[0]._running.kill()
    with pytest.raises(GrammarError, match="too much memory"):
        readers.read(SIMPLE, not_here)
    assert readers.read(SIMPLE, not_here) is None


@pytest.mark.parametrize("why", ["frozen", "no Python", "another program"])
def test_where_no_process_can_be_started_it_is_read_here(
    readers: GrammarReaders, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:
        monkeypatch.setattr(sys, "executable", "" if why == "no Python" else shutil.which("false"))
    assert readers.read(SIMPLE, lambda source: source) == SIMPLE


def test_what_is_read_in_this_process_has_a_deep_stack() -> None:
    with pytest.raises(ZeroDivisionError):
        llguidance.with_deep_stack(lambda: 1 // 0)
    assert llguidance.with_deep_stack(list) == []


def test_a_grammar_without_llguidance_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(Exception, match=r"pip install 'edgespec\[grammar\]'"):
        Grammar.json_object()


def test_a_token_that_a_vocabulary_does_not_have() -> None:
    grammar = Grammar.lark("start: <|python_tag|>")
    with pytest.raises(GrammarError, match="unknown special token"):
        TOKENS.bind(grammar)
