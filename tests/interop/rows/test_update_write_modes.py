"""Updates that write columns in place of rows: the same rows, fewer bytes, and pylance reads them."""

import random
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, UnsupportedError

ROWS = pa.table(
    {
        "id": pa.array(range(60), pa.int64()),
        "label": pa.array([None if i % 7 == 0 else f"l{i % 5}" for i in range(60)]),
        "point": pa.array([{"x": i, "y": None if i % 3 else f"{i}"} for i in range(60)]),
        "tags": pa.array([[f"t{i}"] * (i % 3) for i in range(60)]),
        "wide": pa.array([random.Random(i).randbytes(4000) for i in range(60)]),
    }
)
UPDATES = {
    "a constant": ({"label": "'new'"}, "id % 6 = 1"),
    "of other columns": ({"label": "concat(label, cast(point.x as string))", "id": "id + 1000"}, "id > 25"),
    "a struct": ({"point": "named_struct('x', id * 2, 'y', label)"}, "id in (3, 21, 44)"),
    "null": ({"tags": "NULL", "label": "NULL"}, "label = 'l2'"),
    "all rows": ({"id": "id * 10"}, None),
    "no row": ({"id": "id * 10"}, "id > 100"),
}


@pytest.mark.variants(18)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize("mode", ["rewrite_columns", "fewest_bytes"])
def test_the_rows_are_those_of_an_update_by_rows(tmp_path, update, version, stable, mode):
    updates, where = update
    tables = {}
    for name in ("ours", "theirs"):
        uri = str(tmp_path / name)
        dataset = lance.write_dataset(
            ROWS, uri, max_rows_per_file=20, data_storage_version=version, enable_stable_row_ids=stable
        )
        dataset.delete("id in (5, 6, 40)")
        tables[name] = uri
    ours = lance_core.dataset(tables["ours"]).update(updates, where, write_mode=mode)
    theirs = lance.dataset(tables["theirs"]).update(updates, where)
    assert ours == theirs
    expected = sorted(map(str, lance.dataset(tables["theirs"]).to_table().to_pylist()))
    assert sorted(map(str, lance.dataset(tables["ours"]).to_table().to_pylist())) == expected
    assert sorted(map(str, lance_core.dataset(tables["ours"]).to_table().to_pylist())) == expected
    if stable:
        columns = ["id", "_rowid", "_row_last_updated_at_version"]
        seen = {
            str(row["_rowid"]): row["_row_last_updated_at_version"]
            for row in lance.dataset(tables["ours"]).to_table(columns=columns).to_pylist()
        }
        changed = {
            str(row["_rowid"]): row["_row_last_updated_at_version"]
            for row in lance.dataset(tables["theirs"]).to_table(columns=columns).to_pylist()
        }
        assert seen == changed


def written(uri, before):
    return sum(path.stat().st_size for path in Path(uri, "data").iterdir() if path.name not in before)


@pytest.mark.parametrize(
    ("where", "columns"), [("id < 20", True), ("id = 3", True), ("id = 3 and wide is not null", True)]
)
def test_fewest_bytes_leaves_wide_columns_alone(tmp_path, where, columns):
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=20)
    before = {path.name for path in Path(uri, "data").iterdir()}
    dataset.update({"label": "'new'"}, where, write_mode="fewest_bytes")
    assert (written(uri, before) < 4000) == columns
    assert lance.dataset(uri).count_rows("label = 'new'") == lance.dataset(uri).count_rows(where)


def test_fewest_bytes_moves_few_narrow_rows(tmp_path):
    uri = str(tmp_path / "t")
    rows = pa.table({"id": range(100_000), "x": [i * 7919 % 100_003 for i in range(100_000)]})
    dataset = lance_core.write_dataset(rows, uri)
    before = {path.name for path in Path(uri, "data").iterdir()}
    dataset.update({"x": "0"}, "id = 5", write_mode="fewest_bytes")
    assert written(uri, before) < 10_000
    merged = pa.table({"id": [6], "x": [0]})
    dataset.merge_insert("id").when_matched_update_all().write_mode("fewest_bytes").execute(merged)
    assert lance.dataset(uri).count_rows("x = 0") == 3
    assert len(lance.dataset(uri).get_fragments()) == 3


@pytest.mark.parametrize("verb", ["update", "merge"])
@pytest.mark.parametrize(("size", "by_columns"), [(20_000, True), (100, False)])
def test_fewest_bytes_counts_payloads_beside_the_data_file(tmp_path, verb, size, by_columns):
    """Payloads of some rows are packed, of others dedicated, and all are copied with rows that move."""
    field = lance_core.blob_field("b", inline_size_threshold=10, dedicated_size_threshold=15_000)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64()), field])
    generator = np.random.default_rng(0)
    payloads = lance_core.blob_array([generator.bytes(size // (1 + row % 2)) for row in range(300)])
    numbers = generator.integers(0, 1 << 60, 300)
    dataset = lance_core.write_dataset(pa.table([range(300), numbers, payloads], schema=schema), tmp_path / "t")
    before = set((tmp_path / "t" / "data").rglob("*"))
    if verb == "update":
        dataset.update({"x": "0"}, "id in (4, 5)", write_mode="fewest_bytes")
    else:
        merge = dataset.merge_insert("id").when_matched_update_all().write_mode("fewest_bytes")
        merge.execute({"id": [4, 5], "x": [0, 0]})
    written = sum(path.stat().st_size for path in set((tmp_path / "t" / "data").rglob("*")) - before if path.is_file())
    assert len(dataset.get_fragments()) == (1 if by_columns else 2)
    assert written < 6_000
    assert lance.dataset(tmp_path / "t").to_table(["x"], filter="id in (4, 5)")["x"].to_pylist() == [0, 0]


@pytest.mark.parametrize("matches", [1, 15])
def test_a_merge_of_fewest_bytes(tmp_path, matches):
    """One row of 4 kB moves if the columns are wider than it, else the columns are written."""
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(ROWS, uri, max_rows_per_file=20)
    before = {path.name for path in Path(uri, "data").iterdir()}
    source = pa.table({"id": range(matches), "label": ["new"] * matches})
    merge = dataset.merge_insert("id").when_matched_update_all().write_mode("fewest_bytes")
    assert merge.execute(source)["num_updated_rows"] == matches
    assert written(uri, before) < 4000
    assert lance.dataset(uri).count_rows("label = 'new'") == matches
    more = pa.table({"id": [1, 100], "label": ["newer", "newer"]})
    upsert = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    assert upsert.write_mode("fewest_bytes").execute(more)["num_inserted_rows"] == 1
    assert lance.dataset(uri).count_rows("label = 'newer'") == 2
    assert lance.dataset(uri).count_rows("wide is null") == 1


def test_indices_of_the_columns_find_the_new_values(tmp_path):
    uri = str(tmp_path / "t")
    lance.write_dataset(ROWS, uri, max_rows_per_file=20)
    lance.dataset(uri).create_scalar_index("label", "BITMAP")
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance_core.dataset(uri).update({"label": "'l1'"}, "id < 10", write_mode="rewrite_columns")
    for library in (lance, lance_core):
        dataset = library.dataset(uri)
        everything = dataset.to_table().to_pylist()
        for value in ("l0", "l1", "l2"):
            expected = sorted(row["id"] for row in everything if row["label"] == value)
            assert sorted(dataset.to_table(filter=f"label = '{value}'")["id"].to_pylist()) == expected
        assert dataset.to_table(filter="id = 3")["label"].to_pylist() == ["l1"]


@pytest.mark.parametrize("change", ["delete", "append", "compact", "update rows", "update columns", "drop"])
def test_beside_other_writers(tmp_path, change):
    """The update is done again on the latest version, or rejected by name."""
    uri = str(tmp_path / "t")
    lance_core.write_dataset(ROWS, uri, max_rows_per_file=20)
    behind, ahead = lance_core.dataset(uri), lance_core.dataset(uri)
    if change == "delete":
        ahead.delete("id in (1, 2)")
    elif change == "append":
        ahead.insert(ROWS.slice(0, 3))
    elif change == "compact":
        ahead.optimize.compact_files(target_rows_per_fragment=1000)
    elif change == "update rows":
        ahead.update({"label": "'other'"}, "id = 4")
    elif change == "update columns":
        ahead.update({"id": "id"}, "id < 30", write_mode="rewrite_columns")
    else:
        ahead.drop_columns(["label"])
        with pytest.raises(InvalidInputError, match="'label' does not exist"):
            behind.update({"label": "'new'"}, "id < 10", write_mode="rewrite_columns")
        return
    changed = behind.update({"label": "'new'"}, "id < 10", write_mode="rewrite_columns")["num_rows_updated"]
    assert changed == 8 if change == "delete" else 10
    rows = lance.dataset(uri).to_table().to_pylist()
    assert len(rows) == {"delete": 58, "append": 63}.get(change, 60)
    assert sum(row["label"] == "new" for row in rows) == changed
    assert all(row["wide"] == random.Random(row["id"]).randbytes(4000) for row in rows)


def test_what_cannot_be(tmp_path):
    dataset = lance_core.write_dataset(ROWS, str(tmp_path / "t"))
    with pytest.raises(InvalidInputError, match="Invalid write_mode: fast"):
        dataset.update({"id": "1"}, write_mode="fast")
    with pytest.raises(InvalidInputError, match="takes no data_storage_version"):
        dataset.update({"id": "1"}, write_mode="rewrite_columns", data_storage_version="2.1")
    with pytest.raises(InvalidInputError, match="Failed to parse string"):
        dataset.update({"id": "label"}, write_mode="rewrite_columns")
    assert dataset.latest_version == 1
    assert len(list((tmp_path / "t" / "data").iterdir())) == 1


def test_files_of_0_1_keep_their_columns(tmp_path):
    """Without its first column pylance reads such a file wrongly, or not at all."""
    rows, source = ROWS.select(["id", "label"]), pa.table({"label": ["l1"], "id": [0]})
    dataset = lance_core.write_dataset(rows, str(tmp_path / "t"), data_storage_version="0.1")
    with pytest.raises(UnsupportedError, match=r"version 0\.1"):
        dataset.update({"id": "1"}, write_mode="rewrite_columns")
    merge = dataset.merge_insert("label").when_matched_update_all()
    with pytest.raises(InvalidInputError, match="covers every"):
        merge.write_mode("rewrite_columns").execute(source)
    dataset.add_columns({"more": "id"})
    with pytest.raises(UnsupportedError, match=r"version 0\.1"):
        merge.write_mode("rewrite_columns").execute(source)
    assert dataset.latest_version == 2
    dataset.update({"more": "7"}, "id = 3", write_mode="rewrite_columns")
    assert lance.dataset(str(tmp_path / "t")).to_table(filter="more = 7")["id"].to_pylist() == [3, 7]
    dataset.update({"id": "1"}, "label = 'l2'", write_mode="fewest_bytes")
    assert lance.dataset(str(tmp_path / "t")).count_rows("id = 1") == 1 + dataset.count_rows("label = 'l2'")
