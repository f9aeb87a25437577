"""A null that a file of version 0.1 would read as another value is rejected; pylance writes zeros and other categories."""

from decimal import Decimal

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError

WORDS = pa.dictionary(pa.int8(), pa.string())


def dictionary(codes, values):
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(values))


LOST = {
    "c": [
        pa.array([1, None]),
        pa.array([True, None]),
        pa.array([1.5, None]),
        pa.array([Decimal("1.5"), None]),
        pa.array([1, None], pa.timestamp("us")),
        pa.array([1, None], pa.date32()),
        pa.array([b"ab", None], pa.binary(2)),
        pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
        pa.array([[1.0, None]], pa.list_(pa.float32(), 2)),
        dictionary([0, None], [5]),
        dictionary([0, 1], [5, None]),
    ],
    "c.a": [pa.array([{"a": 1}, None]), pa.array([{"a": 1}, {"a": None}])],
    "c.item": [pa.array([[1, None]])],
}


@pytest.mark.parametrize(("path", "column"), [(path, one) for path, columns in LOST.items() for one in columns])
def test_a_null_that_would_become_another_value_is_rejected(tmp_path, path, column):
    with pytest.raises(SchemaError, match=f"column '{path}': a file of version 0.1 cannot hold a null"):
        lance_core.write_dataset(pa.table({"c": column}), tmp_path / "t", data_storage_version="0.1")
    assert not list(tmp_path.rglob("*.lance"))

    table = (
        lance_core.write_dataset(pa.table({"c": column[:1]}), tmp_path / "t", data_storage_version="0.1")
        if len(column) > 1
        else None
    )
    if table is not None:
        before = sorted(tmp_path.rglob("*.lance"))
        with pytest.raises(SchemaError, match="column 'c"):
            table.insert(pa.table({"c": column}))
        assert (sorted(tmp_path.rglob("*.lance")), table.count_rows()) == (before, 1)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, ""]),
        pa.array([b"a", None, b""]),
        pa.array([["a", None, ""], None, []]),
        pa.array([[1], None, []]),
        pa.array([{"s": "x"}, None, {"s": ""}]),
        pa.nulls(3),
    ],
)
def test_what_is_read_as_another_kind_of_nothing_is_as_in_pylance(tmp_path, column):
    found = []
    for library in (lance, lance_core):
        uri = str(tmp_path / library.__name__)
        library.write_dataset(pa.table({"c": column}), uri, data_storage_version="legacy")
        found += [reader.dataset(uri).to_table()["c"].to_pylist() for reader in (lance, lance_core)]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize(
    "column",
    [
        dictionary([0, None, 1], ["b", "a"]),
        dictionary([None, 0, 1], ["b", "a"]),
        dictionary([0, 1, 0, 2], [None, "a", "b"]),
        dictionary([0, 1, 0, 2], ["a", None, "b"]),
        dictionary([None, None], ["a"]),
        pa.nulls(2, WORDS),
    ],
)
def test_null_is_one_of_the_categories(tmp_path, column):
    table = lance_core.write_dataset(pa.table({"c": column}), tmp_path / "t", data_storage_version="0.1")
    table.insert(pa.table({"c": column}))
    for library in (lance, lance_core):
        assert library.dataset(table.uri).to_table()["c"].to_pylist() == column.to_pylist() * 2
    table.optimize.compact_files()
    assert lance.dataset(table.uri).to_table()["c"].to_pylist() == column.to_pylist() * 2


def test_a_null_that_the_dictionary_of_the_dataset_lacks_is_rejected(tmp_path):
    table = lance_core.write_dataset(
        pa.table({"i": [1, 2], "c": dictionary([0, 1], ["a", "b"])}), tmp_path / "t", data_storage_version="0.1"
    )
    with pytest.raises(SchemaError, match="column 'c'"):
        table.insert(pa.table({"i": [3], "c": pa.nulls(1, WORDS)}))
    with pytest.raises(SchemaError, match="column 'c'"):
        table.update({"c": "NULL"}, where="i = 1")
    with pytest.raises(SchemaError, match="column 'i'"):
        table.update({"i": "NULL"}, where="i = 1")
    assert (table.version, len(list(tmp_path.rglob("*.lance")))) == (1, 1)
    table.insert(pa.table({"i": [3], "c": dictionary([0], ["b"])}))
    assert lance.dataset(table.uri).to_table()["c"].to_pylist() == ["a", "b", "b"]


def test_a_full_dictionary_has_no_room_for_null(tmp_path):
    words = [f"w{number}" for number in range(128)]
    full = dictionary(range(128), words)
    lance_core.write_dataset(pa.table({"c": full}), tmp_path / "full", data_storage_version="0.1")
    with pytest.raises(SchemaError, match=r"column 'c'.*cannot count all values"):
        lance_core.write_dataset(
            pa.table({"c": dictionary([*range(128), None], words)}), tmp_path / "t", data_storage_version="0.1"
        )


@pytest.mark.parametrize("version", ["0.1", "2.0"])
@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(7),
        pa.scalar(Decimal("1.5")),
        pa.scalar([1.0, 2.0], pa.list_(pa.float32(), 2)),
        pa.scalar({"x": 7, "y": {"z": True}}),
    ],
    ids=lambda value: str(value.type),
)
def test_columns_are_added_to_fragments_whose_rows_are_deleted(tmp_path, version, value):
    """Deleted rows need no value of a new column, and must not need null."""
    table = lance_core.write_dataset(
        {"i": range(100)}, tmp_path / "t", data_storage_version=version, max_rows_per_file=50
    )
    table.delete("i >= 10 and i < 40")
    values = pa.repeat(value, 70)
    table.add_columns(pa.table({"new": values}), batch_size=10)
    for library in (lance, lance_core):
        assert library.dataset(table.uri).to_table(columns=["new"])["new"].to_pylist() == values.to_pylist()
