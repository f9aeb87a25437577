"""Tables that versions of 2023 to 2025 wrote, with all their faults: read and changed next to pylance."""

import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.commit.versions import load_latest
from lance_core.file import DataFileWriter, FileVersion
from lance_core.schema import schema_from_arrow
from lance_core.store import open_store

TABLES = Path(__file__).parent / "historical"
EMPTY = ["no_fragments", "v1_no_files", "v2_no_files"]
SOUND = [
    "with_deletions",
    "string_encoding",
    "v1_with_files",
    "v2_with_files",
    "wrong_data_version_can_fix",
    "index_no_details",
    "old_btree_bitmap_indices",
    "legacy_fts_index",
    "btree_in_index_pkg",
]
REPAIRABLE = ["migrated_from_v0.7.5", "corrupt_schema", "bad_index_fragment_bitmap"]
CHANGEABLE = [*EMPTY, *SOUND, *REPAIRABLE]
REPAIR_FIRST = ["wrong_data_version_can_fix", "corrupt_schema"]
"""What pylance spoils, or rejects to change, unless it has repaired it by a commit that changes nothing."""

LIBRARIES = {"ours": lance_core, "pylance": lance}


@pytest.fixture
def table(tmp_path):
    """Copies a historical table into the test's folder."""

    def copy(name, folder="table"):
        uri = tmp_path / folder
        shutil.copytree(TABLES / name, uri)
        return str(uri)

    return copy


def versions():
    for name in [*CHANGEABLE, "wrong_data_version_no_fix"]:
        for number in sorted(int(p.stem) for p in (TABLES / name / "_versions").glob("*.manifest")):
            if (name, number) != ("corrupt_schema", 6):  # pylance reads the wrong columns of it, see below
                yield pytest.param(name, number, id=f"{name}-{number}")


@pytest.mark.parametrize(("name", "version"), versions())
def test_each_version_reads_as_with_pylance(name, version):
    ours, theirs = (library.dataset(str(TABLES / name), version=version) for library in (lance_core, lance))
    rows = ours.to_table(with_row_id=True)
    assert rows == theirs.to_table(with_row_id=True)
    assert ours.schema == theirs.schema
    assert ours.count_rows() == theirs.count_rows() == rows.num_rows
    assert [f.count_rows() for f in ours.get_fragments()] == [f.count_rows() for f in theirs.get_fragments()]
    if rows.num_rows and name != "wrong_data_version_no_fix":  # pylance takes the wrong one of two fragments 1
        places = [rows.num_rows - 1, 0, rows.num_rows // 2]
        assert ours.take(places) == theirs.take(places)
        assert ours.to_table(limit=2, offset=rows.num_rows - 2) == theirs.to_table(limit=2, offset=rows.num_rows - 2)


def changes():
    """Everything that can be done to any table: verb(dataset, library) -> None."""

    def append(dataset, library):
        library.write_dataset(more_rows(dataset.schema), dataset.uri, mode="append")

    def delete_nothing(dataset, library):
        dataset.delete("false")

    def delete_first(dataset, library):
        dataset.delete(first_rows_filter(dataset))

    def delete_all(dataset, library):
        dataset.delete("true")

    def compact(dataset, library):
        dataset.optimize.compact_files(target_rows_per_fragment=1000, materialize_deletions_threshold=0.0)

    def update(dataset, library):
        name = numeric(dataset.schema)
        if name is not None:
            dataset.update({name: f"{name} + 1000"})

    def add_column(dataset, library):
        name = numeric(dataset.schema) or "null"
        dataset.add_columns({"added": f"cast({name} as bigint)"})

    def overwrite(dataset, library):
        library.write_dataset(pa.table({"fresh": [1, 2]}), dataset.uri, mode="overwrite")

    return [append, delete_nothing, delete_first, delete_all, compact, update, add_column, overwrite]


def numeric(schema):
    return next((f.name for f in schema if pa.types.is_integer(f.type)), None)


def more_rows(schema):
    return pa.table(
        [
            pa.array([None] * 3, f.type) if not pa.types.is_integer(f.type) else pa.array([7, 8, 9], f.type)
            for f in schema
        ],
        schema=schema,
    )


def first_rows_filter(dataset):
    """A condition that some rows, but not all, fulfil."""
    name = numeric(dataset.schema)
    if name is not None:
        return f"{name} < 2"
    field = dataset.schema.field(0)
    return f"{field.name} = 'frodo was a puppy'" if field.type == pa.string() else f"{field.name} is null"


def all_rows(dataset):
    return sorted(map(repr, dataset.to_table().to_pylist()))


@pytest.mark.variants(30)
@pytest.mark.parametrize("verb", changes(), ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("name", CHANGEABLE)
def test_changes_come_out_as_with_pylance(table, name, verb):
    uris = {who: table(name, who) for who in LIBRARIES}
    for who, library in LIBRARIES.items():
        if name in REPAIR_FIRST:
            library.dataset(uris[who]).delete("false")
        verb(library.dataset(uris[who]), library)
    read = {
        (wrote, reads): all_rows(lib.dataset(uri)) for wrote, uri in uris.items() for reads, lib in LIBRARIES.items()
    }
    assert len({tuple(rows) for rows in read.values()}) == 1, read
    for wrote, uri in uris.items():
        for reads, library in LIBRARIES.items():
            dataset = library.dataset(uri)
            assert dataset.count_rows() == dataset.to_table().num_rows, f"{wrote} wrote, {reads} counted"
    ours, theirs = (lance.dataset(uri) for uri in uris.values())
    assert ours.version == theirs.version
    assert ours.schema == theirs.schema
    assert ours.data_storage_version == theirs.data_storage_version
    if name == "bad_index_fragment_bitmap":  # only a library that reads indices knows what they cover
        ours.delete("false")
        theirs.delete("false")
    assert lance_core.dataset(uris["pylance"]).validate() is None
    assert theirs.validate() is None
    assert ours.validate() is None
    assert lance_core.dataset(uris["ours"]).validate() is None


@pytest.mark.parametrize("first", LIBRARIES)
@pytest.mark.parametrize("name", CHANGEABLE)
def test_libraries_take_turns(table, name, first):
    uri = table(name)
    turns = LIBRARIES.items() if first == "ours" else reversed(LIBRARIES.items())
    for _, library in turns:
        if name in REPAIR_FIRST:
            library.dataset(uri).delete("false")
        library.write_dataset(more_rows(library.dataset(uri).schema), uri, mode="append")
        condition = first_rows_filter(library.dataset(uri))
        library.dataset(uri).delete(condition)
        if name != "legacy_fts_index":  # pylance panics when it remaps this index
            library.dataset(uri).optimize.compact_files()
        rows = [all_rows(other.dataset(uri)) for other in LIBRARIES.values()]
        assert rows[0] == rows[1]
        assert library.dataset(uri).count_rows() == len(rows[0])
    assert lance.dataset(uri).validate() is None


def counts(uri):
    return [(f.physical_rows, f.num_deleted_rows) for f in load_latest(open_store(uri)).fragments]


@pytest.mark.parametrize("name", ["with_deletions", "migrated_from_v0.7.5"])
def test_row_counts_of_early_versions_are_not_believed_and_put_right(table, name):
    uri = table(name)
    assert counts(uri)[0] == (0, 0)  # unknown
    dataset = lance_core.dataset(uri)
    rows = dataset.count_rows()
    assert rows == dataset.to_table().num_rows
    assert len(dataset.take([rows - 1])) == 1
    dataset.delete("false")
    assert counts(uri)[0] == (100, 10)
    manifest = load_latest(open_store(uri))
    assert manifest.writer_version.library == "lance_core"
    assert all(file.file_size_bytes for fragment in manifest.fragments for file in fragment.files)
    assert lance.dataset(uri).get_fragments()[0].metadata.physical_rows == 100
    assert lance.dataset(uri).get_fragments()[0].metadata.num_deletions == 10


def test_compaction_heeds_the_true_counts(table):
    """The fragment with deleted rows is rewritten by itself: joining it with another would write more than it saves."""
    ours, theirs = table("migrated_from_v0.7.5", "ours"), table("migrated_from_v0.7.5", "pylance")
    options = {"target_rows_per_fragment": 50, "materialize_deletions_threshold": 0.05}
    made = lance_core.dataset(ours).optimize.compact_files(**options)
    lance.dataset(theirs).optimize.compact_files(**options)
    assert made.fragments_removed >= made.fragments_added == 1
    assert [deleted for _, deleted in counts(ours)] == [0] * len(counts(ours))
    assert sum(rows for rows, _ in counts(ours)) == sum(rows for rows, _ in counts(theirs))
    assert all_rows(lance_core.dataset(ours)) == all_rows(lance.dataset(theirs))


def test_duplicate_field_ids_read_as_pylance_does_once_it_has_repaired_them(table):
    uri = table("corrupt_schema")
    read = lance_core.dataset(uri).to_table()
    assert read.to_pydict() == {
        "x": [0, 1, 2, 3],
        "y": [0, 2, 4, 6],
        "b": [0, 4, 8, 12],
        "c": [0, 5, 10, 15],
    }
    lance.dataset(uri).delete("false")
    assert lance.dataset(uri).to_table() == read
    assert lance_core.dataset(uri).to_table() == read


@pytest.mark.parametrize("verb", changes(), ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("name", REPAIR_FIRST)
def test_our_commits_repair_what_they_follow(table, name, verb):
    uri, plain = table(name), table(name, "plain")
    verb(lance_core.dataset(uri), lance_core)
    # The same on a sound table of the same rows.
    lance.write_dataset(lance_core.dataset(plain).to_table(), plain + "-new", data_storage_version="2.2")
    verb(lance.dataset(plain + "-new"), lance)
    expected = all_rows(lance.dataset(plain + "-new"))
    assert all_rows(lance.dataset(uri)) == expected
    assert all_rows(lance_core.dataset(uri)) == expected
    assert lance.dataset(uri).validate() is None
    lance.write_dataset(more_rows(lance.dataset(uri).schema), uri, mode="append")
    assert all_rows(lance.dataset(uri)) == all_rows(lance_core.dataset(uri))
    assert lance.dataset(uri).count_rows() == len(expected) + 3


@pytest.mark.parametrize("who", LIBRARIES)
def test_mixed_file_versions_are_read_but_never_continued(table, who):
    uri = table("wrong_data_version_no_fix")
    dataset = LIBRARIES[who].dataset(uri)
    assert dataset.count_rows() == 4
    with pytest.raises(Exception, match=r"mixture of file versions|fragments with id"):
        dataset.delete("false")
    with pytest.raises(Exception, match=r"mixture of file versions|fragments with id"):
        LIBRARIES[who].write_dataset(more_rows(dataset.schema), uri, mode="append")
    assert LIBRARIES[who].dataset(uri).version == 2


def test_overlapping_segments_of_an_index_are_reported():
    with pytest.raises(lance_core.errors.CorruptFileError, match=r"vector_idx.*\[0\]"):
        lance_core.dataset(str(TABLES / "bad_index_fragment_bitmap")).validate()


@pytest.mark.parametrize("change", ["delete", "append"])
def test_tables_without_row_counts_of_0_5_9(table, change):
    uri = table("dataset_with_fragments")
    store = open_store(uri)
    for version in (1, 2, 3):
        fragment = lance_core.dataset(uri, version=version).get_fragments()[-1]
        rows = pa.table({"id": [version - 1]})
        key = f"data/{fragment.data_files()[0].path}"
        writer = DataFileWriter(store, key, schema_from_arrow(rows.schema), version=FileVersion.V0_1)
        writer.write(rows)
        writer.finish()
    assert lance_core.dataset(uri).count_rows() == lance.dataset(uri).count_rows() == 3
    assert lance_core.dataset(uri).to_table() == lance.dataset(uri).to_table() == pa.table({"id": [0, 1, 2]})
    if change == "delete":
        lance_core.dataset(uri).delete("id = 1")
        expected = [0, 2]
    else:
        lance_core.write_dataset(pa.table({"id": [3]}), uri, mode="append")
        expected = [0, 1, 2, 3]
    assert {count for count, _ in counts(uri)} == {1}
    assert lance.dataset(uri).to_table()["id"].to_pylist() == expected
    assert lance_core.dataset(uri).to_table()["id"].to_pylist() == expected
    assert lance.dataset(uri).validate() is None


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_the_latest_version_is_what_is_listed_and_never_a_manifest_beside_the_folder(table, tmp_path, library):
    """Versions of 2023 kept a copy of the latest manifest as `_latest.manifest`."""
    uri = table("with_deletions")
    copy = Path(uri, "_latest.manifest")
    older = copy.read_bytes()
    library.write_dataset(library.dataset(uri).to_table(), uri, mode="append")
    count = library.dataset(uri).latest_version
    assert copy.read_bytes() == older
    for content in (b"", b"no manifest"):
        copy.write_bytes(content)
        assert library.dataset(uri).latest_version == library.dataset(uri).version == count
    copy.unlink()
    library.dataset(uri).delete("true")
    assert library.dataset(uri).version == count + 1
    library.write_dataset(pa.table({"a": [1]}), tmp_path / "new")
    assert not list(tmp_path.rglob("*latest.manifest"))
