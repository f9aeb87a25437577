"""Packed structs are stored row by row in one column (see `paths.is_packed`); this is what can be written.

    version     fields can be
    2.0         numbers of whole bytes, and lists of equal length of such
    2.1         numbers of whole bytes
    2.2         the same and strings, bytes, and lists of equal length

None of the fields can be null. The struct itself can, from 2.1 on.
"""

__all__ = ["Packable", "check_packed", "check_packed_values"]

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import UnsupportedError
from lance_core.schema import Field, arrow_type_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Packable:
    """What fields of packed structs can be, beside numbers of whole bytes.

    Attributes:
        lists: Lists of equal length.
        strings: Strings and bytes of any length.
    """

    lists: bool
    strings: bool


def check_packed(field: Field, packable: Packable, version: str) -> None:
    """Make sure that a packed struct can be written.

    Args:
        field: The struct.
        packable: What can be packed.
        version: The file version, for the error.

    Raises:
        UnsupportedError: It has no fields, or one that cannot be packed.
    """
    if not field.children:
        raise UnsupportedError(f"field {field.name!r}: a packed struct without fields")
    for child in field.children:
        kind = arrow_type_of(child)
        if not _can_be_packed(kind, packable):
            raise UnsupportedError(
                f"field {field.name!r}: its field {child.name!r} of type {kind} cannot be packed in a {version} file; "
                f"without the metadata lance-encoding:packed it has a column of its own"
            )


def _can_be_packed(kind: pa.DataType, packable: Packable) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _can_be_packed(kind.storage_type, packable)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or kind in (pa.string(), pa.binary()):
        return packable.strings
    items = 1
    while isinstance(kind, pa.FixedSizeListType):
        items *= kind.list_size
        kind = kind.value_type
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_null(kind):
        return False
    try:
        bits = kind.bit_width
    except ValueError:
        return False
    return bits * items % 8 == 0 and (items == 1 or packable.lists)


def check_packed_values(field: Field, array: pa.StructArray) -> None:
    """Make sure that no field of a packed struct is null where the struct is not.

    Raises:
        UnsupportedError: One is.
    """
    for index, child in enumerate(field.children):
        values = array.field(index)
        if values.null_count and pc.any(pc.and_(pc.is_null(values), pc.is_valid(array))).as_py():
            raise UnsupportedError(
                f"field {field.name!r}: its field {child.name!r} has nulls, which a packed struct cannot hold; "
                f"without the metadata lance-encoding:packed it can"
            )
