"""A stand-in for the package `openvino_genai`, with the part of its interface that the peer uses.

Its answer to a prompt is fixed, and comes from another thread as that of the real one does. What a pipeline was opened
with and asked for lies in the target's folder, as JSON.
"""

from __future__ import annotations

import enum
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ANSWER = (10, 11, 12, 13, 14)
END = 2


def get_version() -> str:
    return "2026-stand-in"


class StreamingStatus(enum.Enum):
    RUNNING = 0


class StreamerBase:
    """Raises where a subclass does not call its constructor, as the real one does."""

    def __init__(self) -> None:
        self.constructed = True


class Tokenizer:
    def get_eos_token_id(self) -> int:
        return END


class TextStreamer:
    """Holds the text of the newest token back."""

    def __init__(self, tokenizer: Tokenizer, callback: Callable[[str], StreamingStatus]) -> None:
        self._callback = callback
        self._held = ""

    def write(self, tokens: Sequence[int]) -> StreamingStatus:
        for token in tokens:
            if self._held:
                assert self._callback(self._held) is StreamingStatus.RUNNING
            self._held = f" {token}"
        return StreamingStatus.RUNNING

    def end(self) -> None:
        if self._held:
            self._callback(self._held)


class GenerationConfig:
    """The fields as given, or those of a file."""

    def __init__(self, path: str = "", **fields: Any) -> None:
        self.fields = fields
        self.stop_token_ids = set(json.loads(Path(path).read_text("utf-8"))["eos_token_id"]) if path else set()


class SchedulerConfig:
    max_num_batched_tokens = 256
    enable_prefix_caching = False


def draft_model(folder: str, device: str, **properties: Any) -> dict[str, Any]:
    return {"folder": folder, "device": device, **properties}


class LLMPipeline:
    """One that says so if its cache of earlier prompts is on in a sampled answer with a draft model."""

    def __init__(self, folder: str, device: str, **properties: Any) -> None:
        scheduler = properties.pop("scheduler_config", None)
        self._reuses = scheduler is None or scheduler.enable_prefix_caching
        self._drafts = "draft_model" in properties
        self._asked = Path(folder) / "asked.json"
        opened = {"device": device, "reuses": self._reuses, **properties}
        if scheduler is not None:
            opened["batched"] = scheduler.max_num_batched_tokens
        (Path(folder) / "opened.json").write_text(json.dumps(opened), encoding="utf-8")

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def generate(self, inputs: Any, config: GenerationConfig, streamer: Any) -> None:
        assert streamer.constructed
        fields = config.fields
        if self._drafts and self._reuses and fields["do_sample"]:
            raise RuntimeError("Check 'content_length <= prompt_ids.size() + m_generated_ids.size()' failed")
        asked = {**fields, "stop_token_ids": sorted(fields["stop_token_ids"]), "prompt": inputs.data.tolist()}
        self._asked.write_text(json.dumps(asked), encoding="utf-8")
        tokens = list(ANSWER)[: fields["max_new_tokens"]]
        if len(tokens) < fields["max_new_tokens"]:
            tokens.append(END)
        stream = threading.Thread(target=_stream, args=(streamer, tokens, fields.get("num_assistant_tokens", 0)))
        stream.start()
        stream.join()


def _stream(streamer: Any, tokens: list[int], drafted: int) -> None:
    """One by one without speculation, else in rounds, the first of which has one token."""
    assert streamer.write(tokens[0]) is StreamingStatus.RUNNING
    width = drafted + 1 if drafted else 1
    for start in range(1, len(tokens), width):
        part = tokens[start : start + width]
        assert streamer.write(part if drafted else part[0]) is StreamingStatus.RUNNING
    streamer.end()
