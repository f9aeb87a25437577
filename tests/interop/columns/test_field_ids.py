"""Field ids that are never used again: tables that keep the highest one are written to as pylance does."""

import shutil
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, LanceError
from tests.interop.format.wire import edit_latest, edit_manifest, latest_message, latest_transaction, manifest_paths

NO_REUSE = 32768
REJECTED = (OSError, ValueError, LanceError)
BOTH = pytest.mark.parametrize("library", [lance, lance_core])


def rows(*values):
    return pa.table({"a": list(values), "b": [str(value) for value in values]})


@pytest.fixture
def uri(tmp_path):
    """A table of three versions."""
    uri = str(tmp_path / "t")
    for value in range(3):
        lance.write_dataset(rows(value), uri, mode="append" if value else "create")
    return uri


def activate(uri, version, mark=7):
    def change(message):
        message.writer_feature_flags |= NO_REUSE
        message.max_allocated_field_id = mark

    edit_manifest(manifest_paths(uri)[version - 1], change)


@BOTH
def test_the_flag_and_the_mark_stand_together(uri, library):
    edit_latest(uri, lambda message: setattr(message, "writer_feature_flags", NO_REUSE))
    with pytest.raises(REJECTED):
        library.dataset(uri)
    with pytest.raises(REJECTED):
        library.dataset(uri, version=2).restore()
    with pytest.raises(REJECTED):
        library.dataset(uri, version=2).cleanup_old_versions(timedelta(microseconds=1))
    edit_latest(uri, lambda message: setattr(message, "max_allocated_field_id", 7))
    assert library.dataset(uri).count_rows() == 3
    edit_latest(uri, lambda message: setattr(message, "writer_feature_flags", 0))
    with pytest.raises(REJECTED):
        library.dataset(uri)


def numbering(uri):
    """Version, mark, ids of fields and of files; and those of the transaction's schema."""
    message = latest_message(uri)
    transaction = latest_transaction(uri)
    operation = getattr(transaction, transaction.WhichOneof("operation"))
    return (
        (message.version, message.max_allocated_field_id, message.writer_feature_flags),
        [(field.name, field.id, field.parent_id) for field in message.fields],
        [list(file.fields) for fragment in message.fragments for file in fragment.files],
        [(field.name, field.id) for field in getattr(operation, "schema", ())],
    )


def _raw_overwrite(library, uri):
    fragments = library.fragment.write_fragments(rows(9), uri, mode="overwrite")
    operation = library.LanceOperation.Overwrite(rows(9).schema, fragments)
    library.LanceDataset.commit(uri, operation, read_version=3)


def _own_overwrite(library, uri, change=list, read_version=3):
    """Write files as for a new dataset, whose columns are numbered from 0, and let them become this one's content."""
    version = library.dataset(uri).data_storage_version
    fragments = [
        *library.fragment.write_fragments(rows(9), f"{uri}-apart", data_storage_version=version),
        *library.fragment.write_fragments(rows(10), f"{uri}-apart", data_storage_version=version),
    ]
    shutil.copytree(f"{uri}-apart/data", f"{uri}/data", dirs_exist_ok=True)
    change(fragments)
    library.LanceDataset.commit(
        uri, library.LanceOperation.Overwrite(rows(9).schema, fragments), read_version=read_version
    )


def _second_as_it_will_be(fragments):
    fragments[1].files[0].fields = [8, 9]


def _one_column(fragments):
    for fragment in fragments:
        fragment.files[0].fields, fragment.files[0].column_indices = [0], [0]


def _again(library, uri):
    """Put the fragments that there are into a new table."""
    dataset = library.dataset(uri)
    operation = library.LanceOperation.Overwrite(dataset.schema, [f.metadata for f in dataset.get_fragments()])
    library.LanceDataset.commit(uri, operation, read_version=3)


def _older_mark(library, uri):
    """Overwrite from a handle that knows a lower mark."""
    stale = library.dataset(uri, version=2)
    edit_latest(uri, lambda message: setattr(message, "max_allocated_field_id", 20))
    library.write_dataset(rows(9), stale, mode="overwrite")


def _earlier_transaction(library, uri):
    transaction = library.fragment.write_fragments(NESTED, uri, mode="overwrite", return_transaction=True)
    edit_latest(uri, lambda message: setattr(message, "max_allocated_field_id", 20))
    library.LanceDataset.commit(uri, transaction)


NESTED = pa.table({"a": [9], "s": [{"x": 1}], "b": ["q"]})


@pytest.mark.parametrize("storage_version", ["legacy", "2.2"])
@pytest.mark.parametrize(
    "verb",
    [
        lambda library, uri: library.write_dataset(NESTED, uri, mode="overwrite"),
        lambda library, uri: library.write_dataset(NESTED.slice(0, 0), uri, mode="overwrite"),
        _raw_overwrite,
        _own_overwrite,
        lambda library, uri: _own_overwrite(library, uri, read_version=2),
        lambda library, uri: _own_overwrite(library, uri, _second_as_it_will_be),
        lambda library, uri: _own_overwrite(library, uri, _one_column),
        _again,
        lambda library, uri: library.write_dataset(rows(9), library.dataset(uri, version=1), mode="overwrite"),
        _older_mark,
        _earlier_transaction,
        lambda library, uri: library.write_dataset(rows(9), uri, mode="append"),
        lambda library, uri: library.dataset(uri).add_columns({"n": "a + 1"}),
        lambda library, uri: library.dataset(uri).alter_columns({"path": "a", "data_type": pa.int32()}),
        lambda library, uri: library.dataset(uri).alter_columns({"path": "a", "name": "z"}),
        lambda library, uri: library.dataset(uri).optimize.compact_files(),
        lambda library, uri: library.dataset(uri, version=2).restore(),
    ],
    ids=[
        "overwrite",
        "overwrite empty",
        "raw overwrite",
        "files from elsewhere",
        "files from elsewhere, read earlier",
        "files of both numberings",
        "files of one column",
        "the same fragments",
        "overwrite from before the mark",
        "overwrite from a lower mark",
        "transaction from a lower mark",
        "append",
        "add",
        "cast",
        "rename",
        "compact",
        "restore",
    ],
)
def test_ids_are_numbered_from_the_mark_as_pylance_does(tmp_path, verb, storage_version):
    results = []
    for library in (lance, lance_core):
        uri = str(tmp_path / library.__name__)
        for value in range(3):
            lance.write_dataset(
                rows(value), uri, mode="append" if value else "create", data_storage_version=storage_version
            )
        for version in (2, 3):
            activate(uri, version)
        verb(library, uri)
        read = [reader.dataset(uri).to_table().to_pylist() for reader in (lance, lance_core)]
        assert read[0] == read[1]
        results.append((numbering(uri), read[0]))
    assert results[0] == results[1]


@BOTH
def test_no_version_from_before_the_mark_is_restored(uri, library):
    for version in (2, 3):
        activate(uri, version)
    with pytest.raises(REJECTED, match="Cannot restore version 1"):
        library.dataset(uri, version=1).restore()
    assert latest_message(uri).version == 3


@pytest.mark.parametrize("storage_version", ["legacy", "2.2"])
@pytest.mark.parametrize("mark", [1, 2, 20])
def test_fragments_of_a_writer_are_numbered_by_the_commit(tmp_path, storage_version, mark):
    for name, data in {
        "flat": rows(9),
        "nested": NESTED,
        "wrapped": pa.table({"s": [{"t": {"u": {"x": 5}}}]}),
        "dictionary": pa.table({"d": pa.array(["p", "q"]).dictionary_encode(), "a": [1, 2]}),
    }.items():
        uri = str(tmp_path / name)
        lance.write_dataset(rows(0), uri, data_storage_version=storage_version)
        with lance_core.FragmentWriter(uri, data.schema, data_storage_version=storage_version) as writer:
            writer.write(data)
            fragments = writer.finish()
        activate(uri, 1, mark)
        lance_core.commit_fragments(uri, fragments, data.schema, mode="overwrite", read_version=1)
        message = latest_message(uri)
        ids = [field.id for field in message.fields]
        assert ids == list(range(mark + 1, mark + 1 + len(ids)))
        assert message.max_allocated_field_id == ids[-1]
        for reader in (lance, lance_core):
            assert reader.dataset(uri).to_table().to_pylist() == data.to_pylist()


@BOTH
@pytest.mark.parametrize(
    ("ids", "mark"),
    [([5, 6], 7), ([0, 9], 7), ([0, 1, 2], 7), ([8, 9], 20), ([1], 0)],
    ids=["strange", "mixed", "more", "outdated", "either"],
)
def test_files_of_other_ids_overwrite_nothing(tmp_path, library, ids, mark):
    def change(fragments):
        for fragment in fragments:
            fragment.files[0].fields, fragment.files[0].column_indices = ids, list(range(len(ids)))

    uri = str(tmp_path / "t")
    for value in range(3):
        lance.write_dataset(pa.table({"a": [value]}), uri, mode="append" if value else "create")
    activate(uri, 3, mark)
    with pytest.raises(REJECTED, match=r"field IDs|field ids?"):
        _own_overwrite(library, uri, change)
    assert latest_message(uri).version == 3


def test_changes_that_would_use_an_id_again_are_rejected(uri):
    lance_core.dataset(uri).alter_columns({"path": "a", "name": "z"})
    for version in (2, 3, 4):
        activate(uri, version)
    dataset = lance_core.dataset(uri)
    with pytest.raises(InvalidInputError, match="detached commits cannot change the schema"):
        lance_core.LanceDataset.commit(uri, lance_core.LanceOperation.Restore(2), read_version=4, detached=True)
    (fragment,) = lance_core.write_fragments(dataset.to_table(), uri)
    fragment.files[0].fields = [12]
    with pytest.raises(InvalidInputError, match="has the field ids 12, which the schema lacks"):
        lance_core.LanceDataset.commit(uri, lance_core.LanceOperation.Append([fragment]), read_version=4)
    assert dataset.latest_version == 4


def _manifest_ids(uri, ids, listed):
    """Say that the columns have some ids, and that the one file has some of them."""

    def change(message):
        for field, i in zip(message.fields, ids, strict=False):
            field.id = i
        del message.fields[len(ids) :]
        message.fragments[0].files[0].fields[:] = listed

    edit_latest(uri, change)


@pytest.mark.parametrize(
    ("ids", "listed"),
    [([0, 1, 2], [0, 1, 2]), ([1, 2, 3], [1, 2, 3]), ([2, 3, 4], [2, 3, 4]), ([1, 2], [1, 2]), ([7, 8, 9], [7, 8, 9])],
)
def test_files_of_the_first_format_are_read_by_ids_that_came_later(tmp_path, ids, listed):
    """Their pages and statistics go by the ids that they were written with, which others may have now."""
    uri = str(tmp_path)
    count = 20_000
    data = pa.table({"a": range(count), "b": range(count, 2 * count), "c": range(2 * count, 3 * count)})
    lance.write_dataset(data, uri, data_storage_version="legacy")
    _manifest_ids(uri, ids, listed)
    ours = lance_core.dataset(uri)
    expected = data.select(["a", "b", "c"][: len(ids)])
    assert ours.to_table() == lance.dataset(uri).to_table() == expected
    for where, first in (("a < 5", 0), (f"b >= {count} AND b < {count + 5}", 0), (f"a >= {count - 5}", count - 5)):
        assert ours.to_table(filter=where).to_pylist() == expected.slice(first, 5).to_pylist(), where


def test_files_of_the_first_format_with_gaps_between_their_ids_are_not_renumbered(tmp_path):
    uri = str(tmp_path)
    lance.write_dataset(rows(1), uri, data_storage_version="legacy")
    dataset = lance.dataset(uri)
    dataset.add_columns({"c": "a + 1", "d": "a + 2"})
    dataset.drop_columns(["c"])
    data = dataset.to_table()
    lance.write_dataset(data, uri, mode="append")
    fragments = [fragment.metadata for fragment in lance_core.dataset(uri).get_fragments()][1:]
    assert fragments[0].files[0].fields == [0, 1, 3]
    activate(uri, dataset.latest_version)
    operation = lance_core.LanceOperation.Overwrite(lance_core.dataset(uri).lance_schema, fragments)
    with pytest.raises(InvalidInputError, match=r"gaps between its field ids \[0, 1, 3\]"):
        lance_core.LanceDataset.commit(uri, operation, read_version=dataset.latest_version)
