"""Nodes over the weights of a decoder: products with matrices, norms, and vectors in any precision."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.decoder import Decoder
from edgespec.converters.layout import Matrix
from edgespec.converters.onnx_nodes import MS, Nodes, Scheme
from edgespec.converters.packing import FLOAT, Unquantized


class WeightNodes(Nodes):
    """Nodes over the weights of a checkpoint, with one scheme."""

    def __init__(self, checkpoint: Checkpoint, decoder: Decoder, scheme: Scheme) -> None:
        super().__init__(scheme)
        self._checkpoint, self._decoder = checkpoint, decoder
        self._weights = {(weight.layer, weight.role, weight.kind): weight for weight in decoder.weights()}
        self._type = TensorProto.FLOAT16 if scheme.half else TensorProto.FLOAT

    def _norm(self, layer: int | None, role: str, x: str, output: str = "") -> str:
        vectors = self._vectors(layer, role)
        kind = "LayerNormalization" if len(vectors) > 1 else "SimplifiedLayerNormalization"
        attributes = {"axis": -1, "epsilon": self._decoder.epsilon}
        return self._node(kind, (x, *vectors), output or name_of(layer, role), attributes)

    def _vectors(self, layer: int | None, role: str) -> list[str]:
        """A norm's weight and, where it has one, its bias."""
        kinds = [kind for kind in ("weight", "bias") if (layer, role, kind) in self._weights]
        return [self._vector(layer, role, kind) for kind in kinds]

    def _linear(self, layer: int, roles: str, x: str) -> str:
        """x times the concatenated matrices of `roles`, plus their biases."""
        name = name_of(layer, roles)
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
        return self._stored(f"{name_of(layer, roles)}.{kind}", place, place.part.shape[:1])

    def _sources(self, layer: int | None, roles: str, kind: str) -> tuple[Any, ...]:
        found = [self._weights[layer, role, kind] for role in roles.split()]
        return tuple(stored for weight in found for stored in weight.stored(self._checkpoint))

    def _precise(self, layer: int, role: str, kind: str) -> str:
        """A vector in float32, whatever the rest is computed in."""
        (place,) = self.layout.matrix(self._sources(layer, role, kind), Unquantized(FLOAT)).places
        return self._stored(f"{name_of(layer, role)}.precise", place, place.part.shape[:1])

    def _wide(self, x: str) -> str:
        return self._node("Cast", (x,), f"{x}.wide", {"to": TensorProto.FLOAT}) if self._scheme.half else x

    def _narrow(self, x: str) -> str:
        return self._node("Cast", (x,), f"{x}.narrow", {"to": self._type}) if self._scheme.half else x

    def _active(self, x: str) -> str:
        if self._decoder.family.activation == "gelu":
            return self._node("Gelu", (x,), f"{x}.active", {"approximate": "tanh"})
        return self._node("QuickGelu", (x,), f"{x}.active", {"alpha": 1.0}, MS)  # with alpha 1 it is SiLU


def name_of(layer: int | None, roles: str) -> str:
    """The name of the node of a role in a layer; None for what comes before and after the layers."""
    role = "attn_qkv" if " " in roles else roles
    return role if layer is None else f"layers.{layer}.{role}"
