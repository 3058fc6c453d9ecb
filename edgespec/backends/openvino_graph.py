"""The graph of a converted ONNX model with paged attention in place of GroupQueryAttention.

OpenVINO's reader of ONNX files leaves GroupQueryAttention as one operator, which its plugins decompose: keys and values
are then copied in every pass. Paged attention writes them in place, into blocks that the caller owns:

    inputs   input_ids [1, n], position_ids [1, n], out_idx [m], past_lens [1], subsequence_begins [2] (0, n),
             block_indices [b], block_indices_begins [2] (0, b), max_context_len [],
             qq_bias u8 [n * n] and qq_bias_begins [2] (0, n * n), in graphs with trees: 1 where a token of the pass
             attends to another; both empty for a chain,
             key_cache.{i} and value_cache.{i}: blocks of the plugin's own form
    outputs  logits float32 [1, m, vocabulary], hidden.{i} float16 or float32 [1, n, hidden]

Source of the operator: PagedAttention (Kwon et al. 2023), as OpenVINO's operator specification has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelFileError, OptionError
from .openvino_package import bindings, reason
from .openvino_weights import SharedWeights

_ATTENTION = "GroupQueryAttention"
_WINDOW = "constant.window"
_INPUTS = ("input_ids", "position_ids", "out_idx")
_SCALARS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")


@dataclass(frozen=True, slots=True)
class PagedGraph:
    """A model with paged attention.

    Args:
        model: an `openvino.Model`.
        trees: whether it takes trees: it has inputs for their masks, and no layer attends to a sliding window of rows.
        widths: the numbers of one token in each input of the cache.
    """

    model: Any
    trees: bool
    widths: Mapping[str, int]
    weights: SharedWeights


def read_paged(path: Path, hidden: Sequence[int | str] = (), *, masks: bool = True) -> PagedGraph:
    """The converted model at `path`.

    Args:
        hidden: layers whose hidden states are outputs, or names of such outputs.
        masks: whether it has inputs for the masks of trees.

    Raises:
        ModelFileError: OpenVINO cannot read the graph, or the graph has attention that it cannot compute.
        OptionError: the graph has no output of such a name.
    """
    weights = SharedWeights()
    try:
        model = _read(path, weights)
    except Exception as error:  # RuntimeError of pybind, of any cause
        raise ModelFileError(
            f"OpenVINO cannot read {path} ({reason(error)}); convert the checkpoint with --quant int8 or int4, or take "
            "--backend onnx"
        ) from error
    attentions = [node for node in model.get_ordered_ops() if node.get_type_name() == _ATTENTION]
    if not attentions:
        raise ModelFileError(f"{path} has no {_ATTENTION} that a KV cache could replace; convert the checkpoint again")
    builder = _Builder(masks)
    for layer, node in enumerate(attentions):
        builder.replace(layer, node)
    wanted = {"logits", *(f"hidden.{layer}" if isinstance(layer, int) else layer for layer in hidden)}
    known = {name for node in model.get_results() for name in node.input(0).get_source_output().get_names()}
    if missing := sorted(wanted - known):
        raise OptionError(
            f"{path} has no output {missing[0]!r} of hidden states, for an older edgespec converted it; convert the "
            "checkpoint again"
        )
    results = [node for node in model.get_results() if wanted & set(node.input(0).get_source_output().get_names())]
    inputs = [node for node in model.get_parameters() if node.get_friendly_name() in _INPUTS]
    whole = bindings().Model(results, [*inputs, *builder.inputs], "decoder")
    return PagedGraph(whole, masks and not builder.windowed, builder.widths, weights)


def _read(path: Path, weights: SharedWeights) -> Any:
    reader = bindings().frontend.FrontEndManager().load_by_framework("onnx")
    for extension in weights.extensions():
        reader.add_extension(extension)
    return reader.convert(reader.load(str(path)))


def _window(bias: Any) -> int:
    """The tokens that a layer attends to by its attention bias, which only layers with a window compute; 0 for all."""
    below = [bias]
    while below:
        node = below.pop()
        if node.get_friendly_name() == _WINDOW:
            return int(node.get_vector()[0])
        below += [each.get_source_output().get_node() for each in node.inputs()]
    return 0


class _Builder:
    """The inputs that all layers share, and the attention of each."""

    def __init__(self, masks: bool) -> None:
        ov = bindings()
        self._ops = ov.opset13
        self.inputs: list[Any] = []
        self.widths: dict[str, int] = {}
        self.windowed = False
        i32, anything = ov.Type.i32, ov.Dimension(-1)
        self._places = [self._input(name, [anything], i32) for name in _SCALARS]
        self._longest = self._input("max_context_len", [], i32)
        self._mask = [
            self._input(name, [anything], kind) if masks else self._constant(np.zeros(0, kind.to_dtype()))
            for name, kind in (("qq_bias", ov.Type.u8), ("qq_bias_begins", i32))
        ]
        self._turns: dict[tuple[str, str], tuple[Any, Any]] = {}

    def replace(self, layer: int, node: Any) -> None:
        """Put paged attention in place of a layer's GroupQueryAttention."""
        query, key, value, *_ = sources = [each.get_source_output() for each in node.inputs()]
        attributes = node.get_attributes()
        heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
        width = query.get_partial_shape()[3].get_length()
        if attributes["do_rotary"]:
            turn = self._rotation(*sources[7:10])
            query, key = (self._rotated(each, turn) for each in (query, key))
        rows = [self._rows(x, n * width) for x, n in ((query, heads), (key, kv_heads), (value, kv_heads))]
        window = _window(sources[10].get_node())
        self.windowed = self.windowed or window > 0
        attended = self._attention(layer, rows, (attributes["scale"], window), (kv_heads, width))
        whole = self._ops.reshape(attended, self._numbers([1, -1, heads * width]), special_zero=False)
        for consumer in node.output(0).get_target_inputs():
            consumer.replace_source_output(whole.output(0))

    def _attention(self, layer: int, rows: Sequence[Any], settings: tuple[float, int], sizes: tuple[int, int]) -> Any:
        """Paged attention of queries, keys and values with a scale and a window (0: none) over a layer's cache."""
        ov, (scale, window), (kv_heads, width) = bindings(), settings, sizes
        # The plugin chooses the shape of a block, and the type by its property KV_CACHE_PRECISION.
        shape, names = [ov.Dimension(-1)] * 4, [f"{kind}_cache.{layer}" for kind in ("key", "value")]
        caches = [self._input(name, shape, ov.Type.dynamic) for name in names]
        self.widths |= dict.fromkeys(names, kv_heads * width)
        whole, real = (self._constant(np.zeros(0, dtype)) for dtype in (np.int32, np.float32))
        zero = self._constant(np.int32(0))
        unused = [zero, whole, whole, real, real, zero, zero, self._constant(np.zeros((0, 0, 0, 0), np.float32))]
        unused += [zero, whole, whole, whole, whole]  # score windows, rotations, sparse attention, sinks, eviction
        constants = [self._constant(np.float32(scale)), self._constant(np.int32(window)), real]  # no ALiBi slopes
        inputs = [*rows, *caches, *self._places, *constants, self._longest, *unused, *self._mask]
        node = ov.op._PagedAttentionExtension([each.output(0) for each in inputs])
        for name, size in (("num", kv_heads), ("size", width)):
            for kind in "kv":
                key = f"num_{kind}_heads" if name == "num" else f"{kind}_head_size"
                node.get_rt_info()[key] = size
        return node.output(0)

    def _rotation(self, cosines: Any, sines: Any, positions: Any) -> tuple[Any, Any]:
        """Rows of the rotation tables for the tokens of a pass, the same for all layers with these tables."""
        key = (cosines.get_node().get_friendly_name(), sines.get_node().get_friendly_name())
        if key not in self._turns:
            axis = self._numbers(0)
            places = self._ops.squeeze(positions, self._numbers([0]))
            cos, sin = (self._ops.gather(table, places, axis) for table in (cosines, sines))
            self._turns[key] = (cos, sin)
        return self._turns[key]

    def _rotated(self, x: Any, turn: tuple[Any, Any]) -> Any:
        """Rotary embedding of x [1, heads, n, width]: the first half of the columns with the second."""
        ops, (cos, sin) = self._ops, turn
        table = cos.get_output_partial_shape(0)[1].get_length()
        width = x.get_partial_shape()[3].get_length()
        sizes = [table, table, width - 2 * table] if width > 2 * table else [table, table]
        first, second, *rest = ops.variadic_split(x, self._numbers(-1), self._numbers(sizes)).outputs()
        left = ops.subtract(ops.multiply(first, cos), ops.multiply(second, sin))
        right = ops.add(ops.multiply(second, cos), ops.multiply(first, sin))
        return ops.concat([left, right, *rest], -1).output(0)

    def _rows(self, x: Any, width: int) -> Any:
        """x [1, heads, n, d] as [n, width]."""
        turned = self._ops.transpose(x, self._numbers([0, 2, 1, 3]))
        return self._ops.reshape(turned, self._numbers([-1, width]), special_zero=False)

    def _input(self, name: str, shape: Sequence[Any], kind: Any) -> Any:
        parameter = self._ops.parameter(bindings().PartialShape(list(shape)), kind, name=name)
        parameter.output(0).set_names({name})
        self.inputs.append(parameter)
        return parameter

    def _numbers(self, values: Any) -> Any:
        return self._constant(np.array(values, np.int64))

    def _constant(self, value: Any) -> Any:
        return self._ops.constant(value)
