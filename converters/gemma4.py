"""What Gemma 4 has beyond other decoders: layers of two kinds of heads, embeddings of each layer, an assistant.

Layers that see all tokens have wider heads than those that see a window, and other counts of them; on some models their
values are their keys. The last layers may use the keys and values of earlier ones. The assistant drafts: it has queries
only, uses the target's keys and values, and takes the target's hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.converters.config import Config
from edgespec.errors import ConversionError

_KEYS = frozenset({"attn_k", "attn_k_norm", "attn_v"})
_PER_LAYER = frozenset({"inp_gate", "proj", "post_norm"})


@dataclass(frozen=True, slots=True)
class Gemma4:
    """The sizes of what is special.

    Args:
        head_dim: the width of a head in layers that see all tokens.
        kv_heads: the number of key-value heads there.
        shared: how many of the last layers use other layers' keys and values.
        keys_are_values: whether layers that see all have no matrix for values.
        double: whether the layers in `shared` have MLPs of twice the width.
        per_layer: the width of the embeddings of each layer; 0 without.
        backbone: an assistant's target's hidden size; 0 for what is none.
    """

    head_dim: int
    kv_heads: int
    shared: int = 0
    keys_are_values: bool = False
    double: bool = False
    per_layer: int = 0
    backbone: int = 0

    def block(self, names: Mapping[str, str], own_keys: bool, windowed: bool) -> dict[str, str]:
        """The tensors of a layer, of those that some layers have."""
        gone = set() if own_keys else set(_KEYS)
        if self.keys_are_values and not windowed:
            gone.add("attn_v")
        if not self.per_layer:
            gone |= _PER_LAYER
        return {role: name for role, name in names.items() if role not in gone}

    def ends(self, vocabulary: int, layers: int, hidden: int) -> dict[str, tuple[int, ...]]:
        """The tensors outside the layers that other decoders lack."""
        if self.backbone:
            return {
                "nextn.pre_projection": (hidden, 2 * self.backbone),
                "nextn.post_projection": (self.backbone, hidden),
            }
        if not self.per_layer:
            return {}
        return {
            "per_layer_token_embd": (vocabulary, layers * self.per_layer),
            "per_layer_model_proj": (layers * self.per_layer, hidden),
            "per_layer_proj_norm": (self.per_layer,),
        }


def read(config: Config, layers: int, kv_heads: int, windowed: tuple[bool, ...]) -> Gemma4 | None:
    """The sizes by config.json; None for other families. ConversionError for what llama.cpp does not compute."""
    if not config.family.gguf.startswith("gemma4"):
        return None
    if config.get("use_bidirectional_attention") == "all":
        raise ConversionError(f"{config.path}: use_bidirectional_attention is 'all', and this is no causal model then")
    if config.get("per_layer_config") is not None:
        _check_layers(config, windowed)
    assistant = config.family.gguf == "gemma4-assistant"
    shared = layers if assistant else config.whole("num_kv_shared_layers", layers - 1)
    vocabulary = config.get("vocab_size_per_layer_input")
    found = Gemma4(
        head_dim=_full(config, "global_head_dim", "head_dim", 512),
        kv_heads=_full(config, "num_global_key_value_heads", "num_key_value_heads", kv_heads),
        shared=shared,
        keys_are_values=bool(config.get("attention_k_eq_v", False)),
        double=bool(config.get("use_double_wide_mlp", False)),
        per_layer=0 if assistant else config.whole("hidden_size_per_layer_input", (1 << 31) - 1),
        backbone=config.count("backbone_hidden_size") if assistant else 0,
    )
    if found.per_layer and vocabulary not in (None, config.get("vocab_size")):
        raise ConversionError(f"{config.path}: vocab_size_per_layer_input is {vocabulary!r:.80}; expected vocab_size")
    own = windowed[: layers - shared]
    if shared and not assistant and {*own} != {*windowed}:
        raise ConversionError(f"{config.path}: the {layers - shared} layers with keys lack a kind that later ones use")
    return found


def _check_layers(config: Config, windowed: tuple[bool, ...]) -> None:
    """What config.json says of single layers has to be the same for all that see all tokens."""
    given = config.get("per_layer_config")
    full = [str(layer) for layer, window in enumerate(windowed) if not window]
    if (
        not isinstance(given, dict)
        or sorted(given) != sorted(full)
        or any(given[key] != given[full[0]] for key in full)
    ):
        raise ConversionError(
            f"{config.path}: per_layer_config is not one object for each layer of full_attention, all alike"
        )
    entry: Any = given[full[0]] if full else {}
    if not isinstance(entry, dict) or not entry.keys() <= {"head_dim", "num_key_value_heads"}:
        raise ConversionError(f"{config.path}: per_layer_config has more than head_dim and num_key_value_heads")


def _full(config: Config, key: str, within: str, usual: int) -> int:
    """A size of the layers that see all tokens, from where any version of transformers writes it."""
    layers = config.get("per_layer_config") or {}
    value = next((entry[within] for entry in layers.values() if within in entry), config.get(key))
    if value is None:
        return usual
    if type(value) is not int or not 0 < value < 1 << 31:
        raise ConversionError(f"{config.path}: {key} is {value!r:.80}; expected a positive whole number")
    return value
