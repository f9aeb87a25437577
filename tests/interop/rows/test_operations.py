"""Operations in pylance's shapes: what it committed is read as it reads it, and what we commit it understands."""

import contextlib
import dataclasses
import uuid
import warnings

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import (
    ArgumentTypeError,
    CommitConflictError,
    DatasetExistsError,
    InvalidInputError,
    UnsupportedError,
)

Operation = lance_core.LanceOperation


@pytest.fixture
def history(tmp_path):
    """A dataset of pylance's with every operation that its verbs commit."""
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"a": range(20), "b": ["x"] * 20}), uri, max_rows_per_file=5)
    dataset.insert(pa.table({"a": [100], "b": ["y"]}), commit_message="hello")
    dataset.delete("a < 2")
    dataset.update({"b": "'z'"}, "a = 7")
    dataset.add_columns({"c": "a * 2"})
    dataset.alter_columns({"path": "c", "name": "d"})
    dataset.create_scalar_index("a", "BTREE")
    dataset.drop_index("a_idx")
    dataset.update_config({"k": "v"})
    dataset.update_field_metadata({"a": {"unit": "m"}})
    dataset.checkout_version(3).restore()
    dataset.checkout_latest()
    dataset.optimize.compact_files(target_rows_per_fragment=15)
    dataset.add_bases([lance.DatasetBasePath(str(tmp_path / "base"), name="base")])
    lance.write_dataset(pa.table({"n": [1]}), uri, mode="overwrite", transaction_properties={"run": "7"})
    return uri


def plain(value):
    """Anything of either library as plain values, to be compared."""
    if type(value).__name__ == "DeletionFile":
        return (value.num_deleted_rows, value.file_type)
    if isinstance(value, lance.LanceOperation.BaseOperation | Operation.BaseOperation) or dataclasses.is_dataclass(
        value
    ):
        if not dataclasses.is_dataclass(value) or isinstance(value, Operation.Other):
            return "an operation without a shape"
        fields = {f.name for f in dataclasses.fields(value)} - {"overlays", "inserted_rows", "affected_rows", "_path"}
        return {
            "type": type(value).__name__,
            **{name: plain(getattr(value, name)) for name in sorted(fields - {"path"})},
        }
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if type(value).__name__ in ("Bitmap", "set", "frozenset"):
        return sorted(value)
    if hasattr(value, "to_pyarrow"):
        return value.to_pyarrow()
    if hasattr(value, "asdict") or type(value).__name__ in ("RowIdMeta", "RowDatasetVersionMeta"):
        return "bytes"
    if hasattr(value, "microsecond"):
        return value.replace(microsecond=0)
    return value


def test_transactions_read_as_pylance_reads_them(history):
    ours, theirs = lance_core.dataset(history), lance.dataset(history)
    own, other = ours.get_transactions(100), theirs.get_transactions(100)
    assert len(own) == len(other) == ours.version
    for mine, its in zip(own, other, strict=True):
        assert (mine.read_version, mine.uuid) == (its.read_version, its.uuid)
        assert mine.transaction_properties == its.transaction_properties
        assert plain(mine.operation) == plain(its.operation)
    names = [transaction.operation.name for transaction in reversed(own)]
    assert names == [
        "Overwrite", "Append", "Delete", "Update", "Merge", "Project", "CreateIndex", "CreateIndex", "UpdateConfig",
        "UpdateConfig", "Restore", "ReserveFragments", "Rewrite", "UpdateBases", "Overwrite",
    ]  # fmt: skip


def test_every_operation_that_can_be_committed_survives_the_way_there_and_back(history):
    from lance_core.commit.versions import load_manifest, load_transaction
    from lance_core.store import open_store
    from lance_core.verbs.pylance_types.conversion import from_record, to_record

    store = open_store(history)
    for version in range(1, lance_core.dataset(history).version + 1):
        record = load_transaction(store, load_manifest(store, version)).operation
        shape = from_record(record)
        if isinstance(shape, Operation.Other | Operation.Clone):
            with pytest.raises(UnsupportedError, match=record.name):
                to_record(shape)
        else:
            assert to_record(shape).to_protobuf() == record.to_protobuf()


@pytest.fixture
def dataset(tmp_path):
    return lance_core.write_dataset(pa.table({"a": [1, 2], "b": ["x", "y"]}), tmp_path / "t")


def test_create_append_overwrite(tmp_path):
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    uri = tmp_path / "new"
    fragments = [lance_core.LanceFragment.create(uri, part) for part in (table, table)]
    made = lance_core.LanceDataset.commit(uri, Operation.Overwrite(table.schema, fragments), commit_message="first")
    assert made.read_transaction(1).transaction_properties == {"__lance_commit_message": "first"}
    more = lance_core.fragment.write_fragments(table, uri)
    appended = lance_core.LanceDataset.commit(made, Operation.Append(more), read_version=1)
    assert (made.version, appended.version) == (1, 2)
    assert lance.dataset(str(uri)).to_table() == pa.concat_tables([table] * 3)
    empty = Operation.Overwrite(pa.schema([("z", pa.int8())]), [])
    assert lance_core.LanceDataset.commit(uri, empty).schema.names == ["z"]
    with pytest.raises(DatasetExistsError):
        lance_core.LanceDataset.commit(uri, empty, read_version=0)


def test_fragments_written_by_either_are_committed_by_the_other(tmp_path):
    table = pa.table({"a": [1, 2]})
    for number, (writer, committer) in enumerate(((lance_core, lance), (lance, lance_core))):
        uri = str(tmp_path / str(number))
        writer.write_dataset(table, uri)
        fragments = writer.fragment.write_fragments(table, uri)
        moved = [committer.FragmentMetadata.from_json(text(each)) for each in fragments]
        committer.LanceDataset.commit(uri, committer.LanceOperation.Append(moved), read_version=1)
        assert lance.dataset(uri).to_table() == lance_core.dataset(uri).to_table() == pa.concat_tables([table] * 2)


def text(fragment) -> str:
    import json

    return json.dumps(fragment.to_json())


def test_write_fragments_returns_transactions(dataset):
    rows = dataset.to_table()
    append = lance_core.write_fragments(rows, dataset, return_transaction=True)
    create = lance_core.write_fragments(rows, dataset.uri, return_transaction=True, mode="overwrite")
    assert (append.operation.name, append.read_version) == ("Append", 1)
    assert (create.operation.name, create.read_version) == ("Overwrite", 1)
    result = lance_core.LanceDataset.commit_batch(dataset, [append, append])
    assert result["dataset"].count_rows() == 6
    assert len(result["merged"].operation.fragments) == 2
    with pytest.raises(UnsupportedError, match="Overwrite"):
        lance_core.LanceDataset.commit_batch(dataset, [create])
    with pytest.raises(InvalidInputError):
        lance_core.LanceDataset.commit_batch(dataset, [])


def test_data_replacement(dataset):
    name = "replacement.lance"
    with lance_core.file.LanceFileWriter(f"{dataset.uri}/data/{name}") as writer:
        writer.write_batch(pa.table({"a": [10, 20]}))
    file = lance_core.DataFile.create(dataset, name)
    its = lance.fragment.DataFile.create(lance.dataset(dataset.uri), name)
    for attribute in ("fields", "column_indices", "file_major_version", "file_minor_version", "file_size_bytes"):
        assert getattr(file, attribute) == getattr(its, attribute)
    operation = Operation.DataReplacement([Operation.DataReplacementGroup(0, file)])
    after = lance_core.LanceDataset.commit(dataset, operation, read_version=1)
    assert after.to_table() == lance.dataset(dataset.uri).to_table() == pa.table({"a": [10, 20], "b": ["x", "y"]})


def test_project_and_update_config(dataset):
    from lance_core.schema import LanceSchema

    schema = LanceSchema.from_pyarrow(pa.schema([("A", pa.int64()), ("b", pa.string())]))
    renamed = lance_core.LanceDataset.commit(dataset, Operation.Project(schema, True), read_version=1)
    assert renamed.schema.names == ["A", "b"]
    assert renamed.lance_schema == schema
    change = Operation.UpdateConfig(
        config_updates=Operation.UpdateMap({"k": "v"}),
        field_metadata_updates={0: Operation.UpdateMap({"u": "m"}, True)},
    )
    after = lance_core.LanceDataset.commit(renamed, change, read_version=2)
    assert after.config() == lance.dataset(dataset.uri).config() == {"k": "v"}
    assert lance.dataset(dataset.uri).schema.field("A").metadata == {b"u": b"m"}


def test_restore_needs_no_read_version(dataset):
    dataset.delete("a = 1")
    after = lance_core.LanceDataset.commit(dataset.uri, Operation.Restore(1))
    assert after.count_rows() == 2


def test_detached(dataset):
    fragments = lance_core.write_fragments(dataset.to_table(), dataset)
    beside = lance_core.LanceDataset.commit(dataset, Operation.Append(fragments), read_version=1, detached=True)
    assert beside.version >> 63
    assert lance.dataset(dataset.uri, version=beside.version).count_rows() == 4
    assert dataset.latest_version == 1


def test_what_is_rejected(dataset):
    fragments = lance_core.write_fragments(dataset.to_table(), dataset)
    append = Operation.Append(fragments)
    transaction = lance_core.Transaction(1, append, uuid=str(uuid.uuid4()))
    commit = lance_core.LanceDataset.commit
    with pytest.raises(InvalidInputError, match="read_version is required"):
        commit(dataset, append)
    with pytest.raises(InvalidInputError, match="commit_message"):
        commit(dataset, transaction, commit_message="m")
    with pytest.raises(ArgumentTypeError):
        commit(dataset, "append", read_version=1)
    with pytest.raises(ArgumentTypeError):
        commit(3, append, read_version=1)
    with pytest.raises(NotImplementedError, match="table_id"):
        commit(dataset, append, read_version=1, table_id=["x"])
    with pytest.raises(UnsupportedError, match="Clone"):
        commit(dataset, Operation.Clone(True, None, 1, dataset.uri, None), read_version=1)
    with pytest.raises(InvalidInputError, match="update_mode"):
        commit(dataset, Operation.Update(update_mode="sideways"), read_version=1)
    for bad in (
        lambda: Operation.Append("no list"),
        lambda: Operation.Append([1]),
        lambda: Operation.Overwrite(None, 3),
    ):
        with pytest.raises(ArgumentTypeError, match="FragmentMetadata"):
            bad()
    with pytest.warns(DeprecationWarning, match="LanceSchema"):
        Operation.Merge([], dataset.schema)
    assert dataset.latest_version == 1


def test_a_strict_overwrite_gives_up_at_once(dataset):
    overwrite = Operation.Overwrite(
        dataset.schema, lance_core.write_fragments(dataset.to_table(), dataset, mode="overwrite")
    )
    dataset.insert(dataset.to_table())
    with pytest.raises(CommitConflictError):
        lance_core.LanceDataset.commit(dataset.uri, overwrite, read_version=1, max_retries=0)
    assert isinstance(CommitConflictError(), OSError)
    assert lance_core.commit.CommitConflictError is CommitConflictError


def test_list_indices_is_deprecated(history):
    ours, theirs = lance_core.dataset(history, version=7), lance.dataset(history, version=7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        own, other = ours.list_indices(), theirs.list_indices()
    assert [plain(each) for each in own] == [plain(each) for each in other]
    for mine, its in zip(ours.describe_indices(), theirs.describe_indices(), strict=True):
        for name in ("name", "index_type", "type_url", "fields", "field_names", "num_rows_indexed", "total_size_bytes"):
            assert getattr(mine, name) == getattr(its, name), name
        for segment, its_segment in zip(mine.segments, its.segments, strict=True):
            assert segment.uuid == its_segment.uuid
            assert segment.fragment_ids == set(its_segment.fragment_ids)
    with pytest.raises(NotImplementedError, match="create_index"):
        ours.create_index("a", "BTREE")
    with pytest.raises(ValueError, match="nope"):
        lance_core.dataset(history).drop_index("nope")


def test_a_commit_lock_is_held_around_each_attempt(dataset):
    events = []

    @contextlib.contextmanager
    def lock(version):
        events.append(("locked", version, lance_core.dataset(dataset.uri).version))
        try:
            yield
        finally:
            events.append(("freed", version, lance_core.dataset(dataset.uri).version))

    append = Operation.Append(lance_core.write_fragments(dataset.to_table(), dataset))
    lance_core.LanceDataset.commit(dataset, append, read_version=1, commit_lock=lock)
    assert events == [("locked", 2, 1), ("freed", 2, 2)]
    events.clear()
    transaction = lance_core.Transaction(1, append, uuid=str(uuid.uuid4()))
    done = lance_core.LanceDataset.commit_batch(dataset.uri, [transaction], commit_lock=lock)
    assert done["dataset"].version == 3
    assert events == [("locked", 3, 2), ("freed", 3, 3)]


def test_a_commit_lock_that_fails_commits_nothing(dataset):
    def rejected(version):
        raise ConnectionError(f"no lock for {version}")

    append = Operation.Append(lance_core.write_fragments(dataset.to_table(), dataset))
    with pytest.raises(ConnectionError, match="no lock for 2"):
        lance_core.LanceDataset.commit(dataset, append, read_version=1, commit_lock=rejected)
    assert lance_core.dataset(dataset.uri).version == 1
