"""Messages of other programs' protobuf files, described as far as they are used here.

The classes that come with those programs want another protobuf than TensorFlow allows, or load a
C++ library that has crashed next to TensorFlow's. Fields that are not described are kept.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

Fields = Mapping[int, tuple[str, str]]
"""number of a field -> its name and its kind: a message or a type. A * as in INT32* means repeated;
a whole number may have a default, as in INT32=1."""


def message_class(messages: Mapping[str, Fields], name: str) -> Any:
    """The class of one of the messages, which may hold the others."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="of.proto", package="of", syntax="proto2")
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for number, (field_name, kind) in fields.items():
            field = described.field.add(name=field_name, number=number, label=kinds.LABEL_OPTIONAL)
            if kind.endswith("*"):
                field.label = kinds.LABEL_REPEATED
            kind, _, default = kind.removesuffix("*").partition("=")
            if kind in messages:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".of.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind}")
            if default:
                field.default_value = default
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"of.{name}"))
