"""config.json: every value is checked, and settings that no graph supports are refused."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, sqrt
from typing import Any

from edgespec.converters.checkpoint import Checkpoint, Json
from edgespec.converters.experts import Experts
from edgespec.converters.families import FAMILIES, Family
from edgespec.converters.recurrence import Recurrence
from edgespec.converters.rope import Rope, Scaling
from edgespec.converters.unsupported import hint
from edgespec.errors import ConversionError

#: Keys of config.json that change what is computed, and the value that leaves the graph plain (or absent, or null).
PLAIN: Mapping[str, Any] = {
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": None,
    "logits_scaling": 1.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "query_pre_attn_scalar": None,
    "no_rope_layers": None,
    "partial_rotary_factor": 1.0,
    "clip_qkv": None,
    "use_bidirectional_attention": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
_MOST_LAYERS = 512  # that llama.cpp takes (LLAMA_MAX_LAYERS)
SHORTEST = 8  # tokens of a context that is any use
_SLIDING, _FULL, _STATE = "sliding_attention", "full_attention", "linear_attention"
_WINDOWS = {_SLIDING: _SLIDING, _FULL: _FULL}
_STATES = dict.fromkeys((_STATE, "mamba", "conv"), _STATE)
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
}


class Config:
    """The config of one checkpoint. Wrong values raise ConversionError."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.path = checkpoint.folder / "config.json"
        self._values = checkpoint.config
        self.family = self._family()
        self._check_plain()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, by Llama's name for it; without one the family's value, else `default`."""
        value = self._values.get(self.family.keys.get(key, key))
        return self.family.defaults.get(key, default) if value is None else value

    def count(self, key: str, default: int | None = None, most: int = (1 << 31) - 1) -> int:
        value = self.get(key, default)
        if type(value) is not int or not 0 < value <= most:
            raise ConversionError(
                f"{self.path}: {self.family.keys.get(key, key)} is {value!r:.80}; expected a positive whole number, "
                f"at most {most}"
            )
        return value

    def layers(self) -> int:
        """The number of blocks."""
        return self.count("num_hidden_layers", most=_MOST_LAYERS)

    def number(self, key: str, default: float, within: Mapping[str, Any] | None = None) -> float:
        value = within.get(key) if within is not None else self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-30 < value < 1e12:
            raise ConversionError(f"{self.path}: {key} is {value!r:.80}; expected a positive number")
        return float(value)

    def _family(self) -> Family:
        names = self._values.get("architectures")
        kind = str(self._values.get("model_type"))
        types = {family.model_type: name for name, family in FAMILIES.items()}
        name = str(names[0]) if isinstance(names, list) and names else types.get(kind, kind)
        if name not in FAMILIES:
            raise ConversionError(
                f"{self.path}: the architecture {name} is not supported; {', '.join(FAMILIES)} are{hint(name)}"
            )
        return FAMILIES[name]

    def _check_plain(self) -> None:
        activation = self.get("hidden_act", self.family.activation)
        if not isinstance(activation, str) or _ACTIVATIONS.get(activation) != self.family.activation:
            expected = " or ".join(name for name, kind in _ACTIVATIONS.items() if kind == self.family.activation)
            raise ConversionError(f"{self.path}: hidden_act is {activation!r}; only {expected} is supported here")
        plain = {key: value for key, value in PLAIN.items() if key not in self.family.own}
        for key, value in {**plain, **self.family.fixed}.items():
            if (found := self.get(key)) is not None and found != value:
                raise ConversionError(
                    f"{self.path}: {key} is {found!r}, which {self.family.model_type} is not converted with; "
                    f"expected {'none' if value is None else value}"
                )

    def biased(self) -> frozenset[str]:
        """The roles with a bias."""
        return self.family.biased.union(*(roles for flag, roles in self.family.flags.items() if self.get(flag, False)))

    def experts(self) -> Experts | None:
        """The experts of each layer, or None where it has an MLP."""
        block = {*self.family.block, *self.family.sparse}
        count_key = "num_experts" if self.get("num_local_experts") is None else "num_local_experts"
        none = self.get("enable_moe_block", True) is False or (self.family.dense and self.get(count_key) == 0)
        if "ffn_gate_inp" not in block or none:
            return None
        width = "intermediate_size" if self.get("moe_intermediate_size") is None else "moe_intermediate_size"
        shared = "shared_intermediate_size"
        shared = shared if self.get(shared) is not None else f"shared_expert{shared.removeprefix('shared')}"
        found = Experts(
            self.count(count_key),
            self.count("num_experts_per_tok"),
            self.count(width),
            self.count(shared) if "ffn_up_shexp" in block else 0,
            self.whole("num_dense_layers", self.layers()) if "num_dense_layers" in self._values else 0,
        )
        if found.used > found.count:
            raise ConversionError(
                f"{self.path}: num_experts_per_tok is {found.used}; expected at most the {found.count} of {count_key}"
            )
        return found

    def whole(self, key: str, most: int) -> int:
        """A count that may be 0."""
        return 0 if self.get(key, 0) == 0 else self.count(key, most=most)

    def ffn(self, usual: int | None) -> int:
        """The rows of an MLP."""
        if self.family.gguf == "granitehybrid" and not self.get("num_local_experts"):
            return self.count("shared_intermediate_size")
        given = self.count("intermediate_size" if self.get("block_ff_dim") is None else "block_ff_dim", usual)
        if self.family.gguf != "lfm2" or not self.get("block_auto_adjust_ff_dim", True):
            return given
        share = self.number("block_ffn_dim_multiplier", 1.0)
        step = self.count("block_multiple_of", 256)
        return step * -(-int(share * int(2 * given / 3)) // step)

    def context(self) -> int:
        """The longest context that is exact, sliding windows aside."""
        longest = self._longest()
        if longest < SHORTEST:
            raise ConversionError(
                f"{self.path}: a context of {longest} tokens holds no prompt; expected {SHORTEST} or more"
            )
        return longest

    def _longest(self) -> int:
        longest = self.count("max_position_embeddings", 2048)
        scaling = self._scaling(False)
        if "longrope" in self.family.own and scaling.get("rope_type", scaling.get("type")) in ("longrope", "su"):
            # Beyond it other divisors would hold for all that was said before.
            return min(longest, self._original(scaling))
        return longest

    def window(self) -> int:
        """The window of its sliding-window layers in tokens; 0 without one."""
        counts = not self.family.window or self.get(self.family.window, False)
        windowed = counts and self.get("sliding_window") is not None
        return self.count("sliding_window") if windowed else 0

    def windowed(self, layers: int) -> tuple[bool, ...]:
        """Whether each layer has a sliding window."""
        kinds = self.kinds(layers)
        if self.family.recurrent:
            return (False,) * layers
        if not kinds:
            period = self.get("sliding_window_pattern", self.family.period)
            if type(period) is not int or period < 0:
                raise ConversionError(f"{self.path}: sliding_window_pattern is {period!r}; expected a whole number")
            return tuple(not period or bool((layer + 1) % period) for layer in range(layers))
        return tuple(kind == _SLIDING for kind in kinds)

    def kinds(self, layers: int) -> tuple[str, ...]:
        """The kind of each layer; empty where config.json lists none."""
        listed = self.get("layer_types", self.get("layers_block_type"))
        if listed is None:
            return ()
        known = _STATES | {"full_attention": _FULL, "attention": _FULL} if self.family.recurrent else _WINDOWS
        if not isinstance(listed, list) or len(listed) != layers or not all(str(kind) in known for kind in listed):
            named = " or ".join(known)
            raise ConversionError(f"{self.path}: layer_types is not a list of {named} for each layer")
        return tuple(known[str(kind)] for kind in listed)

    def recurrent(self, layers: int) -> tuple[bool, ...]:
        """Whether each layer keeps a state instead of keys and values; empty if none of the family does."""
        if not self.family.recurrent:
            return ()
        found = tuple(kind == _STATE for kind in self.kinds(layers)) or self._spaced(layers)
        if found and not any(found) and self.family.gguf == "granitehybrid":
            return ()  # the Granite 4 models without Mamba: of the same architecture, but for llama.cpp plain ones
        if all(found) or not any(found):
            raise ConversionError(
                f"{self.path}: {sum(found)} of {layers} layers keep a state; expected some, and some of attention"
            )
        return found

    def _spaced(self, layers: int) -> tuple[bool, ...]:
        """Without a list of kinds: by the period, or the numbers, of the layers of attention."""
        if self.get("full_attn_idxs") is not None:
            return tuple(layer not in self._listed("full_attn_idxs") for layer in range(layers))
        step = self.count("full_attention_interval", 4)
        return tuple((layer + 1) % step != 0 for layer in range(layers))

    def _listed(self, key: str) -> list[int]:
        found = self.get(key)
        if not isinstance(found, list) or not all(type(number) is int for number in found):
            raise ConversionError(f"{self.path}: {key} is {found!r:.80}; expected a list of whole numbers")
        return found

    def recurrence(self) -> Recurrence | None:
        """The sizes of the layers that keep a state, or None."""
        if not self.family.recurrent:
            return None
        found = Recurrence(**{word: self.count(key) for word, key in self.family.state.items()})
        if not 2 <= found.kernel <= 1 << 10 or found.heads % max(1, found.groups):
            raise ConversionError(
                f"{self.path}: {found.heads} heads over {found.groups} groups, convolved over {found.kernel} tokens, "
                "cannot be; expected a divisor of the heads and 2 to 1024 tokens"
            )
        return found

    def turned(self, layers: int) -> tuple[bool, ...]:
        """Whether each layer has rotary position embeddings."""
        if "no_rope_layers" not in self.family.own:
            return (self.family.layers == "layers" and not self._nowhere(),) * layers
        step = self.count("no_rope_layer_interval", 4)
        given = self.get("no_rope_layers", [int((layer + 1) % step != 0) for layer in range(layers)])
        if not isinstance(given, list) or len(given) < layers or not all(value in (0, 1) for value in given):
            raise ConversionError(f"{self.path}: no_rope_layers is {given!r}; expected a 0 or 1 for each layer")
        return tuple(value == 1 for value in given[:layers])

    def _nowhere(self) -> bool:
        """Whether attention knows no positions: states know them."""
        return self.family.gguf == "granitehybrid" and self.get("position_embedding_type") != "rope"

    def rope(self, head_dim: int, local: bool = False) -> Rope:
        """The rotary embedding of a layer, or of a sliding-window layer."""
        values = self._scaling(local)
        theta = self.number("rope_theta", 10000.0)
        if local and "rope_local_base_freq" in self.family.defaults:
            theta = self.number("rope_local_base_freq", 10000.0)
        kind = values.get("rope_type", values.get("type", "default"))
        part = values.get("partial_rotary_factor", self.get("partial_rotary_factor", 1.0))
        if isinstance(part, bool) or not isinstance(part, int | float) or not 0 < part <= 1:
            raise ConversionError(f"{self.path}: partial_rotary_factor is {part!r}; expected a share of a head")
        if kind == "proportional" and "proportional" in self.family.own:
            part = 1  # all of a head turns, but for most of it by nothing
        if part != 1 and "partial_rotary_factor" not in self.family.own:
            raise ConversionError(f"{self.path}: partial_rotary_factor is {part}; only 1 is supported")
        width = int(head_dim * part)
        theta = self.number("rope_theta", theta, values)
        return Rope(theta, width, self._scaled(values, width), self._sections(values))

    def _sections(self, values: Json) -> tuple[int, ...]:
        """As Qwen3.5 has them if config.json does not say; four, whatever it says."""
        found = values.get("mrope_section", [11, 11, 10])
        whole = isinstance(found, list) and all(type(size) is int and 0 <= size < 1 << 16 for size in found)
        if not whole or not 3 <= len(found) <= 4 or not any(found):
            raise ConversionError(f"{self.path}: mrope_section is {found!r:.80}; expected three whole numbers")
        return tuple([*found, 0][:4])

    def _scaling(self, local: bool) -> Json:
        """`rope_scaling`, or the `rope_parameters` that transformers 5 writes in its place, for each kind of layer."""
        found = self.get("rope_parameters", self.get("rope_scaling", {}))
        if isinstance(found, dict) and (_FULL in found or _SLIDING in found):
            found = found.get(_SLIDING if local else _FULL, {})
        elif local and "rope_local_base_freq" in self.family.defaults:
            found = {}
        if not isinstance(found, dict):
            raise ConversionError(f"{self.path}: rope_scaling is {found!r}; expected an object or null")
        return found

    def _scaled(self, values: Json, width: int) -> Scaling:
        kind = values.get("rope_type", values.get("type", "default"))
        if kind == "default":
            return Scaling()
        if kind in ("longrope", "su") and "longrope" in self.family.own:
            return self._longrope(values, width)
        if kind == "proportional" and "proportional" in self.family.own:
            return Scaling("proportional", self.number("partial_rotary_factor", 1.0, values))
        if kind == "yarn" and "yarn" in self.family.own:
            return self._yarn(values)
        if kind not in ("linear", "llama3"):
            raise ConversionError(f"{self.path}: the rope scaling {kind!r} is not supported; linear and llama3 are")
        required = ("factor",) if kind == "linear" else ("factor", "low_freq_factor", "high_freq_factor")
        for key in required:
            if key not in values:
                raise ConversionError(f"{self.path}: the {kind} rope scaling lacks {key}; fetch the file again")
        if kind == "linear":
            return Scaling("linear", self.number("factor", 1.0, values))
        factor, low, high = (self.number(key, 1.0, values) for key in required)
        if high <= low:
            raise ConversionError(f"{self.path}: high_freq_factor {high} is not above {low}, the low one")
        return Scaling("llama3", factor, low, high, self._original(values))

    def _yarn(self, values: Json) -> Scaling:
        """https://arxiv.org/abs/2309.00071"""
        for key in ("attention_factor", "mscale", "mscale_all_dim"):
            if values.get(key) is not None:
                raise ConversionError(f"{self.path}: the yarn scaling's {key} is not supported; expected none")
        factor, slow, fast = (
            self.number(key, usual, values) for key, usual in (("factor", 0), ("beta_slow", 1), ("beta_fast", 32))
        )
        if fast <= slow:
            raise ConversionError(
                f"{self.path}: the yarn scaling's beta_fast {fast} is not above {slow}, its beta_slow"
            )
        return Scaling("yarn", factor, slow, fast, self._original(values))

    def rounds_yarn(self) -> bool:
        """Whether the ends of a YaRN scaling's ramp are rounded to whole frequencies."""
        values = self._scaling(False)
        return values.get("rope_type", values.get("type")) != "yarn" or values.get("truncate") is not False

    def _original(self, values: Json) -> int:
        found = values.get("original_max_position_embeddings", self.get("original_max_position_embeddings"))
        if type(found) is not int or not 0 < found < 1 << 31:
            raise ConversionError(f"{self.path}: this rope scaling needs original_max_position_embeddings")
        return found

    def _longrope(self, values: Json, width: int) -> Scaling:
        """https://arxiv.org/abs/2402.13753, as transformers has it (modeling_rope_utils.py)."""
        short, long = (self._factors(values, key, width) for key in ("short_factor", "long_factor"))
        original = self._original(values)
        stretch = self.number("factor", self.count("max_position_embeddings") / original, values)
        usual = sqrt(1 + log(stretch) / log(original)) if stretch > 1 else 1.0
        magnitude = self.number("attention_factor", usual, values)
        return Scaling("longrope", original_context=original, short=short, long=long, magnitude=magnitude)

    def _factors(self, values: Json, key: str, width: int) -> tuple[float, ...]:
        found = values.get(key)
        if not isinstance(found, list) or len(found) != width // 2:
            raise ConversionError(f"{self.path}: the longrope scaling's {key} is not a list of {width // 2} numbers")
        return tuple(self.number(key, 1.0, {key: value}) for value in found)
