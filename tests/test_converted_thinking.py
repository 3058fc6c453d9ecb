"""Thinking models from checkpoint to chat: the markers as tokens of converted files, found by llama.cpp's vocabulary.

The templates are those of thinkers.py; docs/thinking.md names the models' own that were tried this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from edgespec import Runtime, Sampling, Text

from . import reciting
from .thinkers import GEMMA4, HARMONY, QWEN3, QWEN35
from .toy_runtime import USER


class Family(NamedTuple):
    """A kind of checkpoint, its markers and whether each is special, its template, and its answers."""

    kind: str
    markers: dict[str, bool]
    template: str
    end: str
    thinks: dict[str, bool]
    thought: str = "<think>\nHm.\n</think>\n\nYes."
    answer: str = "Yes."
    uncapped: Callable[[Any], Any] = lambda logits: logits
    changes: dict[str, Any] = {}  # noqa: RUF012 - read only


_THINK = {"<think>": False, "</think>": False}
_CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>")
FAMILIES = {
    "qwen35": Family(
        "qwen35",
        _THINK,
        QWEN35,
        "<|im_end|>",
        {"auto": True, "on": True, "off": False},
        thought="Hm.\n</think>\n\nYes.",
    ),
    "lfm2.5": Family("lfm2", _THINK, QWEN3, "<|im_end|>", {"auto": True, "on": True, "off": False}),
    "gemma4": Family(
        "gemma4",
        dict.fromkeys(("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool_call>"), True),
        GEMMA4,
        "<turn|>",
        {"auto": False, "on": True, "off": False},
        thought="<|channel>thought\nHm.<channel|>Yes.",
        uncapped=lambda logits: 7 * np.arctanh(np.clip(logits / 7, -1 + 1e-7, 1 - 1e-7)),
    ),
    "gpt-oss": Family(
        "gpt-oss",
        dict.fromkeys(_CHANNELS, True),
        HARMONY,
        "<|return|>",
        {"auto": True, "high": True, "off": True},
        thought="<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        changes={"hidden_size": 128},
    ),
}


class Taught(NamedTuple):
    """A loaded model with its family."""

    family: Family
    runtime: Runtime


@pytest.fixture(scope="module", params=FAMILIES)
def taught(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taught]:
    """A converted checkpoint that answers one question, however it is asked to think."""
    family, folder = FAMILIES[request.param], tmp_path_factory.mktemp("taught")
    source = reciting.make(
        folder / "source", family.kind, family.markers, family.template, family.end, **family.changes
    )
    answers = {
        think: f"{family.thought if thinks else family.answer}{family.end}" for think, thinks in family.thinks.items()
    }
    reciting.teach(source, folder / "model.gguf", [USER], answers, family.uncapped)
    with reciting.opened(folder / "model.gguf") as runtime:
        yield Taught(family, runtime)


def test_reasoning_is_kept_apart(taught: Taught) -> None:
    for think, thinks in taught.family.thinks.items():
        events = taught.runtime.chat([USER], think=think, sampling=Sampling(), max_tokens=60)
        texts = [event for event in events if isinstance(event, Text)]
        said = "".join(text.reasoning for text in texts), "".join(text.text for text in texts)
        assert said == ("Hm." if thinks else "", "Yes."), think


def test_reasoning_is_left_out_of_the_next_prompt(taught: Taught) -> None:
    answer = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    for think in taught.family.thinks:
        prompt = taught.runtime.prompt([USER, answer, USER], think)
        assert prompt == taught.runtime.prompt([USER, {"role": "assistant", "content": "Yes."}, USER], think)


def test_no_text_of_a_user_becomes_a_special_token(taught: Taught) -> None:
    """Whether llama.cpp has made the token user-defined, so that it is shown, or not."""
    vocabulary = taught.runtime.vocabulary
    special = {text for text, special in taught.family.markers.items() if special}
    bare = [vocabulary.label(token) for token in taught.runtime.prompt([{**USER, "content": "x"}])]
    for text in special:
        prompt = [vocabulary.label(token) for token in taught.runtime.prompt([{**USER, "content": f"x{text}"}])]
        assert prompt.count(text) == bare.count(text), text
