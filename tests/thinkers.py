"""Thinking models for tests: vocabularies with the markers of families, templates in their manner, toy runtimes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec import Device, Runtime, Speculation, assemble
from edgespec.backends.toy import Bytes
from edgespec.testing import RuleDrafter
from edgespec.types import Floats

from .toy_runtime import Recorded


class Words(Bytes):
    """The bytes and some words: `control` tokens, which have no text, and tokens of the user's, which have one."""

    def __init__(self, template: str = "", control: Sequence[str] = (), plain: Sequence[str] = ()) -> None:
        self.template = template or None
        self._control = ("<|im_start|>", "<|im_end|>", *control)
        self._words = (*self._control, *plain)
        self.size = 256 + len(self._words)
        self.eos = 257

    def tokenize(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        tokens: list[int] = []
        known = self._words if special else self._words[len(self._control) :]
        while text:
            word = next((word for word in known if text.startswith(word)), None)
            tokens += [256 + self._words.index(word)] if word else text[0].encode()
            text = text[len(word or text[0]) :]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        return b"" if token < 256 + len(self._control) else self._words[token - 256].encode()

    def label(self, token: int) -> str:
        return f"<0x{token:02X}>" if token < 256 else self._words[token - 256]

    def is_eog(self, token: int) -> bool:
        return token == self.eos

    def specials(self) -> Sequence[str]:
        return self._control

    def spelled(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, control tokens included."""
        return b"".join(self.label(t).encode() if t >= 256 else bytes([t]) for t in tokens).decode()


# The templates below have the markers and the rules of the families, no more.

_LAST = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
#: Thinks unless it is turned off; the reasoning of answers before the last question is left out.
QWEN3 = _LAST + (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}"
    "<think>\n{{ m.reasoning_content.strip('\n') }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
#: The same, with the opening tag in the prompt.
QWEN35 = QWEN3.removesuffix("{% endif %}") + "{% else %}<think>\n{% endif %}"
#: No switch; the opening tag is in the prompt, and text before the closing one is cut off.
R1 = (
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|Assistant|>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endif %}"
    "{% endfor %}"
    "<|Assistant|><think>\n"
)
#: Does not think unless it is turned on.
GEMMA4 = _LAST + (
    "{% if enable_thinking %}<|turn>system\n<|think|><turn|>\n{% endif %}"
    "{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if m.reasoning_content and m.tool_calls and loop.index0 > ns.last %}"
    "<|channel>thought\n{{ m.reasoning_content }}\n<channel|>{% endif %}"
    "{{ m.content }}<turn|>\n{% endfor %}<|turn>model\n"
    "{% if not enable_thinking %}<|channel>thought\n<channel|>{% endif %}"
)
#: Messages with channels, and an effort.
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking and m.tool_calls %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}<|start|>assistant"
)


def qwen3(template: str = QWEN3) -> Words:
    return Words(template, plain=("<think>", "</think>"))


def gemma4() -> Words:
    return Words(GEMMA4, control=("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"))


def harmony() -> Words:
    """As llama.cpp has it: the end of a message is no control token."""
    return Words(HARMONY, control=("<|start|>", "<|channel|>", "<|message|>", "<|return|>"), plain=("<|end|>",))


class Scripted:
    """A rule that continues a prompt of a known length with a script, whatever the prompt says."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._scripts: dict[int, Sequence[int]] = {}

    def __call__(self, context: Sequence[int]) -> Floats:
        """Logits for the next token of the script that began last."""
        start = max((start for start in self._scripts if start <= len(context)), default=0)
        script = self._scripts.get(start, ())
        row = np.zeros(self._size, np.float32)
        row[script[len(context) - start] if len(context) - start < len(script) else 257] = 20.0
        return row

    def follow(self, prompt: Sequence[int], script: Sequence[int]) -> None:
        """Answer a prompt as long as `prompt` with `script`."""
        self._scripts = {len(prompt): script}


def thinker(vocabulary: Words, *, k: int = 0) -> tuple[Runtime, Scripted]:
    """A runtime over a toy with this vocabulary, and what it says. A drafter guesses it, `k` tokens a round."""
    script = Scripted(vocabulary.size)
    model = Recorded(script)
    model.vocabulary = vocabulary
    drafters, speculation = [RuleDrafter(script, confidence=0.99)], Speculation(("rule",), k)
    return assemble(model, device=Device(context=1024), drafters=drafters, speculation=speculation), script
