"""Commits of written fragments: modes, replacement of slices, races, exactly-once."""

import pickle

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import (
    Commit,
    Equals,
    FragmentWriter,
    Slice,
    Slices,
    WriteAttempt,
    WriteResult,
    commit_fragments,
    write_fragments,
)
from lance_core.errors import DatasetExistsError, InvalidInputError, RetryableConflictError, SchemaError


def rows(part: str, *values: int) -> pa.Table:
    return pa.table({"p": pa.array([part] * len(values), pa.string()), "v": pa.array(values, pa.int64())})


def slices(*parts: str) -> Slices:
    return Slices([Slice(name=p, conditions={"p": Equals(p)}) for p in parts])


def replace(uri, part: str, *values: int, **options):
    dataset = options.pop("dataset", None)
    schema = dataset.lance_schema_bytes if dataset is not None else None
    table = rows(part, *values)
    fragments = write_fragments(table, uri, dataset_schema=schema) if values else []
    version = dataset.version if dataset is not None else None
    return commit_fragments(
        uri, fragments, table.schema, mode="replace", slices=slices(part), read_version=version, **options
    )


def content(uri) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in lance.dataset(uri).to_table().to_pylist():
        found.setdefault(row["p"], []).append(row["v"])
    assert lance_core.dataset(uri).to_table().to_pylist() == lance.dataset(uri).to_table().to_pylist()
    return {part: sorted(values) for part, values in found.items()}


@pytest.fixture
def table(tmp_path):
    """Fragment 0 mixes a and b, fragment 1 holds b, fragment 2 holds c."""
    uri = tmp_path / "t"
    lance_core.write_dataset(pa.concat_tables([rows("a", 1, 2), rows("b", 3)]), uri)
    lance_core.write_dataset(rows("b", 4, 5), uri, mode="append")
    return lance_core.write_dataset(rows("c", 6), uri, mode="append")


def test_replacing_a_slice_is_one_update(table):
    result = replace(table.uri, "b", 30, 31, dataset=table, commit=Commit(properties={"run": "r"}, message="again"))
    assert content(table.uri) == {"a": [1, 2], "b": [30, 31], "c": [6]}
    assert (result.version, result.operation, result.read_version) == (4, "Update", 3)
    assert (result.rows_added, result.rows_deleted, result.fragments_added, result.fragments_removed) == (2, 3, 1, 1)
    transaction = lance.dataset(table.uri).read_transaction(4)
    assert transaction.transaction_properties["run"] == "r"
    assert transaction.transaction_properties["__lance_commit_message"] == "again"


def test_an_empty_replacement_clears_the_slice(table):
    result = replace(table.uri, "b", dataset=table)
    assert content(table.uri) == {"a": [1, 2], "c": [6]}
    assert (result.rows_added, result.rows_deleted) == (0, 3)


def test_a_new_slice_deletes_nothing(table):
    result = replace(table.uri, "d", 7, dataset=table)
    assert result.rows_deleted == 0
    assert content(table.uri)["d"] == [7]


def test_stale_replacements_of_different_slices_all_commit_even_in_one_fragment(table):
    replace(table.uri, "a", 10, dataset=table)
    replace(table.uri, "b", 20, dataset=table)
    replace(table.uri, "c", 30, dataset=table)
    assert content(table.uri) == {"a": [10], "b": [20], "c": [30]}
    assert lance_core.dataset(table.uri).version == 6


@pytest.mark.parametrize("part", ["b", "new"])
def test_stale_replacements_of_one_slice_conflict(table, part):
    replace(table.uri, part, 10, dataset=table)
    with pytest.raises(RetryableConflictError):
        replace(table.uri, part, 20, dataset=table)
    assert content(table.uri)[part] == [10]


def test_a_replacement_follows_a_compaction(table):
    lance.dataset(table.uri).optimize.compact_files()
    replace(table.uri, "b", 50, dataset=table)
    assert content(table.uri) == {"a": [1, 2], "b": [50], "c": [6]}


def test_a_replacement_tolerates_an_append(table):
    lance.write_dataset(rows("a", 100), table.uri, mode="append")
    replace(table.uri, "b", 50, dataset=table)
    assert content(table.uri) == {"a": [1, 2, 100], "b": [50], "c": [6]}


def test_once_adopts_the_commit_that_succeeded(table):
    first = replace(table.uri, "b", 50, dataset=table, commit=Commit(idempotency_key=("token", "x")))
    again = replace(table.uri, "b", 51, dataset=table, commit=Commit(idempotency_key=("token", "x")))
    assert not first.deduplicated
    assert again.deduplicated
    assert again.version == first.version
    assert again.transaction_uuid == first.transaction_uuid
    assert content(table.uri)["b"] == [50]
    other = replace(table.uri, "c", 51, dataset=table, commit=Commit(idempotency_key=("token", "y")))
    assert not other.deduplicated


def test_once_holds_for_the_first_version_too(tmp_path):
    uri = tmp_path / "t"
    data = rows("a", 1)
    fragments = write_fragments(data, uri)
    stale = lance_core.verbs.write.commit_fragments.load_latest  # a writer that looked before the table was there
    commit_fragments(uri, fragments, data.schema, mode="create", commit=Commit(idempotency_key=("token", "x")))
    calls = iter([None])
    lance_core.verbs.write.commit_fragments.load_latest = lambda store, *rest: (
        next(calls) if calls.__length_hint__() else stale(store, *rest)
    )
    try:
        again = commit_fragments(
            uri,
            write_fragments(data, uri),
            data.schema,
            mode="overwrite",
            commit=Commit(idempotency_key=("token", "x")),
        )
    finally:
        lance_core.verbs.write.commit_fragments.load_latest = stale
    assert again.deduplicated
    assert lance_core.dataset(uri).version == 1


def test_modes_create_when_there_is_nothing(tmp_path):
    for mode in ("append", "overwrite", "create"):
        uri = tmp_path / mode
        data = rows("a", 1)
        commit_fragments(uri, write_fragments(data, uri), data.schema, mode=mode, table_config={"k": "v"})
        assert content(uri) == {"a": [1]}
        assert lance.dataset(uri).config() == {"k": "v"}
    with pytest.raises(DatasetExistsError):
        commit_fragments(uri, [], data.schema, mode="create")
    replaced = replace(tmp_path / "r", "a", 1)
    assert replaced.operation == "Overwrite"


@pytest.mark.parametrize(("mode", "versions"), [("overwrite", 1), ("append", 2)])
def test_configuration_comes_in_the_commit_that_has_a_place_for_it(table, mode, versions):
    data, before = rows("a", 1), lance_core.dataset(table.uri).version
    fragments = write_fragments(data, table.uri)
    commit_fragments(table.uri, fragments, data.schema, mode=mode, table_config={"k": "v"})
    assert lance.dataset(table.uri).config() == {"k": "v"}
    assert lance_core.dataset(table.uri).version == before + versions


def test_configuration_is_added_and_never_removed(table):
    lance.dataset(table.uri).update_config({"owner": "me"})
    replace(table.uri, "a", 1, table_config={"k": "v"}, dataset=lance_core.dataset(table.uri))
    assert lance.dataset(table.uri).config() == {"owner": "me", "k": "v"}
    version = lance_core.dataset(table.uri).version
    replace(table.uri, "a", 2, table_config={"k": "v"}, dataset=lance_core.dataset(table.uri))
    assert lance_core.dataset(table.uri).version == version + 1


def test_what_cannot_be_exact_is_rejected_before_the_commit(table):
    with pytest.raises(SchemaError, match="'p'"):
        commit_fragments(
            table.uri, [], table.schema, mode="replace", slices=Slices([Slice(name="1", conditions={"p": Equals(1)})])
        )
    with pytest.raises(InvalidInputError, match="slices"):
        commit_fragments(table.uri, [], table.schema, mode="replace")
    with pytest.raises(InvalidInputError, match="slices"):
        commit_fragments(table.uri, [], table.schema, mode="append", slices=slices("a"))
    with pytest.raises(InvalidInputError, match="mode"):
        commit_fragments(table.uri, [], table.schema, mode="upsert")
    with pytest.raises(SchemaError, match="unexpected"):
        commit_fragments(table.uri, [], pa.schema([("x", pa.int8())]), mode="append")
    assert lance_core.dataset(table.uri).version == 3


def test_a_writer_rolls_files_and_discards(tmp_path):
    with FragmentWriter(tmp_path / "t", rows("a").schema, max_rows_per_file=4, file_prefix="job-") as writer:
        for start in range(0, 10, 5):
            writer.write(rows("a", *range(start, start + 5)))
        fragments = writer.finish()
    assert [f.physical_rows for f in fragments] == [4, 4, 2]
    assert all(f.files[0].path.startswith("job-") for f in fragments)
    assert len(list((tmp_path / "t" / "data").iterdir())) == 3
    writer.discard()
    assert not list((tmp_path / "t" / "data").iterdir())
    empty = FragmentWriter(tmp_path / "t", rows("a").schema)
    assert empty.finish() == []


def test_a_dataset_travels_as_a_pickle(table):
    again = pickle.loads(pickle.dumps(table))
    assert (again.uri, again.version) == (table.uri, 3)
    assert again.to_table() == table.to_table()


def test_finding_a_commit_by_property(table):
    replace(table.uri, "b", 1, dataset=table, commit=Commit(properties={"run": "r7"}))
    lance.write_dataset(rows("z", 1), table.uri, mode="append")
    latest = lance_core.dataset(table.uri)
    version, transaction = latest.find_transaction("run", "r7")
    assert (version, transaction.transaction_properties["run"]) == (4, "r7")
    assert latest.find_transaction("run", "r8") is None
    assert latest.find_transaction("run", "r7", not_before=latest.timestamp) is None


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_columns_and_the_rows_that_have_them_come_in_one_version(table, mode):
    wider = rows("b", 50).append_column("w", pa.array(["x"]))
    added = [wider.schema.field("w")]
    fragments = write_fragments(wider, table.uri, dataset_schema=table.lance_schema_with(added))
    result = commit_fragments(
        table.uri,
        fragments,
        wider.schema,
        mode=mode,
        slices=slices("b") if mode == "replace" else None,
        read_version=table.version,
        commit=Commit(idempotency_key=("token", "x"), properties={"run": "r"}),
        add_columns=True,
        table_config={"k": "v"},
    )
    # Configuration is a version of its own.
    assert (result.version, result.operation, result.rows_added) == (table.version + 2, "Merge", 1)
    latest = lance.dataset(table.uri)
    assert [row["w"] for row in latest.to_table().to_pylist() if row["p"] == "b"] == (
        ["x"] if mode == "replace" else [None, None, None, "x"]
    )
    assert lance_core.dataset(table.uri).to_table() == latest.to_table()
    found = lance_core.dataset(table.uri)
    again = WriteResult.of_transaction(found, found.read_transaction(found.version))
    assert (again.rows_added, again.fragments_added, again.rows_written) == (1, 1, 1)
    properties = [latest.read_transaction(version).transaction_properties for version in (4, 5)]
    assert [p.get("run") for p in properties] == ["r", "r"]
    assert [p.get("token") for p in properties] == [None, "x"]


@pytest.mark.parametrize("stable", [False, True])
def test_columns_and_rows_beside_an_append_and_a_later_attempt(tmp_path, stable):
    uri = str(tmp_path / "t")
    base = lance_core.write_dataset(pa.table({"p": ["a", "b"]}), uri, max_rows_per_file=1, enable_stable_row_ids=stable)
    wider = pa.table({"p": ["b", "c"], "w": [1, 2]})
    schema = base.lance_schema_with([wider.schema.field("w")])
    lance.write_dataset(pa.table({"p": ["other"]}), uri, mode="append")
    for number in (1, 2):
        result = commit_fragments(
            uri,
            write_fragments(wider, uri, dataset_schema=schema),
            wider.schema,
            read_version=1 if number == 1 else 3,
            add_columns=True,
            commit=Commit(
                write_attempt=WriteAttempt(token=("t", "x"), number=(number,), earlier=() if number == 1 else (3,))
            ),
        )
        found = lance.dataset(uri)
        assert result.version == found.version == number + 2
        assert sorted((row["p"], row["w"]) for row in found.to_table().to_pylist() if row["w"]) == [("b", 1), ("c", 2)]
        assert sorted(row["p"] for row in found.to_table().to_pylist()) == ["a", "b", "b", "c", "other"]
        found.validate()
        ids = found.to_table(with_row_id=True)["_rowid"].to_pylist()
        assert len(set(ids)) == 5
    assert lance_core.dataset(uri).to_table() == found.to_table()


def test_a_slice_that_is_a_whole_fragment_is_replaced_with_a_new_column(tmp_path):
    uri = str(tmp_path / "t")
    base = lance_core.write_dataset(pa.table({"p": ["a", "b"], "x": [1, 2]}), uri, max_rows_per_file=1)
    lance.dataset(uri).create_scalar_index("x", "BTREE")
    wider = pa.table({"p": ["b"], "x": [3], "w": [1]})
    fragments = write_fragments(wider, uri, dataset_schema=base.lance_schema_with([wider.schema.field("w")]))
    done = commit_fragments(
        uri, fragments, wider.schema, mode="replace", slices=slices("b"), read_version=2, add_columns=True
    )
    assert (done.version, done.rows_added, done.rows_deleted) == (3, 1, 1)
    for library in (lance, lance_core):
        found = library.dataset(uri)
        assert found.to_table().to_pylist() == [{"p": "a", "x": 1, "w": None}, {"p": "b", "x": 3, "w": 1}]
        assert [found.count_rows(f"x = {x}") for x in (1, 2, 3)] == [1, 0, 1]
    lance.dataset(uri).optimize.compact_files()
    assert lance_core.dataset(uri).to_table().num_rows == 2


def test_columns_are_not_added_to_a_dataset_that_changed(table):
    wider = rows("b", 50).append_column("w", pa.array(["x"]))
    schema = table.lance_schema_with([wider.schema.field("w")])
    lance_core.dataset(table.uri).add_columns(pa.field("other", pa.int8()))
    fragments = write_fragments(wider, table.uri, dataset_schema=schema)
    with pytest.raises(RetryableConflictError, match="columns"):
        commit_fragments(table.uri, fragments, wider.schema, read_version=table.version, add_columns=True)


def test_what_was_written_counts_for_nothing_where_an_earlier_commit_was_adopted(tmp_path):
    rows = pa.table({"a": [1, 2]})
    fragments = write_fragments(rows, tmp_path / "t")
    done = commit_fragments(tmp_path / "t", fragments, rows.schema, commit=Commit(idempotency_key=("key", "1")))
    result = WriteResult.of(done, fragments, 2, {"one": 2})
    assert (result.dataset, result.version, result.rows_added) == (done.dataset, 1, 2)
    assert (result.rows_written, result.files, result.slice_rows) == (2, 1, {"one": 2})
    assert result.bytes_written == fragments[0].num_bytes
    again = commit_fragments(
        tmp_path / "t", fragments, rows.schema, commit=Commit(idempotency_key=("key", "1")), read_version=0
    )
    adopted = WriteResult.of(again, fragments, 2, {"one": 2})
    assert (adopted.deduplicated, adopted.rows_written, adopted.files, adopted.slice_rows) == (True, 0, 0, {})
