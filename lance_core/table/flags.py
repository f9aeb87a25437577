"""Feature flags of manifests: the features that readers and writers must support.

    bit  value  meaning                                   reader  writer
    0        1  fragments have deletion files               x       x
    1        2  stable row ids                              x       x
    2        4  data files are 2.x (before data_format)     x       x     read, never written
    3        8  the table has a config                              x
    4       16  files lie in other base paths               x       x
    5       32  no transaction files, inline only                   x
    7      128  indices with covering fields                x       x     kept
    8      256  data files of several 2.x versions          x       x     kept
    15   32768  field ids are never reused                          x     with max_allocated_field_id

Every commit computes the flags of its manifest. The flags marked "kept" also stay if the version before has them; an
Overwrite drops bit 8. All flags outside of the table (overlays 64, fragment trees 512, reuse transitions 1024, spilled
row lineage 2048, managed blobs 16384, and unknown ones) are rejected: a reader that ignores them would return wrong
rows.
"""

from __future__ import annotations

from lance_core.errors import CorruptFileError, UnsupportedError

DELETION_FILES = 1
STABLE_ROW_IDS = 2
V2_DATA_FILES = 4
CONFIG = 8
BASE_PATHS = 16
NO_TRANSACTION_FILES = 32
COVERING_INDICES = 128
MIXED_DATA_FILES = 256
NO_FIELD_ID_REUSE = 32768

_READABLE = (
    DELETION_FILES
    | STABLE_ROW_IDS
    | V2_DATA_FILES
    | CONFIG
    | BASE_PATHS
    | NO_TRANSACTION_FILES
    | COVERING_INDICES
    | MIXED_DATA_FILES
)
_WRITABLE = _READABLE | NO_FIELD_ID_REUSE

_FEATURES = {
    64: "data overlay files",
    512: "fragment trees",
    1024: "fragment reuse transitions",
    2048: "spilled row lineage",
    16384: "managed blobs",
}


def is_readable(reader_flags: int) -> bool:
    """Whether all reader flags are known."""
    return not reader_flags & ~_READABLE


def check_readable(reader_flags: int) -> None:
    """Reject a manifest with reader flags that are not known.

    Raises:
        UnsupportedError: A reader flag is not known.
    """
    _reject_flags(reader_flags & ~_READABLE, "be read")


def check_writable(reader_flags: int, writer_flags: int) -> None:
    """Reject commits on top of a manifest with flags that are not known.

    Raises:
        UnsupportedError: A flag is not known.
    """
    _reject_flags((reader_flags & ~_READABLE) | (writer_flags & ~_WRITABLE), "be written")


def check_field_id_flag(writer_flags: int, *, has_mark: bool) -> None:
    """Reject a manifest with only one of the two marks of a dataset that never reuses field ids.

    Raises:
        CorruptFileError: The flag is set without `max_allocated_field_id`, or the reverse.
    """
    if bool(writer_flags & NO_FIELD_ID_REUSE) != has_mark:
        raise CorruptFileError(
            f"max_allocated_field_id is {'set' if has_mark else 'missing'}, which writer flag {NO_FIELD_ID_REUSE} "
            "contradicts"
        )


def _reject_flags(unknown: int, action: str) -> None:
    if unknown:
        bits = [1 << bit for bit in range(unknown.bit_length()) if unknown >> bit & 1]
        named = ", ".join(f"{bit} ({_FEATURES[bit]})" if bit in _FEATURES else str(bit) for bit in bits)
        raise UnsupportedError(f"the dataset cannot {action} by this version of lance_core. Flags: {named}")
