"""The decoder graph for ONNX Runtime: Llama's roles as nodes, weights as places in a file beside it.

The operators beyond ONNX are those of com.microsoft in ONNX Runtime's ContribOperators.md. One graph serves prompts,
chains and trees: several tokens after a past, positions and attention bias given from outside, keys and values
in buffers that the caller owns and cuts by a smaller `total_sequence_length`.

    inputs   input_ids [1, n], position_ids [1, n], seqlens_k [1] (total - 1), total_sequence_length [1],
             attention_bias [1, 1, n, total], out_idx [m], past.{i}.key and .value [1, kv_heads, capacity, head_dim]
    outputs  logits float32 [1, m, vocabulary] of the rows out_idx, present.{i}.key and .value,
             hidden.{i} [1, n, hidden]: the residual stream after layer i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgespec.converters.checkpoint import Checkpoint
from edgespec.converters.layout import Layout, Matrix, Place
from edgespec.converters.llama import Llama
from edgespec.converters.packing import FLOAT, HALF, Blockwise, Packing, Part, Plain

DATA = "model.onnx.data"
_MS = "com.microsoft"
_OPSET, _IR = 21, 10
_Shape = Sequence[int | str]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A quantization: how the blocks' matrices are packed, how embedding and head are, and what is computed in."""

    matrices: Packing
    ends: Packing
    half: bool = False

    @property
    def plain(self) -> Plain:
        """How all that is no matrix is stored, and the type of activations."""
        return Plain(HALF if self.half else FLOAT)


class Graph:
    """The graph of a checkpoint under one scheme; `layout` says what goes into the file of weights."""

    def __init__(self, checkpoint: Checkpoint, llama: Llama, scheme: Scheme) -> None:
        self.layout = Layout()
        self.tables: list[Place] = []
        self._checkpoint, self._llama, self._scheme = checkpoint, llama, scheme
        self._weights = {(weight.layer, weight.role, weight.kind): weight for weight in llama.weights()}
        self._type = TensorProto.FLOAT16 if scheme.half else TensorProto.FLOAT
        self._nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._quantized: dict[str, tuple[str, str]] = {}
        self._build()

    def model(self, metadata: Mapping[str, str]) -> onnx.ModelProto:
        """The graph as a file holds it."""
        graph = helper.make_graph(self._nodes, "decoder", self._inputs, self._outputs, list(self.initializers.values()))
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MS, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="edgespec")
        helper.set_model_props(model, dict(metadata))
        return model

    def _build(self) -> None:
        llama = self._llama
        for name, shape in (("input_ids", (1, "n")), ("position_ids", (1, "n")), ("out_idx", ("m",))):
            self._input(name, TensorProto.INT64, shape)
        for name in ("seqlens_k", "total_sequence_length"):
            self._input(name, TensorProto.INT32, (1,))
        self._input("attention_bias", self._type, (1, 1, "n", "total"))
        self._output("logits", TensorProto.FLOAT, (1, "m", llama.vocabulary))

        embedding = self._matrix(None, "token_embd")
        stream, change = self._embedded(embedding), ""
        self._rotations()
        for layer in range(llama.layers):
            normed, stream = self._norm(layer, "attn_norm", stream, change)
            if layer:
                self._output(stream, self._type, (1, "n", llama.hidden))
            change = self._linear(layer, "attn_output", self._attention(layer, normed))
            normed, stream = self._norm(layer, "ffn_norm", stream, change)
            change = self._mlp(layer, normed)
        normed, stream = self._norm(None, "output_norm", stream, change)
        self._output(stream, self._type, (1, "n", llama.hidden))
        rows = self._node("Gather", (normed, "out_idx"), "output.rows", {"axis": 1})
        head = embedding if llama.tied else self._matrix(None, "output")
        logits = self._multiplied("output", head, rows, "logits" if not self._scheme.half else "output.logits")
        if self._scheme.half:
            self._node("Cast", (logits,), "logits", {"to": TensorProto.FLOAT})

    def _norm(self, layer: int | None, role: str, stream: str, change: str) -> tuple[str, str]:
        """The normed stream and the stream, `change` added to it before. After a block it is that block's hidden."""
        name, weight = _name(layer, role), self._vector(layer, role)
        epsilon = self._llama.epsilon
        if not change:
            attributes = {"axis": -1, "epsilon": epsilon}
            return self._node("SimplifiedLayerNormalization", (stream, weight), name, attributes), stream
        blocks = self._llama.layers if layer is None else layer
        total = f"{name}.stream" if role == "ffn_norm" else f"hidden.{blocks - 1}"
        self._node(
            "SkipSimplifiedLayerNormalization",
            (stream, change, weight),
            (name, "", "", total),
            {"epsilon": epsilon},
            _MS,
        )
        return name, total

    def _attention(self, layer: int, normed: str) -> str:
        llama, name = self._llama, _name(layer, "attn")
        parts = [self._linear(layer, "attn_q attn_k attn_v", normed), "", ""]
        if llama.family.head_norms:
            parts = self._normed_heads(layer, parts[0])
        cache = [f"{layer}.key", f"{layer}.value"]
        for part in cache:
            shape = (1, llama.kv_heads, "capacity", llama.head_dim)
            self._input(f"past.{part}", self._type, shape)
            self._output(f"present.{part}", self._type, shape)
        past, present = ([f"{when}.{part}" for part in cache] for when in ("past", "present"))
        lengths = ["seqlens_k", "total_sequence_length"]
        return self._node(
            "GroupQueryAttention",
            [*parts, *past, *lengths, "rope.cos", "rope.sin", "position_ids", "attention_bias"],
            [name, *present],
            {"num_heads": llama.heads, "kv_num_heads": llama.kv_heads, "do_rotary": 1, "rotary_interleaved": 0},
            _MS,
        )

    def _normed_heads(self, layer: int, qkv: str) -> list[str]:
        """Queries, keys and values apart, the first two normalized head by head."""
        llama, width = self._llama, self._llama.head_dim
        sizes = [heads * width for heads in (llama.heads, llama.kv_heads, llama.kv_heads)]
        parts = [f"{qkv}.{part}" for part in "qkv"]
        self._node("Split", (qkv, self._constant("heads", np.array(sizes, np.int64))), parts, {"axis": -1})
        apart = self._constant("apart", np.array([1, -1, width], np.int64))
        found = []
        for part, size in zip("qk", sizes, strict=False):
            name = f"{_name(layer, f'attn_{part}_norm')}"
            heads = self._node("Reshape", (f"{qkv}.{part}", apart), f"{name}.heads")
            weight = self._vector(layer, f"attn_{part}_norm")
            attributes = {"axis": -1, "epsilon": llama.epsilon}
            normed = self._node("SimplifiedLayerNormalization", (heads, weight), f"{name}.normed", attributes)
            joined = self._constant(f"joined.{part}", np.array([1, -1, size], np.int64))
            found.append(self._node("Reshape", (normed, joined), name))
        return [*found, parts[2]]

    def _mlp(self, layer: int, normed: str) -> str:
        gate, up = self._linear(layer, "ffn_gate", normed), self._linear(layer, "ffn_up", normed)
        # with alpha 1 it is SiLU
        active = self._node("QuickGelu", (gate,), f"{gate}.active", {"alpha": 1.0}, _MS)
        return self._linear(layer, "ffn_down", self._node("Mul", (active, up), f"{gate}.up"))

    def _rotations(self) -> None:
        for name in ("rope.cos", "rope.sin"):
            shape = (self._llama.context, self._llama.head_dim // 2)
            place = self.layout.place(Part("", self._scheme.plain.dtype, shape))
            self.tables.append(place)
            self._stored(name, place)

    def _linear(self, layer: int, roles: str, x: str) -> str:
        """x times the matrices of `roles`, one below the other, and their biases."""
        name = _name(layer, roles)
        product = self._multiplied(name, self._matrix(layer, roles), x, name)
        if (layer, roles.split(maxsplit=1)[0], "bias") not in self._weights:
            return product
        return self._node("Add", (product, self._vector(layer, roles, "bias")), f"{name}.biased")

    def _multiplied(self, name: str, matrix: Matrix, x: str, output: str) -> str:
        packing, (first, *others) = matrix.packing, matrix.places
        if isinstance(packing, Plain):
            weight = self._stored(f"{name}.weight", first)
            return self._node("FusedMatMul", (x, weight), output, {"transB": 1}, _MS)
        if isinstance(packing, Blockwise):
            stored = [self._stored(f"{name}.{place.part.suffix}", place) for place in matrix.places]
            rows, columns = sum(source.shape[0] for source in matrix.sources), matrix.sources[0].shape[1]
            sizes = {"N": rows, "K": columns, "bits": packing.bits, "block_size": packing.width(columns)}
            return self._node("MatMulNBits", (x, *stored), output, {**sizes, "accuracy_level": 4}, _MS)
        codes, scales = self._stored(f"{name}.codes", first), self._stored(f"{name}.scales", others[0])
        levels, scale = self._levels(x)
        one, middle, zero = (
            self._constant("one", np.float32(1)),
            self._constant("middle", np.uint8(128)),
            self._constant("zero", np.int8(0)),
        )
        product = self._node(
            "MatMulIntegerToFloat", (levels, codes, one, scales, middle, zero), f"{name}.product", {}, _MS
        )
        return self._node("Mul", (product, scale), output)

    def _levels(self, x: str) -> tuple[str, str]:
        """x in eight bits with one scale per row: no row depends on its neighbours."""
        if x not in self._quantized:
            most = self._node("Abs", (x,), f"{x}.abs")
            last = self._constant("last", np.array([-1], np.int64))
            most = self._node("ReduceMax", (most, last), f"{x}.most", {"keepdims": 1})
            scale = self._node("Mul", (most, self._constant("step", np.float32(1 / 127))), f"{x}.step")
            scale = self._node("Max", (scale, self._constant("least", np.float32(1e-12))), f"{x}.scale")
            scaled = self._node("Div", (x, scale), f"{x}.scaled")
            one, middle = self._constant("one", np.float32(1)), self._constant("middle", np.uint8(128))
            self._quantized[x] = self._node("QuantizeLinear", (scaled, one, middle), f"{x}.levels"), scale
        return self._quantized[x]

    def _embedded(self, matrix: Matrix) -> str:
        packing, (first, *others) = matrix.packing, matrix.places
        name, hidden = "token_embd", self._llama.hidden
        if isinstance(packing, Plain):
            return self._node("Gather", (self._stored(f"{name}.weight", first), "input_ids"), name)
        if isinstance(packing, Blockwise):
            # The bytes of the head, seen as rows.
            rows = first.part.shape[0]
            codes = self._stored(f"{name}.rows", first, (rows, first.part.nbytes // rows))
            scales, zeros = (self._stored(f"{name}.{place.part.suffix}", place) for place in others)
            width = packing.width(hidden)
            sizes = {"bits": packing.bits, "block_size": width, "gather_axis": 0, "quantize_axis": 1}
            whole = self._node("GatherBlockQuantized", (codes, "input_ids", scales, zeros), f"{name}.whole", sizes, _MS)
            return whole if hidden % width == 0 else self._cut(whole, hidden, name)
        codes, scales = self._stored(f"{name}.codes", first), self._stored(f"{name}.scales", others[0])
        columns = self._node("Gather", (codes, "input_ids"), f"{name}.columns", {"axis": 1})
        turned = self._node("Transpose", (columns,), f"{name}.rows", {"perm": [1, 2, 0]})
        numbers = self._node("Cast", (turned,), f"{name}.numbers", {"to": TensorProto.FLOAT})
        scale = self._node("Gather", (scales, "input_ids"), f"{name}.scale")
        steps = self._node("Unsqueeze", (scale, self._constant("last", np.array([-1], np.int64))), f"{name}.steps")
        return self._node("Mul", (numbers, steps), name)

    def _cut(self, x: str, width: int, output: str) -> str:
        """The first `width` columns of x."""
        places = {"start": 0, "width": width, "last": -1}
        start, end, axis = (self._constant(key, np.array([value], np.int64)) for key, value in places.items())
        return self._node("Slice", (x, start, end, axis), output)

    def _matrix(self, layer: int | None, roles: str) -> Matrix:
        packing = self._scheme.ends if layer is None else self._scheme.matrices
        return self.layout.matrix(self._sources(layer, roles, "weight"), packing)

    def _vector(self, layer: int | None, roles: str, kind: str = "weight") -> str:
        matrix = self.layout.matrix(self._sources(layer, roles, kind), self._scheme.plain)
        (place,) = matrix.places
        return self._stored(f"{_name(layer, roles)}.{kind}", place, place.part.shape[:1])

    def _sources(self, layer: int | None, roles: str, kind: str) -> tuple[Any, ...]:
        found = [self._weights[layer, role, kind] for role in roles.split()]
        return tuple(self._checkpoint.tensors[weight.source] for weight in found)

    def _stored(self, name: str, place: Place, shape: Sequence[int] = ()) -> str:
        """An initializer whose numbers lie at `place`, seen in `shape` if that is given."""
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
        return outputs[0]

    def _input(self, name: str, kind: int, shape: _Shape) -> None:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))

    def _output(self, name: str, kind: int, shape: _Shape) -> None:
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))


def _name(layer: int | None, roles: str) -> str:
    role = "attn_qkv" if " " in roles else roles
    return role if layer is None else f"layers.{layer}.{role}"
