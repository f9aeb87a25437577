"""A stream from a table reads every row with every value, or says why not; without Spark."""

import random
import warnings
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import IncompatibleConflictError, LanceError, SchemaError
from pyspark_lance.datasource.source import DefaultSource
from tests.support.streams import Query


def append(uri, *ids, **columns):
    lance.write_dataset(pa.table({"id": pa.array(ids, pa.int64()), **columns}), uri, mode="append")


def clean(uri):
    lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)


def ids(rows):
    return sorted(row["id"] for row in rows)


RESTART = "Start a new query with another option checkpointLocation"


NO_CHANGES = {
    "delete": lambda table: table.delete("id = 77"),
    "update": lambda table: table.update({"id": "5"}, where="id = 77"),
    "merge": lambda table: table.merge_insert("id").when_matched_update_all().execute(pa.table({"id": [77]})),
    "merge that deletes": lambda table: (
        table.merge_insert("id").when_not_matched_by_source_delete("id = 88").execute(pa.table({"id": [77]}))
    ),
}


@pytest.mark.parametrize("library", [lance, lance_core])
@pytest.mark.parametrize("change", NO_CHANGES.values(), ids=NO_CHANGES)
@pytest.mark.parametrize("options", [{}, {"readChangeFeed": "true"}], ids=["appends", "changes"])
def test_versions_that_change_no_row_are_passed_over(uri, library, change, options):
    append(uri, 1, 2)
    query = Query(uri, **options)
    query.all()
    change(library.dataset(uri))
    assert lance_core.dataset(uri).version == 2
    append(uri, 3)
    change(library.dataset(uri))
    assert ids(query.all()) == [1, 2, 3]
    assert query.start["version"] == 4


def test_a_delete_that_takes_rows_ends_a_stream_of_appends(uri):
    append(uri, 1, 2)
    query = Query(uri)
    query.all()
    lance_core.dataset(uri).delete("id = 77")
    lance_core.dataset(uri).delete("id = 1")
    with pytest.raises(LanceError, match=r"version 3 of .* does not only append \(Delete\)"):
        query.batch()


class TestIdentity:
    def test_an_offset_says_of_which_table_and_branch_it_is(self, uri):
        append(uri, 1)
        query = Query(uri)
        query.all()
        (fragment,) = lance_core.dataset(uri).get_fragments()
        assert query.start == {
            "version": 1,
            "table": lance_core.dataset(uri).identity,
            "branch": "main",
            "fragments": 1,
            "last_fragment": 0,
            "deleted_rows": 0,
            "files": [fragment.metadata.files[0].path],
        }
        append(uri, 2)
        assert ids(query.all()) == [1, 2]

    @pytest.mark.parametrize("versions", [1, 2, 3, 5])
    @pytest.mark.parametrize("restarted", [True, False])
    def test_a_table_that_was_made_again(self, uri, versions, restarted):
        for number in range(3):
            append(uri, number)
        query = Query(uri)
        query.all()
        lance_core.LanceDataset.drop(uri)
        for number in range(versions):
            append(uri, 10 + number)
        if restarted:
            query.load()
        what = "latest version is" if versions < 3 else "version 3 of .* differs from the one"
        with pytest.raises(IncompatibleConflictError, match=f"{what}.*made again.*{RESTART}"):
            query.batch()
        assert ids(query.rows) == [0, 1, 2]
        assert ids(Query(uri).all()) == list(range(10, 10 + versions))

    def test_a_dropped_table(self, uri):
        append(uri, 1)
        query = Query(uri)
        query.all()
        lance_core.LanceDataset.drop(uri)
        with pytest.raises(IncompatibleConflictError, match="and now there is no table"):
            query.batch()

    def test_made_again_between_the_offset_and_the_read(self, uri):
        append(uri, 1)
        query = Query(uri)
        query.all()
        append(uri, 2)
        start, end = query.start, query.reader.latestOffset(query.start)
        lance_core.LanceDataset.drop(uri)
        for number in range(3):
            append(uri, 10 + number)
        with pytest.raises(IncompatibleConflictError, match=r"version 2 of .* differs from the one"):
            query.replay(start, end)
        with pytest.raises(IncompatibleConflictError, match=r"version 2 of .* differs from the one"):
            query.replay({"version": 0}, end)
        assert ids(query.rows) == [1]

    def test_another_branch(self, uri):
        append(uri, 1)
        lance.dataset(uri).create_branch("draft")
        query = Query(uri)
        query.all()
        query.options["branch"] = "draft"
        with pytest.raises(IncompatibleConflictError, match=r"branch 'main' up to version 1.*to read branch 'draft'"):
            query.load().batch()
        query = Query(uri, branch="draft")
        assert ids(query.all()) == [1]
        assert query.start["branch"] == "draft"

    def test_offsets_of_earlier_releases_go_on(self, uri):
        append(uri, 1)
        query = Query(uri)
        query.start = {"version": 1}
        assert query.batch(), "an empty one, which brings the offset up to date"
        append(uri, 2)
        assert ids(query.all()) == [2]
        query.start = {"version": 7}
        with pytest.raises(IncompatibleConflictError, match="its latest version is 2"):
            query.batch()

    def test_cleanup_and_compaction_are_not_another_table(self, uri):
        append(uri, 1)
        append(uri, 2)
        query = Query(uri)
        query.all()
        clean(uri)
        assert not query.load().batch()
        append(uri, 3)
        lance.dataset(uri).optimize.compact_files()
        assert ids(query.all()) == [1, 2, 3]
        lance.dataset(uri).tags.create("here", query.start["version"])
        append(uri, 4)
        append(uri, 5)
        clean_but_tagged = {"delete_unverified": True, "error_if_tagged_old_versions": False}
        lance.dataset(uri).cleanup_old_versions(timedelta(0), **clean_but_tagged)
        with pytest.raises(
            LanceError, match=f"version {query.start['version'] + 1} of .* behind the cleanup.*{RESTART}"
        ):
            query.load().batch()


class TestColumns:
    def test_a_new_column_ends_the_query_and_a_restart_has_it(self, uri):
        append(uri, 1)
        query = Query(uri)
        query.batch()
        append(uri, 2)
        lance.dataset(uri).add_columns({"b": "id * 10"})
        append(uri, 3, b=pa.array([31], pa.int64()))
        with pytest.raises(SchemaError, match=r"planned for version 1: added b\. .*Load the table again"):
            query.batch()
        assert query.rows == [{"id": 1}]
        query.load().all()
        assert query.rows == [{"id": 1}, {"id": 2, "b": 20}, {"id": 3, "b": 31}]

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            (lambda table: table.drop_columns(["x"]), "dropped or renamed x"),
            (lambda table: table.alter_columns({"path": "x", "name": "y"}), "added y; dropped or renamed x"),
            (lambda table: table.alter_columns({"path": "x", "data_type": pa.int64()}), r"changed x \(was int32"),
        ],
    )
    def test_every_change_of_columns(self, uri, change, what):
        append(uri, 1, x=pa.array([10], pa.int32()))
        query = Query(uri)
        query.all()
        append(uri, 2, x=pa.array([20], pa.int32()))
        change(lance.dataset(uri))
        with pytest.raises(SchemaError, match=what):
            query.batch()
        query.load().all()
        last = lance.dataset(uri).to_table(filter="id = 2").to_pylist()
        assert query.rows == [{"id": 1, "x": 10}, *last]

    def test_columns_that_were_not_asked_for_do_not_matter(self, uri):
        append(uri, 1)
        query = Query(uri, columns="id")
        query.all()
        lance.dataset(uri).add_columns({"b": "id * 10"})
        append(uri, 2, b=pa.array([20], pa.int64()))
        assert query.all() == [{"id": 1}, {"id": 2}]
        lance.dataset(uri).drop_columns(["b"])
        lance.dataset(uri).add_columns({"c": "id"})
        lance.dataset(uri).drop_columns(["id"])
        with pytest.raises(SchemaError, match="dropped or renamed id"):
            query.batch()

    def test_values_of_rows_that_were_moved_are_not_guessed(self, uri):
        append(uri, 1)
        query = Query(uri)
        query.all()
        append(uri, 2)
        append(uri, 3)
        lance.dataset(uri).optimize.compact_files()
        lance.dataset(uri).add_columns({"b": "id * 10"})
        with pytest.raises(LanceError, match=f"version 2 .* moved before column 'b' was added.*{RESTART}.*=3 or later"):
            query.load().batch()
        assert query.rows == [{"id": 1}]
        assert Query(uri, startingVersion="4").all() == []

    @pytest.mark.parametrize("stable", [False, True])
    @pytest.mark.parametrize("change", ["rename", "values", "nulls"])
    @pytest.mark.parametrize("moved_first", [False, True])
    def test_rows_that_were_moved_have_their_values_where_a_version_has_them(self, uri, stable, change, moved_first):
        lance_core.write_dataset(pa.table({"id": [1], "v": [10]}), uri, enable_stable_row_ids=stable)
        query = Query(uri)
        query.all()
        for number in (2, 3):
            lance.write_dataset(pa.table({"id": [number], "v": [number * 10]}), uri, mode="append")
        if moved_first:
            lance.dataset(uri).optimize.compact_files()
        if change == "rename":
            lance.dataset(uri).alter_columns({"path": "v", "name": "r"})
        else:
            lance.dataset(uri).add_columns({"b": "id + 1"} if change == "values" else pa.field("b", pa.int64()))
        if not moved_first:
            lance.dataset(uri).optimize.compact_files()
        if moved_first and change == "values":
            with pytest.raises(LanceError, match="moved before column 'b' was added"):
                query.load().all()
            return
        query.load().all()
        assert query.rows[1:] == lance.dataset(uri).to_table(filter="id > 1").to_pylist()

    def test_a_column_that_was_renamed_is_read_beside_one_that_has_its_name_now(self, uri):
        lance_core.write_dataset(pa.table({"id": [1], "v": [10], "s": [{"x": 1, "y": 1}]}), uri)
        lance.write_dataset(pa.table({"id": [2], "v": [20], "s": [{"x": 2, "y": 2}]}), uri, mode="append")
        lance.dataset(uri).optimize.compact_files()
        for path, name in (("id", "old"), ("v", "id"), ("old", "v"), ("s", "t")):
            lance.dataset(uri).alter_columns({"path": path, "name": name})
        assert Query(uri, startingVersion="2").all() == [{"v": 2, "id": 20, "t": {"x": 2, "y": 2}}]
        found = Query(uri, startingVersion="2", columns="t.y,id,_rowid").all()
        assert [{**row, "_rowid": None} for row in found] == [{"t.y": 2, "id": 20, "_rowid": None}]

    def test_a_delete_of_no_row_is_passed_over(self, uri):
        append(uri, 1)
        query = Query(uri)
        query.all()
        lance.dataset(uri).delete("id = 77")
        assert lance.dataset(uri).read_transaction(2).operation.__class__.__name__ == "Delete"
        append(uri, 2)
        assert ids(query.all()) == [1, 2]
        lance.dataset(uri).delete("id = 2")
        with pytest.raises(LanceError, match="does not only append"):
            query.all()

    def test_columns_that_began_as_null_are_null_in_rows_that_were_moved(self, uri):
        append(uri, 1)
        query = Query(uri)
        query.all()
        append(uri, 2)
        append(uri, 3)
        lance.dataset(uri).optimize.compact_files()
        lance.dataset(uri).add_columns(pa.field("b", pa.int64()))
        append(uri, 4, b=pa.array([40], pa.int64()))
        query.load().all()
        assert query.rows == [{"id": 1}, {"id": 2, "b": None}, {"id": 3, "b": None}, {"id": 4, "b": 40}]

    def test_a_batch_that_is_repeated_after_a_change(self, uri):
        """Spark noted the end of the batch, and died; the column came before the restart."""
        append(uri, 1)
        query = Query(uri)
        start = query.reader.initialOffset()
        end = query.reader.latestOffset(start)
        append(uri, 2)
        lance.dataset(uri).add_columns({"b": "id * 10"})
        query.load().replay(start, end)
        query.start = end
        assert query.all() == [{"id": 1, "b": 10}, {"id": 2, "b": 20}]

    def test_the_query_reads_the_columns_of_the_frame(self, uri):
        """A column that is added between load and start counts as added after the query began."""
        append(uri, 1)
        source = DefaultSource({"path": uri})
        schema = source.schema()
        lance.dataset(uri).add_columns({"b": "id * 10"})
        reader = source.streamReader(schema)
        with pytest.raises(SchemaError, match="added b"):
            reader.latestOffset(reader.initialOffset())

    def test_a_schema_that_the_user_gave(self, uri):
        append(uri, 1, x=pa.array([10], pa.int32()))
        schema = DefaultSource({"path": uri, "columns": "id"}).schema()
        reader = DefaultSource({"path": uri}).streamReader(schema)
        lance.dataset(uri).add_columns({"b": "id * 10"})
        end = reader.latestOffset(reader.initialOffset())
        (part,) = reader.partitions({"version": 0}, end)
        assert [row for rows in reader.read(part) for row in rows.to_pylist()] == [{"id": 1}]


@pytest.mark.parametrize("seed", range(6))
def test_every_row_with_every_value_or_the_query_stopped_before_it(uri, seed):
    """Random appends, changes of columns, compactions, batches and restarts; each row is compared with the table."""
    chance = random.Random(seed)
    append(uri, 0)
    query, number, stops = Query(uri, **({"maxVersionsPerTrigger": "2"} if seed % 2 else {})), 0, 0
    for _ in range(25):
        step = chance.choice(["append", "append", "batch", "batch", "add", "null", "drop", "compact", "restart"])
        table = lance.dataset(uri)
        extra = [name for name in table.schema.names if name != "id"]
        if step == "append":
            number += 1
            given = {name: pa.array([number * 100 + len(extra)], pa.int64()) for name in extra}
            append(uri, number, **given)
        elif step == "batch":
            stops += not advance(query)
        elif step == "add":
            table.add_columns({f"c{table.version}": f"id * {table.version}"})
        elif step == "null":
            table.add_columns(pa.field(f"c{table.version}", pa.int64()))
        elif step == "drop" and extra:
            table.drop_columns([chance.choice(extra)])
        elif step == "compact" and seed > 3:
            table.optimize.compact_files()
        elif step == "restart":
            query.load()
    query.load()
    while query.start != (query.reader.latestOffset(query.start) if query.start else None):
        if not advance(query):
            assert seed > 3, "only rows that were moved can be a dead end"
            break
    else:
        assert ids(query.rows) == list(range(number + 1))
    assert len(set(ids(query.rows))) == len(query.rows)


def advance(query):
    """Read a batch, and compare its rows with the version that they are of; False if the query ended before it."""
    before = len(query.rows)
    try:
        query.batch()
    except LanceError:
        del query.rows[before:]
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        now = {row["id"]: row for row in lance.dataset(query.options["path"]).to_table().to_pylist()}
    for row in query.rows[before:]:
        # Columns that were dropped since are not in the table any more.
        assert {name: value for name, value in row.items() if name in now[row["id"]]} == {
            name: value for name, value in now[row["id"]].items() if name in row
        }
        assert row.keys() == {field.name for field in query.schema}
    return True


QUIET_CHANGES = {
    "append": lambda table: append(table.uri, 9),
    "compaction": lambda table: table.optimize.compact_files(),
    "columns": lambda table: table.add_columns({"twice": "id * 2"}),
    "settings": lambda table: table.update_config({"a": "b"}),
    "no deletion": lambda table: table.delete("id = 77"),
}


@pytest.mark.parametrize("change", QUIET_CHANGES)
@pytest.mark.parametrize("feed", [False, True], ids=["appends", "changes"])
class TestTheVersionThatWasReadIsCleaned:
    """All versions that the stream has not read are there."""

    def query(self, uri, feed):
        append(uri, 1)
        append(uri, 2)
        query = Query(uri, **({"readChangeFeed": "true"} if feed else {}), columns="id")
        assert ids(query.all()) == [1, 2]
        return query

    def test_it_goes_on(self, uri, feed, change):
        query = self.query(uri, feed)
        QUIET_CHANGES[change](lance_core.dataset(uri))
        read = query.start["version"]
        lance_core.dataset(uri).cleanup_old_versions(versions=list(range(1, read + 1)), delete_unverified=True)
        assert read not in {one["version"] for one in lance_core.dataset(uri).version_refs()}
        if feed and change in ("no deletion", "columns"):  # it can have deleted rows of the version before
            with pytest.raises(LanceError, match=f"version {read} was cleaned up.*{RESTART}"):
                query.load().all()
            return
        assert ids(query.load().all()) == ([1, 2, 9] if change == "append" else [1, 2])
        append(uri, 10)
        assert 10 in ids(query.all())

    def test_it_goes_on_from_an_empty_table(self, uri, feed, change):
        query = self.query(uri, feed)
        lance_core.dataset(uri).delete("true")
        query.options |= {} if feed else {"ignoreChanges": "true"}
        before = len(query.load().all())
        QUIET_CHANGES[change](lance_core.dataset(uri))
        read = query.start["version"]
        lance_core.dataset(uri).cleanup_old_versions(versions=list(range(1, read + 1)), delete_unverified=True)
        if lance_core.dataset(uri).version == read:
            return  # a compaction of nothing
        if feed and change in ("no deletion", "columns"):
            with pytest.raises(LanceError, match=f"version {read} was cleaned up.*{RESTART}"):
                query.load().all()
            return
        assert ids(query.load().all()[before:]) == ([9] if change == "append" else [])
        append(uri, 10)
        assert 10 in ids(query.all())

    def test_another_table_does_not_pass_for_an_empty_one(self, uri, feed, change):
        query = self.query(uri, feed)
        lance_core.dataset(uri).delete("true")
        query.options |= {} if feed else {"ignoreChanges": "true"}
        query.load().all()
        lance_core.LanceDataset.drop(uri)
        for number in range(3):
            append(uri, number)
        QUIET_CHANGES[change](lance_core.dataset(uri))
        lance_core.dataset(uri).cleanup_old_versions(versions=[1, 2, 3], delete_unverified=True)
        with pytest.raises(LanceError, match=RESTART):
            query.load().all()

    def test_another_table_does_not_pass_for_it(self, uri, feed, change):
        query = self.query(uri, feed)
        lance_core.LanceDataset.drop(uri)
        for number in range(4):
            append(uri, number)
        QUIET_CHANGES[change](lance_core.dataset(uri))
        lance_core.dataset(uri).cleanup_old_versions(versions=[1, 2], delete_unverified=True)
        with pytest.raises(LanceError, match=RESTART):
            query.load().all()
