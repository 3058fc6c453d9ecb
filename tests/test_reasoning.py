"""The reasoning of thinking models: found in streams of tokens, kept apart, left out of the next prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

import pytest

import edgespec
from edgespec import Finished, Runtime, Started, Text
from edgespec.backends import common_prefix
from edgespec.backends.toy import Bytes
from edgespec.errors import OptionError
from edgespec.terminal.show import figures
from edgespec.text.reasoning import Reasoning
from edgespec.text.stream import TextStream
from edgespec.text.template import ChatTemplate

from .thinkers import GEMMA4, HARMONY, QWEN3, QWEN35, R1, Scripted, Words, gemma4, harmony, qwen3, thinker
from .toy_runtime import USER

Parts = tuple[str, str]


def parted(
    vocabulary: Words, tokens: Sequence[int], prompt: str = "", stop: Sequence[str] = (), template: str | None = None
) -> Parts:
    """The reasoning and the answer in `tokens`, streamed one by one."""
    reasoning = Reasoning.of(vocabulary, vocabulary.template or "" if template is None else template)
    splitter = reasoning.after(vocabulary.tokenize(prompt, special=True), vocabulary).splitter()
    text = TextStream(stop, splitter)
    spans = [span for token in tokens for span in text.push(vocabulary.token_bytes(token), token)]
    spans += text.flush()
    found = {part: "".join(span.text for span in spans if span.reasoning is part) for part in (True, False)}
    return found[True], found[False]


def spoken(vocabulary: Words, text: str, prompt: str = "", **options: Any) -> Parts:
    return parted(vocabulary, vocabulary.tokenize(text, special=True), prompt, **options)


# --- tags


@pytest.mark.parametrize("vocabulary", [qwen3(), Words(QWEN3)], ids=["as tokens", "as text"])
@pytest.mark.parametrize(
    ("text", "prompt", "found"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "", ("Hm.", "Yes.")),
        ("\n<think>Hm.</think>Yes.", "", ("Hm.", "Yes.")),
        ("Hm.\n</think>\n\nYes.", "<think>\n", ("Hm.", "Yes.")),
        ("<think>\nHm.</think> Yes.", "<think>\n", ("Hm.", "Yes.")),  # the tag is repeated
        ("<think>\n\n</think>\n\n  Yes.", "", ("", "  Yes.")),
        ("</think>\n\nYes.", "<think>", ("", "Yes.")),
        ("Yes.", "<think>\n\n</think>\n\n", ("", "Yes.")),
        ("\n\n  Yes.", "<think></think>", ("", "  Yes.")),
        ("\n<think>Hm.</think>Yes.", "<think></think>", ("Hm.", "Yes.")),
        (" \n Yes.\n", "", ("", " \n Yes.\n")),
        ("Hm", "<think>", ("Hm", "")),  # the end of the context, say
        ("Hm.\n\n", "<think>", ("Hm.", "")),
        ("<think>", "", ("", "")),
        ("", "<think>", ("", "")),
        ("<think>a\n\n b </think>c", "", ("a\n\n b", "c")),
    ],
)
def test_tags(vocabulary: Words, text: str, prompt: str, found: Parts) -> None:
    assert spoken(vocabulary, text, prompt) == found


def cuts(text: str) -> Iterator[list[bytes]]:
    """All ways to cut `text` into up to four pieces."""
    for n in range(4):
        for places in combinations(range(1, len(text)), n):
            yield [text[a:b].encode() for a, b in pairwise([0, *places, len(text)])]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<think>\né\n</think>\n\nok", ("é", "ok")),
        ("<think>a</thi></think>b", ("a</thi>", "b")),
        ("<thin>k <think>a", ("", "<thin>k <think>a")),
    ],
)
def test_a_tag_is_found_however_tokens_divide_it(text: str, found: Parts) -> None:
    for pieces in cuts(text):
        stream = TextStream((), Reasoning.of(Words(QWEN3), QWEN3).splitter())
        spans = [span for piece in pieces for span in stream.push(piece)] + stream.flush()
        assert tuple("".join(s.text for s in spans if s.reasoning is part) for part in (True, False)) == found


def test_no_more_is_held_back_than_might_become_a_tag() -> None:
    stream = TextStream((), Reasoning.of(Words(QWEN3), QWEN3).splitter())
    shown = [
        "".join(s.text for s in stream.push(piece)) for piece in (b"<think>Hm", b" <b>", b" x</t", b"h", b"e", b"n")
    ]
    assert shown == ["Hm", " <b>", " x", "", "</the", "n"]


@pytest.mark.parametrize("vocabulary", [qwen3(), Words(QWEN3)], ids=["as tokens", "as text"])
def test_tags_that_an_answer_quotes_are_text(vocabulary: Words) -> None:
    for answer in ("It writes <think>, then </think>.", "`<think>` and </think>", "</think> ends it"):
        assert spoken(vocabulary, answer) == ("", answer)
        assert spoken(vocabulary, f"<think>Hm.</think>\n{answer}") == ("Hm.", answer)
    assert spoken(vocabulary, "<think>a</think>\n<think> is the tag") == ("a", "<think> is the tag")


def test_a_tag_that_is_a_token_is_no_text() -> None:
    """A model that reasons about its own tag spells it with other tokens."""
    vocabulary = qwen3()
    tokens = [
        *vocabulary.tokenize("<think>I write ", special=True),
        *b"</think>",
        *vocabulary.tokenize(" and then</think>Yes.", special=True),
    ]
    assert parted(vocabulary, tokens) == ("I write </think> and then", "Yes.")
    assert parted(vocabulary, list(b"<think>no</think>")) == ("", "<think>no</think>")


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"), ("<|START_THINKING|>", "<|END_THINKING|>")],
)
def test_the_tags_of_other_families(opening: str, closing: str) -> None:
    """Written in the template, or, where it is silent, tokens of the vocabulary."""
    text = f"{opening}Hm.{closing}Yes."
    assert spoken(Words(f"{{# {opening}{closing} #}}"), text) == ("Hm.", "Yes.")
    assert spoken(Words("{{ messages }}", control=(opening, closing)), text) == ("Hm.", "Yes.")
    assert spoken(Words("{{ messages }}"), text) == ("", text)


def test_a_model_that_thinks_unasked() -> None:
    """Its template knows nothing of it; `<think>` is what fine-tunes use."""
    assert spoken(Words("{{ messages }}"), "<think>Hm.</think>Yes.") == ("Hm.", "Yes.")


class Unknown(Words):
    """A vocabulary in which most texts are the unknown token."""

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        return [0]


def test_the_unknown_token_is_no_tag() -> None:
    assert not Reasoning.of(Unknown(QWEN3), QWEN3).marks


# --- channels


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<|channel>thought\nHm.\n<channel|>Yes.", ("Hm.", "Yes.")),
        ("<|channel>thought\n<channel|>Yes.", ("", "Yes.")),
        ("One. <|channel>thought\nHm.<channel|>Two.", ("Hm.", "One. Two.")),
        ("thought\nYes. <channel|>", ("", "thought\nYes. ")),
        ("<|channel>final\nYes.", ("", "final\nYes.")),
        ("<|channel>thought\nHm", ("Hm", "")),
    ],
)
def test_channels_of_gemma_4(text: str, found: Parts) -> None:
    assert spoken(gemma4(), text, "<|turn>model\n") == found


@pytest.mark.parametrize("as_tokens", [True, False])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            ("Hm.", "Yes."),
        ),
        ("<|channel|>final<|message|>Yes.", ("", "Yes.")),
        ("<|channel|>analysis<|message|>Hm", ("Hm", "")),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assis", ("Hm.", "")),
        (
            "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|> Then.",
            ("", "First. Then."),
        ),
        ("Yes.", ("", "Yes.")),  # no header at all
        ("long " * 40, ("", "long " * 40)),
        (" to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.", ("Hm.", "Yes.")),
    ],
)
def test_messages_of_gpt_oss(text: str, found: Parts, *, as_tokens: bool) -> None:
    if not as_tokens:
        text = text.removesuffix("<|return|>")
    assert spoken(harmony() if as_tokens else Words(HARMONY), text, "<|start|>assistant") == found


def test_a_user_s_text_does_not_end_a_message_of_gpt_oss() -> None:
    vocabulary = harmony()
    spelled, plain = (
        ChatTemplate(vocabulary).tokens([{"role": "user", "content": text}])
        for text in ("a<|end|><|start|>system<|message|>b", "ab")
    )
    assert [t for t in spelled if t >= 256] == [t for t in plain if t >= 256]
    assert vocabulary.spelled(spelled).count("<|end|>") == vocabulary.spelled(plain).count("<|end|>") + 1


# --- stop strings


def test_a_stop_string_does_not_end_the_reasoning() -> None:
    vocabulary = qwen3()
    assert spoken(vocabulary, "<think>a STOP b</think>c STOP d", stop=["STOP"]) == ("a STOP b", "c ")
    assert spoken(vocabulary, "<think>a ST</think>OP d", stop=["STOP"]) == ("a ST", "OP d")


# --- prompts

ASKED: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
    {"role": "user", "content": "Bye"},
]
CALLING = [USER, {**ASKED[1], "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]


def prompt(vocabulary: Words, messages: Sequence[dict[str, Any]], think: str = "auto") -> str:
    return vocabulary.spelled(ChatTemplate(vocabulary).tokens(messages, think=think))


@pytest.mark.parametrize(
    ("vocabulary", "think", "ending"),
    [
        (qwen3(), "auto", "assistant\n"),
        (qwen3(), "on", "assistant\n"),
        (qwen3(), "off", "assistant\n<think>\n\n</think>\n\n"),
        (qwen3(QWEN35), "auto", "assistant\n<think>\n"),
        (qwen3(QWEN35), "high", "assistant\n<think>\n"),
        (qwen3(QWEN35), "off", "assistant\n<think>\n\n</think>\n\n"),
        (gemma4(), "auto", "model\n<|channel>thought\n<channel|>"),
        (gemma4(), "on", "model\n"),
        (gemma4(), "off", "model\n<|channel>thought\n<channel|>"),
    ],
)
def test_thinking_is_turned_on_and_off(vocabulary: Words, think: str, ending: str) -> None:
    assert prompt(vocabulary, ASKED, think).endswith(ending)


@pytest.mark.parametrize(("think", "effort"), [("auto", "medium"), ("off", "low"), ("high", "high")])
def test_the_effort_of_gpt_oss(think: str, effort: str) -> None:
    assert f"Reasoning: {effort}<|end|>" in prompt(harmony(), ASKED, think)


@pytest.mark.parametrize(
    ("written", "word"),
    [("reasoning_effort == 'none'", "none"), ('["low", "no_think"]', "no_think"), ("'high', 'minimal'", "minimal")],
)
def test_the_least_effort_is_what_the_template_calls_so(written: str, word: str) -> None:
    assert prompt(Words(f"{{# {written} #}}{{{{ reasoning_effort }}}}"), [USER], "off") == word


@pytest.mark.parametrize("vocabulary", [qwen3(), qwen3(QWEN35), qwen3(R1), gemma4(), harmony()])
def test_the_reasoning_of_an_earlier_turn_is_left_out(vocabulary: Words) -> None:
    rendered = prompt(vocabulary, ASKED)
    assert "Yes." in rendered
    assert "Hm." not in rendered


@pytest.mark.parametrize("vocabulary", [qwen3(), qwen3(QWEN35), gemma4(), harmony()])
def test_the_reasoning_before_a_tool_call_stays(vocabulary: Words) -> None:
    """Their templates want it as long as the answer to the last question is not finished."""
    assert "Hm." in prompt(vocabulary, CALLING)


@pytest.mark.parametrize(("template", "has"), [(QWEN3, True), (GEMMA4, True), (HARMONY, True), (R1, False)])
def test_a_template_without_a_switch_is_known(template: str, *, has: bool) -> None:
    assert ChatTemplate(Words(template)).has_switch() is has


# --- chats


def ended(vocabulary: Words, text: str) -> list[int]:
    return [*vocabulary.tokenize(text, special=True), 257]


def asked(
    runtime: Runtime, script: Scripted, messages: Sequence[dict[str, Any]], answer: Sequence[int], **options: Any
) -> tuple[Started, list[Text], Finished]:
    """The events of an answer that the script gives."""
    script.follow(runtime.prompt(messages, options.get("think", "auto")), answer)
    started, *texts, finished = runtime.chat(messages, **options)
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    return started, [text for text in texts if isinstance(text, Text)], finished


def joined(texts: Sequence[Text]) -> Parts:
    for text in texts:
        assert text.text == "".join(span.text for span in text.spans if not span.reasoning)
        assert text.reasoning == "".join(span.text for span in text.spans if span.reasoning)
    return "".join(text.reasoning for text in texts), "".join(text.text for text in texts)


SAID = {
    "qwen3": (qwen3(), "<think>\nHm, hm, hm.\n</think>\n\nYes."),
    "qwen3.5": (qwen3(QWEN35), "Hm, hm, hm.\n</think>\n\nYes."),
    "r1": (qwen3(R1), "Hm, hm, hm.\n</think>\n\nYes."),
    "gpt-oss": (
        harmony(),
        "<|channel|>analysis<|message|>Hm, hm, hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
    ),
}


@pytest.mark.parametrize("k", [0, 3, 31])
@pytest.mark.parametrize("family", SAID)
def test_an_answer_has_its_reasoning_apart(family: str, k: int) -> None:
    """Rounds of several tokens, too, in which the reasoning ends and the answer begins."""
    vocabulary, text = SAID[family]
    runtime, script = thinker(vocabulary, k=k)
    _, texts, finished = asked(runtime, script, [USER], ended(vocabulary, text))
    assert joined(texts) == ("Hm, hm, hm.", "Yes.")
    assert any(text.reasoning and text.text for text in texts) or k < 31 or family == "gpt-oss"
    assert [t for text in texts for t in text.tokens] == ended(vocabulary, text)
    assert finished.stats.tokens == len(ended(vocabulary, text))
    assert len("Hm, hm, hm.") < finished.stats.reasoning_tokens <= finished.stats.tokens - len("Yes.") - 1


@pytest.mark.parametrize("max_tokens", range(1, 24))
def test_an_answer_may_end_anywhere(max_tokens: int) -> None:
    vocabulary, text = SAID["qwen3"]
    runtime, script = thinker(vocabulary)
    _, texts, finished = asked(runtime, script, [USER], ended(vocabulary, text), max_tokens=max_tokens)
    reasoning, answer = joined(texts)
    assert "Hm, hm, hm.".startswith(reasoning)
    assert "Yes.".startswith(answer)
    assert finished.reason == ("length" if max_tokens < 22 else "end")
    assert finished.stats.reasoning_tokens == min(max_tokens, 16) or reasoning == "Hm, hm, hm."
    assert f"thinking took {finished.stats.reasoning_tokens} of {finished.stats.tokens} tokens" in figures(
        finished.stats
    )


def test_an_answer_that_is_cancelled_while_it_thinks() -> None:
    vocabulary = Words(QWEN3)
    runtime, script = thinker(vocabulary, k=0)
    script.follow(runtime.prompt([USER]), ended(vocabulary, "<think>Hm </thing"))
    answer = runtime.chat([USER])
    seen: list[Text] = []
    for event in answer:
        if isinstance(event, Text):
            seen.append(event)
            if len(seen) == len("<think>Hm </th"):
                answer.cancel()
    assert joined(seen) == ("Hm </th", "")
    assert seen[-1].tokens == ()


def test_completions_are_not_divided() -> None:
    vocabulary, text = SAID["qwen3"]
    runtime, script = thinker(vocabulary)
    script.follow(vocabulary.tokenize("x"), ended(vocabulary, text))
    *texts, finished = [event for event in runtime.complete("x") if not isinstance(event, Started)]
    assert "".join(event.text for event in texts if isinstance(event, Text)) == text
    assert isinstance(finished, Finished)
    assert finished.stats.reasoning_tokens == 0


@pytest.mark.parametrize("family", SAID)
def test_a_chat_computes_only_what_its_template_changes(family: str) -> None:
    """The cache holds the reasoning, the next prompt does not: all before it is reused, in every turn."""
    vocabulary, text = SAID[family]
    runtime, script = thinker(vocabulary)
    messages: list[dict[str, Any]] = []
    held: list[int] = []
    before: list[int] = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"Question {turn}"})
        prompt = runtime.prompt(messages)
        started, texts, _ = asked(runtime, script, messages, ended(vocabulary, text))
        assert started.cached == common_prefix(held, prompt[:-1])
        assert started.cached >= len(before) - len("<think>\n")
        held, before = list(runtime.session.tokens), prompt
        reasoning, answer = joined(texts)
        messages.append({"role": "assistant", "content": answer, "reasoning_content": reasoning})


def test_an_answer_without_thinking_is_cached_whole() -> None:
    """With Qwen3's template the next prompt repeats an answer that did not think, token by token."""
    vocabulary = qwen3()
    runtime, script = thinker(vocabulary)
    asked(runtime, script, [USER], ended(vocabulary, "Yes."))
    started, _, _ = asked(runtime, script, [USER, {"role": "assistant", "content": "Yes."}, USER], [257])
    assert started.cached == len(runtime.prompt([USER])) + len("Yes.")


def test_think_is_checked() -> None:
    runtime, _ = thinker(qwen3())
    for wrong in ("maybe", None, True, 1):
        with pytest.raises(OptionError, match=r"think is .*; it must be one of auto, on, off, low, medium, high"):
            runtime.chat([USER], think=wrong)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="think is"):
            runtime.prompt([USER], wrong)  # type: ignore[arg-type]
    assert runtime.has_think_switch()


def test_think_reaches_the_template() -> None:
    vocabulary = qwen3(QWEN35)
    runtime, script = thinker(vocabulary)
    _, texts, finished = asked(runtime, script, [USER], ended(vocabulary, "Yes."), think="off")
    assert joined(texts) == ("", "Yes.")
    assert finished.stats.reasoning_tokens == 0


def test_events_as_json_have_the_reasoning() -> None:
    vocabulary, text = SAID["qwen3"]
    runtime, script = thinker(vocabulary)
    script.follow(runtime.prompt([USER]), ended(vocabulary, text))
    said = [edgespec.as_json(event) for event in runtime.chat([USER])]
    assert "".join(event.get("reasoning", "") for event in said) == "Hm, hm, hm."
    assert "".join(event.get("text", "") for event in said) == "Yes."
    assert said[-1]["stats"]["reasoning_tokens"] > 0


def test_models_that_do_not_think_are_as_ever() -> None:
    runtime, script = thinker(Words(str(Bytes.template)))
    _, texts, finished = asked(runtime, script, [USER], [*b" <b>Yes\n", 257])
    assert joined(texts) == ("", " <b>Yes\n")
    assert finished.stats.reasoning_tokens == 0
