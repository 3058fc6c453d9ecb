"""The chat at a terminal with models that think: what is shown, folded, hidden and kept."""

from __future__ import annotations

import re
from typing import Any

import pytest

from edgespec import Sampling
from edgespec.backends.toy import Bytes
from edgespec.engine import Finished
from edgespec.terminal.chat import Chat
from edgespec.terminal.thoughts import AnswerDisplay

from .commandline import PROMPT, events, refused, run
from .thinkers import R1, Words, qwen3, thinker

ANSI = re.compile(r"\x1b\[[0-9;]*m")
THINKING = "<think>\nHm, hm.\n</think>\n\nYes."


class Seen:
    """A chat with a model that thinks, and what it writes."""

    def __init__(self, vocabulary: Words | None = None, **options: Any) -> None:
        self.vocabulary = vocabulary or qwen3()
        self.shown: list[str] = []
        self.notes: list[str] = []
        runtime, self._script = thinker(self.vocabulary, k=options.pop("k", 0))
        self.chat = Chat(runtime, Sampling(), out=self.shown.append, note=self.notes.append, **options)

    def ask(self, text: str = "Hello", answer: str = THINKING) -> Finished:
        """Ask; the model gives this answer."""
        messages = [*self.chat.turns, {"role": "user", "content": text}]
        prompt = self.chat.runtime.prompt(messages, self.chat.think)
        self._script.follow(prompt, [*self.vocabulary.tokenize(answer, special=True), 257])
        self.shown.clear()
        self.notes.clear()
        return self.chat.answer(text)

    @property
    def text(self) -> str:
        return "".join(self.shown)


@pytest.mark.parametrize("k", [0, 31])
@pytest.mark.parametrize("drafts", [False, True])
def test_thoughts_are_dimmed(k: int, *, drafts: bool) -> None:
    seen = Seen(k=k, drafts=drafts)
    seen.ask()
    thoughts, answer = seen.text.split("\n\n")
    assert ANSI.sub("", thoughts) == "Hm, hm."
    assert ANSI.sub("", answer) == "Yes.\n"
    dimmed = re.findall(r"((?:\x1b\[\d+m)+)([^\x1b]+)", thoughts)
    assert "".join(text for _, text in dimmed) == "Hm, hm."
    assert all("\x1b[2m" in codes for codes, _ in dimmed)
    assert "\x1b[2m" not in answer


def test_without_colour_lines_mark_them() -> None:
    seen = Seen(colour=False)
    seen.ask()
    assert seen.text == "(thinking)\nHm, hm.\n(answer)\nYes.\n"


def test_thoughts_are_folded_and_shown_afterwards() -> None:
    seen = Seen(thoughts="fold")
    seen.ask()
    assert seen.text == "Yes.\n"
    assert seen.notes[0] == "(thinking)"
    assert re.fullmatch(r"\(thought for \d+\.\d s, \d+ tokens\)", seen.notes[1])
    seen.chat.enter("/thoughts")
    assert seen.notes[-1] == "Hm, hm."


def test_thoughts_are_hidden() -> None:
    seen = Seen(thoughts="hide")
    seen.ask()
    assert (seen.text, seen.notes) == ("Yes.\n", [])
    seen.chat.enter("/thoughts show")
    seen.ask("Again")
    assert "Hm, hm." in ANSI.sub("", seen.text)


@pytest.mark.parametrize("thoughts", ["show", "fold", "hide"])
def test_an_answer_without_thoughts_is_as_ever(thoughts: str) -> None:
    for answer in ("Yes.", "<think>\n\n</think>\n\nYes."):
        seen = Seen(thoughts=thoughts)
        seen.ask(answer=answer)
        assert (seen.text, seen.notes) == ("Yes.\n", [])
    seen.chat.enter("/thoughts")
    assert seen.notes == ["(no thoughts yet)"]


def test_thoughts_are_kept_for_the_template() -> None:
    seen = Seen()
    seen.ask()
    assert seen.chat.turns == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm, hm."},
    ]
    seen.ask("Again", "No.")
    assert seen.chat.turns[-1] == {"role": "assistant", "content": "No."}


@pytest.mark.parametrize("thoughts", ["show", "fold", "hide"])
def test_an_answer_that_ends_in_thoughts_leaves_no_turn(thoughts: str) -> None:
    """An empty answer in the conversation would be refused by some templates in every later turn."""
    seen = Seen(max_tokens=6, thoughts=thoughts)
    finished = seen.ask()
    assert finished.reason == "length"
    assert seen.chat.turns == []
    assert "no answer: the model was still thinking" in seen.notes[-1]
    assert seen.text.endswith("\n")
    seen.ask("Again", "Yes.")
    assert [turn["content"] for turn in seen.chat.turns] == ["Again", "Yes."]


def test_thinking_is_switched_during_a_chat() -> None:
    seen = Seen()
    seen.chat.enter("/think off")
    assert seen.notes[-1] == "(think: off)"
    assert seen.vocabulary.spelled(seen.chat.runtime.prompt([{"role": "user", "content": "x"}], "off")).endswith(
        "</think>\n\n"
    )
    seen.ask(answer="Yes.")
    assert seen.text == "Yes.\n"
    seen.chat.enter("/think perhaps")
    assert "/think takes one of auto, on, off" in seen.notes[-1]
    seen.chat.enter("/think")
    assert seen.notes[-1] == "(think: off)"
    seen.chat.enter("/think auto")
    assert seen.chat.think == "auto"


@pytest.mark.parametrize("template", [R1, str(Bytes.template)])
def test_a_model_without_a_switch_is_remarked(template: str) -> None:
    seen = Seen(Words(template))
    seen.chat.enter("/think off")
    assert "has no switch for this: off has no effect" in seen.notes[-1]
    seen.chat.enter("/think auto")
    assert seen.notes[-1] == "(think: auto)"


def test_thoughts_cannot_control_the_terminal() -> None:
    for drafts in (False, True):
        seen = Seen(drafts=drafts)
        seen.ask(answer="<think>a\x1b]0;b\x07</think>Yes.")
        assert "\x1b]" not in seen.text
        seen.chat.enter("/thoughts")
        assert "\x1b]" not in seen.notes[-1]


def test_thoughts_between_parts_of_an_answer() -> None:
    out: list[str] = []
    for thoughts in ("show", "fold", "hide"):
        display = AnswerDisplay(thoughts, out.append, lambda _line: None, colour=False)
        for reasoning, answer in (("a", ""), ("b", "One"), ("", "."), ("c", "Two.")):
            display.show(reasoning, answer, 1)
        display.close()
    assert "".join(out) == "(thinking)\nab\n(answer)\nOne.\n(thinking)\nc\n(answer)\nTwo.\nOne.\nTwo.\nOne.Two.\n"


def test_the_command_takes_both_options() -> None:
    asked = ("chat", "-p", PROMPT, "--temp", "0", "--max-tokens", "4")
    plain = run(*asked)
    switched = run(*asked, "--think", "off", "--thoughts", "show")
    assert switched.stdout == plain.stdout
    assert "has no switch for this: off has no effect" in switched.stderr
    assert "has no switch" not in plain.stderr
    assert [event.get("reasoning") for event in events(*asked[1:])][1] == ""
    assert "'perhaps' is not one of 'auto', 'on'" in refused(run(*asked, "--think", "perhaps"))
