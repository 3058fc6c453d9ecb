"""ONNX Runtime GenAI: plainly, with n-gram look-up, or with a draft model, as its configuration says.

Its speculation computes a round and hands its tokens out one a call; they come together all the same.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any


def load(given: Mapping[str, Any]) -> tuple[Callable[..., float], str]:
    """What answers, and the version."""
    import onnxruntime_genai as genai  # noqa: PLC0415

    target = Path(given["target"])
    config = genai.Config(str(target))
    config.overlay(json.dumps(_overlay(target, given)))
    model = genai.Model(config)
    tokenizer = genai.Tokenizer(model)
    return partial(_answer, genai, model, tokenizer, given), genai.__version__


def _overlay(target: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is not as the target's folder says: threads, and the draft's part of a configuration."""
    threads = {"session_options": {"intra_op_num_threads": given["threads"]}}
    overlay: dict[str, Any] = {"model": {"decoder": threads}}
    if given["draft"]:
        folder = Path(given["draft"])
        draft = json.loads((folder / "genai_config.json").read_text("utf-8"))["model"]["decoder"]
        draft["filename"] = os.path.relpath(folder / draft["filename"], target)
        draft["session_options"] |= threads["session_options"]
        overlay["model"]["draft"] = draft
    return overlay


def _answer(
    genai: Any, model: Any, tokenizer: Any, given: Mapping[str, Any], ask: Mapping[str, Any], say: Callable[..., None]
) -> float:
    began = time.perf_counter()
    prompt, ends, text = ask["prompt"], set(tokenizer.eos_token_ids), tokenizer.create_stream()
    limit = min(len(prompt) + ask["max_tokens"], given["context"])
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=limit, batch_size=1, **_chosen(ask["sampling"]))
    if given["speculative"]:
        parameters.set_speculative_options(**given["speculative"])
    generator = genai.Generator(model, parameters)
    made = time.perf_counter()
    generator.append_tokens(prompt)
    prompt_seconds = made - began + (time.perf_counter() - made) * (len(prompt) - 1) / len(prompt)
    while not generator.is_done():
        generator.generate_next_token()
        tokens: Sequence[int] = [int(token) for token in generator.get_next_tokens() if token not in ends]
        if tokens:
            say(tokens, "".join(map(text.decode, tokens)))
    return prompt_seconds


def _chosen(sampling: Mapping[str, Any]) -> dict[str, Any]:
    if sampling["temperature"] == 0:
        return {"do_sample": False, "repetition_penalty": 1.0}
    chosen = {name: sampling[name] for name in ("temperature", "top_k", "top_p")}
    return {"do_sample": True, "repetition_penalty": 1.0, "random_seed": sampling["seed"] % (1 << 31), **chosen}
