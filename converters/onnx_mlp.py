"""Nodes of a layer's MLP: one for all tokens, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from edgespec.converters.onnx_nodes import MS
from edgespec.converters.onnx_weights import WeightNodes, name_of
from edgespec.converters.packing import FLOAT, Blockwise, Packing, Unquantized
from edgespec.converters.stored_tensor import StoredTensor, interleaved
from edgespec.errors import ConversionError


class MlpNodes(WeightNodes):
    """Nodes of an MLP."""

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
        experts, name = self._decoder.experts, name_of(layer, "experts")
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
        name, packing = name_of(layer, "experts"), self._scheme.matrices
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
