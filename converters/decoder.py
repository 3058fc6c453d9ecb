"""The graph of a checkpoint, independent of the output format.

`read` turns a config into a `Decoder`, which knows its weights by role (families.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from edgespec.converters import gemma4
from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.config import SHORTEST, Config
from edgespec.converters.experts import Experts
from edgespec.converters.families import Family
from edgespec.converters.gemma4 import Gemma4
from edgespec.converters.mxfp4 import Mxfp4Tensor
from edgespec.converters.recurrence import Recurrence
from edgespec.converters.roles import ROLES, ROTARY, WIDE_NORMS
from edgespec.converters.rope import Rope
from edgespec.converters.stored_tensor import DTYPES, StoredTensor
from edgespec.errors import ConversionError


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the graph.

    `layer` is None outside the blocks. With `rotary` the rows come in heads of `head_dim` rows, whose first
    and second halves are rotated against each other (half-split RoPE). `columns`: it is stored column by column.
    `plus` is to be added to what is stored; with `decay` -exp of that is meant. `stored_shape` is the shape in the
    checkpoint, where it is another one. `rows` and `kept` choose and order rows and columns; empty for all.
    """

    role: str
    kind: str  #: "weight" or "bias"
    layer: int | None
    source: str  #: its name in the checkpoint; with {} for the number where each expert has a tensor
    shape: tuple[int, ...]
    rotary: bool = False
    columns: bool = False
    plus: float = 0.0
    decay: bool = False
    stored_shape: tuple[int, ...] = ()
    rows: tuple[range, ...] = ()
    kept: tuple[range, ...] = ()

    def sources(self) -> tuple[str, ...]:
        """Its names in the checkpoint: one, or one per expert, or more where parts of it have their own."""
        experts = range(self.shape[0] if "{}" in self.source else 1)
        return tuple(part.format(expert) for expert in experts for part in self.source.split("|"))

    def stored(self, checkpoint: Checkpoint) -> tuple[StoredTensor, ...]:
        """Its tensors, to be concatenated by rows."""
        found = [replace(checkpoint.tensors[name], plus=self.plus, decay=self.decay) for name in self.sources()]
        if self.kept:
            found = [stored.picked(self.kept) for stored in found]
        if self.rows:
            found = [stored.rows(part) for stored in found for part in self.rows]
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
    has those instead of an MLP. Layers in `recurrent` have a state, of the sizes of `recurrence`, instead of attention.
    `head`: a block for drafting follows the layers, numbered as one more of them.
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
    recurrence: Recurrence | None = None
    recurrent: tuple[bool, ...] = ()
    head: bool = False
    gemma4: Gemma4 | None = None
    notes: tuple[str, ...] = ()

    def weights(self) -> list[Weight]:
        """All tensors of the graph, in the order of the computation."""
        ends = self.family.ends
        found = [self._end("token_embd", "weight", (self.vocabulary, self.hidden))]
        if "position_embd" in ends:
            found.append(self._end("position_embd", "weight", (self.context, self.hidden)))
        for layer in range(self.layers + self.head):
            found += self._block(layer)
        if self.gemma4 is not None:
            own = self.gemma4.ends(self.vocabulary, self.layers, self.hidden)
            found += [self._end(role, "weight", shape) for role, shape in own.items()]
        for kind in ("weight", *(["bias"] if self.family.centred else [])):
            found.append(self._end("output_norm", kind, (self.hidden,)))
        if not self.tied:
            found.append(Weight("output", "weight", None, "lm_head.weight", (self.vocabulary, self.hidden)))
        return found

    def _end(self, role: str, kind: str, shape: tuple[int, ...]) -> Weight:
        plus = float(self.family.around_one and role == "output_norm")
        root = "" if role.startswith("nextn") else self.root
        return Weight(role, kind, None, f"{root}{self.family.ends[role]}.{kind}", shape, plus=plus)

    def is_recurrent(self, layer: int) -> bool:
        """Whether the layer has a state instead of attention."""
        return layer < len(self.recurrent) and self.recurrent[layer]

    def block(self, layer: int) -> Mapping[str, str]:
        """The tensors of a layer by role: their names in the checkpoint, without "weight" and "bias"."""
        family = self.family
        sparse = self.experts is not None and layer >= self.experts.first
        parts = (
            family.block,
            family.recurrent if self.is_recurrent(layer) else family.attention,
            family.sparse if sparse else family.dense,
        )
        root = f"{self.root}{family.layers}.{layer}" if layer < self.layers else f"mtp.layers.{layer - self.layers}"
        found = {role: f"{root}.{name.replace('|', f'|{root}.')}" for part in parts for role, name in part.items()}
        if self.gemma4 is not None:
            found = self.gemma4.block(found, layer < self.layers - self.gemma4.shared, self.windowed[layer])
        return found if layer < self.layers else {**found, **family.head}

    def _sizes(self, layer: int) -> dict[str, int]:
        head_dim, kv_heads, ffn = self.head_dim, self.kv_heads, self.ffn
        if self.gemma4 is not None:
            if not self.windowed[layer]:
                head_dim, kv_heads = self.gemma4.head_dim, self.gemma4.kv_heads
            ffn *= 1 + (self.gemma4.double and layer >= self.layers - self.gemma4.shared)
        queries, keys = self.heads * head_dim, kv_heads * head_dim
        return {
            "per layer": self.gemma4.per_layer if self.gemma4 else 0,
            "one": 1,
            "hidden": self.hidden,
            "hidden twice": 2 * self.hidden,
            "hidden thrice": 3 * self.hidden,
            "ffn": ffn,
            "ffn twice": 2 * ffn,
            "queries": queries,
            "asked": 2 * queries if self.family.gated else queries,
            "keys": keys,
            "qkv": queries + 2 * keys,
            "head": head_dim,
            "heads": self.heads,
            **(self.experts.sizes() if self.experts else {}),
            **(self.recurrence.sizes() if self.recurrence else {}),
        }

    def _block(self, layer: int) -> list[Weight]:
        block, sizes = self.block(layer), self._sizes(layer)
        return [weight for role in ROLES if role in block for weight in self._weights(layer, role, block[role], sizes)]

    def _weights(self, layer: int, role: str, source: str, sizes: Mapping[str, int]) -> Iterator[Weight]:
        """The tensor of a role, and its bias if it has one."""
        family, about = self.family, ROLES[role]
        norm = role.endswith("norm")
        axes = WIDE_NORMS.get(role, about.axes) if family.wide_norms else about.axes
        shape, stored = (tuple(sizes[axis] for axis in these) for these in (axes, about.stored))
        rotary, rows = role in ROTARY, tuple[range, ...]()
        if half := re.fullmatch(r"(.*)\[([01])\]", source):
            source, start = half[1], int(half[2]) * shape[-2]
            rows, stored = (range(start, start + shape[-2]),), (*shape[:-2], 2 * shape[-2], shape[-1])
        elif (parts := re.fullmatch(r"(.*)\[([a-z]+)\]", source)) and self.recurrence:
            source, rows = parts[1], self.recurrence.grouped(parts[2])
            stored = (self.recurrence.channels + self.recurrence.inner, shape[-1])
        yield Weight(
            role,
            about.kind,
            layer,
            source if about.bare else f"{source.replace('|', '.weight|')}.weight",
            shape,
            rows=rows,
            rotary=rotary,
            columns=family.columns and len(shape) > 1,
            plus=float(family.around_one and norm and role != "linear_norm"),
            decay=about.decay,
            stored_shape=stored,
        )
        if role in self.biased or (norm and family.centred):
            # Where each expert has a tensor of its own, all of a layer have one bias.
            yield Weight(role, "bias", layer, f"{source.replace('.{}', '')}.bias", shape[:-1] or shape, rotary)

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
    recurrent = config.recurrent(layers)
    windowed, experts = config.windowed(layers), config.experts()
    if "sliding_window" not in family.own:  # no layer of this graph can mask what lies before its window
        context, window = min(context, window or context), 0
        if context < SHORTEST:
            raise ConversionError(
                f"{config.path}: sliding_window is {context}, and this family's graph sees no further; expected "
                f"{SHORTEST} or more"
            )
    kv_heads = config.count("num_key_value_heads", heads)
    special = gemma4.read(config, layers, kv_heads, windowed)
    decoder = Decoder(
        family=family,
        root=_root(checkpoint, family),
        vocabulary=config.count("vocab_size"),
        context=context,
        hidden=hidden,
        ffn=config.ffn(4 * hidden if family.columns else experts.ffn if experts else None),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        epsilon=config.number("rms_norm_eps", 1e-6),
        rope=config.rope(special.head_dim if special else head_dim),
        local_rope=config.rope(head_dim, local=True),
        turned=config.turned(layers),
        windowed=windowed,
        window=window,
        scales=_scales(config, hidden, head_dim),
        tied=bool(config.get("tie_word_embeddings", False)) or "lm_head.weight" not in checkpoint.tensors,
        biased=config.biased(),
        experts=experts,
        recurrence=config.recurrence() if recurrent else None,
        recurrent=recurrent,
        gemma4=special,
        head=any(f"{name}.weight" in checkpoint.tensors for name in family.head.values()),
    )
    decoder = replace(decoder, notes=_lost(checkpoint, decoder, config))
    if any(decoder.heads % n for n in _kv_heads(decoder)) or decoder.rope.width % 2 or decoder.local_rope.width % 2:
        raise ConversionError(
            f"{config.path}: {decoder.heads} heads over {decoder.kv_heads} key-value heads of {decoder.head_dim} "
            "cannot be; expected a divisor of the heads and an even head_dim"
        )
    _check_tensors(checkpoint, decoder)
    if decoder.rope.scaling.kind == "longrope":
        decoder = replace(decoder, notes=(*decoder.notes, _short(decoder)))
    return decoder


def _kv_heads(decoder: Decoder) -> tuple[int, ...]:
    return (decoder.kv_heads, decoder.gemma4.kv_heads if decoder.gemma4 else decoder.kv_heads)


def _lost(checkpoint: Checkpoint, decoder: Decoder, config: Config) -> tuple[str, ...]:
    """Notes on what the checkpoint has and the graph does not, or the other way round."""
    parts = decoder.family.left_out
    found = {what for start, what in parts.items() for name in checkpoint.tensors if name.startswith(start)}
    notes = [f"only the text model is converted: what it needs for {what} is left out" for what in sorted(found)]
    if decoder.family.head and config.get("mtp_num_hidden_layers") and not decoder.head:
        notes.append("this checkpoint lacks the head for drafting (mtp) that its config.json mentions")
    if not config.rounds_yarn():
        notes.append(
            "llama.cpp rounds the ends of the YaRN scaling's ramp to whole frequencies, which this model does not: "
            "some differ slightly"
        )
    return tuple(notes)


def _short(decoder: Decoder) -> str:
    return (
        f"the context is {decoder.context} tokens: beyond, the model wants other rotations for all that was said before"
    )


def _scales(config: Config, hidden: int, head_dim: int) -> Scales:
    own = config.family.own
    usual = 1.0 if "unit_attention" in own else config.number("query_pre_attn_scalar", head_dim) ** -0.5
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


def _unused(decoder: Decoder) -> tuple[str, ...]:
    """Tensors that checkpoints have and no graph uses: keys and values of layers that use those of other layers."""
    shared = decoder.gemma4.shared if decoder.gemma4 else 0
    parts = ("k_proj", "k_norm", "v_proj")
    layers = range(decoder.layers - shared, decoder.layers)
    return tuple(f"{decoder.root}layers.{layer}.self_attn.{part}." for layer in layers for part in parts)


def _check_tensors(checkpoint: Checkpoint, decoder: Decoder) -> None:
    used, left = set(), (*decoder.family.left_out, *_unused(decoder))
    for weight in decoder.weights():
        for name in weight.sources():
            stored = checkpoint.tensors.get(name)
            if stored is None:
                raise ConversionError(f"{checkpoint.folder} lacks the tensor {name}; fetch the checkpoint again")
            _check_tensor(stored, weight)
            used.add(name)
    for name in checkpoint.tensors:
        # A bias or a norm that the config does not announce would be dropped silently: another model results.
        if name not in used and name != "lm_head.weight" and not name.endswith(_BUFFERS) and not name.startswith(left):
            raise ConversionError(
                f"{checkpoint.folder} has the tensor {name}, for which config.json leaves no place; "
                "expected the plain graph of its family"
            )


#: Constants that older checkpoints have besides their weights: frequencies, and GPT-2's causal masks.
_BUFFERS = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


def _check_tensor(stored: StoredTensor, weight: Weight) -> None:
    shape = weight.stored_shape or weight.shape
    if "{}" in weight.source:
        shape = (shape[-2] // len(weight.source.split("|")), shape[-1])
    shape = shape[::-1] if weight.columns else shape
    if stored.shape != shape:
        raise ConversionError(
            f"{stored.path}: {stored.name} is {list(stored.shape)}, "
            f"but config.json asks for {list(shape)}; fetch both again"
        )
    if stored.dtype not in DTYPES and not isinstance(stored, Mxfp4Tensor):
        raise ConversionError(f"{stored.path}: {stored.name} is {stored.dtype}; F32, F16 and BF16 are supported")
