"""llama-cpp-python's `Llama`, with its look-up as draft model where `lookup` says how many tokens that drafts.

`generate` is asked, and not `create_completion`: that tells no tokens, and spends more time on the text.
"""

from __future__ import annotations

import codecs
import runpy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

_SEEDS = (1 << 32) - 1  # the largest means a random one


def load(given: Mapping[str, Any]) -> tuple[Callable[..., float], str]:
    """What answers, and the version."""
    import llama_cpp  # noqa: PLC0415
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding  # noqa: PLC0415

    runpy.run_path(given["amx"])["disable_amx"](llama_cpp.llama_cpp)
    lookup = given["lookup"]
    llama = llama_cpp.Llama(
        given["target"],
        n_ctx=given["context"],
        n_threads=given["threads"],
        n_threads_batch=given["threads"],
        n_gpu_layers=given["gpu_layers"],
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None,
        verbose=False,
    )
    ends = partial(llama_cpp.llama_vocab_is_eog, llama_cpp.llama_model_get_vocab(llama.model))
    return partial(_answer, llama, ends), llama_cpp.__version__


def _answer(
    llama: Any, ends: Callable[[int], bool], ask: Mapping[str, Any], say: Callable[[Sequence[int], str], None]
) -> float:
    prompt, text = ask["prompt"], codecs.getincrementaldecoder("utf-8")("replace")
    evaluated, limit = len(prompt) - _held(llama, prompt), min(ask["max_tokens"], llama.n_ctx() - len(prompt))
    prompt_seconds, began = 0.0, time.perf_counter()
    for said, token in enumerate(_generate(llama, prompt, ask["sampling"]), start=1):
        if said == 1:  # after a pass over the prompt alone, the last token being about one's share of it
            prompt_seconds = (time.perf_counter() - began) * (evaluated - 1) / evaluated
        if ends(token):
            break
        say([token], text.decode(llama.detokenize([token])))
        if said == limit:
            break
    return prompt_seconds


def _generate(llama: Any, prompt: Sequence[int], sampling: Mapping[str, Any]) -> Any:
    llama.set_seed(sampling["seed"] % _SEEDS)
    llama.last_n_tokens_size = sampling["penalty_window"]
    return llama.generate(
        prompt,
        temp=sampling["temperature"],
        top_k=sampling["top_k"],
        top_p=sampling["top_p"],
        min_p=sampling["min_p"],
        repeat_penalty=sampling["repetition_penalty"],
        frequency_penalty=sampling["frequency_penalty"],
        presence_penalty=sampling["presence_penalty"],
    )


def _held(llama: Any, prompt: Sequence[int]) -> int:
    """Tokens of the prompt that need no pass, being in the cache; all but one at most."""
    held = 0
    for token, cached in zip(prompt[:-1], llama.input_ids[: llama.n_tokens], strict=False):
        if token != cached:
            break
        held += 1
    return held
