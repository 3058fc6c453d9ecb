"""Nodes of an ONNX graph, and its initializers: constants, and places in a file of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgespec.converters.layout import Layout, Matrix, Place
from edgespec.converters.packing import FLOAT, HALF, Blockwise, Packing, Unquantized

DATA = "model.onnx.data"
MS = "com.microsoft"
_OPSET, _IR = 21, 10
_Shape = Sequence[int | str]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A quantization: the packing of the blocks' matrices, of embedding and head, and the type of computation."""

    matrices: Packing
    ends: Packing
    half: bool = False

    @property
    def plain(self) -> Unquantized:
        """The type of activations, and of tensors that are not matrices."""
        return Unquantized(HALF if self.half else FLOAT)


class Nodes:
    """A graph that a subclass builds with one scheme; `layout` is that of the file of weights."""

    def __init__(self, scheme: Scheme) -> None:
        self.layout = Layout()
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._scheme = scheme
        self._nodes: list[onnx.NodeProto] = []
        self._made: set[str] = set()
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._quantized: dict[str, tuple[str, str]] = {}

    def model(self, metadata: Mapping[str, str]) -> onnx.ModelProto:
        """The graph as an ONNX model."""
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, list(self.initializers.values()))
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(MS, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="edgespec")
        helper.set_model_props(model, dict(metadata))
        return model

    def _multiplied(self, name: str, matrix: Matrix, x: str, output: str) -> str:
        packing, (first, *others) = matrix.packing, matrix.places
        if isinstance(packing, Unquantized):
            weight = self._stored(f"{name}.weight", first)
            return self._node("FusedMatMul", (x, weight), output, {"transB": 1}, MS)
        if isinstance(packing, Blockwise):
            stored = [self._stored(f"{name}.{place.part.suffix}", place) for place in matrix.places]
            rows, columns = sum(source.shape[0] for source in matrix.sources), matrix.sources[0].shape[1]
            sizes = {"N": rows, "K": columns, "bits": packing.bits, "block_size": packing.width(columns)}
            return self._node("MatMulNBits", (x, *stored), output, {**sizes, "accuracy_level": 4}, MS)
        codes, scales = self._stored(f"{name}.codes", first), self._stored(f"{name}.scales", others[0])
        levels, scale = self._levels(x)
        one, middle, zero = (
            self._constant("one", np.float32(1)),
            self._constant("middle", np.uint8(128)),
            # One for each product: where onnxruntime turns weights into unsigned ones (`UNSATURATED`), it fails on the
            # second product with the same.
            self._constant(f"{name}.zero", np.int8(0)),
        )
        product = self._node(
            "MatMulIntegerToFloat", (levels, codes, one, scales, middle, zero), f"{name}.product", {}, MS
        )
        return self._node("Mul", (product, scale), output)

    def _embedded(self, matrix: Matrix, hidden: int) -> str:
        """The rows of `matrix` of the tokens in the input `input_ids`."""
        packing, (first, *others) = matrix.packing, matrix.places
        name = "token_embd"
        if isinstance(packing, Unquantized):
            return self._node("Gather", (self._stored(f"{name}.weight", first), "input_ids"), name)
        if not isinstance(packing, Blockwise):
            raise TypeError(f"no scheme packs embeddings as {type(packing).__name__}")
        # The bytes of the head, seen as rows.
        rows = first.part.shape[0]
        codes = self._stored(f"{name}.rows", first, (rows, first.part.nbytes // rows))
        scales, zeros = (self._stored(f"{name}.{place.part.suffix}", place) for place in others)
        width = packing.width(hidden)
        sizes = {"bits": packing.bits, "block_size": width, "gather_axis": 0, "quantize_axis": 1}
        whole = self._node("GatherBlockQuantized", (codes, "input_ids", scales, zeros), f"{name}.whole", sizes, MS)
        return whole if hidden % width == 0 else self._cut(whole, hidden, name)

    def _cut(self, x: str, width: int, output: str) -> str:
        """The first `width` columns of x."""
        places = {"start": 0, "width": width, "last": -1}
        start, end, axis = (self._constant(key, np.array([value], np.int64)) for key, value in places.items())
        return self._node("Slice", (x, start, end, axis), output)

    def _levels(self, x: str) -> tuple[str, str]:
        """x quantized to eight bits with a scale per row, so that rows are independent of each other."""
        if x not in self._quantized:
            most = self._node("Abs", (x,), f"{x}.abs")
            last = self._constant("last", np.array([-1], np.int64))
            most = self._node("ReduceMax", (most, last), f"{x}.most", {"keepdims": 1})
            scale = self._node("Mul", (most, self._constant("step", np.float32(1 / 127))), f"{x}.step")
            scale = self._node("Max", (scale, self._constant("least", np.float32(1e-12))), f"{x}.range")
            scaled = self._node("Div", (x, scale), f"{x}.scaled")
            one, middle = self._constant("one", np.float32(1)), self._constant("middle", np.uint8(128))
            self._quantized[x] = self._node("QuantizeLinear", (scaled, one, middle), f"{x}.levels"), scale
        return self._quantized[x]

    def _stored(self, name: str, place: Place, shape: Sequence[int] = ()) -> str:
        """An initializer with the data at `place`, reshaped to `shape` if that is given."""
        if name not in self.initializers:
            tensor = TensorProto(
                name=name,
                data_type=helper.np_dtype_to_tensor_dtype(place.part.dtype),
                dims=shape or place.part.shape,
                data_location=TensorProto.EXTERNAL,
            )
            for key, value in (("location", DATA), ("offset", place.offset), ("length", place.part.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            self.initializers[name] = tensor
        return name

    def _constant(self, name: str, value: Any) -> str:
        name = f"constant.{name}"
        self.initializers.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def _node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: str | Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> str:
        """Append a node, named like its first output, which is returned."""
        outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        node = helper.make_node(kind, inputs, outputs, name=outputs[0], domain=domain)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in (attributes or {}).items())
        self._nodes.append(node)
        self._made.update(outputs)
        return outputs[0]

    def _input(self, name: str, kind: int, shape: _Shape) -> None:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))

    def _output(self, name: str, kind: int, shape: _Shape) -> None:
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))
