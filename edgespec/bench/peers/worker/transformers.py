"""Hugging Face transformers, `generate`: plainly, with `assistant` as assistant_model, or with prompt look-up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any


def load(given: Mapping[str, Any]) -> tuple[Callable[..., float], str]:
    """What answers, and the version."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    torch.set_num_threads(given["threads"])
    target, tokenizer = _opened(given["target"], given["gpu_layers"])
    speculation: dict[str, Any] = {}
    if given["lookup"]:
        speculation["prompt_lookup_num_tokens"] = given["lookup"]
    if given["assistant"]:
        assistant, its_tokenizer = _opened(given["assistant"], given["gpu_layers"])
        speculation["assistant_model"] = assistant
        if assistant.config.vocab_size != target.config.vocab_size:
            speculation |= {"tokenizer": tokenizer, "assistant_tokenizer": its_tokenizer}
    return partial(_answer, target, tokenizer, speculation), transformers.__version__


def _opened(checkpoint: str, gpu_layers: int) -> tuple[Any, Any]:
    """The model in the type that its checkpoint has, as it comes, on a GPU if there is one; and its tokenizer."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    devices = [name for name in ("cuda", "mps") if gpu_layers and getattr(torch, name).is_available()]
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto").to((*devices, "cpu")[0])
    return model, AutoTokenizer.from_pretrained(checkpoint)


def _answer(
    target: Any, tokenizer: Any, speculation: Mapping[str, Any], ask: Mapping[str, Any], say: Callable[..., None]
) -> float:
    import torch  # noqa: PLC0415

    sampling, began = ask["sampling"], time.perf_counter()
    torch.manual_seed(sampling["seed"])
    prompt = torch.tensor([ask["prompt"]], device=target.device)
    models = [target, *(speculation[key] for key in ("assistant_model",) if key in speculation)]
    passes = [_FirstPass(model) for model in models]
    target.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=ask["max_tokens"],
        streamer=_Streamer(target, tokenizer, say),
        repetition_penalty=1.0,
        **_chosen(sampling),
        **speculation,
    )
    before = min(each.began for each in passes) - began
    return before + sum(each.share(len(ask["prompt"]) - 1) for each in passes)


def _chosen(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling in the words of `generate`; what is left out would come from the checkpoint."""
    if sampling["temperature"] == 0:
        return {"do_sample": False}
    chosen = {name: sampling[name] for name in ("temperature", "top_k", "top_p")}
    return {"do_sample": True, "min_p": sampling["min_p"] or None, **chosen}


class _FirstPass:
    """Times the first pass of a model from now on, the one over the prompt, and what may be drafted behind it."""

    def __init__(self, model: Any) -> None:
        self.began, self._seconds = math.inf, 0.0  # an assistant may have nothing to do
        self._width = 0
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end),
        ]

    def share(self, tokens: int) -> float:
        """The seconds of so many of its tokens; there will be no other pass to time."""
        self._stop()
        return self._seconds * tokens / self._width if self._width else 0.0

    def _begin(self, _model: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self._width = (named["input_ids"] if "input_ids" in named else args[0]).shape[-1]
        self.began = time.perf_counter()

    def _end(self, *_: object) -> None:
        self._seconds = time.perf_counter() - self.began
        self._stop()

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()


class _Streamer:
    """What `generate` hands tokens to: the prompt first, then those of each step."""

    def __init__(self, target: Any, tokenizer: Any, say: Callable[[Sequence[int], str], None]) -> None:
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415

        ends = target.generation_config.eos_token_id
        self._ends = {ends} if isinstance(ends, int) else set(ends or ())
        self._tokenizer = tokenizer.backend_tokenizer
        self._text = DecodeStream(skip_special_tokens=True)
        self._say = say
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        """Say these, without one that ends the turn."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        tokens = value.reshape(-1).tolist()
        if tokens and tokens[-1] in self._ends:
            tokens.pop()
        if tokens:
            self._say(tokens, "".join(self._text.step(self._tokenizer, token) or "" for token in tokens))

    def end(self) -> None:
        """Nothing is held back."""
