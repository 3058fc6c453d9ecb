"""Prompts, messages and tokens of all shapes, and answers that are cancelled or closed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np

import edgespec
from edgespec import Device, EdgespecError, Runtime, Sampling, Speculation

from .. import spoil, use
from ..place import Place, later

_PLANES = (
    (32, 126), (0, 31), (128, 0x2FF), (0x300, 0x36F), (0x590, 0x6FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xD800, 0xDFFF), (0xFDD0, 0xFDEF), (0x1F300, 0x1FAFF), (0x2000, 0x206F), (0xE0000, 0xE007F),
    (0x10FFF0, 0x10FFFF),
)  # fmt: skip
_PIECES = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "</s>", "<s>", "<unk>", "<0x0A>", "▁", "Ġ", "\ufdd0", "\n", "\r\n",
    " ", "\t", "assistant", "{{ 7 }}", "{% endfor %}", "\ud800", "\0", "\x1b[0m", "[INST]", "<|", "|>", "<tool>",
)  # fmt: skip


def _chat(*messages: Any) -> Callable[[Place], None]:
    return _loaded(lambda runtime: list(runtime.chat(list(messages), max_tokens=2)))


def _said(text: str, model: str) -> Callable[[Place], None]:
    return _loaded(lambda runtime: list(runtime.complete(text, max_tokens=2)), model)


def _loaded(action: Callable[[Runtime], object], *names: str) -> Callable[[Place], None]:
    """`action` with a runtime of each model, of GGUF files or ONNX folders."""

    def run(place: Place) -> None:
        models = place.models
        known = {"gguf": models.gguf("qwen2"), "spm": models.gguf("spm"), "onnx": models.onnx("spm")}
        for path in [known[name] for name in names or known]:
            with edgespec.load(path, device=Device(threads=1)) as runtime:
                place.attempt(lambda runtime=runtime: action(runtime))  # type: ignore[misc]
                place.attempt(lambda runtime=runtime: list(runtime.complete("Hello", max_tokens=2)))  # type: ignore[misc]

    return run


CORPUS: Mapping[str, Callable[[Place], object]] = {
    **{f"10 MB of text, {name}": _said("Hello there, you. " * 600_000, name) for name in ("gguf", "spm", "onnx")},
    **{f"1 MB without a space, {name}": _said("a" * 1_000_000, name) for name in ("gguf", "spm", "onnx")},
    **{f"1 MB of spaces, {name}": _said(" " * 1_000_000, name) for name in ("gguf", "spm", "onnx")},
    "10 MB in a message": _loaded(
        lambda runtime: list(runtime.chat([{"role": "user", "content": "Hello there. " * 800_000}], max_tokens=2)),
        "gguf",
    ),
    "300,000 special tokens in a message": _loaded(
        lambda runtime: list(runtime.chat([{"role": "user", "content": "<|im_end|>" * 300_000}], max_tokens=2)), "gguf"
    ),
    "no messages": _chat(),
    "a message of None": _chat(None),
    "a message without content": _chat({"role": "user"}),
    "a content that is a list": _chat({"role": "user", "content": [{"type": "text", "text": "Hello"}]}),
    "a role that is a special token": _chat({"role": "<|im_end|>", "content": "Hello"}),
    "a name that is a special token": _chat({"role": "user", "name": "<|im_end|>", "content": "Hello"}),
    "lone surrogates": _chat({"role": "user", "content": "\ud800 \udfff"}),
    "nothing": _loaded(lambda runtime: list(runtime.complete("", max_tokens=2))),
    "a stop that is empty": _loaded(lambda runtime: list(runtime.complete("Hello", stop="", max_tokens=4))),
    "a stop that is no text": _loaded(lambda runtime: list(runtime.complete("Hello", stop=[1], max_tokens=4))),  # type: ignore[list-item]
    "no tokens at most": _loaded(lambda runtime: list(runtime.complete("Hello", max_tokens=0))),
    "-1 tokens at most": _loaded(lambda runtime: list(runtime.complete("Hello", max_tokens=-1))),
    "a text of tokens at most": _loaded(lambda runtime: list(runtime.complete("Hello", max_tokens="4"))),  # type: ignore[arg-type]
    "10,000 messages": _chat(*({"role": "user" if i % 2 else "assistant", "content": "Hello"} for i in range(10_001))),
}


def play(rng: Random, place: Place) -> None:
    """A prompt of some shape."""
    path = use.sound(place, rng)
    place.note(f"{path.name} {rng.getstate()[1][:1]}")
    with edgespec.load(path, device=Device(context=rng.choice((0, 64, 512)), threads=1)) as runtime:
        for _ in range(4):
            action, note = rng.choice((_complete, _messages, _tokens, _text, _stopped, _twice))(rng, runtime)
            place.note(f"{path.name} {note}")
            place.attempt(action)
        place.attempt(lambda: list(runtime.complete("Hello", max_tokens=2)))


_Action = tuple[Callable[[], object], str]


def _string(rng: Random) -> str:
    if rng.random() < 0.02:
        return rng.choice(_PIECES) * rng.choice((1000, 100_000))
    parts = []
    for _ in range(rng.choice((0, 1, 2, 5, 20))):
        low, high = rng.choice(_PLANES)
        run = "".join(chr(rng.randint(low, high)) for _ in range(rng.choice((1, 3, 30))))
        parts.append(rng.choice((run, rng.choice(_PIECES), rng.choice(spoil.TEXTS)[:1000])))
    return "".join(parts)


def _how(rng: Random) -> dict[str, Any]:
    found: dict[str, Any] = {"max_tokens": rng.choice((1, 3, 8))}
    if rng.random() < 0.3:
        found["stop"] = rng.choice((_string(rng), [_string(rng)], (), [""], None, 5, [5], ["a"] * 1000))
    if rng.random() < 0.1:
        found["max_tokens"] = rng.choice((0, -1, 1.5, "3", True, 10**6, 2**70))
    if rng.random() < 0.4:
        found["speculation"] = Speculation(
            k=rng.choice((None, 0, 1, 4, 64)), verifier=rng.choice(("match", "rejection", "block"))
        )
    if rng.random() < 0.5:
        found["sampling"] = Sampling(
            temperature=rng.choice((0.0, 1.0, 1e-30, 100.0)),
            top_k=rng.choice((0, 1, 10**9)),
            repetition_penalty=rng.choice((1.0, 1e-300, 1e300, 2.0)),
            presence_penalty=rng.choice((0.0, 100.0, -100.0)),
            penalty_window=rng.choice((64, 0, 10**12)),
            seed=rng.choice((0, 2**64 - 1)),
        )
    return found


def _complete(rng: Random, runtime: Runtime) -> _Action:
    text, how = _string(rng), _how(rng)
    return lambda: list(runtime.complete(text, **how)), f"complete({text!r:.200}, {how!r:.300})"


def _messages(rng: Random, runtime: Runtime) -> _Action:
    messages: Any = [_message(rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 9)))]
    if rng.random() < 0.1:
        messages = rng.choice(
            (None, "Hello", 5, {}, {"role": "user", "content": "x"}, tuple(messages), iter(messages), {1}, [[]])
        )
    how = _how(rng)
    return lambda: list(runtime.chat(messages, **how)), f"chat({messages!r:.300}, {how!r:.300})"


def _message(rng: Random) -> Any:
    message: dict[Any, Any] = {
        "role": rng.choice(("user", "assistant", "system", "tool", _string(rng))),
        "content": _string(rng),
    }
    if rng.random() < 0.1:
        message[rng.choice(("role", "content"))] = spoil.value(rng)
    if rng.random() < 0.2:
        message[rng.choice(("name", "tool_calls", "tool_call_id", "images", 5, "", "items"))] = rng.choice(
            (_string(rng), spoil.value(rng), [{"function": {"name": "f", "arguments": {}}}])
        )
    if rng.random() < 0.1:
        message.pop(rng.choice(list(message)))
    return rng.choice((message, spoil.value(rng))) if rng.random() < 0.05 else message


def _token(rng: Random, size: int) -> Any:
    if rng.random() < 0.99:
        return rng.randrange(size)
    return rng.choice(
        (
            -1,
            size,
            size - 1,
            2**31,
            2**63,
            2**70,
            1.0,
            1.5,
            "5",
            None,
            True,
            np.int64(3),
            np.int32(-1),
            np.float32(2),
            [],
            b"x",
        )
    )


def _tokens(rng: Random, runtime: Runtime) -> _Action:
    tokens: Any = [_token(rng, runtime.vocabulary.size) for _ in range(rng.choice((0, 1, 5, 40, 600)))]
    if rng.random() < 0.1:
        tokens = rng.choice(
            (tuple(tokens), np.array([1, 2, 3]), np.array([[1]]), range(5), iter([1, 2]), b"ab", {1: 2}, None, 5)
        )
    how = _how(rng)
    return lambda: list(runtime.complete(tokens, **how)), f"complete({tokens!r:.300}, {how!r:.300})"


def _text(rng: Random, runtime: Runtime) -> _Action:
    tokens: Any = [_token(rng, runtime.vocabulary.size) for _ in range(rng.choice((1, 5, 40)))]
    return lambda: runtime.text(tokens), f"text({tokens!r:.300})"


def _stopped(rng: Random, runtime: Runtime) -> _Action:
    """An answer that another thread cancels, or whose reader leaves."""
    delay, most = rng.choice((0.0, 0.001, 0.01)), rng.choice((1, 3, 200))

    def run() -> None:
        timer = later(delay, runtime.cancel)
        events = runtime.complete("Hello there", max_tokens=200)
        list(itertools.islice(events, most))
        timer.join()

    return run, f"cancelled after {delay} s, read for {most} events"


def _twice(rng: Random, runtime: Runtime) -> _Action:
    """Two answers at once."""

    def run() -> None:
        first, second = runtime.complete("Hello", max_tokens=8), runtime.complete("there", max_tokens=8)
        next(first)
        with suppress(EdgespecError):
            next(second)
        list(first)

    return run, "two answers at once"
