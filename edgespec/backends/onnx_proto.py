"""The part of the ONNX file format that describes a model, so that models run without the `onnx` package.

Names and field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto. The parser keeps all fields
that are not listed here as they are. The nodes of the graph, which ONNX Runtime checks itself, are listed apart.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "edgespec.onnx"
_FLOAT, _INT32, _INT64, _STRING = (
    descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
)
_ONE, _MANY = (
    descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
)
#: The fields of each message: name, number, whether it is repeated, and a type or the name of a message.
_MESSAGES = {
    "ModelProto": [("graph", 7, _ONE, "GraphProto"), ("metadata_props", 14, _MANY, "StringStringEntryProto")],
    "StringStringEntryProto": [("key", 1, _ONE, _STRING), ("value", 2, _ONE, _STRING)],
    "GraphProto": [
        ("initializer", 5, _MANY, "TensorProto"),
        ("input", 11, _MANY, "ValueInfoProto"),
        ("output", 12, _MANY, "ValueInfoProto"),
    ],
    "TensorProto": [("dims", 1, _MANY, _INT64), ("name", 8, _ONE, _STRING)],
    "ValueInfoProto": [("name", 1, _ONE, _STRING), ("type", 2, _ONE, "TypeProto")],
    "TypeProto": [("tensor_type", 1, _ONE, "Tensor")],
    "Tensor": [("elem_type", 1, _ONE, _INT32), ("shape", 2, _ONE, "TensorShapeProto")],
    "TensorShapeProto": [("dim", 1, _MANY, "Dimension")],
    "Dimension": [("dim_value", 1, _ONE, _INT64)],
}
#: The same of nodes.
_NODES = {
    "NodeProto": [
        ("input", 1, _MANY, _STRING),
        ("output", 2, _MANY, _STRING),
        ("name", 3, _ONE, _STRING),
        ("op_type", 4, _ONE, _STRING),
        ("attribute", 5, _MANY, "AttributeProto"),
        ("domain", 7, _ONE, _STRING),
    ],
    "AttributeProto": [("name", 1, _ONE, _STRING), ("f", 2, _ONE, _FLOAT), ("i", 3, _ONE, _INT64),
                       ("type", 20, _ONE, _INT32)],
}  # fmt: skip
_WITH_NODES = {**_MESSAGES, **_NODES, "GraphProto": [("node", 1, _MANY, "NodeProto"), *_MESSAGES["GraphProto"]]}


def parse(data: bytes, *, nodes: bool = False) -> Any:
    """The ModelProto in `data`, with the fields above; with `nodes` also those of the nodes.

    Raises:
        DecodeError: `data` is not a ModelProto.
    """
    return _model_class(nodes=nodes).FromString(data)


@cache
def _model_class(*, nodes: bool) -> Any:
    """The class of ModelProto, in a descriptor pool of its own, because the default pool is global to the process."""
    file = descriptor_pb2.FileDescriptorProto(name="edgespec/onnx.proto", package=_PACKAGE)
    for name, fields in (_WITH_NODES if nodes else _MESSAGES).items():
        message = file.message_type.add(name=name)
        for field, number, label, kind in fields:
            described = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                described.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                described.type_name = f".{_PACKAGE}.{kind}"
            else:
                described.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ModelProto"))
