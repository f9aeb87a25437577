"""Encodings that the metadata of a field requests, and types that can be stored; keys are the reference library's.

    lance-encoding:
      compression               none: raw values. lz4, zstd: chunks are compressed after any other encoding; large
                                values are compressed one by one, always with zstd. fsst: strings and bytes; ignored
                                for numbers
      compression-level         0 .. 22, of zstd; lz4 has no level
      structural-encoding       miniblock, fullzip; may be set on the top-level field instead
      bss                       on: numbers of 32 and 64 bits as byte planes, with lz4 unless another is requested;
                                off: never; auto: where a sample shrinks
      rle-threshold             0 .. 1: run lengths if there are fewer runs than this share of the values
      dict-divisor              a dictionary if there are fewer items than values divided by this
      dict-size-ratio           ... if it and its indices take less than this share of the values' bytes
      dict-max-size             ... if its items have at most this many bytes
      dict-values-compression   none, lz4, zstd: of the items of a dictionary
      dict-values-compression-level
      minichunk-size            bytes of strings in a chunk; more if a value needs more

Without a key the statistics of a page decide (see `strategy`). `none` takes precedence over `bss` and `rle-threshold`.
2.2 supports all keys, 2.1 all but the last but two (`dict-values-*`), 2.0 the compression of strings (fsst only with
offsets of 32 bits), 0.1 none. Numbers in vectors and in packed structs are stored raw. Other keys in the metadata of a
field are kept and have no effect here.

Checks that values can be written: some types of a schema cannot be stored in files of every version.

    maps                    from 2.1 on, although pylance writes them from 2.2 on
    fixed size lists        of numbers, of such lists, of the null type, and, as maps, of structs
    fixed_size_binary(0)    as a constant page in 2.2, not before
    packed structs          stored row by row in one column (see `is_packed`); their fields can be
        2.0                     numbers of whole bytes, and fixed size lists of such numbers
        2.1                     numbers of whole bytes
        2.2                     numbers of whole bytes, strings, bytes, and fixed size lists

The fields of a packed struct cannot be null. The struct itself can, from 2.1 on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lance_core.encoding.repdef import has_nulls_inside
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import Field, arrow_type_of
from lance_core.schema.field import is_blob_v2, is_packed

_PREFIX: Final = "lance-encoding:"
_LAYOUT_KEY: Final = _PREFIX + "structural-encoding"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingOptions:
    """The requests in the metadata of a field; None where a key is missing. The module docstring explains the keys."""

    compression: str | None = None
    level: int | None = None
    layout: str | None = None
    bss: str | None = None
    rle_threshold: float | None = None
    dict_divisor: int | None = None
    dict_size_ratio: float | None = None
    dict_max_size: int | None = None
    items_compression: str | None = None
    items_level: int | None = None
    chunk_bytes: int | None = None

    @property
    def scheme(self) -> str | None:
        """The general compression by its name in `registry`, for example "zstd:9"."""
        return _scheme(self.compression, self.level)

    @property
    def items_scheme(self) -> str | None:
        """The general compression of the items of dictionaries."""
        return _scheme(self.items_compression, self.items_level)

    @property
    def asks_for_dictionary(self) -> bool:
        """Whether the metadata has a condition for dictionaries."""
        return (self.dict_divisor, self.dict_size_ratio, self.dict_max_size) != (None, None, None)


def read_encoding_options(field: Field, top: Field | None = None) -> EncodingOptions:
    """Read the requested encodings of a field.

    Args:
        field: The field.
        top: Its top-level field, whose structural encoding is the default of the field.

    Raises:
        InvalidInputError: A key has an unknown or impossible value.
    """
    metadata = field.metadata
    if top is not None and _LAYOUT_KEY in top.metadata:
        metadata = {_LAYOUT_KEY: top.metadata[_LAYOUT_KEY], **metadata}
    options: dict[str, Any] = {}
    for key in metadata.keys() & _KEYS.keys():
        attribute, read, possible = _KEYS[key]
        string = metadata[key].decode(errors="replace")
        try:
            options[attribute] = read(string.strip().lower())
        except ValueError:
            raise InvalidInputError(f"field {field.name!r}: {key} is {string!r}, but must be {possible}") from None
    return EncodingOptions(**options)


def _scheme(name: str | None, level: int | None) -> str | None:
    if name not in ("lz4", "zstd"):
        return None
    return f"zstd:{level}" if level and name == "zstd" else name


def _reader_of_names(*names: str) -> tuple[Callable[[str], str], str]:
    def read(string: str) -> str:
        if string not in names:
            raise ValueError(string)
        return string

    return read, " or ".join(names)


def _reader_of_whole(least: int, most: int) -> tuple[Callable[[str], int], str]:
    def read(string: str) -> int:
        if not least <= int(string) <= most:
            raise ValueError(string)
        return int(string)

    return read, f"a whole number from {least} to {most}"


def _reader_of_part(*, zero: bool) -> tuple[Callable[[str], float], str]:
    def read(string: str) -> float:
        if not 0 <= float(string) <= 1 or not (zero or float(string)):
            raise ValueError(string)
        return float(string)

    return read, "a number from 0 to 1" if zero else "a number above 0, at most 1"


_LEVEL = _reader_of_whole(0, 22)

# By key: the attribute, how its value is read, and which values are possible.
_KEYS: Final[dict[str, tuple[str, Callable[[str], Any], str]]] = {
    _PREFIX + "compression": ("compression", *_reader_of_names("none", "lz4", "zstd", "fsst")),
    _PREFIX + "compression-level": ("level", *_LEVEL),
    _LAYOUT_KEY: ("layout", *_reader_of_names("miniblock", "fullzip")),
    _PREFIX + "bss": ("bss", *_reader_of_names("off", "on", "auto")),
    _PREFIX + "rle-threshold": ("rle_threshold", *_reader_of_part(zero=True)),
    _PREFIX + "dict-divisor": ("dict_divisor", *_reader_of_whole(1, 2**31)),
    _PREFIX + "dict-size-ratio": ("dict_size_ratio", *_reader_of_part(zero=False)),
    _PREFIX + "dict-max-size": ("dict_max_size", *_reader_of_whole(0, 2**31)),
    _PREFIX + "dict-values-compression": ("items_compression", *_reader_of_names("none", "lz4", "zstd")),
    _PREFIX + "dict-values-compression-level": ("items_level", *_LEVEL),
    _PREFIX + "minichunk-size": ("chunk_bytes", *_reader_of_whole(16, 2**31)),
}


_OLDEST = "0.1"
_WITHOUT_LEVELS = ("0.1", "2.0")
_ZERO_WIDTH = ("2.2",)
"""Versions with constant pages, whose value may have no bytes."""


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
