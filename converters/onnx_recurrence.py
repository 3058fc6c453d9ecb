"""Nodes of layers with a state in place of keys and values: short convolutions and gated delta nets.

Their inputs and outputs are described in onnx_graph.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from edgespec.converters.onnx_nodes import MS
from edgespec.converters.onnx_weights import WeightNodes, name_of
from edgespec.converters.recurrence import Recurrence
from edgespec.errors import ConversionError

_LENGTH = 1e-6  # added to the square of a key's length


class RecurrentNodes(WeightNodes):
    """Nodes of such layers."""

    def _short_convolution(self, layer: int, normed: str) -> str:
        """The gated short convolution of LFM2 (https://arxiv.org/abs/2511.23404)."""
        joined = self._linear(layer, "shortconv.in_proj", normed)
        before, after, x = (f"{joined}.{part}" for part in ("before", "after", "x"))
        self._node("Split", (joined,), (before, after, x), {"axis": -1, "num_outputs": 3})
        rows = self._node("Mul", (before, x), f"present.{layer}.rows")
        kernel = self._weights[layer, "shortconv.conv", "weight"].shape[1]
        self._input(f"past.{layer}.rows", self._type, (1, kernel - 1, self._decoder.hidden))
        convolved = self._convolved(layer, "shortconv.conv", rows, self._decoder.hidden)
        gated = self._node("Mul", (after, convolved), f"{name_of(layer, 'shortconv')}.gated")
        return self._linear(layer, "shortconv.out_proj", gated)

    def _convolved(self, layer: int, role: str, rows: str, channels: int) -> str:
        """A causal convolution of each channel of `rows`, which are an output, over those before them, an input.

        Products of shifted rows: on the CPU this takes a third to two thirds of the time of CausalConvWithState, older
        versions of ONNX Runtime have it, and a token's result does not depend on the width of the pass.
        """
        name, kernel = name_of(layer, role), self._weights[layer, role, "weight"].shape[1]
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
        sizes, name = self._decoder.recurrence, name_of(layer, "linear")
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
        name = name_of(layer, "linear.gates")
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
            found, after = f"{name_of(layer, 'linear')}.{when}", f"present.{layer}.{when}"
            self._node("LinearAttention", (q, k, v, state, g, b), (found, after), attributes, MS)
            self._output(after, TensorProto.FLOAT, shape)
            state = after
        return found

    def _kernels(self, layer: int, role: str) -> str:
        """The factors of a convolution [channels, kernel]."""
        weight = self._weights[layer, role, "weight"]
        sources = tuple(replace(stored, shape=weight.shape) for stored in self._sources(layer, role, "weight"))
        (place,) = self.layout.matrix(sources, self._scheme.plain).places
        return self._stored(f"{name_of(layer, role)}.weight", place)
