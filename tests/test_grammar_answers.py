"""Answers of a runtime by a grammar: reasoning before them, drafters by name, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgespec import Finished, Grammar, GrammarError, OptionError, Runtime, Sampling, Speculation, Text
from edgespec.cli import app
from edgespec.grammar import reasoning_before
from edgespec.text.reasoning import Reasoning

from .thinkers import Words, gemma4, harmony, qwen3, thinker
from .toy_runtime import TALK, USER, opened

YES = Grammar.json_schema({"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]})
ONLY = Grammar.json_schema({"enum": [{"a": 1}, {"a": 2}]})


def said(runtime: Runtime, **options: object) -> tuple[str, str, str]:
    """The answer, the reasoning before it, and why it ended."""
    text = reasoning = ""
    for event in runtime.chat([USER], max_tokens=80, **options):  # type: ignore[arg-type]
        if isinstance(event, Text):
            text, reasoning = text + event.text, reasoning + event.reasoning
        if isinstance(event, Finished):
            return text, reasoning, event.reason
    raise AssertionError("no Finished")


def thinking(vocabulary: Words, script: str, *, k: int = 0, think: str = "on") -> tuple[str, str, str]:
    runtime, rule = thinker(vocabulary, k=k)
    with runtime:
        rule.follow(runtime.prompt([USER], think), vocabulary.tokenize(script, special=True))
        return said(runtime, grammar=ONLY, think=think)


MODELS = {
    "tags": (qwen3, "<think>\nHm, {\n</think>\n\nWell"),
    "a channel": (gemma4, "<|channel>thought\nHm, {<channel|>Well"),
    "messages": (
        harmony,
        "<|channel|>analysis<|message|>Hm, {<|end|><|start|>assistant<|channel|>final<|message|>Well",
    ),
}


@pytest.mark.parametrize("k", [0, 5])
@pytest.mark.parametrize("model", MODELS)
def test_reasoning_is_free_and_the_answer_is_not(model: str, k: int) -> None:
    """The model wants to say `Well`; drafts cross the end of the reasoning."""
    vocabulary, script = MODELS[model]
    text, reasoning, reason = thinking(vocabulary(), script, k=k)
    assert json.loads(text) in ({"a": 1}, {"a": 2})
    assert (reasoning, reason) == ("Hm, {", "end")


def test_a_model_may_answer_without_reasoning() -> None:
    text, reasoning, _ = thinking(qwen3(), '{"a":2}')
    assert (text, reasoning) == ('{"a":2}', "")


def test_reasoning_that_is_off_cannot_begin() -> None:
    text, reasoning, _ = thinking(qwen3(), "<think>\nHm.\n</think>\n\n", think="off")
    assert json.loads(text) in ({"a": 1}, {"a": 2})
    assert reasoning == ""


def test_reasoning_before_an_answer_is_a_rule_by_what_the_prompt_opens() -> None:
    """May, must, cannot."""
    reasoning = Reasoning.of(qwen3(), "<think>")
    assert ")?" in reasoning_before(reasoning).splitlines()[0]
    opened = reasoning_before(replace(reasoning, opened=True), "off")
    assert opened.startswith("before: ")
    assert ")?" not in opened.splitlines()[0]
    assert reasoning_before(reasoning, "off") == ""
    assert reasoning_before(replace(reasoning, closed=True)) == ""


def test_a_model_without_markers_does_not_reason() -> None:
    """Nothing but the answer: its first token is forced."""
    runtime, _ = opened(TALK)
    with runtime:
        text, _, reason = said(runtime, grammar=ONLY)
    assert json.loads(text) in ({"a": 1}, {"a": 2})
    assert reason == "end"


def test_forced_tokens_are_a_drafter_where_there_is_a_grammar() -> None:
    runtime, _ = opened(TALK)

    def drafted(speculation: Speculation, grammar: Grammar | None) -> set[str]:
        events = runtime.complete([1, 2, 3], Sampling(0.9), max_tokens=8, grammar=grammar, speculation=speculation)
        finished = next(event for event in [*events] if isinstance(event, Finished))
        return set(finished.stats.by_drafter)

    with runtime:
        assert "grammar" in drafted(Speculation(k=4), YES)
        assert drafted(Speculation(("grammar",), 4), YES) == {"grammar"}
        assert drafted(Speculation(("grammar",), 4), None) == set()
        assert "grammar" not in drafted(Speculation(("lookup",), 4), YES)
        assert "grammar" not in drafted(Speculation(k=4), None)


def test_runtimes_share_a_vocabulary_and_nothing_else() -> None:
    runtime, _ = opened(TALK)
    with runtime, runtime.another() as other:
        one, two = (each.complete([5], max_tokens=20, grammar=ONLY) for each in (runtime, other))
        ended = [e.reason for pair in zip_longest(one, two) for e in pair if isinstance(e, Finished)]
    assert ended == ["end", "end"]


def test_what_is_no_grammar() -> None:
    runtime, _ = opened(TALK)
    with runtime:
        with pytest.raises(OptionError, match="grammar is"):
            runtime.complete([1], grammar="start: x")  # type: ignore[arg-type]
        with pytest.raises(GrammarError, match="unknown special token"):
            runtime.complete([1], grammar=Grammar.lark("start: <|nope|>"))


def test_an_answer_that_is_cut_is_incomplete() -> None:
    runtime, _ = opened(TALK)
    with runtime:
        events = list(runtime.complete([1], max_tokens=3, grammar=YES))
    assert events[-1].reason == "length"  # type: ignore[union-attr]
    assert "".join(event.text for event in events if isinstance(event, Text)) == '{"y'


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("a.lark", 'start: "yes" | "no"', ("yes", "no")),
        ("a.gbnf", 'root ::= "yes" | "no"', ("yes", "no")),
        ("a.json", '{"enum": ["yes", "no"]}', ('"yes"', '"no"')),
    ],
)
def test_the_command(
    small_pair: dict[str, Path], tmp_path: Path, name: str, content: str, wanted: tuple[str, ...]
) -> None:
    path = tmp_path / name
    path.write_text(content)
    option = "--json-schema" if path.suffix == ".json" else "--grammar"
    done = CliRunner().invoke(app, ["chat", str(small_pair["target"]), "-p", "Well?", option, str(path)])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() in wanted


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("a.txt", "x", "a .lark or a .gbnf file"), ("a.lark", "start: /x", "cannot be used"), ("a.gbnf", "x", "GBNF")],
)
def test_the_command_refuses_before_it_loads(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    done = CliRunner().invoke(app, ["chat", str(tmp_path / "none.gguf"), "-p", "Well?", "--grammar", str(path)])
    assert message in f"{done.output} {done.exception}"
