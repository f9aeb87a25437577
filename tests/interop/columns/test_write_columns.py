"""Columns of rows that a table has, set by us and read by pylance."""

import pickle
import shutil

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import (
    IncompatibleConflictError,
    InvalidInputError,
    RetryableConflictError,
    SchemaError,
    SupersededError,
    UnsupportedError,
)
from lance_core.verbs.columns.write_columns import commit

BOTH = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])


def table(rows=10, start=0):
    ids = range(start, start + rows)
    return pa.table({"id": pa.array(ids, pa.int64()), "day": [f"d{i % 2}" for i in ids], "n": [100 + i for i in ids]})


def created(path, *, stable=True, rows=10, size=4, **options):
    """A table by pylance, with a deleted row in each of the first two fragments."""
    lance.write_dataset(table(rows), str(path), enable_stable_row_ids=stable, max_rows_per_file=size, **options)
    lance.dataset(str(path)).delete("id in (1, 6)")
    return lance_core.dataset(str(path))


def column(uri, name, key="id"):
    """A column by key, as pylance and we read it."""
    found = [library.dataset(uri).to_table([key, name]) for library in (lance, lance_core)]
    assert found[0].to_pylist() == found[1].to_pylist()
    lance.dataset(uri).validate()
    return dict(zip(found[0][key].to_pylist(), found[0][name].to_pylist(), strict=True))


def updated(uri):
    """The version in which each row was updated last, as pylance reads it."""
    found = lance.dataset(uri).to_table(["id", "_row_last_updated_at_version"]).to_pylist()
    return {row["id"]: row["_row_last_updated_at_version"] for row in found}


@BOTH
def test_a_new_column(tmp_path, stable):
    dataset = created(tmp_path / "t", stable=stable)
    done = dataset.write_columns(
        {"id": [9, 0, 5], "v": [90.0, 0.0, 50.0]}, on="id", commit_message="embed", transaction_properties={"run": "7"}
    )
    assert column(dataset.uri, "v") == {i: 10.0 * i if i in (0, 5, 9) else None for i in (0, 2, 3, 4, 5, 7, 8, 9)}
    assert (done.version, done.read_version, done.operation) == (3, 2, "Merge")
    assert (done.rows_updated, done.rows_nulled, done.columns_added, done.files) == (3, 0, ("v",), 3)
    transaction = lance.dataset(dataset.uri).read_transaction(3)
    assert transaction.transaction_properties == {"run": "7", "__lance_commit_message": "embed"}
    assert transaction.uuid == done.transaction_uuid
    if stable:
        assert updated(dataset.uri) == {i: 3 if i in (0, 5, 9) else 1 for i in (0, 2, 3, 4, 5, 7, 8, 9)}
        assert sorted(dataset.delta(2).get_updated_rows().read_all()["id"].to_pylist()) == [0, 5, 9]


@BOTH
@pytest.mark.parametrize("missing", ["null", "keep"])
def test_values_of_a_column_in_a_scope(tmp_path, stable, missing):
    dataset = created(tmp_path / "t", stable=stable)
    done = dataset.write_columns({"id": [0, 8], "n": [-1, -2]}, on=["id"], where="day = 'd0'", missing=missing)
    lacking = {i: 100 + i if missing == "keep" else None for i in (2, 4)}
    assert column(dataset.uri, "n") == {0: -1, 3: 103, 5: 105, 7: 107, 8: -2, 9: 109, **lacking}
    assert (done.operation, done.rows_updated, done.rows_nulled) == (
        "Update",
        *((2, 0) if missing == "keep" else (4, 2)),
    )
    if stable:
        own = (0, 8) if missing == "keep" else (0, 2, 4, 8)
        assert updated(dataset.uri) == {i: 3 if i in own else 1 for i in (0, 2, 3, 4, 5, 7, 8, 9)}


@pytest.mark.parametrize("key", ["_rowid", "_rowaddr"])
@BOTH
def test_rows_by_their_ids_and_addresses(tmp_path, stable, key):
    dataset = created(tmp_path / "t", stable=stable)
    rows = dataset.to_table(["id"], with_row_id=True, with_row_address=True)
    data = pa.table({key: rows[key], "twice": pc.multiply(rows["id"], 2)}).take(list(reversed(range(len(rows)))))
    dataset.write_columns(data, on=key)
    assert column(dataset.uri, "twice") == {i: 2 * i for i in (0, 2, 3, 4, 5, 7, 8, 9)}


def vectors(count, width=4):
    return pa.FixedSizeListArray.from_arrays(pa.array(np.arange(count * width, dtype=np.float32)), width)


VALUES = {
    "vector": vectors(8),
    "string": pa.array([f"é{i}" * i if i % 3 else None for i in range(8)]),
    "list": pa.array([[i] * i if i != 3 else None for i in range(8)], pa.list_(pa.int32())),
    "struct": pa.array([{"a": i, "b": {"c": str(i)}} for i in range(8)]),
    "dictionary": pa.array(["x", "y", None, "x", "z", "x", "y", "y"]).dictionary_encode(),
    "flag": pa.array([True, False, None, True, True, False, None, True]),
    "decimal": pa.array([None, *range(7)], pa.decimal128(20, 3)),
    "time": pa.array(range(8), pa.timestamp("us", tz="UTC")),
    "binary": pa.array([bytes([i]) * 3 for i in range(8)], pa.large_binary()),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_values_of_all_kinds(tmp_path, kind, version):
    dataset = created(tmp_path / "t", data_storage_version=version)
    ids, values = [0, 2, 3, 4, 5, 7, 8, 9], VALUES[kind]
    dataset.write_columns(pa.table({"id": ids, "v": values}), on="id")
    assert column(dataset.uri, "v") == dict(zip(ids, values.to_pylist(), strict=True))
    # Some of them again: the others are carried over.
    dataset.write_columns(pa.table({"id": [9, 2], "v": values.take(pa.array([1, 4]))}), on="id", missing="keep")
    expected = dict(zip(ids, values.to_pylist(), strict=True)) | {9: values[1].as_py(), 2: values[4].as_py()}
    assert column(dataset.uri, "v") == expected


def test_a_vector_index_of_pylance_covers_the_fragments_that_were_not_written(tmp_path):
    uri, count = str(tmp_path / "t"), 256
    table = pa.table({"id": range(count), "n": range(count), "vector": vectors(count)})
    lance.write_dataset(table, uri, max_rows_per_file=64, enable_stable_row_ids=True)
    lance.dataset(uri).create_index("vector", "IVF_FLAT", num_partitions=2, name="v")
    dataset = lance_core.dataset(uri)

    def covered():
        ours = {number for one in dataset.describe_indices() for part in one.segments for number in part.fragment_ids}
        theirs = {number for one in lance.dataset(uri).list_indices() for number in one["fragment_ids"]}
        assert ours == theirs
        return ours

    def nearest(value):
        query = {"column": "vector", "q": np.full(4, value, np.float32), "k": 1, "nprobes": 2}
        (row,) = lance.dataset(uri).to_table(["id"], nearest=query).to_pylist()
        return row["id"], row["_distance"]

    dataset.write_columns({"id": [70], "n": [0]}, on="id", missing="keep")
    assert covered() == {0, 1, 2, 3}
    moved = pa.FixedSizeListArray.from_arrays(pa.array([-5000.0] * 4, pa.float32()), 4)
    dataset.write_columns(pa.table({"id": [70], "vector": moved}), on="id", missing="keep")
    assert covered() == {0, 2, 3}
    assert nearest(-5000) == (70, 0)
    assert nearest(4 * 70 + 1.5) in ((69, 69), (71, 69))  # its old value is found no more
    assert nearest(4 * 200 + 1.5) == (200, 5)
    lance.dataset(uri).optimize.optimize_indices()
    dataset = lance_core.dataset(uri)
    assert covered() == {0, 1, 2, 3}
    assert nearest(-5000) == (70, 0)


def test_payloads_of_blobs(tmp_path):
    dataset = created(tmp_path / "t", data_storage_version="2.1")
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    dataset.write_columns(
        pa.table([[0, 9], [b"zero", b"nine"]], schema=pa.schema([("id", pa.int64()), field])), on="id"
    )
    dataset.write_columns(
        pa.table([[2], [b"two"]], schema=pa.schema([("id", pa.int64()), field])), on="id", missing="keep"
    )
    rows = dataset.to_table(["id", "b"], blob_handling="all_binary").to_pylist()
    assert {row["id"]: row["b"] for row in rows if row["b"]} == {0: b"zero", 2: b"two", 9: b"nine"}
    theirs = lance.dataset(dataset.uri)
    assert [blob.read() for blob in theirs.take_blobs("b", indices=[0, 1])] == [b"zero", b"two"]


def test_blobs_by_uri_lie_below_base_paths(tmp_path):
    """As in `insert`: whoever reads the table reads there with their own credentials."""
    photo = tmp_path / "photo.bin"
    photo.write_bytes(b"0123456789")
    schema = pa.schema([("id", pa.int64()), lance_core.blob_field("b")])
    rows = pa.table([[0, 1], lance_core.blob_array([b"zero", b"one"])], schema=schema)
    dataset = lance_core.write_dataset(rows, tmp_path / "t")
    given = pa.table({"id": [1], "b": [photo.as_uri()]})
    plan = dataset.plan_columns(pa.schema([("b", pa.string())]))
    for write in (
        lambda: dataset.write_columns(given, on="id", missing="keep"),
        lambda: plan.tasks[0].write(dataset, {"_rowaddr": pa.array([1], pa.uint64()), "b": [photo.as_uri()]}),
    ):
        with pytest.raises(InvalidInputError, match="outside of the dataset's base paths"):
            write()
    assert len(list((tmp_path / "t" / "data").glob("*.lance"))) == 1
    dataset.write_columns(given, on="id", missing="keep", allow_external_blob_outside_bases=True)
    dataset.write_columns({"id": [0], "b": [b"new"]}, on="id", missing="keep")  # the URI is kept as it is
    found = lance.dataset(dataset.uri).to_table(blob_handling="all_binary")["b"].to_pylist()
    assert found == [b"new", b"0123456789"]


def test_nothing_is_written_for_wrong_data(tmp_path):
    dataset = created(tmp_path / "t")
    files = sorted((tmp_path / "t").rglob("*"))
    for data, options, error, message in [
        ({"id": [0, 0], "v": [1, 2]}, {}, InvalidInputError, "1 keys occur twice in the data, such as 0"),
        ({"id": [None, 0], "v": [1, 2]}, {}, InvalidInputError, "the key is null in 1 rows of the data"),
        ({"id": [0, 77, 1], "v": [1, 2, 3]}, {}, InvalidInputError, "2 of 3 rows of the data.*such as 77, 1; nothing"),
        ({"id": [0, 3], "v": [1, 2]}, {"where": "day = 'd0'"}, InvalidInputError, "1 of 2 rows of the data.*such as 3"),
        (
            {"day": ["d1"], "v": [1]},
            {"on": "day"},
            InvalidInputError,
            "1 keys of the data occur twice in .*such as 'd1'",
        ),
        (
            {"id": [0], "v": [1]},
            {"missing": "error"},
            InvalidInputError,
            "the data lacks 2 of 3 rows of fragment 0.*row 2",
        ),
        (
            {"id": [0], "v": [1]},
            {"missing": "drop"},
            InvalidInputError,
            "missing is one of null, keep, error, not 'drop'",
        ),
        ({"id": [0], "n": ["x"]}, {}, SchemaError, "`n` should have type int64 but type was string"),
        ({"id": ["a"], "v": [1]}, {}, SchemaError, "key column 'id' is string in the data and int64 in the table"),
        ({"id": [0]}, {}, InvalidInputError, "nothing to write"),
        ({"v": [0]}, {}, SchemaError, "the data lacks the key column 'id'"),
        ({"x": [0], "v": [1]}, {"on": "x"}, SchemaError, "the table has no key column 'x'"),
        ({"id": [0], "v": [1]}, {"on": []}, InvalidInputError, "on names no column"),
        ({"id": [0], "_rowid": [1], "v": [1]}, {"on": ["id", "_rowid"]}, InvalidInputError, "each identify a row"),
        ({"id": [0], "a.b": [1]}, {}, SchemaError, "cannot contain a dot"),
        ({"id": [0], "v": [1]}, {"where": "nope = 1"}, InvalidInputError, "nope"),
    ]:
        with pytest.raises(error, match=message):
            dataset.write_columns(data, **{"on": "id", **options})
    assert sorted((tmp_path / "t").rglob("*")) == files


@pytest.mark.parametrize("names", [["id", "v", "v"], ["id", "n", "n"], ["id", "id", "v"]])
def test_a_column_name_that_occurs_twice_is_named(tmp_path, names):
    dataset = created(tmp_path / "t")
    files = sorted((tmp_path / "t").rglob("*"))
    data = pa.table([[0], [1], [2]], names=names)
    twice = next(name for name in names if names.count(name) > 1)
    for missing in ("null", "keep", "error"):
        with pytest.raises(SchemaError, match=f"column name '{twice}' occurs twice"):
            dataset.write_columns(data, on="id", missing=missing)
    with pytest.raises(SchemaError, match=f"column name '{twice}' occurs twice"):
        dataset.write_columns(iter(data.to_batches()), on="id", schema=data.schema)
    with pytest.raises(SchemaError, match=f"column name '{twice}' occurs twice"):
        dataset.plan_columns(data.schema)
    (task, *_) = dataset.plan_columns(pa.schema([("v", pa.int64())])).tasks
    with pytest.raises(SchemaError, match="column name 'v' occurs twice"):
        task.write(dataset, pa.table([pa.array([0], pa.uint64()), [1], [2]], names=["_rowaddr", "v", "v"]))
    assert sorted((tmp_path / "t").rglob("*")) == files


def test_a_column_without_nulls_keeps_its_rows(tmp_path):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    dataset = lance_core.write_dataset(pa.table([[1, 2, 3], [1, 2, 3]], schema=schema), tmp_path / "t")
    dataset.delete("id = 2")
    one = pa.table([[3], [33]], schema=schema)
    with pytest.raises(SchemaError, match="column 'n' allows no null, and the data lacks 1 rows; missing='keep'"):
        dataset.write_columns(one, on="id")
    dataset.write_columns(one, on="id", missing="keep")
    assert column(dataset.uri, "n") == {1: 1, 3: 33}


def test_files_of_version_0_1(tmp_path):
    dataset = lance_core.write_dataset(table(), tmp_path / "t", data_storage_version="0.1")
    with pytest.raises(UnsupportedError, match=r"file version 0\.1"):
        dataset.write_columns({"id": [1], "v": [1]}, on="id")


def test_no_row_and_no_column_makes_no_version(tmp_path):
    dataset = created(tmp_path / "t")
    done = dataset.write_columns(table().slice(0, 0).select(["id", "n"]), on="id", missing="keep")
    assert (done.version, done.operation, done.files) == (2, "", 0)
    assert (
        dataset.write_columns(pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.int8())}), on="id").files
        == 0
    )
    assert column(dataset.uri, "v") == dict.fromkeys((0, 2, 3, 4, 5, 7, 8, 9))


def test_tasks_run_anywhere_and_are_committed_once(tmp_path):
    dataset = created(tmp_path / "t")
    plan = pickle.loads(pickle.dumps(dataset.plan_columns(pa.schema([("v", pa.int64())]), where="id > 2")))
    assert [(task.fragment_id, task.num_rows) for task in plan.tasks] == [(0, 1), (1, 3), (2, 2)]
    rows = lance_core.dataset(dataset.uri).to_table(["id"], "id > 2", with_row_address=True)
    written = []
    for task in plan.tasks:
        own = rows.filter(pc.equal(pc.shift_right(rows["_rowaddr"], pa.scalar(32, pa.uint64())), task.fragment_id))
        values = pa.table({"_rowaddr": own["_rowaddr"], "v": own["id"]})
        there = pickle.loads(pickle.dumps(task))
        written.append(pickle.loads(pickle.dumps(there.write(lance_core.dataset(dataset.uri), values.to_reader()))))
    with pytest.raises(InvalidInputError, match="two files have columns of fragment 0"):
        dataset.commit_columns(plan, [*written, written[0]])
    done = dataset.commit_columns(plan, written)
    assert (done.version, done.rows_updated) == (3, 6)
    assert column(dataset.uri, "v") == {i: i if i > 2 else None for i in (0, 2, 3, 4, 5, 7, 8, 9)}


def test_a_commit_that_finds_itself_keeps_its_files(tmp_path):
    dataset = created(tmp_path / "t")
    plan = dataset.plan_columns(pa.schema([("v", pa.int64())]), where="id = 3")
    found = lance_core.dataset(dataset.uri).to_table(["id"], "id = 3", with_row_address=True)
    values = pa.table({"_rowaddr": found["_rowaddr"], "v": [7]})
    written = [task.write(dataset, values.to_reader()) for task in plan.tasks]
    for is_again in (False, True):
        done = dataset.commit_columns(plan, written, lance_core.Commit(idempotency_key=("batch", "1")))
        assert (done.version, done.deduplicated) == (3, is_again)
        assert column(dataset.uri, "v")[3] == 7
    lance_core.dataset(dataset.uri).validate()


@BOTH
@pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "lance_core"])
@pytest.mark.parametrize("appended", [0, 1])
def test_a_plan_for_a_table_that_was_made_again(tmp_path, stable, library, appended):
    uri = str(tmp_path / "t")
    library.write_dataset(table(4), uri, enable_stable_row_ids=stable)
    first = lance_core.dataset(uri)
    plan = first.plan_columns(pa.schema([("v", pa.int64())]))
    rows = first.to_table(["id"], with_row_address=True)
    shutil.rmtree(uri)
    library.write_dataset(table(4, start=100), uri, enable_stable_row_ids=stable)
    for _ in range(appended):
        library.write_dataset(table(4, start=200), uri, mode="append")
    again = lance_core.dataset(uri)
    written = plan.tasks[0].write(again, rows.rename_columns({"id": "v"}).select(["_rowaddr", "v"]).to_reader())
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        again.commit_columns(plan, [written])
    assert lance.dataset(uri).version == 1 + appended
    assert "v" not in lance.dataset(uri).schema.names


def test_a_task_rejects_rows_that_are_not_its_own(tmp_path):
    dataset = created(tmp_path / "t")
    (first, *_) = dataset.plan_columns(pa.schema([("v", pa.int64())])).tasks
    for addresses, message in [
        ([1], "1 rows of the data are deleted, or not in the scope: fragment 0, rows \\[1\\]"),
        ([0, 0], "row 0 of fragment 0 has two values"),
        ([1 << 32], "row address 4294967296 is in fragment 1, not in fragment 0"),
        ([None], "without nulls"),
    ]:
        values = pa.table({"_rowaddr": pa.array(addresses, pa.uint64()), "v": [1] * len(addresses)})
        with pytest.raises(InvalidInputError, match=message):
            first.write(dataset, values)


def test_only_the_columns_files_are_written_and_read(tmp_path):
    rows = 4000
    payload = pa.array([np.random.default_rng(i).bytes(2000) for i in range(rows)], pa.large_binary())
    width = 64
    values = pa.FixedSizeListArray.from_arrays(
        pa.array(np.random.default_rng(0).random(rows * width, dtype=np.float32)), width
    )
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(
        pa.table({"id": range(rows), "payload": payload}), uri, max_rows_per_file=1000, enable_stable_row_ids=True
    )
    before = lance_core.bytes_read_counter()
    done = dataset.write_columns(pa.table({"id": range(rows), "v": values}), on="id")
    read = lance_core.bytes_read_counter() - before
    assert values.nbytes * 0.9 < done.bytes_written < values.nbytes * 1.1
    assert read < 400_000  # keys, manifests, and 64 KiB at the end of each of four files; payloads are 8 MB
    before = lance_core.bytes_read_counter()
    again = dataset.write_columns(pa.table({"id": range(rows), "v": values}), on="id")
    assert lance_core.bytes_read_counter() - before < 800_000  # all rows are set, so that no old value is read
    assert again.operation == "Update"


def test_indices_of_the_column_stay_true(tmp_path):
    dataset = created(tmp_path / "t")
    lance.dataset(dataset.uri).create_scalar_index("n", "BTREE")
    lance.dataset(dataset.uri).create_scalar_index("id", "ZONEMAP")
    dataset = lance_core.dataset(dataset.uri)
    dataset.write_columns({"id": [0, 9], "n": [500, 900]}, on="id", missing="keep")
    for library in (lance, lance_core):
        found = library.dataset(dataset.uri)
        assert found.to_table(filter="n = 900")["id"].to_pylist() == [9]
        assert found.to_table(filter="n = 100").num_rows == 0
        assert found.to_table(filter="n = 104")["id"].to_pylist() == [4]
        assert found.to_table(filter="id = 9")["n"].to_pylist() == [900]


def test_branches_and_restores(tmp_path):
    dataset = created(tmp_path / "t")
    dataset.add_columns(pa.field("v", pa.int64()))
    branch = dataset.create_branch("embed")
    branch.write_columns({"id": [0], "v": [7]}, on="id")
    assert branch.to_table(["v"])["v"].to_pylist()[0] == 7
    assert column(dataset.uri, "v")[0] is None
    dataset.branches.promote("embed")
    assert column(dataset.uri, "v")[0] == 7
    lance_core.dataset(dataset.uri, version=2).restore()
    assert "v" not in lance.dataset(dataset.uri).schema.names
    latest = lance_core.dataset(dataset.uri)
    latest.write_columns({"id": [2], "v": ["other"]}, on="id")
    assert column(dataset.uri, "v")[2] == "other"


# Others commit between the version that was read and the commit.


def write(dataset, *, where=None, missing="keep", name="v"):
    """Set a column of all rows of the handle's version to ten times their id."""
    rows = dataset.to_table(["id"], where)
    data = pa.table({"id": rows["id"], name: pc.multiply(rows["id"], 10)})
    return dataset.write_columns(data, on="id", where=where, missing=missing)


@pytest.mark.variants(9)
@BOTH
@pytest.mark.parametrize("first", [True, False], ids=["new column", "column"])
@pytest.mark.parametrize(
    "other",
    [
        "append",
        "delete",
        "delete fragment",
        "compact",
        "index",
        "config",
        "column",
        "same column",
        "drop other",
        "rename",
    ],
)
def test_others_that_are_followed(tmp_path, stable, first, other):
    stale = created(tmp_path / "t", stable=stable)
    uri = stale.uri
    if not first:
        stale.write_columns({"id": [0], "v": [-5]}, on="id")
    theirs = lance.dataset(uri)
    ids, name = {0, 2, 3, 4, 5, 7, 8, 9}, "v"
    if other == "append":
        lance.write_dataset(table(2, start=20), uri, mode="append") if first else theirs.insert(
            table(2, start=20).append_column("v", pa.array([1, 2]))
        )
    elif other == "delete":
        theirs.delete("id in (0, 9)")
        ids -= {0, 9}
    elif other == "delete fragment":
        theirs.delete("id < 4")
        ids -= {0, 2, 3}
    elif other == "compact":
        theirs.optimize.compact_files()
    elif other == "index":
        theirs.create_scalar_index("n", "BTREE")
    elif other == "config":
        theirs.update_config({"owner": "us"})
    elif other == "column":
        theirs.add_columns({"w": "n + 1"})
    elif other == "same column":
        lance_core.dataset(uri).write_columns({"id": [2, 8], "v": [-1, -1]}, on="id", missing="keep")
    elif other == "drop other":
        theirs.drop_columns(["day"])
    elif other == "rename":
        if first:
            theirs.alter_columns({"path": "n", "name": "m"})
        else:
            theirs.alter_columns({"path": "v", "name": "u"})
            name = "u"
    files = set((tmp_path / "t" / "data").iterdir())
    done = write(stale)
    found = column(uri, name)
    assert {i: found[i] for i in ids} == {i: 10 * i for i in ids}
    if other == "append":
        assert [found[20], found[21]] == ([None, None] if first else [1, 2])
    if other == "column":
        assert column(uri, "w")[4] == 105
    assert done.version == stale.version == lance.dataset(uri).version
    # Files that were not needed in the end are deleted.
    assert len(set((tmp_path / "t" / "data").iterdir()) - files) == done.files
    kept = {"compact", "delete fragment"} & {other} or (other == "same column")
    assert bool(done.files_rewritten) == bool(kept and other != "delete fragment")


@pytest.mark.parametrize("first", [True, False], ids=["new column", "column"])
def test_rows_that_an_update_moved_are_found_by_their_ids(tmp_path, first):
    stale = created(tmp_path / "t")
    if not first:
        stale.write_columns({"id": [0], "v": [-5]}, on="id")
    lance.dataset(stale.uri).update({"n": "0"}, where="id in (0, 5)")
    lance.dataset(stale.uri).optimize.compact_files()
    write(stale)
    assert column(stale.uri, "v") == {i: 10 * i for i in (0, 2, 3, 4, 5, 7, 8, 9)}
    assert column(stale.uri, "n")[5] == 0


@pytest.mark.parametrize("first", [True, False], ids=["new column", "column"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_rows_that_others_changed_meanwhile_are_counted_once(tmp_path, monkeypatch, first, again):
    stale = created(tmp_path / "t")
    if not first:
        stale.write_columns({"id": [0], "v": [-5]}, on="id")
    lance.dataset(stale.uri).update({"n": "0"}, where="id in (0, 5)")
    lance.dataset(stale.uri).delete("id = 3")
    fit, calls = commit.rebased_columns, []

    def beside_others(pending, latest):
        found = fit(pending, latest)
        if again and not calls:
            lance.dataset(stale.uri).update({"n": "1"}, where="id in (0, 8)")
        calls.append(latest.version)
        return found

    monkeypatch.setattr(commit, "rebased_columns", beside_others)
    done = write(stale)
    assert len(calls) == 1 + again
    assert column(stale.uri, "v") == {i: 10 * i for i in (0, 2, 4, 5, 7, 8, 9)}
    assert done.rows_updated == 7


NULLED = {
    "deletes a value": (lambda d: d.delete("id = 0"), 3, 2),
    "deletes a null": (lambda d: d.delete("id = 2"), 3, 1),
    "updates in place": (lambda d: d.update({"n": "n + 1"}, where="id IN (2, 8)", write_mode="rewrite_columns"), 4, 2),
    "compacts": (lambda d: d.optimize.compact_files(), 4, 2),
    "deletes and compacts": (lambda d: d.delete("id IN (4, 8)") and d.optimize.compact_files(), 2, 1),
}


@BOTH
@pytest.mark.parametrize("meanwhile", NULLED)
def test_nulls_are_counted_where_they_are(tmp_path, stable, meanwhile):
    happens, updated_rows, nulled = NULLED[meanwhile]
    stale = created(tmp_path / "t", stable=stable)
    plan = stale.plan_columns(pa.schema([("n", pa.int64())]), where="day = 'd0'", missing="null")
    rows = stale.to_table(["id"], with_row_address=True, filter="id IN (0, 8)")
    data = pa.table({"_rowaddr": rows["_rowaddr"], "n": [-1, -2]})
    written = []
    for task in plan.tasks:
        own = pc.equal(pc.shift_right(data["_rowaddr"], pa.scalar(32, pa.uint64())), task.fragment_id)
        written.append(task.write(stale, data.filter(own)))
    happens(lance_core.dataset(stale.uri))
    done = stale.commit_columns(plan, written)
    assert (done.rows_updated, done.rows_nulled) == (updated_rows, nulled)
    found = column(stale.uri, "n")
    assert nulled == sum(found.get(i, 0) is None for i in (2, 4))


def test_rows_that_came_into_another_order_are_found(tmp_path):
    stale = created(tmp_path / "t")
    for i in (3, 5, 0, 4):
        lance.dataset(stale.uri).update({"n": "0"}, where=f"id = {i}")
    lance.dataset(stale.uri).optimize.compact_files()
    assert lance.dataset(stale.uri).to_table()["id"].to_pylist() == [2, 7, 8, 9, 3, 5, 0, 4]
    other = lance_core.dataset(stale.uri, version=2)
    write(stale, where="id in (0, 3, 5, 8)")
    assert column(stale.uri, "v") == {i: 10 * i if i in (0, 3, 5, 8) else None for i in (0, 2, 3, 4, 5, 7, 8, 9)}
    write(other)
    assert column(stale.uri, "v") == {i: 10 * i for i in (0, 2, 3, 4, 5, 7, 8, 9)}


def test_rows_that_an_update_moved_without_stable_ids(tmp_path):
    stale = created(tmp_path / "t", stable=False)
    lance.dataset(stale.uri).update({"n": "0"}, where="id in (0, 5)")
    plan = stale.plan_columns(pa.schema([("v", pa.int64())]))
    rows = stale.to_table(["id"], with_row_address=True)
    with pytest.raises(RetryableConflictError, match="rows whose columns were written have moved"):
        stale.write_columns(pa.table({"_rowaddr": rows["_rowaddr"], "v": rows["id"]}), on="_rowaddr")
    assert lance.dataset(stale.uri).version == 3
    assert plan.version == 2
    write(stale)  # by key: matched again
    assert column(stale.uri, "v") == {i: 10 * i for i in (0, 2, 3, 4, 5, 7, 8, 9)}


def inserts(uri):
    lance_core.dataset(uri).insert(table(1, 20))
    lance.dataset(uri).update({"n": "0"}, where="id = 5")


def upserts(uri):
    rows = pa.concat_tables([table(1, 5), table(1, 20)])
    lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)


def moves_into_the_scope(uri):
    lance.dataset(uri).update({"day": "'d0'"}, where="id = 5")


@BOTH
@pytest.mark.parametrize("others", [inserts, upserts, moves_into_the_scope])
@pytest.mark.parametrize("where", [None, "day = 'd0'"])
def test_rows_that_others_inserted_or_moved_into_the_scope_keep_their_values(tmp_path, stable, others, where):
    stale = created(tmp_path / "t", stable=stable)
    seen = set(stale.to_table(["id"], filter=where)["id"].to_pylist())
    others(stale.uri)
    stale.write_columns({"id": [0], "n": [-1]}, on="id", where=where)
    now = lance_core.dataset(stale.uri).checkout_version(lance_core.dataset(stale.uri).version - 1)
    before = dict(zip(*now.to_table(["id", "n"]).to_pydict().values(), strict=True))
    assert column(stale.uri, "n") == {i: -1 if i == 0 else None if i in seen else n for i, n in before.items()}


@pytest.mark.parametrize("key", [["id"], ["day", "id"]])
def test_all_rows_of_the_version_are_enough_beside_an_insert(tmp_path, key):
    stale = created(tmp_path / "t", stable=False)
    rows = stale.to_table([*key, "n"])
    inserts(stale.uri)
    stale.write_columns(rows.set_column(len(key), "n", pc.multiply(rows["n"], 2)), on=key, missing="error")
    assert column(stale.uri, "n") == {i: 120 if i == 20 else 200 + 2 * i for i in (0, 2, 3, 4, 5, 7, 8, 9, 20)}


def test_moved_rows_that_the_key_does_not_identify(tmp_path):
    stale = created(tmp_path / "t", stable=False)
    update = lance.dataset(stale.uri).update
    update({"n": "0"}, where="id = 5")
    stale.insert(table(1, 20))
    twice = lance_core.dataset(stale.uri)
    twice.insert(table(1, 20))
    lance.dataset(stale.uri).update({"n": "0"}, where="id = 7")
    with pytest.raises(IncompatibleConflictError, match=r"not unique, .* open the table again"):
        twice.checkout_version(twice.version).write_columns({"id": [0], "n": [-1]}, on="id")
    assert 0 not in [n for i, n in column(stale.uri, "n").items() if i not in (5, 7)]


def test_moved_rows_beside_a_replaced_partition(tmp_path):
    stale = created(tmp_path / "t", stable=False)
    new = pa.table({"id": pa.array([3], pa.int64()), "day": ["d1"], "n": [7]})
    slices = lance_core.Slices([lance_core.Slice(name="d1", conditions={"day": lance_core.Equals("d1")})])
    fragments = lance_core.write_fragments(new, stale.uri, mode="append")
    lance_core.commit_fragments(stale.uri, fragments, new.schema, mode="replace", slices=slices)
    lance.dataset(stale.uri).update({"n": "0"}, where="id = 4")
    with pytest.raises(IncompatibleConflictError, match=r"replaced a partition, .* open the table again"):
        stale.write_columns({"id": [3, 4], "n": [-1, -1]}, on="id", missing="keep")
    assert column(stale.uri, "n")[3] == 7


@pytest.mark.parametrize("other", ["overwrite", "restore", "drop", "drop and add", "cast", "other type"])
def test_others_that_rule_it_out(tmp_path, other):
    stale = created(tmp_path / "t")
    if other != "other type":
        stale.write_columns({"id": [0], "v": [-5]}, on="id")
    theirs = lance.dataset(stale.uri)
    if other == "overwrite":
        lance.write_dataset(table(), stale.uri, mode="overwrite")
    elif other == "restore":
        lance.dataset(stale.uri, version=2).restore()
    elif other == "drop":
        theirs.drop_columns(["v"])
    elif other == "drop and add":  # the new column has the id of the old one
        theirs.drop_columns(["v"])
        lance.dataset(stale.uri).add_columns({"v": "n + 1000"})
    elif other == "cast":
        theirs.alter_columns({"path": "v", "data_type": pa.int32()})
    else:
        lance_core.dataset(stale.uri).write_columns({"id": [0], "v": ["x"]}, on="id")
    files, version = set((tmp_path / "t" / "data").iterdir()), lance.dataset(stale.uri).version
    with pytest.raises(IncompatibleConflictError, match="Incompatible transaction"):
        write(stale)
    assert lance.dataset(stale.uri).version == version
    assert set((tmp_path / "t" / "data").iterdir()) == files


def test_two_columns_and_two_partitions_at_the_same_time(tmp_path):
    dataset = created(tmp_path / "t")
    handles = [lance_core.dataset(dataset.uri) for _ in range(4)]
    for handle, name, day in zip(handles, ("v", "v", "w", "w"), ("d0", "d1", "d0", "d1"), strict=True):
        write(handle, where=f"day = '{day}'", missing="null", name=name)
    assert column(dataset.uri, "v") == column(dataset.uri, "w") == {i: 10 * i for i in (0, 2, 3, 4, 5, 7, 8, 9)}
    assert lance.dataset(dataset.uri).version == 6


def test_attempts_of_one_write(tmp_path):
    def attempt(number):
        return lance_core.WriteAttempt(token=("run", "a"), number=(number,))

    first = created(tmp_path / "t")
    second = lance_core.dataset(first.uri)
    third = lance_core.dataset(first.uri)
    first.write_columns({"id": [0], "v": [1]}, on="id", write_attempt=attempt(1))
    third.write_columns({"id": [0], "v": [3]}, on="id", write_attempt=attempt(3))
    with pytest.raises(SupersededError):
        second.write_columns({"id": [0], "v": [2]}, on="id", write_attempt=attempt(2))
    assert column(first.uri, "v")[0] == 3


def test_an_idempotency_key(tmp_path):
    dataset = created(tmp_path / "t")
    for number in range(2):
        done = dataset.write_columns({"id": [0], "v": [number]}, on="id", idempotency_key=("batch", "1"))
        assert done.deduplicated == bool(number)
    assert column(dataset.uri, "v")[0] == 0
    assert dataset.version == 3
    with pytest.raises(InvalidInputError, match="give one of them"):
        dataset.write_columns(
            {"id": [0], "v": [1]},
            on="id",
            idempotency_key=("a", "b"),
            write_attempt=lance_core.WriteAttempt(token=("a", "b")),
        )


@pytest.mark.parametrize("kind", ["json", "uuid"])
def test_keys_of_extension_types(tmp_path, kind):
    texts = {"json": ['{"a":1}', '{"b":2}', '{"c":3}'], "uuid": [b"a" * 16, b"b" * 16, b"c" * 16]}[kind]
    of_type = pa.json_() if kind == "json" else pa.uuid()
    keys = pa.ExtensionArray.from_storage(of_type, pa.array(texts, of_type.storage_type))
    table = lance_core.write_dataset(pa.table({"key": keys, "x": [1, 2, 3]}), tmp_path / "t.lance")
    table.write_columns(pa.table({"key": keys.take(pa.array([2, 0, 1])), "x": [9, 8, 7]}), "key")
    table.checkout_latest()
    assert table.to_table()["x"].to_pylist() == lance.dataset(table.uri).to_table()["x"].to_pylist() == [8, 7, 9]
    unknown = pa.array(['{"d":4}' if kind == "json" else b"d" * 16], of_type.storage_type)
    data = pa.table({"key": pa.ExtensionArray.from_storage(of_type, unknown), "x": [7]})
    with pytest.raises(InvalidInputError, match="1 of 1 rows of the data are not among"):
        table.write_columns(data, "key")
