"""New rows beside a change that gives a column another field id: their values must not be read as nulls."""

import contextlib
import json
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CommitConflictError, RetryableConflictError
from lance_core.maintenance import change_type

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int32()), ("s", pa.struct([("a", pa.int32()), ("b", pa.int32())]))])
LIBRARIES = [lance_core, lance]


def rows(*ids):
    return pa.Table.from_pylist([{"id": i, "k": 10 * i, "s": {"a": i, "b": i}} for i in ids], SCHEMA)


@pytest.fixture
def table(tmp_path):
    return lance_core.write_dataset(rows(1, 2), tmp_path / "t", enable_stable_row_ids=True)


def cast(library):
    return lambda uri: library.dataset(uri).alter_columns({"path": "k", "data_type": pa.int64()})


def cast_nested(library):
    return lambda uri: library.dataset(uri).alter_columns({"path": "s.a", "data_type": pa.int64()})


def cast_and_rename(library):
    return lambda uri: library.dataset(uri).alter_columns({"path": "k", "name": "other", "data_type": pa.int64()})


def rename_then_cast(library):
    def change(uri):
        library.dataset(uri).alter_columns({"path": "k", "name": "other"})
        library.dataset(uri).alter_columns({"path": "other", "data_type": pa.int64()})

    return change


def drop_and_add(library):
    def change(uri):
        library.dataset(uri).drop_columns(["k"])
        library.dataset(uri).add_columns(pa.field("k", pa.int32()))

    return change


def drop_and_add_other_kind(library):
    def change(uri):
        library.dataset(uri).drop_columns(["s"])
        library.dataset(uri).add_columns(pa.field("s", pa.int32()))

    return change


def convert(uri):
    change_type(lance_core.dataset(uri), "k", pa.int64(), lambda values, field: values.cast(field.type))


CHANGES = [
    convert,
    *(
        change(library)
        for change in (cast, cast_nested, cast_and_rename, rename_then_cast, drop_and_add, drop_and_add_other_kind)
        for library in LIBRARIES
    ),
]


def by_stream(table, change):
    def batches():
        yield from rows(9).to_batches()
        change(table.uri)

    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches())
    lance_core.write_dataset(reader, table.uri, mode="append")


def by_insert(table, change):
    change(table.uri)
    table.insert(rows(9))


def by_fragments(table, change):
    fragments = lance_core.write_fragments(rows(9), table)
    change(table.uri)
    lance_core.commit_fragments(table.uri, fragments, SCHEMA, read_version=1)


def by_fragments_on_handle(table, change):
    fragments = lance_core.write_fragments(rows(9), table)
    change(table.uri)
    lance_core.commit_fragments(table, fragments, SCHEMA)


def by_fragments_with_the_schema_of_now(table, change):
    fragments = lance_core.write_fragments(rows(9), table)
    change(table.uri)
    lance_core.commit_fragments(table.uri, fragments, lance_core.dataset(table.uri).schema)


def by_replacement_with_the_schema_of_now(table, change):
    fragments = lance_core.write_fragments(rows(9), table)
    change(table.uri)
    nine = lance_core.Slice(name="9", conditions={"id": lance_core.Equals(9)})
    schema = lance_core.dataset(table.uri).schema
    lance_core.commit_fragments(table.uri, fragments, schema, mode="replace", slices=lance_core.Slices([nine]))


def by_operation(table, change):
    fragments = lance_core.write_fragments(rows(9), table)
    change(table.uri)
    lance_core.LanceDataset.commit(table.uri, lance_core.LanceOperation.Append(fragments), read_version=1)


def by_operation_of_pylance_files(table, change):
    written = lance.fragment.write_fragments(rows(9), lance.dataset(table.uri))
    fragments = [lance_core.FragmentMetadata.from_json(json.dumps(one.to_json())) for one in written]
    change(table.uri)
    lance_core.LanceDataset.commit(table.uri, lance_core.LanceOperation.Append(fragments), read_version=1)


def by_update(table, change):
    fragments = lance_core.write_fragments(rows(9), table)
    change(table.uri)
    update = lance_core.LanceOperation.Update(new_fragments=fragments)
    lance_core.LanceDataset.commit(table.uri, update, read_version=lance_core.dataset(table.uri).version)


def by_detached_commit(table, change):
    fragments = lance_core.write_fragments(rows(9), table)
    change(table.uri)
    now = lance_core.dataset(table.uri).version
    append = lance_core.LanceOperation.Append(fragments)
    lance_core.LanceDataset.commit(table.uri, append, read_version=now, detached=True)


WRITES = [
    by_stream,
    by_insert,
    by_fragments,
    by_fragments_on_handle,
    by_fragments_with_the_schema_of_now,
    by_replacement_with_the_schema_of_now,
    by_operation,
    by_operation_of_pylance_files,
    by_update,
    by_detached_commit,
]
OF_NOW = {by_fragments_with_the_schema_of_now, by_replacement_with_the_schema_of_now, by_update, by_detached_commit}


"""Writes for which no version since the read version shows that a column was renamed."""

PAIRS = [
    pytest.param(change, write, id=f"{change.__qualname__.partition('.')[0]}-{write.__name__}")
    for change in CHANGES
    for write in WRITES
    if write not in OF_NOW or "rename" not in change.__qualname__
]


@pytest.mark.variants(43)
@pytest.mark.parametrize(("change", "write"), PAIRS)
def test_rows_of_the_old_column_are_rejected(table, change, write):
    with pytest.raises(RetryableConflictError) as error:
        write(table, change)
    now = lance_core.dataset(table.uri)
    assert now.count_rows() == 2
    assert "write the rows again" in str(error.value) or "do the write again" in str(error.value)


def test_the_message_names_the_column_and_the_remedy(table):
    with pytest.raises(RetryableConflictError, match=r"values of column 's\.a', which got another type .*; write the"):
        by_insert(table, cast_nested(lance_core))


def test_the_rows_can_be_written_again(table):
    with contextlib.suppress(RetryableConflictError):
        by_insert(table, drop_and_add(lance_core))
    lance_core.dataset(table.uri).insert(rows(9))
    for library in LIBRARIES:
        assert library.dataset(table.uri).to_table(filter="id = 9")["k"].to_pylist() == [90]


def test_it_is_known_after_a_cleanup_of_the_read_version(table):
    fragments = lance_core.write_fragments(rows(9), table)
    table.insert(rows(3))
    cast(lance_core)(table.uri)
    lance_core.dataset(table.uri).delete("id = 1")
    lance_core.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0))
    with pytest.raises(CommitConflictError):
        lance_core.LanceDataset.commit(table.uri, lance_core.LanceOperation.Append(fragments), read_version=1)


def drop(uri):
    lance_core.dataset(uri).drop_columns(["k"])


def drop_nested(uri):
    lance_core.dataset(uri).drop_columns(["s.a"])


def rename(uri):
    lance_core.dataset(uri).alter_columns({"path": "k", "name": "other"})


def drop_and_rename(uri):
    lance_core.dataset(uri).drop_columns(["k"])
    lance_core.dataset(uri).alter_columns({"path": "id", "name": "key"})


def add(uri):
    lance_core.dataset(uri).add_columns(pa.field("new", pa.int32()))


def drop_and_add_another(uri):
    drop(uri)
    add(uri)


@pytest.mark.parametrize("write", [by_stream, by_insert, by_fragments, by_operation, by_operation_of_pylance_files])
@pytest.mark.parametrize("change", [drop, drop_nested, rename, drop_and_rename, add, drop_and_add_another])
def test_rows_that_could_have_been_appended_before_are_kept(table, change, write):
    write(table, change)
    ours, theirs = (library.dataset(table.uri).to_table() for library in LIBRARIES)
    assert ours == theirs
    assert ours.num_rows == 3
    before = lance_core.dataset(table.uri).checkout_version(1)
    assert before.count_rows() == 2
    last = ours.to_pylist()[-1]
    assert last.get("id", last.get("key")) == 9
    assert last["s"]["b"] == 9


def with_column_in_its_own_file(table):
    table.add_columns({"late": "cast(k as bigint) + 1"})
    return lance_core.dataset(table.uri)


def append_at_once(table, written, read_version):
    lance_core.LanceDataset.commit(table.uri, lance_core.LanceOperation.Append(written), read_version=read_version)


def append_in_a_batch(table, written, read_version):
    transaction = lance_core.Transaction(read_version, lance_core.LanceOperation.Append(written))
    lance_core.LanceDataset.commit_batch(table.uri, [transaction])


def append_by_fragments(table, written, read_version):
    schema = lance_core.dataset(table.uri, version=read_version).schema
    lance_core.commit_fragments(table.uri, written, schema, read_version=read_version)


COMMITS = [append_at_once, append_in_a_batch, append_by_fragments]


@pytest.mark.parametrize(
    "new_column", [{"late": "cast(k as string)"}, {"late": "cast(k as bigint) + 2"}, {"other": "cast(k as bigint) + 2"}]
)
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("commit", COMMITS)
def test_rows_of_a_dropped_column_do_not_reach_the_column_with_its_id(table, commit, library, new_column):
    table = with_column_in_its_own_file(table)
    written = lance_core.write_fragments(rows(9).append_column("late", pa.array([90])), table)
    library.dataset(table.uri).drop_columns(["late"])
    library.dataset(table.uri).add_columns(new_column)
    with pytest.raises(RetryableConflictError, match=r"values of column 'late', which .* write the rows again"):
        commit(table, written, table.version)
    assert lance_core.dataset(table.uri).count_rows() == 2


def test_an_older_handle_appends_no_values_of_a_dropped_column(table):
    table = with_column_in_its_own_file(table)
    lance_core.dataset(table.uri).drop_columns(["late"])
    lance_core.dataset(table.uri).add_columns({"late": "cast(k as bigint) + 2"})
    with pytest.raises(RetryableConflictError):
        lance_core.write_dataset(rows(9).append_column("late", pa.array([90])), table, mode="append")
    lance_core.dataset(table.uri).insert(rows(9).append_column("late", pa.array([90])))
    assert lance.dataset(table.uri).to_table(filter="id = 9")["late"].to_pylist() == [90]


def test_rows_of_kept_columns_follow_a_drop_and_an_added_column(table):
    written = lance_core.write_fragments(rows(9), table)
    table.add_columns({"late": "k + 1"})
    lance_core.dataset(table.uri).drop_columns(["late"])
    lance_core.dataset(table.uri).add_columns({"late": "cast(k as bigint) + 2"})
    append_at_once(table, written, 1)
    assert lance.dataset(table.uri).to_table()["late"].to_pylist() == [12, 22, None]


def test_rows_that_were_written_for_an_added_column_follow_it(table):
    read_version = table.version
    lance_core.dataset(table.uri).alter_columns({"path": "k", "name": "j"})
    lance_core.dataset(table.uri).add_columns({"late": "j + 1"})
    table = lance_core.dataset(table.uri)
    new = rows(9).rename_columns(["id", "j", "s"]).append_column("late", pa.array([90], pa.int32()))
    append_at_once(table, lance_core.write_fragments(new, table), read_version)
    assert lance.dataset(table.uri).to_table()["late"].to_pylist() == [11, 21, 90]
