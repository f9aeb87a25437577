"""A table of every type that SQL can refer to, written by pylance and open in both libraries."""

import datetime as dt
import math
from decimal import Decimal

import lance
import pyarrow as pa

import lance_core

NAN, INF = float("nan"), float("inf")
MOMENTS = [
    dt.datetime(2020, 1, 1, 1, 2, 3, 456789),
    dt.datetime(1969, 12, 31, 23, 59, 59),
    None,
    dt.datetime(2021, 5, 6),
    dt.datetime(2024, 2, 29),
    dt.datetime(1900, 1, 1),
]
TEXTS = ["abc", "A_c%", None, "", "Zürich", "foo bar"]
TABLE = pa.table({
    "id": pa.array(range(6), pa.int64()),
    "i8": pa.array([1, -2, None, 127, 0, 5], pa.int8()),
    "i32": pa.array([10, -20, None, 7, 0, 5], pa.int32()),
    "u8": pa.array([1, 2, None, 255, 0, 5], pa.uint8()),
    "u32": pa.array([1, 2, None, 255, 0, 5], pa.uint32()),
    "u64": pa.array([1, 2, None, 2**64 - 1, 0, 5], pa.uint64()),
    "f32": pa.array([0.1, -2.5, None, NAN, 0, 5], pa.float32()),
    "f64": pa.array([0.1, -2.5, None, NAN, INF, 5.5], pa.float64()),
    "s": pa.array(TEXTS),
    "ls": pa.array(TEXTS, pa.large_string()),
    "b": pa.array([True, False, None, True, None, False]),
    "bin": pa.array([b"abc", b"\x00\xff", None, b"", b"q", b"r"]),
    "d": pa.array([None if m is None else m.date() for m in MOMENTS]),
    "ts": pa.array(MOMENTS, pa.timestamp("us")),
    "tz": pa.array(MOMENTS, pa.timestamp("us", "UTC")),
    "dec": pa.array(
        [None if x is None else Decimal(x) for x in ("1.50", "-2.25", None, "99999999.99", "0", "5")],
        pa.decimal128(10, 2),
    ),
    "st": pa.array(
        [
            {"a": 1, "b": {"c": "x"}},
            {"a": None, "b": None},
            None,
            {"a": 4, "b": {"c": None}},
            {"a": 5, "b": {"c": "y"}},
            {"a": 6, "b": {"c": "z"}},
        ],
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))]),
    ),
    "li": pa.array([[1, 2], [], None, [3, None], [4], [5, 6, 7]], pa.list_(pa.int32())),
    "lstr": pa.array([["a", "b"], [], None, ["c", None], ["d"], ["e"]], pa.list_(pa.string())),
    "odd name": pa.array([1, 2, 3, 4, 5, None], pa.int64()),
    "Upper": pa.array([1, 2, 3, 4, 5, None], pa.int64()),
    "tm": pa.array([dt.time(1, 2, 3), None, dt.time(4), dt.time(5), dt.time(6), dt.time(7)], pa.time64("us")),
    "dict": pa.array(["a", "b", None, "a", "c", "b"]).dictionary_encode(),
})  # fmt: skip


def both_of(folder):
    """The table in a folder, opened by us and by pylance."""
    uri = folder / "t"
    lance.write_dataset(TABLE, uri)
    return lance_core.dataset(uri), lance.dataset(uri)


def rounded(value):
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.12g}")
    return value
