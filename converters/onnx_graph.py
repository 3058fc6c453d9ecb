"""The decoder graph for ONNX Runtime: roles as nodes, weights as places in a file beside it.

The operators beyond ONNX are those of com.microsoft in ONNX Runtime's ContribOperators.md. One graph serves prompts,
chains and trees: several tokens after a past, positions and attention bias given from outside, keys and values
in buffers that the caller owns and cuts by a smaller `total_sequence_length`.

    inputs   input_ids [1, n], position_ids [1, n], seqlens_k [1] (total - 1), total_sequence_length [1],
             attention_bias [1, 1, n, total], out_idx [m], past.{i}.key and .value [1, kv_heads, capacity, head_dim]
    outputs  logits float32 [1, m, vocabulary] of the rows out_idx, present.{i}.key and .value,
             hidden.{i} [1, n, hidden]: the residual stream after layer i
             output_norm [1, n, hidden]: the last one, normed; logits are computed from it

A layer with a short convolution has no keys and values. What it convolves of the tokens before the pass is an input,
and that of the tokens of the pass an output, so that the caller can go on after any of them:

    past.{i}.rows [1, kernel - 1, channels], present.{i}.rows [1, n, channels]

A layer with a gated delta net has a state as well, which cannot be gone back in. It is computed in two steps, over r
tokens that an earlier pass computed and then over those of the pass, from what that earlier pass returned of them. So
the caller can go on after any token after a state that it has, and the weights are read for new tokens only:

    past.{i}.rows [1, kernel - 1 + r, channels], past.{i}.gates float32 [1, r, 2 * heads],
    past.{i}.state float32 [1, heads, key, value], before these r tokens
    present.{i}.gates [1, n, 2 * heads], present.{i}.start and .end: the states before and after the n tokens
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.decoder import Decoder
from edgespec.converters.layout import Place
from edgespec.converters.onnx_mlp import MlpNodes
from edgespec.converters.onnx_nodes import MS, Scheme
from edgespec.converters.onnx_recurrence import RecurrentNodes
from edgespec.converters.onnx_weights import name_of
from edgespec.converters.packing import Part, number
from edgespec.converters.rope import Rope
from edgespec.errors import ConversionError


class GraphBuilder(RecurrentNodes, MlpNodes):
    """The graph of a checkpoint with one scheme."""

    def __init__(self, checkpoint: Checkpoint, decoder: Decoder, scheme: Scheme) -> None:
        super().__init__(checkpoint, decoder, scheme)
        self.tables: list[tuple[Place, Rope, Callable[[Any], Any]]] = []
        self._build()

    def _build(self) -> None:
        decoder = self._decoder
        for name, shape in (("input_ids", (1, "n")), ("position_ids", (1, "n")), ("out_idx", ("m",))):
            self._input(name, TensorProto.INT64, shape)
        for name in ("seqlens_k", "total_sequence_length"):
            self._input(name, TensorProto.INT32, (1,))
        self._input("attention_bias", self._type, (1, 1, "n", "total"))
        self._output("logits", TensorProto.FLOAT, (1, "m", decoder.vocabulary))

        embedding = self._matrix(None, "token_embd")
        stream, change = (
            self._placed(self._scaled(self._embedded(embedding, decoder.hidden), decoder.scales.embedding)),
            "",
        )
        for layer in range(decoder.layers):
            normed, stream = self._entered(layer, "attn_norm", stream, change)
            if layer:
                self._output(stream, self._type, (1, "n", decoder.hidden))
            change = self._left(layer, "attn_post_norm", self._mixed(layer, normed))
            normed, stream = self._entered(layer, "ffn_norm", stream, change)
            change = self._left(layer, "ffn_post_norm", self._mlp(layer, normed))
        normed, stream = self._entered(None, "output_norm", stream, change)
        self._output(stream, self._type, (1, "n", decoder.hidden))
        if normed != stream:
            self._output(normed, self._type, (1, "n", decoder.hidden))
        rows = self._node("Gather", (normed, "out_idx"), "output.rows", {"axis": 1})
        head = embedding if decoder.tied else self._matrix(None, "output")
        product = self._multiplied("output", head, rows, "output.logits")
        if self._scheme.half:
            product = self._node("Cast", (product,), "output.wide", {"to": TensorProto.FLOAT})
        self._said(product)

    def _said(self, x: str) -> None:
        """The logits, in float32."""
        scales = self._decoder.scales
        if scales.logits != 1:
            x = self._node("Mul", (x, self._constant("logits", np.float32(scales.logits))), "output.scaled")
        if scales.logits_cap:
            cap = self._constant("cap", np.float32(scales.logits_cap))
            bounded = self._node("Tanh", (self._node("Div", (x, cap), "output.share"),), "output.tanh")
            x = self._node("Mul", (bounded, cap), "output.capped")
        self._node("Identity", (x,), "logits")

    def _scaled(self, x: str, by: float) -> str:
        if by == 1:
            return x
        try:
            factor = number(np.array(by), self._scheme.plain.dtype)[()]
        except ValueError as error:
            raise ConversionError(
                f"{self._checkpoint.folder}: config.json multiplies by {by}, which is too large for this quantization; "
                "try fp32"
            ) from error
        return self._node("Mul", (x, self._constant(f"{by}", factor)), f"{x}.times")

    def _placed(self, x: str) -> str:
        """Add learned position embeddings."""
        if "position_embd" not in self._decoder.family.ends:
            return x
        (place,) = self.layout.matrix(self._sources(None, "position_embd", "weight"), self._scheme.plain).places
        table = self._stored("position_embd.weight", place)
        positions = self._node("Gather", (table, "position_ids"), "position_embd")
        return self._node("Add", (x, positions), f"{x}.placed")

    def _entered(self, layer: int | None, role: str, stream: str, change: str) -> tuple[str, str]:
        """Add `change` to the residual stream and normalize it. Returns both; after a layer the stream is its hidden
        state."""
        normed = (layer, role, "weight") in self._weights
        if not change:
            return (self._norm(layer, role, stream) if normed else stream), stream
        blocks = self._decoder.layers if layer is None else layer
        total = f"{name_of(layer, role)}.stream" if role == "ffn_norm" else f"hidden.{blocks - 1}"
        if not normed:
            self._node("Add", (stream, change), total)
            return total, total
        name, vectors = name_of(layer, role), self._vectors(layer, role)
        kind = "SkipLayerNormalization" if len(vectors) > 1 else "SkipSimplifiedLayerNormalization"
        epsilon = {"epsilon": self._decoder.epsilon}
        self._node(kind, (stream, change, *vectors), (name, "", "", total), epsilon, MS)
        return name, total

    def _left(self, layer: int, role: str, change: str) -> str:
        """The output of a block, which is added to the residual stream."""
        if (layer, role, "weight") in self._weights:
            change = self._norm(layer, role, change)
        return self._scaled(change, self._decoder.scales.residual)

    def _mixed(self, layer: int, normed: str) -> str:
        """What a layer takes from other tokens: by attention, or by a convolution."""
        if (layer, "shortconv.conv", "weight") in self._weights:
            return self._short_convolution(layer, normed)
        if self._decoder.is_recurrent(layer):
            return self._linear(layer, "linear_output", self._delta_net(layer, normed))
        return self._linear(layer, "attn_output", self._attention(layer, normed))

    def _attention(self, layer: int, normed: str) -> str:
        decoder, block, name = self._decoder, self._decoder.block(layer), name_of(layer, "attn")
        roles = "attn_qkv" if "attn_qkv" in block else "attn_q attn_k attn_v"
        parts, gate = [self._linear(layer, roles, normed), "", ""], ""
        if decoder.family.gated:
            parts, gate = self._gated_heads(layer, parts[0])
        elif "attn_q_norm" in block:
            parts = self._normed_heads(layer, parts[0])
        cache = [f"{layer}.key", f"{layer}.value"]
        for part in cache:
            shape = (1, decoder.kv_heads, "capacity", decoder.head_dim)
            self._input(f"past.{part}", self._type, shape)
            self._output(f"present.{part}", self._type, shape)
        past, present = ([f"{when}.{part}" for part in cache] for when in ("past", "present"))
        lengths = ["seqlens_k", "total_sequence_length"]
        windowed = decoder.windowed[layer] and 0 < decoder.window < decoder.context
        turned = decoder.turned[layer]
        rotations = self._rotations(windowed) if turned else ["", ""]
        bias = self._window() if windowed else "attention_bias"
        attended = self._node(
            "GroupQueryAttention",
            [*parts, *past, *lengths, *rotations, "position_ids" if turned else "", bias],
            [name, *present],
            {
                "num_heads": decoder.heads,
                "kv_num_heads": decoder.kv_heads,
                "do_rotary": int(turned),
                "rotary_interleaved": 0,
                "scale": decoder.scales.attention,
                "softcap": decoder.scales.attention_cap,
            },
            MS,
        )
        if not gate:
            return attended
        return self._node("Mul", (attended, self._node("Sigmoid", (gate,), f"{gate}.open")), f"{name}.gated")

    def _window(self) -> str:
        """The attention bias of sliding-window layers.

        Keys lie at the columns of their positions but for those of a tree, which a window never loses; so the
        operator's own window, which counts columns, would not do.
        """
        if (name := "attention_bias.window") not in self._made:
            first, one, last = (self._constant(f"int.{value}", np.int64(value)) for value in (0, 1, -1))
            total = self._node("Cast", ("total_sequence_length",), f"{name}.total", {"to": TensorProto.INT64})
            total = self._node("Squeeze", (total,), f"{name}.scalar")
            columns = self._node("Range", (first, total, one), f"{name}.columns")
            positions = self._node("Unsqueeze", ("position_ids", last), f"{name}.rows")
            width = self._constant("window", np.int64(self._decoder.window))
            gone = self._node("Sub", (positions, width), f"{name}.gone")
            unseen = self._node("LessOrEqual", (columns, gone), f"{name}.unseen")
            kind = self._scheme.plain.dtype.type
            values = (self._constant("masked", kind(-10000)), self._constant("seen", kind(0)))
            mask = self._node("Where", (unseen, *values), f"{name}.mask")
            self._node("Add", ("attention_bias", mask), name)
        return name

    def _gated_heads(self, layer: int, qkv: str) -> tuple[list[str], str]:
        """Normalized queries and keys, values, and the gate, whose rows follow those of the queries in each head."""
        decoder, width = self._decoder, self._decoder.head_dim
        sizes = [2 * decoder.heads * width, decoder.kv_heads * width, decoder.kv_heads * width]
        asked, keys, values = (f"{qkv}.{part}" for part in ("asked", "k", "v"))
        self._node("Split", (qkv, self._constant("heads", np.array(sizes))), (asked, keys, values), {"axis": -1})
        twice = self._constant("apart.twice", np.array([1, -1, 2 * width], np.int64))
        queries, gate = f"{qkv}.q", f"{qkv}.gate"
        both = self._node("Reshape", (asked, twice), f"{asked}.heads")
        self._node("Split", (both,), (queries, gate), {"axis": -1, "num_outputs": 2})
        joined = self._constant("joined.q", np.array([1, -1, decoder.heads * width], np.int64))
        gates = self._node("Reshape", (gate, joined), f"{gate}.joined")
        normed = [self._normed_by_head(layer, part, x) for part, x in (("q", queries), ("k", keys))]
        return [*normed, values], gates

    def _normed_heads(self, layer: int, qkv: str) -> list[str]:
        """Split queries, keys and values, and normalize the first two by heads or as a whole."""
        decoder, width = self._decoder, self._decoder.head_dim
        sizes = [heads * width for heads in (decoder.heads, decoder.kv_heads, decoder.kv_heads)]
        parts = [f"{qkv}.{part}" for part in "qkv"]
        self._node("Split", (qkv, self._constant("heads", np.array(sizes, np.int64))), parts, {"axis": -1})
        if decoder.family.wide_norms:
            return [*(self._norm(layer, f"attn_{part}_norm", f"{qkv}.{part}") for part in "qk"), parts[2]]
        return [*(self._normed_by_head(layer, part, f"{qkv}.{part}") for part in "qk"), parts[2]]

    def _normed_by_head(self, layer: int, part: str, x: str) -> str:
        decoder, width = self._decoder, self._decoder.head_dim
        apart = self._constant("apart", np.array([1, -1, width], np.int64))
        size = (decoder.heads if part == "q" else decoder.kv_heads) * width
        name = name_of(layer, f"attn_{part}_norm")
        heads = self._node("Reshape", (x, apart), f"{name}.heads")
        normed = self._norm(layer, f"attn_{part}_norm", heads, f"{name}.normed")
        joined = self._constant(f"joined.{part}", np.array([1, -1, size], np.int64))
        return self._node("Reshape", (normed, joined), name)

    def _rotations(self, local: bool) -> list[str]:
        """The tables of cosines and sines: of all layers, or of sliding-window layers."""
        decoder = self._decoder
        rope, kind = (decoder.local_rope, "rope.local") if local else (decoder.rope, "rope")
        names = [f"{kind}.cos", f"{kind}.sin"]
        for name, function in zip(names, (np.cos, np.sin), strict=True):
            if name not in self.initializers:
                place = self.layout.place(Part("", self._scheme.plain.dtype, (decoder.context, rope.width // 2)))
                self.tables.append((place, rope, function))
                self._stored(name, place)
        return names
