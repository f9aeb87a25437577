"""Makes protobuf message classes with only some fields of a message, which parse faster than the whole message.

A partial message has the names and numbers of the whole one; nested messages can stay serialized:

    Manifest   version | schema | fragments | timestamp | ...
    partial    version |        | fragments as bytes            all other fields are skipped
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor

Fields: TypeAlias = Mapping[str, "Fields | None"]
"""Names of fields; of a nested message either the names of its own fields, or None to keep it serialized."""


def partial_message(whole: Descriptor, fields: Fields) -> Any:
    """Make the class of a message with some fields of another message, under the same names and numbers.

    Args:
        whole: The message.
        fields: The fields to keep.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{whole.name}_partial.proto", package="partial")
    _add_message(file, whole, fields)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"partial.{whole.name}"))


def _add_message(file: descriptor_pb2.FileDescriptorProto, whole: Descriptor, fields: Fields) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    description = descriptor_pb2.DescriptorProto()
    whole.CopyToProto(description)
    message = file.message_type.add(name=whole.name)
    for field in description.field:
        if field.name not in fields:
            continue
        new_field = message.field.add(name=field.name, number=field.number, label=field.label, type=field.type)
        nested, inner = whole.fields_by_name[field.name].message_type, fields[field.name]
        if nested is not None and inner is not None:
            new_field.type_name = f".partial.{nested.name}"
            _add_message(file, nested, inner)
        elif nested is not None:
            new_field.type = kinds.TYPE_BYTES
