"""What the graphs of Llama's kind are made of, whatever the output format.

`read` turns a config into a `Llama`, which knows its weights by role. A role is a word of our own
("attn_q", "ffn_down", ...), not a name of either side: a writer spells it its way. A family is a line of `FAMILIES`:
where it departs from `LlamaForCausalLM` in Hugging Face transformers. `MistralForCausalLM` computes the same as long
as the context fits its sliding window; Qwen2 has biases, Qwen3 normalizes the heads of queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import pi, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from edgespec.converters.checkpoint import DTYPES, Checkpoint, Json, Stored
from edgespec.errors import ConversionError


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture of transformers.

    Args:
        model_type: its name in config.json where that lists no architectures.
        gguf: llama.cpp's name for it.
        interleaved: whether llama.cpp turns neighbouring rows of a head against each other, and not its halves.
        flags: whether config.json says what has biases.
        biased: roles that have one whatever it says.
        head_norms: whether the heads of queries and keys are normalized before they are turned.
        window: the flag of config.json without which its sliding window does not count; empty if it always does.
    """

    model_type: str
    gguf: str
    interleaved: bool = False
    flags: bool = False
    biased: frozenset[str] = frozenset()
    head_norms: bool = False
    window: str = ""


FAMILIES = {
    "LlamaForCausalLM": Family("llama", "llama", interleaved=True, flags=True),
    "MistralForCausalLM": Family("mistral", "llama", interleaved=True, flags=True),
    "Qwen2ForCausalLM": Family(
        "qwen2", "qwen2", biased=frozenset({"attn_q", "attn_k", "attn_v"}), window="use_sliding_window"
    ),
    "Qwen3ForCausalLM": Family("qwen3", "qwen3", head_norms=True, window="use_sliding_window"),
}

_BLOCK = (  # role, its name in the checkpoint, rows and columns, whether its rows are turned by position
    ("attn_norm", "input_layernorm", ("hidden",), False),
    ("attn_q", "self_attn.q_proj", ("queries", "hidden"), True),
    ("attn_q_norm", "self_attn.q_norm", ("head",), False),
    ("attn_k", "self_attn.k_proj", ("keys", "hidden"), True),
    ("attn_k_norm", "self_attn.k_norm", ("head",), False),
    ("attn_v", "self_attn.v_proj", ("keys", "hidden"), False),
    ("attn_output", "self_attn.o_proj", ("hidden", "queries"), False),
    ("ffn_norm", "post_attention_layernorm", ("hidden",), False),
    ("ffn_gate", "mlp.gate_proj", ("ffn", "hidden"), False),
    ("ffn_up", "mlp.up_proj", ("ffn", "hidden"), False),
    ("ffn_down", "mlp.down_proj", ("hidden", "ffn"), False),
)
_HEAD_NORMS = {"attn_q_norm", "attn_k_norm"}
_ATTENTION = {"attn_q", "attn_k", "attn_v", "attn_output"}
_MLP = {"ffn_gate", "ffn_up", "ffn_down"}


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the graph.

    `layer` is None outside the blocks. With `rotary` the rows come in heads of `head_dim` rows, whose first
    and second halves are rotated against each other (half-split RoPE).
    """

    role: str
    kind: str  #: "weight" or "bias"
    layer: int | None
    source: str  #: its name in the checkpoint
    shape: tuple[int, ...]
    rotary: bool = False


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """`kind` is "none", "linear" or "llama3"; the last three fields are llama3's."""

    kind: str = "none"
    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class Llama:
    """The hyperparameters, in our words.

    `context` is the longest context that is exact; `biased` are the roles with a bias.
    """

    family: Family
    vocabulary: int
    context: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rope_theta: float
    rope: RopeScaling
    tied: bool
    biased: frozenset[str] = frozenset()

    def weights(self) -> list[Weight]:
        """Every tensor that the graph needs, in the order of the computation."""
        h = self.hidden
        found = [Weight("token_embd", "weight", None, "model.embed_tokens.weight", (self.vocabulary, h))]
        for layer in range(self.layers):
            found += self._block(layer)
        found.append(Weight("output_norm", "weight", None, "model.norm.weight", (h,)))
        if not self.tied:
            found.append(Weight("output", "weight", None, "lm_head.weight", (self.vocabulary, h)))
        return found

    def _block(self, layer: int) -> list[Weight]:
        heads, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = {"hidden": self.hidden, "ffn": self.ffn, "queries": heads, "keys": keys, "head": self.head_dim}
        found = []
        for role, name, axes, rotary in _BLOCK:
            if role in _HEAD_NORMS and not self.family.head_norms:
                continue
            source, shape = f"model.layers.{layer}.{name}", tuple(sizes[axis] for axis in axes)
            found.append(Weight(role, "weight", layer, f"{source}.weight", shape, rotary))
            if role in self.biased:
                found.append(Weight(role, "bias", layer, f"{source}.bias", shape[:1], rotary))
        return found

    def parameters(self) -> int:
        return sum(prod(weight.shape) for weight in self.weights())

    def rope_factors(self) -> npt.NDArray[np.float32] | None:
        """What each rotation frequency is divided by, float32 [head_dim / 2]; None where nothing is.

        llama3 scaling: long wavelengths are stretched by the factor, short ones kept, those between blended.
        Linear scaling divides all alike and needs no table.
        """
        return self._divisors().astype(np.float32) if self.rope.kind == "llama3" else None

    def frequencies(self) -> npt.NDArray[np.float64]:
        """How far each pair of a head is turned per position, in radians, float64 [head_dim / 2], scaling included."""
        found: npt.NDArray[np.float64] = self._frequencies() / self._divisors()
        return found

    def _frequencies(self) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = self.rope_theta ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        return found

    def _divisors(self) -> npt.NDArray[np.float64]:
        rope = self.rope
        if rope.kind != "llama3":
            return np.full(self.head_dim // 2, rope.factor)
        turns = rope.original_context * self._frequencies() / (2 * pi)
        blend = np.clip((turns - rope.low) / (rope.high - rope.low), 0.0, 1.0)
        found: npt.NDArray[np.float64] = 1.0 / ((1.0 - blend) / rope.factor + blend)
        return found

    def permutation(self) -> npt.NDArray[np.int64]:
        """Row order within a head, int64 [head_dim], that turns half-split RoPE into interleaved pairs."""
        order: npt.NDArray[np.int64] = np.arange(self.head_dim).reshape(2, -1).T.ravel()
        return order


def read(checkpoint: Checkpoint) -> Llama:
    """The graph of a checkpoint, whose tensors were seen to fit. ConversionError if it is not supported."""
    config = _Config(checkpoint)
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    tied = bool(config.get("tie_word_embeddings", False)) or "lm_head.weight" not in checkpoint.tensors
    llama = Llama(
        family=config.family,
        vocabulary=config.count("vocab_size"),
        context=config.context(),
        hidden=hidden,
        ffn=config.count("intermediate_size"),
        layers=config.count("num_hidden_layers"),
        heads=heads,
        kv_heads=config.count("num_key_value_heads", heads),
        head_dim=config.count("head_dim", hidden // heads),
        epsilon=config.number("rms_norm_eps", 1e-6),
        rope_theta=config.rope_theta(),
        rope=config.rope(),
        tied=tied,
        biased=config.biased(),
    )
    if llama.heads % llama.kv_heads or llama.head_dim % 2:
        raise ConversionError(
            f"{config.path}: {llama.heads} heads over {llama.kv_heads} key-value heads of {llama.head_dim} "
            "cannot be; expected a divisor of the heads and an even head_dim"
        )
    _check_tensors(checkpoint, llama)
    return llama


class _Config:
    """config.json, each answer checked."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.path = checkpoint.folder / "config.json"
        self._values = checkpoint.config
        self.family = self._family()

    def get(self, key: str, default: Any = None) -> Any:
        value = self._values.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise ConversionError(f"{self.path}: {key} is {value!r}; expected a positive whole number")
        return value

    def number(self, key: str, default: float, within: Mapping[str, Any] | None = None) -> float:
        value = (within if within is not None else self._values).get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise ConversionError(f"{self.path}: {key} is {value!r}; expected a positive number")
        return float(value)

    def _family(self) -> Family:
        names = self.get("architectures")
        kind = str(self.get("model_type"))
        types = {family.model_type: name for name, family in FAMILIES.items()}
        name = str(names[0]) if isinstance(names, list) and names else types.get(kind, kind)
        if name not in FAMILIES:
            raise ConversionError(f"{self.path}: the architecture {name} is not supported; {', '.join(FAMILIES)} are")
        if (activation := self.get("hidden_act", "silu")) not in ("silu", "swish"):
            raise ConversionError(f"{self.path}: hidden_act is {activation!r}; only silu is supported")
        return FAMILIES[name]

    def biased(self) -> frozenset[str]:
        flags = {"attention_bias": _ATTENTION, "mlp_bias": _MLP} if self.family.flags else {}
        return self.family.biased.union(*(roles for flag, roles in flags.items() if self.get(flag, False)))

    def context(self) -> int:
        """Beyond its sliding window a model masks what this graph attends to: the window is the limit."""
        longest = self.count("max_position_embeddings", 2048)
        counts = not self.family.window or self.get(self.family.window, False)
        windowed = counts and self.get("sliding_window") is not None
        return min(longest, self.count("sliding_window")) if windowed else longest

    def _scaling(self) -> Json:
        """`rope_scaling`, or the `rope_parameters` that transformers 5 writes in its place."""
        found = self.get("rope_parameters", self.get("rope_scaling", {}))
        if not isinstance(found, dict):
            raise ConversionError(f"{self.path}: rope_scaling is {found!r}; expected an object or null")
        return found

    def rope_theta(self) -> float:
        return self.number("rope_theta", self.number("rope_theta", 10000.0), self._scaling())

    def rope(self) -> RopeScaling:
        scaling = self._scaling()
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if (part := scaling.get("partial_rotary_factor", self.get("partial_rotary_factor", 1.0))) != 1.0:
            raise ConversionError(f"{self.path}: partial_rotary_factor is {part}; only 1 is supported")
        if kind == "default":
            return RopeScaling()
        if kind not in ("linear", "llama3"):
            raise ConversionError(f"{self.path}: the rope scaling {kind!r} is not supported; linear and llama3 are")
        required = ("factor",) if kind == "linear" else ("factor", "low_freq_factor", "high_freq_factor")
        for key in required:
            if key not in scaling:
                raise ConversionError(f"{self.path}: the {kind} rope scaling lacks {key}; fetch the file again")
        if kind == "linear":
            return RopeScaling("linear", self.number("factor", 1.0, scaling))
        original = scaling.get("original_max_position_embeddings", self.get("original_max_position_embeddings"))
        if type(original) is not int or original < 1:
            raise ConversionError(f"{self.path}: llama3 rope scaling needs original_max_position_embeddings")
        factor, low, high = (self.number(key, 1.0, scaling) for key in required)
        found = RopeScaling("llama3", factor, low, high, original)
        if found.high <= found.low:
            raise ConversionError(f"{self.path}: high_freq_factor {found.high} is not above {found.low}, the low one")
        return found


def _check_tensors(checkpoint: Checkpoint, llama: Llama) -> None:
    for weight in llama.weights():
        stored = checkpoint.tensors.get(weight.source)
        if stored is None:
            raise ConversionError(f"{checkpoint.folder} lacks the tensor {weight.source}; fetch the checkpoint again")
        _check_tensor(stored, weight)
    used = {weight.source for weight in llama.weights()}
    for name in checkpoint.tensors:
        # A bias or a norm that the config does not announce would be dropped silently: another model results.
        if name not in used and name != "lm_head.weight" and not name.endswith("rotary_emb.inv_freq"):
            raise ConversionError(
                f"{checkpoint.folder} has the tensor {name}, for which config.json leaves no place; "
                "expected the plain graph of its family"
            )


def _check_tensor(stored: Stored, weight: Weight) -> None:
    if stored.shape != weight.shape:
        raise ConversionError(
            f"{stored.path}: {stored.name} is {list(stored.shape)}, "
            f"but config.json asks for {list(weight.shape)}; fetch both again"
        )
    if stored.dtype not in DTYPES:
        raise ConversionError(f"{stored.path}: {stored.name} is {stored.dtype}; F32, F16 and BF16 are supported")
