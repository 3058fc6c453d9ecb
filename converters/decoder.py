"""The graph of a checkpoint, independent of the output format.

`read` turns a config into a `Decoder`, which knows its weights by role (families.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.config import SHORTEST, Config
from edgespec.converters.experts import Experts
from edgespec.converters.families import Family
from edgespec.converters.rope import Rope
from edgespec.converters.stored_tensor import DTYPES, StoredTensor
from edgespec.errors import ConversionError

_SHAPES = {  # role: rows and columns, in the order of the computation
    "attn_norm": ("hidden",),
    "attn_qkv": ("qkv", "hidden"),
    "attn_q": ("queries", "hidden"),
    "attn_q_norm": ("head",),
    "attn_k": ("keys", "hidden"),
    "attn_k_norm": ("head",),
    "attn_v": ("keys", "hidden"),
    "attn_output": ("hidden", "queries"),
    "attn_post_norm": ("hidden",),
    "ffn_norm": ("hidden",),
    "ffn_gate_up": ("twice", "hidden"),
    "ffn_gate": ("ffn", "hidden"),
    "ffn_up": ("ffn", "hidden"),
    "ffn_down": ("hidden", "ffn"),
    "ffn_gate_inp": ("experts", "hidden"),
    "ffn_gate_exps": ("experts", "expert", "hidden"),
    "ffn_up_exps": ("experts", "expert", "hidden"),
    "ffn_down_exps": ("experts", "hidden", "expert"),
    "ffn_post_norm": ("hidden",),
}
_WIDE = {"attn_q_norm": ("queries",), "attn_k_norm": ("keys",)}
_ROTARY = {"attn_q", "attn_k"}


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the graph.

    `layer` is None outside the blocks. With `rotary` the rows come in heads of `head_dim` rows, whose first
    and second halves are rotated against each other (half-split RoPE). `columns`: it is stored column by column.
    `plus` is to be added to what is stored.
    """

    role: str
    kind: str  #: "weight" or "bias"
    layer: int | None
    source: str  #: its name in the checkpoint; with {} for the number where each expert has a tensor
    shape: tuple[int, ...]
    rotary: bool = False
    columns: bool = False
    plus: float = 0.0

    def sources(self) -> tuple[str, ...]:
        """Its names in the checkpoint: one, or one per expert."""
        return tuple(self.source.format(expert) for expert in range(self.shape[0] if "{}" in self.source else 1))

    def stored(self, checkpoint: Checkpoint) -> tuple[StoredTensor, ...]:
        """Its tensors, to be concatenated by rows."""
        found = [replace(checkpoint.tensors[name], plus=self.plus) for name in self.sources()]
        return tuple(stored.transposed() if self.columns else stored for stored in found)


@dataclass(frozen=True, slots=True)
class Scales:
    """What things are multiplied by: embeddings, what blocks add to the stream, attention's scores, logits.

    A cap bounds scores or logits: cap * tanh(x / cap). 0: there is none.
    """

    attention: float
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention_cap: float = 0.0
    logits_cap: float = 0.0


@dataclass(frozen=True, slots=True)
class Decoder:
    """The hyperparameters, in our words.

    `context` is the longest context that is exact; `biased` are the roles with a bias. Layers in `windowed` see only
    the last `window` tokens and turn by `local_rope`; layers not in `turned` know no positions. With `experts` a layer
    has those instead of an MLP.
    """

    family: Family
    root: str
    vocabulary: int
    context: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rope: Rope
    local_rope: Rope
    turned: tuple[bool, ...]
    windowed: tuple[bool, ...]
    window: int
    scales: Scales
    tied: bool
    biased: frozenset[str] = frozenset()
    experts: Experts | None = None
    notes: tuple[str, ...] = ()

    def weights(self) -> list[Weight]:
        """All tensors of the graph, in the order of the computation."""
        ends, sizes = self.family.ends, self._sizes()
        found = [self._end("token_embd", "weight", (self.vocabulary, self.hidden))]
        if "position_embd" in ends:
            found.append(self._end("position_embd", "weight", (self.context, self.hidden)))
        for layer in range(self.layers):
            found += self._block(layer, sizes)
        for kind in ("weight", *(["bias"] if self.family.centred else [])):
            found.append(self._end("output_norm", kind, (self.hidden,)))
        if not self.tied:
            found.append(Weight("output", "weight", None, "lm_head.weight", (self.vocabulary, self.hidden)))
        return found

    def _end(self, role: str, kind: str, shape: tuple[int, ...]) -> Weight:
        plus = float(self.family.around_one and role == "output_norm")
        return Weight(role, kind, None, f"{self.root}{self.family.ends[role]}.{kind}", shape, plus=plus)

    def _sizes(self) -> dict[str, int]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "hidden": self.hidden,
            "ffn": self.ffn,
            "twice": 2 * self.ffn,
            "queries": queries,
            "keys": keys,
            "qkv": queries + 2 * keys,
            "head": self.head_dim,
            "experts": self.experts.count if self.experts else 0,
            "expert": self.experts.ffn if self.experts else 0,
        }

    def _block(self, layer: int, sizes: dict[str, int]) -> list[Weight]:
        family, found = self.family, []
        for role, plain in _SHAPES.items():
            if role not in family.block:
                continue
            norm = role.endswith("norm")
            axes = _WIDE.get(role, plain) if family.wide_norms else plain
            source, shape = f"{self.root}{family.layers}.{layer}.{family.block[role]}", tuple(sizes[a] for a in axes)
            rotary, columns = role in _ROTARY, family.columns and len(shape) > 1
            plus = float(family.around_one and norm)
            found.append(Weight(role, "weight", layer, f"{source}.weight", shape, rotary, columns, plus))
            if role in self.biased or (norm and family.centred):
                found.append(Weight(role, "bias", layer, f"{source}.bias", shape[:1], rotary))
        return found

    def parameters(self) -> int:
        return sum(prod(weight.shape) for weight in self.weights())

    def permutation(self) -> npt.NDArray[np.int64]:
        """The row order within a head, int64 [head_dim], that converts half-split RoPE to interleaved pairs."""
        order: npt.NDArray[np.int64] = np.arange(self.head_dim).reshape(2, -1).T.ravel()
        return order


def read(checkpoint: Checkpoint) -> Decoder:
    """The graph of a checkpoint, with checked tensors. ConversionError if it is not supported."""
    config = Config(checkpoint)
    family, heads, hidden = config.family, config.count("num_attention_heads"), config.count("hidden_size")
    layers, head_dim = config.layers(), config.count("head_dim", hidden // heads)
    context, window = config.context(), config.window()
    windowed = config.windowed(layers)
    if "sliding_window" not in family.own:  # no layer of this graph can mask what lies before its window
        context, window = min(context, window or context), 0
        if context < SHORTEST:
            raise ConversionError(
                f"{config.path}: sliding_window is {context}, and this family's graph sees no further; expected "
                f"{SHORTEST} or more"
            )
    decoder = Decoder(
        family=family,
        root=_root(checkpoint, family),
        vocabulary=config.count("vocab_size"),
        context=context,
        hidden=hidden,
        ffn=config.count("intermediate_size", 4 * hidden if family.columns else None),
        layers=layers,
        heads=heads,
        kv_heads=config.count("num_key_value_heads", heads),
        head_dim=head_dim,
        epsilon=config.number("rms_norm_eps", 1e-6),
        rope=config.rope(head_dim),
        local_rope=config.rope(head_dim, local=True),
        turned=config.turned(layers),
        windowed=windowed,
        window=window,
        scales=_scales(config, hidden, head_dim),
        tied=bool(config.get("tie_word_embeddings", False)) or "lm_head.weight" not in checkpoint.tensors,
        biased=config.biased(),
        experts=config.experts(),
    )
    if decoder.heads % decoder.kv_heads or decoder.rope.width % 2:
        raise ConversionError(
            f"{config.path}: {decoder.heads} heads over {decoder.kv_heads} key-value heads of {decoder.head_dim} "
            "cannot be; expected a divisor of the heads and an even head_dim"
        )
    _check_tensors(checkpoint, decoder)
    if decoder.rope.scaling.kind == "longrope":
        decoder = replace(decoder, notes=(_short(decoder),))
    return decoder


def _short(decoder: Decoder) -> str:
    return (
        f"the context is {decoder.context} tokens: beyond, the model wants other rotations for all that was said before"
    )


def _scales(config: Config, hidden: int, head_dim: int) -> Scales:
    own = config.family.own
    usual = config.number("query_pre_attn_scalar", head_dim) ** -0.5
    return Scales(
        attention=config.number("attention_multiplier", 1.0) if "attention_multiplier" in own else usual,
        embedding=hidden**0.5 if "root_embedding" in own else config.number("embedding_multiplier", 1.0),
        residual=config.number("residual_multiplier", 1.0),
        logits=1 / config.number("logits_scaling", 1.0),
        attention_cap=_cap(config, "attn_logit_softcapping"),
        logits_cap=_cap(config, "final_logit_softcapping"),
    )


def _cap(config: Config, key: str) -> float:
    return 0.0 if config.get(key) is None else config.number(key, 1.0)


def _root(checkpoint: Checkpoint, family: Family) -> str:
    embedding = f"{family.ends['token_embd']}.weight"
    return next((root for root in family.roots if f"{root}{embedding}" in checkpoint.tensors), family.roots[0])


def _check_tensors(checkpoint: Checkpoint, decoder: Decoder) -> None:
    used = set()
    for weight in decoder.weights():
        for name in weight.sources():
            stored = checkpoint.tensors.get(name)
            if stored is None:
                raise ConversionError(f"{checkpoint.folder} lacks the tensor {name}; fetch the checkpoint again")
            _check_tensor(stored, weight)
            used.add(name)
    for name in checkpoint.tensors:
        # A bias or a norm that the config does not announce would be dropped silently: another model results.
        if name not in used and name != "lm_head.weight" and not name.endswith(_BUFFERS):
            raise ConversionError(
                f"{checkpoint.folder} has the tensor {name}, for which config.json leaves no place; "
                "expected the plain graph of its family"
            )


#: Constants that older checkpoints have besides their weights: frequencies, and GPT-2's causal masks.
_BUFFERS = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


def _check_tensor(stored: StoredTensor, weight: Weight) -> None:
    shape = weight.shape[-2:] if "{}" in weight.source else weight.shape
    shape = shape[::-1] if weight.columns else shape
    if stored.shape != shape:
        raise ConversionError(
            f"{stored.path}: {stored.name} is {list(stored.shape)}, "
            f"but config.json asks for {list(shape)}; fetch both again"
        )
    if stored.dtype not in DTYPES:
        raise ConversionError(f"{stored.path}: {stored.name} is {stored.dtype}; F32, F16 and BF16 are supported")
