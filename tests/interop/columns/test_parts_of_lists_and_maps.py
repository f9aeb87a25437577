"""Fields inside of lists and maps are cast, dropped and matched so that both libraries read the table afterwards."""

from pathlib import Path
from typing import Any

import lance as pylance
import pyarrow as pa
import pytest

import lance_core as lance
from lance_core.errors import UnsupportedError


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_cast_inside_of_a_list_of_structs(tmp_path: Path, version: str, kind: Any) -> None:
    item = pa.struct([("a", pa.int64()), ("b", pa.string())])
    rows = [{"k": 0, "q": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]}, {"k": 1, "q": []}]
    uri = str(tmp_path / "t.lance")
    data = pa.Table.from_pylist(rows, pa.schema([("k", pa.int64()), ("q", kind(item))]))
    table = lance.write_dataset(data, uri, data_storage_version=version)

    table.alter_columns({"path": "q.item.a", "data_type": pa.int32()})

    assert table.schema.field("q").type.value_type.field("a").type == pa.int32()
    assert lance.dataset(uri).to_table().to_pylist() == pylance.dataset(uri).to_table().to_pylist() == rows
    table.optimize.compact_files()
    table.update({"k": "k"})
    assert sorted(pylance.dataset(uri).to_table().to_pylist(), key=lambda row: row["k"]) == rows


_CHANGES = {
    "drop of the value": lambda table: table.drop_columns(["m.entries.value"]),
    "drop of the key": lambda table: table.drop_columns(["m.entries.key"]),
    "drop of the entries": lambda table: table.drop_columns(["m.entries"]),
    "nullable key": lambda table: table.alter_columns({"path": "m.entries.key", "nullable": True}),
    "cast of the key": lambda table: table.alter_columns({"path": "m.entries.key", "data_type": pa.large_string()}),
    "cast of the value": lambda table: table.alter_columns({"path": "m.entries.value", "data_type": pa.int32()}),
}


@pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
def test_parts_of_maps_are_not_changed(tmp_path: Path, change: Any) -> None:
    rows = pa.table({"k": [0, 1], "m": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))})
    table = lance.write_dataset(rows, tmp_path / "t.lance", data_storage_version="2.2")

    with pytest.raises(UnsupportedError, match="of the map 'm' cannot be dropped"):
        change(table)

    assert table.latest_version == 1
    table.drop_columns(["m"])
    assert table.schema.names == ["k"]


def test_fields_of_maps_are_matched_by_position(tmp_path: Path) -> None:
    kind = pa.map_(pa.field("value", pa.int32(), nullable=False), pa.field("key", pa.string()))
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "m": pa.array([[(1, "a")], [(2, "b")]], kind)})
    table = lance.write_dataset(rows, tmp_path / "t.lance", data_storage_version="2.2")

    table.update({"id": "id"})
    table.merge_insert("id").when_matched_update_all().execute(rows)

    assert pylance.dataset(table.uri).to_table().sort_by("id").to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_dates_beyond_the_calendar_of_python_in_0_1(tmp_path: Path, kind: pa.DataType) -> None:
    day = 1 if kind == pa.date32() else 86_400_000
    integers = pa.array([-3_000_000 * day, day, 3_000_000 * day], pa.int32() if day == 1 else pa.int64())
    rows = pa.table({"d": integers.cast(kind)})
    table = lance.write_dataset(rows, tmp_path / "t.lance", data_storage_version="legacy")

    table.insert(rows)
    table.update({"d": "d"})

    for reader in (lance, pylance):
        assert reader.dataset(table.uri).to_table() == pa.concat_tables([rows, rows])
