"""Keys of a merge: which are equal, and which types they may have, as in pylance."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError

NAN = float("nan")


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("index", [None, "BTREE", "BITMAP", "ZONEMAP"])
def test_zeros_are_two_keys_and_every_nan_is_one(tmp_path: Path, index: str | None, kind: str) -> None:
    rows = pa.table({"k": pa.array([0.0, -0.0, NAN, 1.0, None], kind), "v": [1, 2, 3, 4, 5]})
    source = pa.table({"k": pa.array([0.0, NAN, 2.0], kind), "v": [10, 30, 50]})
    found = []
    for library in (lance, lance_core):
        made = library.write_dataset(rows, str(tmp_path / library.__name__))
        if index is not None:
            made.create_scalar_index("k", index)
        made.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(source)
        found.append(sorted((str(row["k"]), row["v"]) for row in library.dataset(made.uri).to_table().to_pylist()))
    assert found[0] == found[1]
    assert ("-0.0", 2) in found[1]
    assert ("0.0", 10) in found[1]
    assert ("nan", 30) in found[1]


INT32 = pa.array([1, 2, None, -1], pa.int32())
OTHER_TYPES = {
    "int64": (INT32, pa.array([1, 9, None])),
    "int64 beyond": (INT32, pa.array([1, 2**40])),
    "int8": (INT32, pa.array([1], pa.int8())),
    "uint64": (INT32, pa.array([1, 2**63], pa.uint64())),
    "double": (INT32, pa.array([1.0, 2.5, NAN])),
    "decimal": (INT32, pa.array([1]).cast(pa.decimal128(19, 0))),
    "float of double": (pa.array([0.1, 1.5], pa.float32()), pa.array([0.1, 1.5])),
    "double of float": (pa.array([0.1, 1.5]), pa.array([0.1, 1.5], pa.float32())),
    "uint64 of int64": (pa.array([1, 2**64 - 1], pa.uint64()), pa.array([1, -1])),
    "large string": (pa.array(["a", "b"], pa.large_string()), pa.array(["a"])),
    "seconds of microseconds": (
        pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("s")),
        pa.array([dt.datetime(2020, 1, 1)]),
    ),
    "decimal of int64": (pa.array([1, 2]).cast(pa.decimal128(19, 0)), pa.array([1])),
}


@pytest.mark.parametrize("case", OTHER_TYPES)
@pytest.mark.parametrize("others", [[], ["v"], ["unknown"]], ids=str)
def test_a_merge_that_only_deletes_takes_keys_by_value(tmp_path: Path, case: str, others: list[str]) -> None:
    stored, keys = OTHER_TYPES[case]
    source = pa.table({"k": keys, **{name: ["x"] * len(keys) for name in others}})
    left = []
    for library in (lance, lance_core):
        made = library.write_dataset(pa.table({"k": stored, "v": range(len(stored))}), str(tmp_path / library.__name__))
        made.merge_insert("k").when_matched_delete().execute(source)
        left.append(library.dataset(made.uri).to_table()["v"].to_pylist())
    assert left[0] == left[1]


def test_keys_are_compared_exactly(tmp_path: Path) -> None:
    """pylance takes the neighbour, which is equal as a double."""
    made = lance_core.write_dataset(pa.table({"k": [2**53 + 1, 2**53, 1]}), tmp_path / "t")
    made.merge_insert("k").when_matched_delete().execute(pa.table({"k": [2.0**53]}))
    assert made.to_table()["k"].to_pylist() == [2**53 + 1, 1]


def test_a_stream_of_keys_of_another_type(tmp_path: Path) -> None:
    made = lance_core.write_dataset(pa.table({"k": INT32}), tmp_path / "t")
    keys = pa.table({"k": [1, 2**40]}).to_reader()
    made.merge_insert("k").when_matched_delete().execute(keys)
    assert made.to_table()["k"].to_pylist() == [2, None, -1]


@pytest.mark.parametrize("verb", ["update", "insert", "upsert"])
def test_merges_that_write_want_the_types_of_the_columns(tmp_path: Path, verb: str) -> None:
    source = pa.table({"k": [1], "v": [10]})
    for library in (lance, lance_core):
        made = library.write_dataset(pa.table({"k": INT32, "v": range(4)}), str(tmp_path / library.__name__))
        builder = made.merge_insert("k")
        if verb != "insert":
            builder = builder.when_matched_update_all()
        if verb != "update":
            builder = builder.when_not_matched_insert_all()
        with pytest.raises(OSError, match="`k` should have type int32 but type was int64"):
            builder.execute(source)


def test_keys_that_are_no_such_values_are_rejected(tmp_path: Path) -> None:
    made = lance_core.write_dataset(pa.table({"k": INT32}), tmp_path / "t")
    with pytest.raises(SchemaError, match="should have type int32 but type was string"):
        made.merge_insert("k").when_matched_delete().execute(pa.table({"k": ["1"]}))
