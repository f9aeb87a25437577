"""Encodings that the metadata of a field requests; the keys are those of the reference library.

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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lance_core.errors import InvalidInputError
from lance_core.schema import Field

__all__ = ["EncodingOptions", "encoding_options"]

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


def encoding_options(field: Field, top: Field | None = None) -> EncodingOptions:
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
