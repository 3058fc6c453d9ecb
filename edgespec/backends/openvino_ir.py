"""The graph of an OpenVINO IR model with paged attention in place of its state, with the inputs and outputs that
`openvino_graph` describes.

OpenVINO's own transformation replaces the state. In its graph every token is a sequence: [n, 1, hidden].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelFileError
from ..storage.files import contents
from .openvino_graph import PagedGraph
from .openvino_ir_file import DescribedIr
from .openvino_package import bindings, core, reason
from .openvino_weights import SharedWeights

_ATTENTION, _SDPA = "PagedAttentionExtension", "ScaledDotProductAttention"
_WINDOW, _SLOPES = 10, 11  # inputs of the operator
_KEPT = ((1, 3), (2, 4))  # new keys and values, and where they are kept
_TOKENS = ("input_ids", "position_ids")
_SHARED = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins", "max_context_len")
_MASK = ("qq_bias", "qq_bias_begins")
_CACHES = ("key_cache", "value_cache")


def read_paged(described: DescribedIr, *, masks: bool = True) -> PagedGraph:
    """The model with paged attention.

    Args:
        masks: whether it has inputs for the masks of trees.

    Raises:
        ModelFileError: OpenVINO cannot read it, or it has other states or inputs than a decoder with attention.
    """
    weights = SharedWeights()
    model = _read(described, weights)
    if _SDPA not in {node.get_type_name() for node in model.get_ops()}:
        raise ModelFileError(
            f"{described.path} has no attention that OpenVINO knows ({_SDPA}), and other states cannot be rolled back; "
            "take a model that has attention alone"
        )
    try:
        _transform(model, masks)
        attentions = _attentions(model, described)
        trees = masks and not any(map(_counts_rows, attentions))
        widths = {name: width for node in attentions for name, width in _widths(node, described)}
        return PagedGraph(_with_own_inputs(model, described), trees, widths, weights)
    except ModelFileError:
        raise
    except Exception as error:  # RuntimeError of pybind, of any cause
        raise ModelFileError(
            f"OpenVINO cannot replace the state of {described.path} ({reason(error)}); export or fetch it again, or "
            "convert the checkpoint with `edgespec convert`"
        ) from error


def _read(described: DescribedIr, weights: SharedWeights) -> Any:
    try:
        tensor = bindings().Tensor(weights.mapped(described.data), shared_memory=True)
        return core().read_model(model=contents(described.path) or b"", weights=tensor)
    except Exception as error:  # RuntimeError of pybind, of any cause
        raise ModelFileError(
            f"OpenVINO cannot read {described.path} ({reason(error)}); fetch it again, or export it for this "
            "version of openvino"
        ) from error


def _transform(model: Any, masks: bool) -> None:
    from openvino._offline_transformations import paged_attention_transformation  # noqa: PLC0415 - with the engine

    paged_attention_transformation(model, allow_qq_bias=masks)


def _attentions(model: Any, described: DescribedIr) -> Sequence[Any]:
    """The attention of each layer.

    Raises:
        ModelFileError: the model has other states, or attention that OpenVINO did not recognize.
    """
    attentions = [node for node in model.get_ordered_ops() if node.get_type_name() == _ATTENTION]
    if model.get_sinks() or not attentions:
        raise ModelFileError(
            f"{described.path} has other states than keys and values, which cannot be rolled back; take a model that "
            "has attention alone"
        )
    if described.window and not any(map(_counts_rows, attentions)):
        raise ModelFileError(
            f"{described.path}: config.json gives layers a window of {described.window} tokens, which OpenVINO did not "
            "find in the graph; convert the checkpoint with `edgespec convert`"
        )
    return attentions


def _widths(attention: Any, described: DescribedIr) -> Iterator[tuple[str, int]]:
    """The inputs of the cache of a layer's keys and values, and the numbers of one token in each."""
    for new, kept in _KEPT:
        shape, cache = attention.input_value(new).get_partial_shape(), attention.input_value(kept)
        if shape.rank.is_dynamic or not shape[shape.rank.get_length() - 1].is_static:
            raise ModelFileError(
                f"{described.path} has keys or values of {shape} numbers, and not of a known width; export or fetch it "
                "again, or convert the checkpoint with `edgespec convert`"
            )
        yield cache.get_any_name(), shape[shape.rank.get_length() - 1].get_length()


def _counts_rows(attention: Any) -> bool:
    """Whether attention depends on the rows of the cache, which the branches of a tree share: by a window, or by
    slopes (ALiBi)."""
    window = attention.input_value(_WINDOW).get_node()
    everything = window.get_type_name() == "Constant" and not window.get_data().any()
    return not everything or attention.input_value(_SLOPES).get_partial_shape() != bindings().PartialShape([0])


def _with_own_inputs(model: Any, described: DescribedIr) -> Any:
    """The model with tokens [1, n], and logits [1, m, vocabulary] of the tokens that `out_idx` names alone."""
    ov, path = bindings(), described.path
    ops, anything = ov.opset13, ov.Dimension(-1)
    tokens = {name: _input(name, [ov.Dimension(1), anything]) for name in _TOKENS}
    others = []
    for parameter in model.get_parameters():
        name = _name(parameter)
        if name in tokens:
            _require_flat(parameter, path)
            flat = ops.reshape(tokens[name], _numbers([-1]), special_zero=False)
            whole = ops.convert(flat, parameter.get_element_type().get_type_name())
            for consumer in parameter.output(0).get_target_inputs():
                consumer.replace_source_output(whole.output(0))
        elif name in (*_SHARED, *_MASK) or name.partition(".")[0] in _CACHES:
            others.append(parameter)
        else:
            raise ModelFileError(
                f"{path} has the input or state {name}, which edgespec cannot provide or roll back; take a model that "
                "has attention alone"
            )
    rows = _input("out_idx", [anything])
    logits = _logits(model, rows, described)
    return ov.Model([ops.result(logits)], [*tokens.values(), rows, *others], "decoder")


def _require_flat(parameter: Any, path: Path) -> None:
    rank = parameter.get_partial_shape().rank
    if rank.is_dynamic or rank.get_length() != 1:
        raise ModelFileError(
            f"{path} has {_name(parameter)} of several dimensions, as models of images have; take a model of text alone"
        )


def _logits(model: Any, rows: Any, described: DescribedIr) -> Any:
    """Logits [1, m, vocabulary] in float32, of `rows` alone from the last matrix on."""
    ops = bindings().opset13
    results = [node for node in model.get_results() if "logits" in node.input_value(0).get_names()]
    if len(results) != 1:
        raise ModelFileError(f"{described.path} has {len(results)} outputs called logits; take a language model")
    last = results[0].input_value(0)
    product = _last_product(last)
    if product is None:
        last = ops.gather(last, rows, _numbers(0))
    else:
        inner = product.input(0)
        inner.replace_source_output(ops.gather(inner.get_source_output(), rows, _numbers(0)).output(0))
    whole = ops.convert(ops.reshape(last, _numbers([1, -1, described.vocabulary]), special_zero=False), "f32")
    whole.output(0).set_names({"logits"})
    return whole


def _last_product(output: Any) -> Any:
    """The matrix product whose rows become the logits by operators on single numbers; None if there is none."""
    node = output.get_node()
    while node.get_type_name() in {"Convert", "Multiply", "Divide", "Tanh", "Add"}:
        changing = [each for each in node.input_values() if not _is_constant(each.get_node())]
        if len(changing) != 1:
            return None
        node = changing[0].get_node()
    return node if node.get_type_name() == "MatMul" and not _is_constant(node.input_value(0).get_node()) else None


def _is_constant(node: Any) -> bool:
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


def _name(parameter: Any) -> str:
    names = parameter.output(0).get_names()
    known = [name for name in names if name in (*_TOKENS, *_SHARED, *_MASK)]
    return str([*known, *sorted(names), parameter.get_friendly_name()][0])


def _input(name: str, shape: list[Any]) -> Any:
    ov = bindings()
    parameter = ov.opset13.parameter(ov.PartialShape(shape), ov.Type.i64, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _numbers(values: Any) -> Any:
    return bindings().opset13.constant(np.array(values, np.int64))
