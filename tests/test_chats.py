"""Chats that outgrow the context, and prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import edgespec
from edgespec import Finished, Runtime, Started, assemble
from edgespec.backends import tokens_up_to
from edgespec.backends.toy import END, Bytes, scripted
from edgespec.errors import ContextOverflow, OptionError, TemplateError

from .toy_runtime import USER, Recorded, opened, read

# --- chats


def chat(n: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": f"message {i:03}"} for i in range(n)]


def dropped(runtime: Runtime, messages: Sequence[Mapping[str, Any]], **options: Any) -> tuple[int, int]:
    started = next(runtime.chat(messages, **options))
    assert isinstance(started, Started)
    return started.dropped, started.prompt


def test_the_oldest_turns_are_dropped_in_pairs_until_an_answer_fits() -> None:
    runtime, model = opened(context=200)
    assert dropped(runtime, chat(3))[0] == 0
    for n in (9, 11, 31):
        count, length = dropped(runtime, chat(n))
        assert count > 0
        assert count % 2 == 0, "the first that is left must be a user's"
        assert length <= 150, "a quarter of the context is left for the answer"
        held = bytes(token for token in model.sessions[0].tokens if token < 256).decode()
        assert f"message {n - 1:03}" in held
        assert f"message {count:03}" in held
        assert f"message {count - 1:03}" not in held


def test_no_more_is_dropped_than_a_short_answer_needs() -> None:
    runtime, _ = opened(context=200)
    assert dropped(runtime, chat(9), max_tokens=1)[0] < dropped(runtime, chat(9))[0]


def test_a_leading_system_message_stays() -> None:
    runtime, model = opened(context=200)
    count, _ = dropped(runtime, [{"role": "system", "content": "Be brief"}, *chat(15)])
    held = bytes(token for token in model.sessions[0].tokens if token < 256).decode()
    assert count > 0
    assert held.startswith("system\nBe brief")


def test_whole_turns_are_dropped_with_their_tool_messages() -> None:
    """Turns once went in pairs of messages, and a tool's result came first, without its call."""
    call = {"role": "assistant", "content": "calls", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    turn: list[dict[str, Any]] = [chat(1)[0], call, {"role": "tool", "content": "result"}, chat(2)[1]]
    for extra in range(4):
        runtime, _ = opened(context=400)
        messages = [*turn, *turn, *turn[:2], *[turn[2]] * extra, *turn * 3, chat(1)[0]]
        count, _ = dropped(runtime, messages)
        assert count > 0
        assert messages[count]["role"] == "user"


def test_a_turn_that_tools_make_long_is_not_torn() -> None:
    runtime, _ = opened(context=200)
    tool = {"role": "tool", "content": "result"}
    with pytest.raises(ContextOverflow):
        next(runtime.chat([*chat(2), chat(1)[0], *[chat(2)[1], tool] * 9]))


def test_a_leading_developer_message_stays() -> None:
    runtime, model = opened(context=200)
    dropped(runtime, [{"role": "developer", "content": "Be brief"}, *chat(15)])
    held = bytes(token for token in model.sessions[0].tokens if token < 256).decode()
    assert held.startswith("developer\nBe brief")


class Cancelling(dict[str, str]):
    """A message that ends the answer to it while its prompt is rendered, as another thread may."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__(USER)
        self._end = end

    def items(self) -> Any:
        self._end()
        return super().items()


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancelling_ends_a_prompt_that_is_being_rendered(end: str) -> None:
    """A template may take its time; nothing heard a cancel then."""
    runtime, model = opened()
    model.vocabulary.template = "{% for i in range(999) %}{% set x = i %}{% endfor %}{{ messages[0].content }}"
    (finished,) = runtime.chat([Cancelling(getattr(runtime, end))])
    assert isinstance(finished, Finished)
    assert finished.reason == "cancelled"
    assert finished.stats.tokens == 0
    if end == "cancel":
        assert read(runtime.chat([USER], max_tokens=2))[1].reason == "length", "the next one is answered"


def test_a_cancel_before_the_chat_is_none_of_its_own() -> None:
    runtime, _ = opened()
    runtime.cancel()
    assert read(runtime.chat([USER], max_tokens=2))[1].reason == "length"


def test_the_caller_s_messages_are_not_touched() -> None:
    runtime, _ = opened(context=200)
    messages = chat(15)
    dropped(runtime, messages)
    assert messages == chat(15)


def test_a_last_message_too_long_for_the_context_is_refused() -> None:
    runtime, _ = opened(context=100)
    with pytest.raises(ContextOverflow):
        runtime.chat([*chat(4), {"role": "user", "content": "x" * 100}])


def test_a_chat_computes_only_what_is_new() -> None:
    script = [*Bytes().tokenize("Fine." + END, special=True)]
    prompt = len(Bytes().tokenize("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", special=True))
    runtime, _ = opened(scripted(Bytes.size, [*[0] * prompt, *script]))
    _, finished = read(runtime.chat([USER]))
    assert (finished.reason, finished.stats.tokens, finished.stats.cached) == ("end", len(script), 0)
    turns = [USER, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Bye"}]
    started = next(runtime.chat(turns))
    assert isinstance(started, Started)
    assert started.cached == prompt + len("Fine.")


def test_chats_that_make_no_sense_are_refused() -> None:
    runtime, _ = opened()
    strange: list[Any] = [[], iter([{"role": "user", "content": "x"}]), 5, "x", {"role": "user", "content": "x"}]
    for messages in strange:
        for ask in (runtime.chat, runtime.prompt):
            with pytest.raises(OptionError, match="no messages"):
                ask(messages)
    with pytest.raises(OptionError, match="a message is"):
        runtime.chat([{"role": "user"}])
    with pytest.raises(OptionError, match="prompt is empty"):
        runtime.complete("")
    with pytest.raises(OptionError, match="max_tokens is 0"):
        runtime.complete("a", max_tokens=0)


def test_a_model_without_a_template_completes_but_does_not_chat() -> None:
    model = Recorded()
    model.vocabulary.template = None
    runtime = assemble(model)
    with pytest.raises(TemplateError, match="no chat template"):
        runtime.chat([USER])
    assert read(runtime.complete("a", max_tokens=2))[1].reason == "length"


def test_a_long_conversation_keeps_its_cache() -> None:
    """Turns were once dropped one by one, so that each prompt began otherwise and nothing cached was of use."""
    runtime, _ = opened(context=400)
    messages: list[dict[str, str]] = []
    dropped, cached = [], []
    for turn in range(60):
        messages.append({"role": "user", "content": f"question {turn}"})
        events = list(runtime.chat(messages, max_tokens=4))
        assert isinstance(events[0], edgespec.Started)
        dropped.append(events[0].dropped)
        cached.append(events[0].cached > events[0].prompt // 2)
        messages.append({"role": "assistant", "content": "answer"})
    assert max(dropped) > 60
    assert len(set(dropped)) < 40
    assert sum(cached[-40:]) >= 20, "at least every other turn finds its beginning in the cache"


def test_a_prompt_that_is_far_too_long_is_not_tokenized_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten megabytes took two gigabytes and a minute before they were refused."""
    sizes: list[int] = []
    tokenize = Bytes.tokenize

    def noted(self: Bytes, text: str, **options: bool) -> list[int]:
        sizes.append(len(text))
        return tokenize(self, text, **options)

    monkeypatch.setattr(Bytes, "tokenize", noted)
    runtime, _ = opened(context=256)
    long = "0123456789" * 4_000
    history = [{"role": role, "content": long} for role in ("user", "assistant")] * 3
    with runtime:
        with pytest.raises(ContextOverflow, match="the prompt has more than 512 tokens, but the context holds 256"):
            runtime.complete(long)
        with pytest.raises(ContextOverflow, match="the prompt has more than 512 tokens"):
            runtime.chat([*history, {"role": "user", "content": long}])
        assert max(sizes) < 30_000
        tokens, _ = read(runtime.chat([*history, USER], max_tokens=8))
        assert len(tokens) == 8, "what does not fit is dropped as ever"
        assert len(runtime.prompt([{"role": "user", "content": long}])) > len(long), "this is all of it"


def test_a_text_of_long_tokens_is_tokenized_whole() -> None:
    """Where a beginning has few tokens nothing is left out."""

    class Words(Bytes):
        def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
            return [len(word) for word in text.split(" ")]

    text = " ".join(["x" * 200] * 300)
    assert tokens_up_to(Words(), text, 400) == [200] * 300
    found = tokens_up_to(Words(), text, 100)
    assert 100 < len(found) < 300
    assert tokens_up_to(Words(), "", 1) == [0]
