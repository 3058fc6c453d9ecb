"""A converted ONNX model in three parts, so that its first layers draft for it with the same weights and cache.

    front   input_ids ... -> hidden.{L-1}, the residual stream after the exit layer
    back    hidden.{L-1} ... -> hidden.{N-1}, the stream after the last layer
    head    either stream -> logits: the final norm and the output matrix

Each weight is needed by one part only, but for tables of rotations, and embeddings that serve as the output matrix. In
the whole graph the addition that makes a stream is one operator with the norm after it; here they are two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from ..errors import ModelFileError
from .onnx_proto import parse

_LOGITS, _ROWS = "logits", "out_idx"  # the output, and the input with the numbers of the rows that have logits
#: Operators that add and normalize, and those that only normalize.
_FUSED = {
    "SkipSimplifiedLayerNormalization": "SimplifiedLayerNormalization",
    "SkipLayerNormalization": "LayerNormalization",
}
_SUM = 3  # the output of a fused operator that is the stream
_INT = 2  # of enum AttributeProto.AttributeType


class Parts(NamedTuple):
    """The serialized graphs, and the names of the streams after the exit layer and after the last one."""

    front: bytes
    back: bytes
    head: bytes
    early: str
    final: str


def split(data: bytes, layer: int, layers: int) -> Parts:
    """The parts of the model in `data`, of `layers` layers, cut after the first `layer` of them.

    Raises:
        ModelFileError: the graph is not one that edgespec writes.
    """
    try:
        return _split(parse(data, nodes=True), f"hidden.{layer - 1}", f"hidden.{layers - 1}")
    except (DecodeError, KeyError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ModelFileError(
            f"an ONNX model cannot be cut after layer {layer} ({reason:.80}); convert the checkpoint again"
        ) from error


def _split(model: Any, early: str, final: str) -> Parts:
    if any(isinstance(name, bytes) for name in _names(model.graph)):  # what protobuf makes of text that is not UTF-8
        raise ValueError("a name is not UTF-8")
    nodes = list(_apart(model.graph.node, {early, final}))
    made = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    front, back, head = (
        [nodes[place] for place in sorted(_needed(nodes, made, wanted, given))]
        for wanted, given in ((early, ""), (final, early), (_LOGITS, final))
    )
    caches = [{name for node in part for name in node.input if name.startswith("past.")} for part in (front, back)]
    if caches[0] & caches[1] or not all(caches):
        raise ValueError("its layers do not follow each other")
    kinds = {each.name: each for each in (*model.graph.input, *model.graph.output)}
    return Parts(
        _part(model, front, kinds, (), early),
        _part(model, back, kinds, (early,), final),
        _part(model, list(_for_all_rows(head)), kinds, (final,), _LOGITS),
        early,
        final,
    )


def _names(graph: Any) -> Iterator[str | bytes]:
    """The names by which the graph is cut."""
    for node in graph.node:
        yield from (node.op_type, *node.input, *node.output, *(each.name for each in node.attribute))
    for values in (graph.input, graph.output, graph.initializer):
        yield from (each.name for each in values)


def _apart(nodes: Iterable[Any], streams: set[str]) -> Iterator[Any]:
    """The nodes; of those that make one of the `streams` and normalize it, two."""
    for node in nodes:
        if node.op_type in _FUSED and len(node.output) > _SUM and node.output[_SUM] in streams:
            stream = node.output[_SUM]
            yield type(node)(op_type="Add", name=stream, input=node.input[:2], output=[stream])
            norm = type(node)(op_type=_FUSED[node.op_type], name=node.output[0], output=node.output[:1])
            norm.input.extend([stream, *node.input[2:]])
            norm.attribute.extend(each for each in node.attribute if each.name == "epsilon")
            norm.attribute.add(name="axis", i=-1, type=_INT)
            yield norm
        else:
            yield node


def _needed(nodes: Sequence[Any], made: Mapping[str, int], wanted: str, given: str) -> set[int]:
    """The places of the nodes that compute `wanted` from the graph's inputs and the tensor `given`."""
    found: set[int] = set()
    todo = [wanted]
    while todo:
        name = todo.pop()
        place = made.get(name) if name != given else None
        if place is not None and place not in found:
            found.add(place)
            todo.extend(nodes[place].input)
    if made[wanted] not in found:
        raise KeyError(wanted)
    return found


def _for_all_rows(nodes: Iterable[Any]) -> Iterator[Any]:
    """The nodes without the choice of the rows that have logits."""
    renamed: dict[str, str] = {}
    for node in nodes:
        if node.op_type == "Gather" and _ROWS in node.input:
            renamed[node.output[0]] = node.input[0]
            continue
        changed = type(node)()
        changed.CopyFrom(node)
        del changed.input[:]
        changed.input.extend(renamed.get(name, name) for name in node.input)
        yield changed


def _part(model: Any, nodes: Sequence[Any], kinds: Mapping[str, Any], given: Sequence[str], made: str) -> bytes:
    """A model with these nodes. Its inputs are those that they read, its outputs `made` and what they write into the
    cache."""
    part = type(model)()
    part.CopyFrom(model)
    graph = part.graph
    for field in ("node", "initializer", "input", "output"):
        graph.ClearField(field)
    read = {name for node in nodes for name in node.input}
    written = {name for node in nodes for name in node.output}
    graph.node.extend(nodes)
    graph.initializer.extend(each for each in model.graph.initializer if each.name in read)
    graph.input.extend(each for each in model.graph.input if each.name in read)
    graph.input.extend(kinds[name] for name in given)
    graph.output.append(kinds[made])
    graph.output.extend(
        each for each in model.graph.output if each.name in written and each.name.startswith("present.")
    )
    data: bytes = part.SerializeToString()
    return data
