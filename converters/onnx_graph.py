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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.decoder import Decoder
from edgespec.converters.layout import Matrix, Place
from edgespec.converters.onnx_nodes import MS, Nodes, Scheme
from edgespec.converters.packing import FLOAT, Blockwise, Packing, Part, Unquantized, number
from edgespec.converters.recurrence import Recurrence
from edgespec.converters.rope import Rope
from edgespec.converters.stored_tensor import StoredTensor, interleaved
from edgespec.errors import ConversionError

_LENGTH = 1e-6  # added to the square of a key's length


class GraphBuilder(Nodes):
    """The graph of a checkpoint with one scheme."""

    def __init__(self, checkpoint: Checkpoint, decoder: Decoder, scheme: Scheme) -> None:
        super().__init__(scheme)
        self.tables: list[tuple[Place, Rope, Callable[[Any], Any]]] = []
        self._checkpoint, self._decoder = checkpoint, decoder
        self._weights = {(weight.layer, weight.role, weight.kind): weight for weight in decoder.weights()}
        self._type = TensorProto.FLOAT16 if scheme.half else TensorProto.FLOAT
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
        total = f"{_name(layer, role)}.stream" if role == "ffn_norm" else f"hidden.{blocks - 1}"
        if not normed:
            self._node("Add", (stream, change), total)
            return total, total
        name, vectors = _name(layer, role), self._vectors(layer, role)
        kind = "SkipLayerNormalization" if len(vectors) > 1 else "SkipSimplifiedLayerNormalization"
        epsilon = {"epsilon": self._decoder.epsilon}
        self._node(kind, (stream, change, *vectors), (name, "", "", total), epsilon, MS)
        return name, total

    def _left(self, layer: int, role: str, change: str) -> str:
        """The output of a block, which is added to the residual stream."""
        if (layer, role, "weight") in self._weights:
            change = self._norm(layer, role, change)
        return self._scaled(change, self._decoder.scales.residual)

    def _norm(self, layer: int | None, role: str, x: str, output: str = "") -> str:
        vectors = self._vectors(layer, role)
        kind = "LayerNormalization" if len(vectors) > 1 else "SimplifiedLayerNormalization"
        attributes = {"axis": -1, "epsilon": self._decoder.epsilon}
        return self._node(kind, (x, *vectors), output or _name(layer, role), attributes)

    def _vectors(self, layer: int | None, role: str) -> list[str]:
        """A norm's weight and, where it has one, its bias."""
        kinds = [kind for kind in ("weight", "bias") if (layer, role, kind) in self._weights]
        return [self._vector(layer, role, kind) for kind in kinds]

    def _mixed(self, layer: int, normed: str) -> str:
        """What a layer takes from other tokens: by attention, or by a convolution."""
        if (layer, "shortconv.conv", "weight") in self._weights:
            return self._short_convolution(layer, normed)
        if self._decoder.is_recurrent(layer):
            return self._linear(layer, "linear_output", self._delta_net(layer, normed))
        return self._linear(layer, "attn_output", self._attention(layer, normed))

    def _short_convolution(self, layer: int, normed: str) -> str:
        """The gated short convolution of LFM2 (https://arxiv.org/abs/2511.23404)."""
        joined = self._linear(layer, "shortconv.in_proj", normed)
        before, after, x = (f"{joined}.{part}" for part in ("before", "after", "x"))
        self._node("Split", (joined,), (before, after, x), {"axis": -1, "num_outputs": 3})
        rows = self._node("Mul", (before, x), f"present.{layer}.rows")
        kernel = self._weights[layer, "shortconv.conv", "weight"].shape[1]
        self._input(f"past.{layer}.rows", self._type, (1, kernel - 1, self._decoder.hidden))
        convolved = self._convolved(layer, "shortconv.conv", rows, self._decoder.hidden)
        gated = self._node("Mul", (after, convolved), f"{_name(layer, 'shortconv')}.gated")
        return self._linear(layer, "shortconv.out_proj", gated)

    def _convolved(self, layer: int, role: str, rows: str, channels: int) -> str:
        """A causal convolution of each channel of `rows`, which are an output, over those before them, an input.

        Products of shifted rows: on the CPU this takes a third to two thirds of the time of CausalConvWithState, older
        versions of ONNX Runtime have it, and a token's result does not depend on the width of the pass.
        """
        name, kernel = _name(layer, role), self._weights[layer, role, "weight"].shape[1]
        self._output(rows, self._type, (1, "n", channels))
        whole = self._node("Concat", (f"past.{layer}.rows", rows), f"{name}.rows", {"axis": 1})
        turned = self._node("Transpose", (self._kernels(layer, role),), f"{name}.turned")
        factors = [f"{name}.factor.{i}" for i in range(kernel)]
        self._node("Split", (turned,), factors, {"axis": 0, "num_outputs": kernel})
        axis, last = self._constant("axis", np.array([1])), np.iinfo(np.int64).max
        total = ""
        for i, factor in enumerate(factors):
            start = self._constant(f"from.{i}", np.array([i]))
            end = self._constant(f"before.{kernel - 1 - i}", np.array([i - kernel + 1 or last]))
            shifted = self._node("Slice", (whole, start, end, axis), f"{name}.shifted.{i}")
            product = self._node("Mul", (shifted, factor), f"{name}.product.{i}")
            total = self._node("Add", (total, product), f"{name}.sum.{i}") if total else product
        return total

    def _delta_net(self, layer: int, normed: str) -> str:
        """The gated delta net of Qwen3.5 (https://arxiv.org/abs/2412.06464), without its last matrix."""
        sizes, name = self._decoder.recurrence, _name(layer, "linear")
        if sizes is None:
            raise ConversionError(f"{self._checkpoint.folder}: a gated delta net without sizes; report this model")
        self._input(f"past.{layer}.rows", self._type, (1, "seen", sizes.channels))
        rows = self._multiplied(f"{name}.rows", self._matrix(layer, "linear_qkv"), normed, f"present.{layer}.rows")
        mixed = self._wide(self._active(self._convolved(layer, "linear_conv", rows, sizes.channels)))
        widths = np.array([sizes.groups * sizes.state] * 2 + [sizes.inner], np.int64)
        parts = [f"{name}.{part}" for part in "qkv"]
        self._node("Split", (mixed, self._constant("linear.widths", widths)), parts, {"axis": -1})
        keys = [self._unit(part, sizes) for part in parts[:2]]
        gates = self._gates(layer, normed, sizes.heads)
        attended = self._recurred(layer, [*keys, parts[2]], gates, sizes)
        heads = self._constant("linear.heads", np.array([1, -1, sizes.head], np.int64))
        apart = self._node("Reshape", (self._narrow(attended), heads), f"{name}.apart")
        normalized = self._norm(layer, "linear_norm", apart, f"{name}.normed")
        joined = self._constant("linear.joined", np.array([1, -1, sizes.inner], np.int64))
        whole = self._node("Reshape", (normalized, joined), f"{name}.joined")
        return self._node("Mul", (whole, self._active(self._linear(layer, "linear_gate", normed))), f"{name}.gated")

    def _unit(self, x: str, sizes: Recurrence) -> str:
        """The keys in x, each divided by its length."""
        width = sizes.state
        apart = self._constant("linear.keys", np.array([1, -1, width], np.int64))
        joined = self._constant("linear.groups", np.array([1, -1, sizes.groups * width], np.int64))
        keys = self._node("Reshape", (x, apart), f"{x}.apart")
        # x / sqrt(mean(x^2) + e / width) / sqrt(width) is x / sqrt(sum(x^2) + e).
        length = self._constant("linear.length", np.full(width, width**-0.5, np.float32))
        attributes = {"axis": -1, "epsilon": _LENGTH / width}
        unit = self._node("SimplifiedLayerNormalization", (keys, length), f"{x}.unit", attributes)
        return self._node("Reshape", (unit, joined), f"{x}.joined")

    def _gates(self, layer: int, normed: str, heads: int) -> str:
        """By how much the state of each head decays, as a logarithm, and how much of a value is written."""
        name = _name(layer, "linear.gates")
        alpha, beta = (self._wide(self._linear(layer, f"linear_{role}", normed)) for role in ("alpha", "beta"))
        shifted = self._node("Add", (alpha, self._precise(layer, "linear_dt", "bias")), f"{name}.shifted")
        rate = self._node("Softplus", (shifted,), f"{name}.rate")
        decay = self._node("Mul", (rate, self._precise(layer, "linear_a", "")), f"{name}.decay")
        written = self._node("Sigmoid", (beta,), f"{name}.written")
        self._input(f"past.{layer}.gates", TensorProto.FLOAT, (1, "replayed", 2 * heads))
        own = self._node("Concat", (decay, written), f"present.{layer}.gates", {"axis": -1})
        self._output(own, TensorProto.FLOAT, (1, "n", 2 * heads))
        both = self._node("Concat", (f"past.{layer}.gates", own), f"{name}.all", {"axis": 1})
        halves = [f"{name}.g", f"{name}.b"]
        self._node("Split", (both,), halves, {"axis": -1, "num_outputs": 2})
        return name

    def _recurred(self, layer: int, qkv: Sequence[str], gates: str, sizes: Recurrence) -> str:
        """What the heads return for the tokens of the pass."""
        if "replayed" not in self._made:
            edges = {"start": 1, "end": 2}
            counts = [
                self._node("Shape", (f"{when}.{layer}.gates",), f"{when}.tokens", edges) for when in ("past", "present")
            ]
            self._node("Concat", counts, "replayed", {"axis": 0})
        steps: tuple[list[str], list[str]] = ([], [])
        for part in (*qkv, f"{gates}.g", f"{gates}.b"):
            names = [f"{part}.replayed", f"{part}.own"]
            self._node("Split", (part, "replayed"), names, {"axis": 1})
            for step, each in zip(steps, names, strict=True):
                step.append(each)
        shape = (1, sizes.heads, sizes.state, sizes.head)
        attributes = {
            "update_rule": "gated_delta",
            "q_num_heads": sizes.groups,
            "kv_num_heads": sizes.heads,
            "scale": sizes.state**-0.5,
        }
        state, found = f"past.{layer}.state", ""
        self._input(state, TensorProto.FLOAT, shape)
        for when, (q, k, v, g, b) in zip(("start", "end"), steps, strict=True):
            found, after = f"{_name(layer, 'linear')}.{when}", f"present.{layer}.{when}"
            self._node("LinearAttention", (q, k, v, state, g, b), (found, after), attributes, MS)
            self._output(after, TensorProto.FLOAT, shape)
            state = after
        return found

    def _precise(self, layer: int, role: str, kind: str) -> str:
        """A vector in float32, whatever the rest is computed in."""
        (place,) = self.layout.matrix(self._sources(layer, role, kind), Unquantized(FLOAT)).places
        return self._stored(f"{_name(layer, role)}.precise", place, place.part.shape[:1])

    def _wide(self, x: str) -> str:
        return self._node("Cast", (x,), f"{x}.wide", {"to": TensorProto.FLOAT}) if self._scheme.half else x

    def _narrow(self, x: str) -> str:
        return self._node("Cast", (x,), f"{x}.narrow", {"to": self._type}) if self._scheme.half else x

    def _kernels(self, layer: int, role: str) -> str:
        """The factors of a convolution [channels, kernel]."""
        weight = self._weights[layer, role, "weight"]
        sources = tuple(replace(stored, shape=weight.shape) for stored in self._sources(layer, role, "weight"))
        (place,) = self.layout.matrix(sources, self._scheme.plain).places
        return self._stored(f"{_name(layer, role)}.weight", place)

    def _attention(self, layer: int, normed: str) -> str:
        decoder, block, name = self._decoder, self._decoder.block(layer), _name(layer, "attn")
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
        name = _name(layer, f"attn_{part}_norm")
        heads = self._node("Reshape", (x, apart), f"{name}.heads")
        normed = self._norm(layer, f"attn_{part}_norm", heads, f"{name}.normed")
        joined = self._constant(f"joined.{part}", np.array([1, -1, size], np.int64))
        return self._node("Reshape", (normed, joined), name)

    def _mlp(self, layer: int, normed: str) -> str:
        block = self._decoder.block(layer)
        if "ffn_gate_inp" in block:
            routed = self._routed(layer, normed)
            if "ffn_gate_inp_shexp" not in block:
                return routed
            return self._node("Add", (routed, self._shared(layer, normed)), f"{routed}.shared")
        if "ffn_gate_up" in block:
            both = self._linear(layer, "ffn_gate_up", normed)
            gate, up = f"{both}.gate", f"{both}.up"
            self._node("Split", (both,), (gate, up), {"axis": -1, "num_outputs": 2})
        elif "ffn_gate" in block:
            gate, up = self._linear(layer, "ffn_gate", normed), self._linear(layer, "ffn_up", normed)
        else:
            gate, up = self._linear(layer, "ffn_up", normed), ""
        active = self._active(gate)
        return self._linear(layer, "ffn_down", self._node("Mul", (active, up), f"{gate}.up") if up else active)

    def _routed(self, layer: int, normed: str) -> str:
        """The experts that the router chooses, weighted; their weights add up to 1.

        The operator takes the softmax of the highest scores. Families with other weights (LFM2) give them apart.
        """
        experts, name = self._decoder.experts, _name(layer, "experts")
        if experts is None:
            raise ConversionError(f"{self._checkpoint.folder}: a router without experts; report this model")
        router = self.layout.matrix(self._sources(layer, "ffn_gate_inp", "weight"), Unquantized(FLOAT))
        product = self._multiplied(f"{name}.router", router, self._wide(normed), f"{name}.products")
        flat = self._constant("experts", np.array([-1, experts.count], np.int64))
        scores, weights = self._node("Reshape", (product, flat), f"{name}.scores"), ""
        if (layer, "exp_probs_b", "bias") in self._weights:
            shares = self._node("Sigmoid", (scores,), f"{name}.shares")
            scores = self._node("Add", (shares, self._precise(layer, "exp_probs_b", "bias")), f"{name}.chosen")
            weights = self._narrow(shares)
        attributes = {
            "k": experts.used,
            "normalize_routing_weights": 1,
            "activation_type": "swiglu",
            "activation_alpha": 1.0,
            "activation_beta": 0.0,
            "swiglu_fusion": 1,  # rows of gate and up alternate: the CPU takes nothing else
        }
        return self._mixture(layer, normed, self._narrow(scores), weights, attributes)

    def _mixture(self, layer: int, normed: str, scores: str, weights: str, attributes: Mapping[str, Any]) -> str:
        name, packing = _name(layer, "experts"), self._scheme.matrices
        gates, ups, downs = (self._sources(layer, f"ffn_{part}_exps", "weight") for part in ("gate", "up", "down"))
        both = tuple(interleaved(gate, up) for gate, up in zip(gates, ups, strict=True))
        if not isinstance(packing, Blockwise):
            ((first,), (second,)) = (self._stacked(f"{name}.{i}", of, packing) for i, of in enumerate((both, downs)))
            return self._node("MoE", (normed, scores, first, "", second), name, attributes, MS)
        shared = packing.shared(self._decoder.hidden, downs[0].shape[1])
        if shared is None:
            raise ConversionError(
                f"{self._checkpoint.folder}: experts of {downs[0].shape[1]} rows over {self._decoder.hidden} columns "
                "do not divide into the blocks of ONNX Runtime's QMoE; try fp32, or convert to gguf"
            )
        (codes, scales, zeros), (down, down_scales, down_zeros) = (
            self._stacked(f"{name}.{i}", of, shared) for i, of in enumerate((both, downs))
        )
        inputs = [normed, scores, codes, scales, "", down, down_scales, "", "", "", "", zeros, down_zeros, "", weights]
        sizes = {"expert_weight_bits": shared.bits, "block_size": shared.block, "accuracy_level": 4}
        return self._node("QMoE", inputs if weights else inputs[:13], name, {**attributes, **sizes}, MS)

    def _stacked(self, name: str, sources: tuple[StoredTensor, ...], packing: Packing) -> list[str]:
        """The matrices of the experts of a layer, one upon another."""
        count, rows = len(sources), sources[0].shape[0]
        places = self.layout.matrix(sources, packing).places
        return [
            self._stored(f"{name}.{place.part.suffix}", place, (count, rows, prod(place.part.shape) // (count * rows)))
            for place in places
        ]

    def _shared(self, layer: int, normed: str) -> str:
        """The expert of all tokens, each of which takes a share of it."""
        gate, up = (self._linear(layer, f"ffn_{part}_shexp", normed) for part in ("gate", "up"))
        product = self._node("Mul", (self._active(gate), up), f"{gate}.up")
        share = self._node("Sigmoid", (self._linear(layer, "ffn_gate_inp_shexp", normed),), f"{gate}.share")
        return self._node("Mul", (self._linear(layer, "ffn_down_shexp", product), share), f"{gate}.shared")

    def _active(self, x: str) -> str:
        if self._decoder.family.activation == "gelu":
            return self._node("Gelu", (x,), f"{x}.active", {"approximate": "tanh"})
        return self._node("QuickGelu", (x,), f"{x}.active", {"alpha": 1.0}, MS)  # with alpha 1 it is SiLU

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

    def _linear(self, layer: int, roles: str, x: str) -> str:
        """x times the concatenated matrices of `roles`, plus their biases."""
        name = _name(layer, roles)
        product = self._multiplied(name, self._matrix(layer, roles), x, name)
        if (layer, roles.split(maxsplit=1)[0], "bias") not in self._weights:
            return product
        return self._node("Add", (product, self._vector(layer, roles, "bias")), f"{name}.biased")

    def _matrix(self, layer: int | None, roles: str) -> Matrix:
        packing = self._scheme.ends if layer is None else self._scheme.matrices
        return self.layout.matrix(self._sources(layer, roles, "weight"), packing)

    def _vector(self, layer: int | None, roles: str, kind: str = "weight") -> str:
        matrix = self.layout.matrix(self._sources(layer, roles, kind), self._scheme.plain)
        (place,) = matrix.places
        return self._stored(f"{_name(layer, roles)}.{kind}", place, place.part.shape[:1])

    def _sources(self, layer: int | None, roles: str, kind: str) -> tuple[Any, ...]:
        found = [self._weights[layer, role, kind] for role in roles.split()]
        return tuple(stored for weight in found for stored in weight.stored(self._checkpoint))


def _name(layer: int | None, roles: str) -> str:
    role = "attn_qkv" if " " in roles else roles
    return role if layer is None else f"layers.{layer}.{role}"
