"""Values that cannot be: each is rejected by an error of ours that names the argument, the value and the remedy."""

import itertools
import math
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import ArgumentTypeError, InvalidInputError, SchemaError
from lance_core.maintenance import Compaction, compact
from lance_core.table.refs import check_branch_name, check_tag_name
from lance_core.times import ago

ROWS = pa.table({"id": [1, 2, 3], "v": [1, 2, 3]})
_numbers = itertools.count()


@pytest.fixture
def table():
    return lance_core.write_dataset(ROWS, f"memory://values-{next(_numbers)}")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("a\0b", r"a URI cannot contain a NUL character: 'a\\x00b'"),
        ("memory://a\0b", "NUL"),
        ("s3://bucket/a\0b", "NUL"),
        ("file:///a%00b", "NUL"),
        ("a\udc80b", r"'a\\udc80b' has half of a surrogate pair"),
        ("memory://a\ud83d", "half of a surrogate pair"),
    ],
)
def test_characters_that_no_name_can_have(uri, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = (
        lance_core.dataset, lance_core.LanceDataset.drop, lance_core.list_tables, lance_core.canonical_uri,
        lambda where: lance_core.write_dataset(ROWS, where), lambda where: lance_core.write_fragments(ROWS, where),
        lambda where: lance_core.write_dataset(ROWS, tmp_path / "t", mode="overwrite").shallow_clone(where, 1),
        lance_core.file.LanceFileReader, lambda where: lance_core.file.LanceFileWriter(where, ROWS.schema),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(InvalidInputError, match=message):
            call(uri)


@pytest.mark.parametrize("uri", ["memory://straße", "memory://\U0001f600"])
def test_other_scripts_are_taken(uri):
    assert lance_core.write_dataset(ROWS, uri, mode="overwrite").uri == uri


@pytest.mark.parametrize("age", [timedelta.max, timedelta(days=365 * 3000)])
def test_nothing_is_as_old_as_the_calendar(table, age):
    table.insert(ROWS)
    assert table.cleanup_old_versions(older_than=age).old_versions == 0
    assert table.branches.sweep(age).stale == ()
    table.readers.hold("report")
    assert list(table.readers.release_older_than(age)) == []
    assert ago(age) == datetime.min.replace(tzinfo=UTC)


def test_all_is_as_old_as_a_time_beyond_the_calendar():
    assert ago(timedelta.min) == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: lance_core.blob_array(None),
            ArgumentTypeError,
            "blob_array: values must be a list of blobs, not None",
        ),
        (
            lambda: lance_core.blob_array(b"x"),
            ArgumentTypeError,
            "blob_array: values must be a list of blobs, not bytes",
        ),
        (lambda: lance_core.blob_field(None), ArgumentTypeError, "blob_field: name must be a string, not None"),
        (lambda: lance_core.blob_field(""), InvalidInputError, "name of a column cannot be empty"),
        (lambda: lance_core.json_to_schema(None), ArgumentTypeError, "takes what schema_to_json gives, not None"),
        (lambda: lance_core.schema_to_json(None), ArgumentTypeError, "takes a pyarrow.Schema, not NoneType"),
    ],
)
def test_arguments_of_functions(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.head(-1), "head: num_rows must not be negative, not -1"),
        (lambda d: d.scanner().head(-1), "head: num_rows must not be negative, not -1"),
        (lambda d: d.get_fragments()[0].head(-1), "head: num_rows must not be negative, not -1"),
        (lambda d: d.sample(99), "sample: num_rows must be from 0 to 3, all rows, not 99"),
        (lambda d: d.sample(-1), "sample: num_rows must be from 0 to 3, .* not -1"),
        (lambda d: d.optimize.optimize_indices(num_indices_to_merge=-1), "must be at least 0, not -1"),
        (
            lambda d: d.tags.create("a" * 231, 1),
            "tag name 'aaaaaaaaaaaaaaaaaaaa'... has 231 characters, and at most 230",
        ),
        (lambda d: d.create_branch("a" * 217), "branch name 'a+'... has 217 characters, and at most 216"),
    ],
)
def test_numbers_and_names_of_a_table(table, call, message):
    with pytest.raises(InvalidInputError, match=message):
        call(table)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_longest_names_are_stored(where, tmp_path):
    made = lance_core.write_dataset(ROWS, tmp_path / "t" if where == "disk" else f"memory://values-{next(_numbers)}")
    made.tags.create("t" * 230, 1)
    made.create_branch("b" * 216)
    assert lance_core.dataset(made.uri, version="t" * 230).count_rows() == 3
    assert list(made.branches.list()) == ["b" * 216]
    assert any(name.startswith("fork.bbb") for name in made.tags.list())
    assert check_tag_name("t" * 230)
    assert check_branch_name("b" * 107 + "/" + "b" * 108)


def test_a_condition_of_a_merge_names_the_sides(table):
    merge = table.merge_insert("id").when_matched_update_all("v > 1")
    with pytest.raises(SchemaError, match=r"no column 'v', in 'v > 1'; write source.v or target.v"):
        merge.execute(ROWS)
    assert table.latest_version == 1


def test_a_field_of_a_struct_is_named_by_its_path():
    made = lance_core.write_dataset(pa.table({"s": [{"x": 1}]}), f"memory://values-{next(_numbers)}")
    with pytest.raises(SchemaError, match=r"no column 'x', in 'x = 1'; write s.x"):
        made.to_table(filter="x = 1")


@pytest.mark.parametrize(
    "options",
    [
        {"target_rows_per_fragment": -1}, {"max_rows_per_group": -1}, {"max_bytes_per_file": -1},
        {"materialize_deletions_threshold": -3.0}, {"materialize_deletions_threshold": math.nan},
    ],
)  # fmt: skip
def test_options_of_a_compaction_that_mean_nothing(table, options):
    table.delete("id = 1")
    (name,) = options
    with pytest.raises(InvalidInputError, match=f"{name} must be at least 0, not"):
        table.optimize.compact_files(**options)
    with pytest.raises(InvalidInputError, match=f"{name} must be a number, not 'x'"):
        Compaction.plan(table, {name: "x"})
    assert table.latest_version == 2


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("mode", ["try_binary_copy", "force_binary_copy"])
def test_a_copy_of_pages_reads_at_least_a_byte_at_a_time(table, size, mode):
    with pytest.raises(InvalidInputError, match=f"binary_copy_read_batch_bytes must be greater than 0, got {size}"):
        table.optimize.compact_files(binary_copy_read_batch_bytes=size, compaction_mode=mode)
    assert table.latest_version == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition_by": "id"}, "partition_by must be a list of names of columns, not 'id'"),
        ({"partition_by": [1]}, r"partition_by must be a list of names of columns, not \[1\]"),
        ({"excluded_fragment_ids": "12"}, "excluded_fragment_ids must be a list of ids of fragments, not '12'"),
        ({"excluded_fragment_ids": ["1"]}, "excluded_fragment_ids must be a list of ids of fragments, not"),
        ({"excluded_fragment_ids": 5}, "excluded_fragment_ids must be a list of ids of fragments, not 5"),
        ({"materialize_deletions": "false"}, "materialize_deletions must be True or False, not 'false'"),
        ({"defer_index_remap": "no"}, "defer_index_remap must be True or False, not 'no'"),
    ],
)
@pytest.mark.parametrize("call", [Compaction.plan, Compaction.execute, compact])
def test_options_of_a_compaction_of_a_wrong_type(table, options, words, call):
    with pytest.raises(ArgumentTypeError, match=words):
        call(table, options)
    assert table.latest_version == 1


@pytest.mark.parametrize("library", ["lance_core", "lance"])
@pytest.mark.parametrize(
    ("options", "rewritten"),
    [
        ({"target_rows_per_fragment": 0}, 1), ({"materialize_deletions_threshold": 5.0}, 0),
        ({"max_bytes_per_file": 0, "materialize_deletions_threshold": 1.0}, 0), ({"materialize_deletions_threshold": 0.0}, 1),
    ],
)  # fmt: skip
def test_options_of_a_compaction_that_pylance_takes(tmp_path, library, options, rewritten):
    made = pytest.importorskip(library).write_dataset(ROWS, str(tmp_path / "t"))
    made.delete("id = 1")
    assert made.optimize.compact_files(**options).fragments_removed == rewritten
    assert made.count_rows() == 2


def test_a_root_that_does_not_exist_has_no_tables_and_a_file_is_no_root(tmp_path):
    file = tmp_path / "a_file.py"
    file.write_text("")
    for find in (lance_core.list_tables, lance_core.maintenance.find_tables):
        assert find(tmp_path / "none") == []
        assert find(f"memory://none-{next(_numbers)}") == []
        with pytest.raises(InvalidInputError, match=r"a_file.py is a file: give the folder that the tables are in"):
            find(file)


@pytest.mark.parametrize("segment", ["abc", "", "0" * 31, "\0"])
def test_a_segment_that_is_no_uuid(table, segment):
    table.create_scalar_index("id", "BTREE")
    with pytest.raises(InvalidInputError, match="is no UUID; describe_indices lists the segments"):
        table.prewarm_index("id_idx", index_segments=[segment])


def test_names_of_lances_own_indices(table):
    for name in ("__lance_frag_reuse", "__lance_mem_wal", "__lance_new"):
        with pytest.raises(InvalidInputError, match="those of Lance's own indices; give another name"):
            table.create_scalar_index("id", "BTREE", name=name)
        with pytest.raises(InvalidInputError, match="those of Lance's own indices; give another name"):
            table.create_index_uncommitted("id", "BTREE", name=name, fragment_ids=[0])


def test_update_columns_needs_a_column_to_set(table):
    (fragment,) = table.get_fragments()
    with pytest.raises(SchemaError, match="the data has no column but 'id', by which rows are matched"):
        fragment.update_columns(pa.table({"id": [1]}), "id")
