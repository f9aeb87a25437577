"""Searches in lists and in sets: items of other types than the list, and NaN in all its forms, by scans and by indices."""

import struct
from datetime import datetime
from decimal import Decimal

import lance
import pyarrow as pa
import pytest

import lance_core

MORNING, DAY = datetime(2024, 1, 2, 10), datetime(2024, 1, 1)
ITEMS = {
    "utc": ([[DAY], [MORNING], [], None], pa.timestamp("us", "UTC")),
    "plain": ([[DAY], [MORNING], [None], None], pa.timestamp("us")),
    "fine": ([[DAY], [MORNING], [None], None], pa.timestamp("ns")),
    "date": ([[DAY.date()], [MORNING.date()], [], None], pa.date32()),
    "number": ([[1], [2], [], None], pa.int64()),
    "short": ([[1], [2], [None, 2], None], pa.int8()),
    "single": ([[1.5], [2], [None, 2], None], pa.float32()),
    "double": ([[1.5, 0.1], [2], [None, 2], [float("nan")]], pa.float64()),
    "price": ([[Decimal("0.10")], [Decimal("0.25")], [Decimal(1)], []], pa.decimal128(6, 2)),
    "text": ([["1"], ["a"], ["2024-01-01"], []], pa.string()),
    "long": ([["1"], ["a"], ["2024-01-01"], []], pa.large_string()),
    "truth": ([[True], [False], [], None], pa.bool_()),
    "bytes": ([[b"a"], [b"b"], [], None], pa.binary()),
}
LITERALS = [
    *("timestamp '2024-01-01 00:00:00'", "timestamp '2024-01-02 10:00:00'", "date '2024-01-01'", "date '2024-01-02'"),
    *("'2024-01-01'", "'1'", "'a'", "1", "1.5", "1.0", "0.1", "true", "NULL", "X'61'", "cast('NaN' as double)"),
    *("cast(0.1 as decimal(6,2))", "cast(2.25 as decimal(6,2))", "cast(1 as bigint)", "cast(1.5 as float)"),
]
FORMS = ("array_has({}, {})", "array_has_any({}, [{}])", "array_has_all({}, [{}])", "NOT array_has_any({}, [{}])")


@pytest.mark.parametrize("kind", [None, "LABEL_LIST"])
@pytest.mark.parametrize("column", ITEMS)
def test_items_of_other_types_are_found_as_by_pylance(tmp_path, column, kind):
    values, item_type = ITEMS[column]
    uri = str(tmp_path / "t.lance")
    table = lance_core.write_dataset(pa.table({"id": range(4), "l": pa.array(values, pa.list_(item_type))}), uri)
    if kind is not None:
        table.create_scalar_index("l", kind)
    theirs, count = lance.dataset(uri), 0
    for condition in (form.format("l", literal) for literal in LITERALS for form in FORMS):
        try:
            expected = theirs.to_table(["id"], filter=condition)["id"].to_pylist()
        except (ValueError, OSError, pa.ArrowInvalid):
            continue
        assert table.to_table(["id"], filter=condition)["id"].to_pylist() == expected, condition
        count += 1
    assert count >= 4


FORMS_OF_NAN = [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001, 0xFFFFFFFFFFFFFFFF]


@pytest.mark.parametrize("kind", [None, "BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"])
@pytest.mark.parametrize("width", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_a_set_with_nan_has_all_its_forms(tmp_path, width, kind):
    numbers = [1.0, *(struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in FORMS_OF_NAN), 7.0, None]
    rows = pa.table({"id": range(7), "f": pa.array(numbers, pa.float64()).cast(width, safe=False)})
    table = lance_core.write_dataset(rows, str(tmp_path / "t.lance"))
    if kind is not None and width != pa.float16():
        table.create_scalar_index("f", kind)
    nan = "cast('NaN' as double)"
    for condition, expected in {
        f"f IN ({nan})": [1, 2, 3, 4],
        f"f IN ({nan}, 7.0)": [1, 2, 3, 4, 5],
        f"f IN ({nan}, NULL)": [1, 2, 3, 4],
        f"f NOT IN ({nan})": [0, 5],
        f"f NOT IN ({nan}, NULL)": [],
        f"f = {nan}": [1, 2, 3, 4],
    }.items():
        assert table.to_table(["id"], filter=condition)["id"].to_pylist() == expected, condition
    assert table.delete(f"f NOT IN ({nan})")["num_deleted_rows"] == 2
    assert table.count_rows() == 5
