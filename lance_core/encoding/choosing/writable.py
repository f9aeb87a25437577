"""Checks that values can be written: some types of a schema cannot be stored in files of every version.

    maps                    from 2.1 on, although pylance writes them from 2.2 on
    fixed size lists        of numbers, of such lists, of the null type, and, as maps, of structs
    fixed_size_binary(0)    as a constant page in 2.2, not before
    packed structs          stored row by row in one column (see `paths.is_packed`); their fields can be
        2.0                     numbers of whole bytes, and fixed size lists of such numbers
        2.1                     numbers of whole bytes
        2.2                     numbers of whole bytes, strings, bytes, and fixed size lists

The fields of a packed struct cannot be null. The struct itself can, from 2.1 on.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lance_core.encoding.levels.paths import is_blob_v2, is_packed
from lance_core.encoding.levels.shred import has_nulls_inside
from lance_core.errors import UnsupportedError
from lance_core.schema import Field, arrow_type_of

_OLDEST = "0.1"
_WITHOUT_LEVELS = ("0.1", "2.0")
_ZERO_WIDTH = ("2.2",)
"""Versions with constant pages, whose value may have no bytes."""

__all__ = ["Packable", "check_packed_values", "check_writable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packable:
    """Types of fields of packed structs, besides numbers of whole bytes.

    Attributes:
        lists: Fixed size lists.
        strings: Strings and bytes of any length.
    """

    lists: bool
    strings: bool


def check_writable(field: Field, packable: Packable | None, version: str) -> None:
    """Make sure that a field can be written; its children are not checked.

    Args:
        field: The field.
        packable: Types of fields in packed structs; None if the version has no packed structs.
        version: The file version, for error messages.

    Raises:
        UnsupportedError: The version cannot store the field.
    """
    if packable is not None and is_packed(field) and not is_blob_v2(field):
        _check_packed(field, packable, version)
    is_wide = field.logical_type.startswith("fixed_size_list")
    if field.children:
        if version in _WITHOUT_LEVELS and (is_wide or field.logical_type == "map"):
            what = "fixed size lists of structs" if is_wide else "maps"
            raise UnsupportedError(
                f"field {field.name!r}: {what} cannot be stored in a {version} file: write version 2.2"
            )
        return
    kind = arrow_type_of(field)
    items, _ = _peel(kind)
    if version == _OLDEST and pa.types.is_struct(kind):
        raise UnsupportedError(f"field {field.name!r}: a {_OLDEST} file cannot hold a struct without fields")
    if _width(items) == 0 and (items is not kind or version not in _ZERO_WIDTH):
        where = "in a fixed size list" if items is not kind else f"in a {version} file: write version 2.2"
        raise UnsupportedError(f"field {field.name!r}: {items}, whose values have no bytes, cannot be stored {where}")
    if items is not kind and _width(items) is None and not pa.types.is_null(items):
        raise UnsupportedError(
            f"field {field.name!r}: a fixed size list holds numbers or structs, not {items}: use a list of any length"
        )


def _check_packed(field: Field, packable: Packable, version: str) -> None:
    if not field.children:
        raise UnsupportedError(f"field {field.name!r}: a packed struct must have a field")
    for child in field.children:
        kind = arrow_type_of(child)
        if not _can_be_packed(kind, packable):
            raise UnsupportedError(
                f"field {field.name!r}: its field {child.name!r} of type {kind} cannot be packed in a {version} file: "
                "remove the metadata lance-encoding:packed of the struct"
            )


def _can_be_packed(kind: pa.DataType, packable: Packable) -> bool:
    items, dimension = _peel(kind)
    bits = _width(items)
    if bits is None:
        is_string = (
            pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or kind in (pa.string(), pa.binary())
        )
        return is_string and packable.strings
    return bits > 0 and bits * dimension % 8 == 0 and (items is kind or packable.lists)


def _peel(kind: pa.DataType) -> tuple[pa.DataType, int]:
    """The innermost items of nested fixed size lists, and how many a value has."""
    dimension = 1
    while isinstance(kind, pa.FixedSizeListType):
        dimension *= kind.list_size
        kind = kind.value_type
    return kind, dimension


def _width(kind: pa.DataType) -> int | None:
    """Bits of a value of fixed width; None for other types."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        return None
    try:
        return int(kind.bit_width)
    except ValueError:
        return None


def check_packed_values(field: Field, array: pa.StructArray) -> None:
    """Make sure that a field of a packed struct is null only where the struct is null.

    Raises:
        UnsupportedError: A field is null where the struct is not.
    """
    for index, child in enumerate(field.children):
        if has_nulls_inside(array, index):
            raise UnsupportedError(
                f"field {field.name!r}: its field {child.name!r} has nulls, which a packed struct cannot hold: "
                "remove the metadata lance-encoding:packed of the struct"
            )
