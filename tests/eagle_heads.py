"""Heads of EAGLE-1 and 2 for tests: random ones and one that knows its target, as checkpoints, and passes in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import eagle3_heads
from .eagle3_heads import RING, Floats, Json

Tensors = dict[str, npt.NDArray[Any]]
HIDDEN = 64


def config(**changed: Any) -> Json:
    """The config.json of a small head."""
    found: Json = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
    }
    return {key: value for key, value in (found | changed).items() if value != "absent"}


def tensors(config: Json, seed: int = 0, embeddings: int = 0) -> Tensors:
    """Random tensors of a head, with embeddings of its own for so many tokens."""
    draw = np.random.default_rng(seed)
    hidden, heads, ffn = (config[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size"))
    kv = config["num_key_value_heads"] * hidden // heads

    def matrix(n: int, columns: int, gain: float = 1.0) -> Floats:
        return (draw.standard_normal((n, columns)) * gain / columns**0.5).astype(np.float32)

    found: Tensors = {
        "fc.weight": matrix(hidden, 2 * hidden),
        "layers.0.self_attn.q_proj.weight": matrix(hidden, hidden, 2),
        "layers.0.self_attn.k_proj.weight": matrix(kv, hidden, 2),
        "layers.0.self_attn.v_proj.weight": matrix(kv, hidden),
        "layers.0.self_attn.o_proj.weight": matrix(hidden, hidden),
        "layers.0.mlp.gate_proj.weight": matrix(ffn, hidden),
        "layers.0.mlp.up_proj.weight": matrix(ffn, hidden),
        "layers.0.mlp.down_proj.weight": matrix(hidden, ffn),
        "layers.0.post_attention_layernorm.weight": (1 + 0.1 * draw.standard_normal(hidden)).astype(np.float32),
    }
    if config.get("bias", True):
        found["fc.bias"] = matrix(1, hidden)[0]
    if config.get("qkv_bias"):
        for part, size in (("q", hidden), ("k", kv), ("v", kv)):
            found[f"layers.0.self_attn.{part}_proj.bias"] = matrix(1, size, 4)[0]
    if embeddings:
        found["embed_tokens.weight"] = matrix(embeddings, hidden, hidden**0.5)
    return found


def knowing(target: Mapping[str, npt.NDArray[Any]]) -> tuple[Json, Tensors]:
    """A head that knows what `eagle3_heads.ring` says after each token.

    It reads the target's states only, not the token given with each. So with the state of another position it is always
    wrong, and also with embeddings in place of states.
    """
    known = target["model.embed_tokens.weight"][RING]
    made, width = config(bias=False), known.shape[1]
    found = tensors(made)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        found[f"layers.0.{name}.weight"] *= 0
    after = np.roll(known, -1, axis=0).T @ known / width  # from the state of a token to that of the next one
    found["fc.weight"] = np.concatenate([np.zeros_like(after), after], axis=1)
    return made, found


class Reference(eagle3_heads.Reference):
    """What a head computes, in float64.

    Args:
        found: its tensors, with embeddings.
        output: the target's output matrix.
    """

    def __init__(self, config: Json, found: Mapping[str, npt.NDArray[Any]], output: npt.NDArray[Any]) -> None:
        plain = {name.removeprefix("layers.0."): values for name, values in found.items()}
        super().__init__(config, plain, len(output))
        self._output = output.astype(np.float64)

    def logs(self, states: Floats, tokens: Sequence[int], path: Sequence[int]) -> npt.NDArray[np.float64]:
        """The logarithms of the probabilities after `tokens`, the target's states of all but the last of them, and each
        token of `path`."""
        rows, keys, found = [*np.asarray(states, np.float64)], list(tokens[1:]), []
        for n in range(len(path) + 1):
            pairs = np.concatenate([self._matrix("embed_tokens")[keys], np.stack(rows)], axis=1)
            stream = self._linear("fc", pairs)
            rows.append(self._changed(stream, stream)[-1])
            logits = self._output @ rows[-1]
            found.append(logits - np.logaddexp.reduce(logits))
            keys += path[n : n + 1]
        return np.stack(found)
