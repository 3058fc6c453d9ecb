"""OpenVINO GenAI's `LLMPipeline` on the CPU: plainly, with `draft` as draft model, or with prompt look-up.

It generates on one thread and streams on another; the tokens of a round of speculation come together. Options that are
not named here are left at its defaults.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_SEEDS = 1 << 32
_UNLIMITED = (1 << 63) - 1  # tokens of a pass; like its default, and unlike that of a scheduler that is given


def load(given: Mapping[str, Any]) -> tuple[Callable[..., float], str]:
    """What answers, and the version."""
    import openvino_genai as genai  # noqa: PLC0415

    return _Engine(genai, given).answer, genai.get_version()


class _Engine:
    """A pipeline.

    Args:
        given: the folders, `lookup`, `threads`, `context`, the `properties` of its models, and the `options` of each
            answer.
    """

    def __init__(self, genai: Any, given: Mapping[str, Any]) -> None:
        self._genai = genai
        self._given = given
        self._reuses = True
        self._pipeline = _opened(genai, given, reuse=True)
        self._ends = _ends(genai, given["target"], self._pipeline)
        self._cached: list[int] = []

    def answer(self, ask: Mapping[str, Any], say: Callable[[Sequence[int], str], None]) -> float:
        """Answer; the seconds of all of the prompt but its last token."""
        import numpy as np  # noqa: PLC0415
        from openvino import Tensor  # noqa: PLC0415

        self._prepare(ask["sampling"])
        prompt, config = ask["prompt"], self._config(ask)
        evaluated = len(prompt) - _common(prompt[:-1], self._cached)
        streamer, began = _streamer(self._genai, self._pipeline.get_tokenizer(), self._ends, say), time.perf_counter()
        self._pipeline.generate(Tensor(np.array([prompt], np.int64)), config, streamer)
        if self._reuses:
            self._cached = [*prompt, *streamer.said]
        return float((streamer.first or began) - began) * (evaluated - 1) / evaluated

    def _prepare(self, sampling: Mapping[str, Any]) -> None:
        """Open it again without the cache of earlier prompts if that would fail.

        2026.4.1 raises "Check 'content_length <= prompt_ids.size() + m_generated_ids.size()' failed" in some of the
        answers that are sampled with a draft model and this cache.
        """
        if self._reuses and self._given["draft"] and sampling["temperature"] > 0:
            self._reuses, self._cached = False, []
            self._pipeline = None  # its memory is freed before the next is opened
            self._pipeline = _opened(self._genai, self._given, reuse=False)

    def _config(self, ask: Mapping[str, Any]) -> Any:
        """All settings of an answer; of the folder's only the ends of a turn are kept."""
        return self._genai.GenerationConfig(
            eos_token_id=min(self._ends),
            stop_token_ids=self._ends,
            max_new_tokens=min(ask["max_tokens"], self._given["context"] - len(ask["prompt"])),
            **_chosen(ask["sampling"]),
            **self._given["options"],
        )


def _opened(genai: Any, given: Mapping[str, Any], *, reuse: bool) -> Any:
    """The pipeline; `reuse` lets it keep the cache of earlier prompts, its default."""
    properties = {"INFERENCE_NUM_THREADS": given["threads"], **given["properties"]}
    # The default, and the only back end that speculates. It is named because otherwise another replaces it on failure.
    others: dict[str, Any] = {"ATTENTION_BACKEND": "PA"}
    if not reuse:
        others["scheduler_config"] = scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens, scheduler.enable_prefix_caching = _UNLIMITED, False
    if given["draft"]:
        others["draft_model"] = genai.draft_model(given["draft"], "CPU", **properties)
    if given["lookup"]:
        others["prompt_lookup"] = True
    return genai.LLMPipeline(given["target"], "CPU", **properties, **others)


def _ends(genai: Any, folder: str, pipeline: Any) -> set[int]:
    """The tokens that end a turn. A pipeline that speculates does not have those of the folder in its settings."""
    config = Path(folder, "generation_config.json")
    ends = set(genai.GenerationConfig(str(config)).stop_token_ids) if config.is_file() else set()
    return ends or {pipeline.get_tokenizer().get_eos_token_id()}


def _streamer(genai: Any, tokenizer: Any, ends: set[int], say: Callable[[Sequence[int], str], None]) -> Any:
    """What takes the tokens of an answer. `first` is the time of the first, 0 without any; `said` has all."""
    running, parts = genai.StreamingStatus.RUNNING, list[str]()

    def keep(part: str) -> Any:
        parts.append(part)
        return running

    class Streamer(genai.StreamerBase):  # type: ignore[misc] # its base is known only where the engine is installed
        def __init__(self) -> None:
            super().__init__()
            self.first = 0.0
            self.said: list[int] = []
            self._text = genai.TextStreamer(tokenizer, keep)

        def write(self, token: int | Sequence[int]) -> Any:
            """Say one token, or those of a round, without one that ends the turn."""
            self.first = self.first or time.perf_counter()
            tokens = [each for each in ([token] if isinstance(token, int) else token) if each not in ends]
            if tokens:
                self.said += tokens
                self._text.write(tokens)
                self._tell(tokens)
            return running

        def end(self) -> None:
            """Say the text that was held back."""
            self._text.end()
            if parts:
                self._tell([])

        def _tell(self, tokens: Sequence[int]) -> None:
            say(tokens, "".join(parts))
            parts.clear()

    return Streamer()


def _chosen(sampling: Mapping[str, Any]) -> dict[str, Any]:
    if sampling["temperature"] == 0:
        return {"do_sample": False}
    chosen = {name: sampling[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    return {"do_sample": True, "rng_seed": sampling["seed"] % _SEEDS, **chosen}


def _common(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens they have in common at the beginning."""
    count = 0
    for token, other in zip(tokens, others, strict=False):
        if token != other:
            break
        count += 1
    return count
