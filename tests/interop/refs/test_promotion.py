"""Branches beside main: what they changed is shown, promoted into main, or thrown away; by either library's hand."""

import datetime as dt
import json
import random
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import (
    BranchConflictError,
    DatasetExistsError,
    InvalidInputError,
    SchemaError,
    VersionNotFoundError,
)
from lance_core.store.local import LocalStore
from lance_core.store.s3 import S3Store

LIBRARIES = {"ours": lance_core, "theirs": lance}


@pytest.fixture(params=LIBRARIES)
def maker(request):
    """The library that writes on the branch."""
    return LIBRARIES[request.param]


def rows(dataset):
    return sorted(map(tuple, (row.values() for row in dataset.to_table().to_pylist())))


def day(number, count=3, start=0):
    return pa.table({"day": [f"d{number}"] * count, "n": [start + i for i in range(count)]})


def slices(*numbers):
    return lance_core.Slices(
        lance_core.Slice(name=f"d{number}", conditions={"day": lance_core.Equals(f"d{number}")}) for number in numbers
    )


def fill(uri, number, count=3, start=100, commit=None):
    """Replace a day."""
    table = day(number, count, start)
    fragments = lance_core.write_fragments(table, uri, mode="append")
    return lance_core.commit_fragments(
        uri, fragments, table.schema, mode="replace", slices=slices(number), commit=commit
    )


@pytest.fixture(scope="session", params=[False, True], ids=["addresses", "stable"])
def template(request, tmp_path_factory):
    """Four days, a fragment each, and one fragment with two."""
    uri = str(tmp_path_factory.mktemp("template") / "t")
    for number in range(4):
        lance.write_dataset(day(number), uri, mode="append", enable_stable_row_ids=request.param)
    lance.write_dataset(pa.concat_tables([day(4), day(5)]), uri, mode="append")
    return uri


@pytest.fixture
def uri(template, tmp_path):
    shutil.copytree(template, tmp_path / "t")
    return str(tmp_path / "t")


def promoted(uri, name="work", **options):
    """Promote, check that both libraries see the same sound table, and return what was done."""
    done = lance_core.dataset(uri).branches.promote(name, **options)
    theirs = lance.dataset(uri)
    assert rows(theirs) == rows(lance_core.dataset(uri))
    theirs.validate()
    if theirs.has_stable_row_ids:
        ids = theirs.scanner(with_row_id=True).to_table()["_rowid"].to_pylist()
        assert len(set(ids)) == len(ids)
        assert sorted(ids) == sorted(lance_core.dataset(uri).scanner(with_row_id=True).to_table()["_rowid"].to_pylist())
        lance.write_dataset(day(99, 1), uri, mode="append")  # ids that are given next are new as well
        more = lance.dataset(uri).scanner(with_row_id=True).to_table()["_rowid"].to_pylist()
        assert len(set(more)) == len(more)
        lance.dataset(uri).delete("day = 'd99'")
    return done


def open_branch(library, uri, name="work"):
    return library.dataset(uri).checkout_version((name, None))


class TestUnmovedMain:
    def test_all_kinds_of_changes(self, uri, maker):
        main = lance_core.dataset(uri)
        main.create_branch("work")
        branch = open_branch(maker, uri)
        branch.delete("day = 'd0'")
        branch.delete("day = 'd4' and n = 1")
        branch.insert(day(6))
        branch.delete("day = 'd6' and n = 0")
        branch.update({"n": "n + 1000"}, "day = 'd5'")
        (
            branch.merge_insert(["day", "n"])
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(pa.table({"day": ["d1", "d1", "d7"], "n": [0, 5000, 1]}))
        )
        before, version = rows(main), main.version
        expected = rows(open_branch(lance, uri))
        done = promoted(uri)
        assert rows(lance_core.dataset(uri)) == expected != before
        assert (done.version, done.fork_version) == (version + 1, version)
        assert rows(lance_core.dataset(uri, version=version)) == before
        assert rows(open_branch(lance, uri)) == expected
        assert lance_core.dataset(uri, version=done.tag).version == done.version

    def test_row_ids_of_rows_that_were_there_stay(self, tmp_path, maker):
        uri = str(tmp_path / "t")
        lance.write_dataset(day(0, 6), uri, enable_stable_row_ids=True)
        lance_core.dataset(uri).create_branch("work")
        branch = open_branch(maker, uri)
        branch.update({"n": "n + 100"}, "n >= 3")
        branch.insert(day(1, 2))
        branch.optimize.compact_files(target_rows_per_fragment=100)
        promoted(uri)
        table = lance.dataset(uri).scanner(with_row_id=True).to_table().to_pydict()
        found = {(d, n): i for d, n, i in zip(table["day"], table["n"], table["_rowid"], strict=True)}
        assert [found["d0", n] for n in (0, 1, 2, 103, 104, 105)] == [0, 1, 2, 3, 4, 5]
        assert min(found["d1", 0], found["d1", 1]) >= 6

    def test_columns_that_were_rewritten(self, uri):
        main = lance_core.dataset(uri)
        branch = main.create_branch("work")
        fragment = branch.get_fragments()[0]
        ids = fragment.to_table(columns=["day", "n"])
        new, fields = fragment.update_columns(
            pa.table({"n": ids["n"], "day": ["x", "y", "z"]}), left_on="n", right_on="n"
        )
        branch = lance_core.LanceDataset.commit(
            branch.uri,
            lance_core.LanceOperation.Update(updated_fragments=[new], fields_modified=fields),
            read_version=branch.version,
        )
        expected = rows(open_branch(lance, uri))
        assert ("x", 0) in expected
        promoted(uri)
        assert rows(lance_core.dataset(uri)) == expected

    def test_an_overwritten_branch(self, uri, maker):
        lance_core.dataset(uri).create_branch("work")
        maker.write_dataset(day(8, 5), f"{uri}/tree/work", mode="overwrite")
        promoted(uri)
        assert rows(lance_core.dataset(uri)) == rows(day_table(8, 5))

    def test_what_is_recorded(self, uri):
        main = lance_core.dataset(uri)
        branch = main.create_branch("work")
        for number in (2, 7):
            properties = {"dagster.run_id": f"r{number}", "dagster.partition_keys": json.dumps([f"d{number}"])}
            fill(branch.uri, number, commit=lance_core.Commit(properties={**properties, "same": "s"}))
        done = promoted(uri, tag="published-1", transaction_properties={"who": "me"})
        found = lance.dataset(uri).read_transaction(done.version).transaction_properties
        assert found["promoted_from"] == "work"
        assert json.loads(found["dagster.run_id"]) == ["r2", "r7"]
        assert json.loads(found["dagster.partition_keys"]) == ["d2", "d7"]
        assert json.loads(found["lance.slice_names"]) == ["d2", "d7"]
        assert (found["same"], found["who"]) == ("s", "me")
        assert lance.dataset(uri).tags.list()["published-1"]["version"] == done.version
        assert lance.dataset(uri).read_transaction(done.version).read_version == done.fork_version

    def test_again_makes_no_second_version(self, uri, maker):
        lance_core.dataset(uri).create_branch("work")
        open_branch(maker, uri).delete("n = 1")
        first = lance_core.dataset(uri).branches.promote("work")
        second = lance_core.dataset(uri).branches.promote("work")
        assert (second.version, second.deduplicated, first.deduplicated) == (first.version, True, False)
        lance.write_dataset(day(9), uri, mode="append")
        assert lance_core.dataset(uri).branches.promote("work").version == first.version
        assert lance_core.dataset(uri).version == first.version + 1
        open_branch(maker, uri).delete("n = 2")
        with pytest.raises(InvalidInputError, match="was promoted to version"):
            lance_core.dataset(uri).branches.promote("work")

    @pytest.mark.parametrize(("branch", "shown"), [("etl/2024.01-a_b", "etl-2024-01-a_b"), ("--", "branch")])
    def test_the_tag_names_the_branch(self, uri, branch, shown):
        main = lance_core.dataset(uri)
        main.create_branch(branch).delete("n = 1")
        done = main.branches.promote(branch)
        assert re.fullmatch(rf"promoted\.{shown}\.[0-9a-f]{{8}}", done.tag)
        assert lance.dataset(uri).tags.list()[done.tag]["version"] == done.version

    def test_a_branch_without_changes(self, uri):
        main = lance_core.dataset(uri)
        main.create_branch("work")
        done = main.branches.promote("work")
        assert (done.version, done.deduplicated, done.tag) == (main.version, True, None)
        assert lance_core.dataset(uri).version == main.version

    def test_what_is_no_row_stays_and_is_named(self, uri, maker, caplog):
        main = lance_core.dataset(uri)
        main.create_scalar_index("n", "ZONEMAP", name="old_idx")
        main.update_config({"kept": "a", "dropped": "b"})
        main.create_branch("work")
        branch = lance_core.dataset(f"{uri}/tree/work")
        branch.update_config({"kept": "c", "new": "d"})
        branch.delete_config_keys(["dropped"]) if hasattr(branch, "delete_config_keys") else branch.update_config(
            {"dropped": None}
        )
        branch.update_metadata({"about": "it"})
        branch.replace_schema_metadata({"s": "1"})
        branch.drop_index("old_idx")
        open_branch(maker, uri).create_scalar_index("day", "BTREE", name="new_idx")
        expected = (
            "configuration 'dropped' (removed)", "configuration 'kept' (changed)", "configuration 'new' (added)",
            "table metadata 'about' (added)", "schema metadata 's' (added)", "index 'new_idx' (added)",
            "index 'old_idx' (removed)",
        )  # fmt: skip
        assert main.branches.diff("work").left_behind == expected
        assert main.branches.promote("work").left_behind == expected  # without a row there is no version either
        assert lance_core.dataset(uri).version == main.version
        assert "branch 'work' keeps changes that were not promoted: configuration 'dropped' (removed)" in caplog.text
        open_branch(maker, uri).insert(day(7))
        assert promoted(uri).left_behind == expected
        assert lance_core.dataset(uri).config()["kept"] == "a"
        assert [index["name"] for index in lance.dataset(uri).list_indices()] == ["old_idx"]

    def test_maintenance_of_indices_is_no_change(self, uri, maker):
        main = lance_core.dataset(uri)
        main.create_scalar_index("n", "ZONEMAP")
        main.create_branch("work")
        branch = open_branch(maker, uri)
        branch.insert(day(7))
        branch.optimize.compact_files(target_rows_per_fragment=100)
        branch.optimize.optimize_indices()
        assert main.branches.diff("work").left_behind == ("index 'n_idx' (extended)",)
        assert promoted(uri).left_behind == ()

    def test_the_handle_moves(self, uri):
        main = lance_core.dataset(uri)
        branch = main.create_branch("work")
        branch.delete("n = 0")
        done = main.branches.promote("work")
        assert (main.version, rows(main)) == (done.version, rows(branch))

    def test_a_branch_of_a_branch_goes_to_its_parent(self, uri, maker):
        lance_core.dataset(uri).create_branch("feat/a")
        open_branch(maker, uri, "feat/a").delete("n = 0")
        lance_core.dataset(uri).create_branch("sub", ("feat/a", None))
        child = open_branch(maker, uri, "sub")
        child.insert(day(7))
        child.delete("n = 1")
        before = rows(lance_core.dataset(uri))
        lance_core.dataset(uri).branches.promote("sub")
        assert rows(open_branch(lance, uri, "feat/a")) == rows(child)
        lance_core.dataset(uri).branches.delete("sub")
        assert rows(lance_core.dataset(uri)) == before
        expected = rows(open_branch(lance_core, uri, "feat/a"))
        promoted(uri, "feat/a")
        assert rows(lance_core.dataset(uri)) == expected

    def test_a_branch_of_pylance(self, uri):
        branch = lance.dataset(uri).create_branch("theirs")
        branch.delete("day = 'd2'")
        branch.insert(day(2, 1, 77))
        expected = rows(branch)
        promoted(uri, "theirs")
        assert rows(lance.dataset(uri)) == expected

    def test_nothing_of_the_branch_is_needed_afterwards(self, uri, maker):
        lance_core.dataset(uri).create_branch("work")
        branch = open_branch(maker, uri)
        branch.delete("n = 1")
        branch.insert(day(6))
        promoted(uri)
        expected = rows(lance_core.dataset(uri))
        lance_core.dataset(uri).branches.discard("work")
        assert not Path(uri, "tree/work").exists()
        assert rows(lance_core.dataset(uri)) == rows(lance.dataset(uri)) == expected
        assert [t for t in lance.dataset(uri).tags.list() if t.startswith("fork")] == []


def day_table(*args):
    class Table:
        def to_table(self):
            return day(*args)

    return Table()


class TestMovedMain:
    def test_appends_and_other_partitions_survive(self, uri, maker):
        branch = lance_core.dataset(uri).create_branch("work")
        fill(branch.uri, 1, 2)
        maker.write_dataset(day(9), uri, mode="append")
        fill(uri, 2, 1, 500)
        maker.dataset(uri).delete("day = 'd0' and n = 2")
        promoted(uri)
        expected = [("d0", 0), ("d0", 1), ("d1", 100), ("d1", 101), ("d2", 500)]
        expected += [(f"d{i}", n) for i in (3, 4, 5, 9) for n in range(3)]
        assert rows(lance_core.dataset(uri)) == expected

    def test_rows_of_one_fragment_are_deleted_on_both_sides(self, uri, maker):
        branch = lance_core.dataset(uri).create_branch("work")
        branch.delete("day = 'd4'")
        lance_core.dataset(uri).delete("day = 'd5' and n = 0")
        promoted(uri)
        assert [row for row in rows(lance_core.dataset(uri)) if row[0] > "d3"] == [("d5", 1), ("d5", 2)]

    @pytest.mark.parametrize("number", [1, 7])
    def test_the_same_partition_on_both_sides_is_named(self, uri, number):
        """Of old rows and of none: two that create a partition have no fragment in common."""
        branch = lance_core.dataset(uri).create_branch("work")
        fill(branch.uri, number)
        fill(uri, number, 2, 900)
        before = rows(lance.dataset(uri))
        version, files = lance.dataset(uri).version, set(Path(uri, "data").iterdir())
        with pytest.raises(BranchConflictError, match=f"version {version} filled 'd{number}'"):
            lance_core.dataset(uri).branches.promote("work")
        assert (rows(lance.dataset(uri)), lance.dataset(uri).version) == (before, version)
        assert set(Path(uri, "data").iterdir()) == files
        assert rows(open_branch(lance, uri)) != before

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d.delete("day = 'd1' and n = 0"),
            lambda d: d.update({"n": "n + 1"}, "day = 'd1'"),
            lambda d: d.restore(),
            lambda d: d.alter_columns({"path": "n", "data_type": pa.int32()}),
        ],
    )
    def test_other_conflicts(self, uri, change):
        branch = lance_core.dataset(uri).create_branch("work")
        fill(branch.uri, 1)
        change(lance.dataset(uri))
        before = rows(lance.dataset(uri))
        with pytest.raises(BranchConflictError, match=r"cannot be promoted: .*version \d+.* Discard the branch"):
            lance_core.dataset(uri).branches.promote("work")
        assert rows(lance.dataset(uri)) == before

    def test_a_column_that_main_added(self, uri):
        """New rows have nulls in it. Without stable row ids they may be rows that were moved, whose values are known."""
        branch = lance_core.dataset(uri).create_branch("work")
        fill(branch.uri, 1)
        lance.dataset(uri).add_columns({"more": "n + 1"})
        before = lance.dataset(uri).to_table().to_pylist()
        if not lance.dataset(uri).has_stable_row_ids:
            with pytest.raises(BranchConflictError, match=r"\(Merge\) set columns of rows of fragment 1"):
                lance_core.dataset(uri).branches.promote("work")
            assert lance.dataset(uri).to_table().to_pylist() == before
            return
        lance_core.dataset(uri).branches.promote("work")
        others = [row for row in before if row["day"] != "d1"]
        found = lance.dataset(uri).to_table().to_pylist()
        assert [row for row in found if row["day"] != "d1"] == others
        assert [(row["n"], row["more"]) for row in found if row["day"] == "d1"] == [(i, None) for i in (100, 101, 102)]
        lance.dataset(uri).validate()

    def test_the_same_keys_inserted_on_both_sides(self, tmp_path):
        uri = str(tmp_path / "t")
        schema = pa.schema([pa.field("k", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})])
        lance.write_dataset(pa.table({"k": [1]}, schema=schema), uri)
        branch = lance_core.dataset(uri).create_branch("work")
        for dataset in (branch, lance_core.dataset(uri)):
            builder = dataset.merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
            builder.execute(pa.table({"k": [5]}, schema=schema))
        with pytest.raises(BranchConflictError):
            lance_core.dataset(uri).branches.promote("work")

    def test_two_branches(self, uri):
        main = lance_core.dataset(uri)
        for name, numbers in {"one": (0, 1), "two": (2, 7), "three": (1,)}.items():
            branch = main.create_branch(name)
            for number in numbers:
                fill(branch.uri, number, 1, len(name))
        promoted(uri, "one")
        promoted(uri, "two")
        with pytest.raises(BranchConflictError, match="'d1'"):
            main.branches.promote("three")
        found = rows(lance.dataset(uri))
        assert [row for row in found if row[0] in ("d0", "d1", "d2", "d7")] == [
            ("d0", 3), ("d1", 3), ("d2", 3), ("d7", 3),
        ]  # fmt: skip

    def test_a_gap_in_the_history_is_rejected(self, uri):
        main = lance_core.dataset(uri)
        main.create_branch("work").delete("n = 1")
        lance_core.dataset(uri).insert(day(8))
        lance_core.dataset(uri).insert(day(9))
        Path(uri, f"_versions/{2**64 - 1 - main.version - 1:020d}.manifest").unlink()
        expected = rows(lance_core.dataset(uri))
        with pytest.raises(BranchConflictError, match=f"what main changed in version {main.version + 1}[.]"):
            main.branches.promote("work")
        assert rows(lance_core.dataset(uri)) == expected

    def test_another_schema_is_rejected(self, uri, maker):
        lance_core.dataset(uri).create_branch("work")
        open_branch(maker, uri).alter_columns({"path": "n", "name": "more"})
        version = lance_core.dataset(uri).version
        with pytest.raises(SchemaError, match=r"dropped \['n'\]"):
            lance_core.dataset(uri).branches.promote("work")
        assert lance_core.dataset(uri).version == version


class TestCompaction:
    @pytest.mark.parametrize("who", LIBRARIES)
    @pytest.mark.parametrize("where", ["before", "main", "branch", "both", "after"])
    def test_loses_nothing(self, uri, who, where):
        def compact(dataset):
            LIBRARIES[who].dataset(dataset.uri).optimize.compact_files(target_rows_per_fragment=100)

        if where == "before":
            compact(lance_core.dataset(uri))
        branch = lance_core.dataset(uri).create_branch("work")
        fill(branch.uri, 1, 2)
        branch = open_branch(LIBRARIES[who], uri)
        branch.delete("day = 'd4' and n = 1")
        branch.delete("day = 'd0'")
        if where in ("branch", "both"):
            compact(lance_core.dataset(f"{uri}/tree/work"))
        if where in ("main", "both"):
            lance.write_dataset(day(9), uri, mode="append")
            compact(lance_core.dataset(uri))
        promoted(uri)
        if where == "after":
            compact(lance_core.dataset(uri))
        expected = rows(open_branch(lance, uri))
        found = [row for row in rows(lance.dataset(uri)) if row[0] != "d9"]
        assert found == expected
        assert len(rows(lance.dataset(uri))) == len(expected) + (3 if where in ("main", "both") else 0)

    def test_a_change_of_the_same_rows_is_seen_through_a_compaction(self, uri):
        branch = lance_core.dataset(uri).create_branch("work")
        fill(branch.uri, 1)
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=100)
        lance_core.dataset(uri).delete("day = 'd1' and n = 1")
        with pytest.raises(BranchConflictError):
            lance_core.dataset(uri).branches.promote("work")

    @pytest.mark.parametrize("who", LIBRARIES)
    @pytest.mark.parametrize("spelled", ["file://{}", "{}/../t"])
    def test_cleanup_loses_nothing(self, uri, who, spelled):
        """Main is overwritten at last: only the branch needs what it was forked from."""

        def clean():
            LIBRARIES[who].dataset(spelled.format(uri)).cleanup_old_versions(
                older_than=dt.timedelta(0), error_if_tagged_old_versions=False, delete_unverified=True
            )

        branch = lance_core.dataset(uri).create_branch("work")
        fill(branch.uri, 1)
        expected = rows(open_branch(lance, uri))
        clean()
        assert rows(open_branch(lance, uri)) == expected
        promoted(uri, tag=False)
        clean()
        assert rows(lance.dataset(uri)) == rows(open_branch(lance, uri)) == expected
        lance_core.write_dataset(day(0), uri, mode="overwrite")
        clean()
        assert rows(open_branch(lance, uri)) == expected


class TestKilled:
    STEPS = ("copy data", "copy deletions", "put deletions", "manifest before", "manifest after", "tag", "mark")

    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("template", [True], ids=["stable"], indirect=True)
    def test_it_is_committed_once(self, uri, monkeypatch, step):
        branch = lance_core.dataset(uri).create_branch("work")
        fill(branch.uri, 1, 2)
        branch.checkout_latest()
        branch.delete("day = 'd1' and n = 101")  # of a new fragment
        branch.delete("day = 'd4' and n = 1")  # of an old one
        before, expected = rows(lance.dataset(uri)), rows(branch)
        version = lance.dataset(uri).version
        real = {name: getattr(LocalStore, name) for name in ("copy", "put", "put_if_absent")}

        def dying(name, when, key_of, after=False):
            def call(self, *args, **options):
                if not key_of(args).startswith(when):
                    return real[name](self, *args, **options)
                if after:
                    real[name](self, *args, **options)
                raise KeyboardInterrupt

            monkeypatch.setattr(LocalStore, name, call)

        {
            "copy data": lambda: dying("copy", "data/", lambda args: args[1]),
            "copy deletions": lambda: dying("copy", "_deletions/", lambda args: args[1]),
            "put deletions": lambda: dying("put", "_deletions/", lambda args: args[0]),
            "manifest before": lambda: dying("put_if_absent", "_versions/", lambda args: args[0]),
            "manifest after": lambda: dying("put_if_absent", "_versions/", lambda args: args[0], after=True),
            "tag": lambda: dying("put_if_absent", "_refs/tags/", lambda args: args[0]),
            "mark": lambda: dying("put", "_refs/branches/", lambda args: args[0]),
        }[step]()
        with pytest.raises(KeyboardInterrupt):
            lance_core.dataset(uri).branches.promote("work")
        committed = step in ("manifest after", "tag", "mark")
        assert rows(lance.dataset(uri)) == (expected if committed else before)
        monkeypatch.undo()
        done = promoted(uri)
        assert (done.version, done.deduplicated) == (version + 1, committed)
        assert rows(lance.dataset(uri)) == expected
        assert lance.dataset(uri).tags.list()[done.tag]["version"] == version + 1
        metadata = lance.dataset(uri).branches.list()["work"]["metadata"]
        assert metadata["lance.promoted_version"] == str(version + 1)


class TestDiff:
    def test_diff(self, uri):
        main = lance_core.dataset(uri)
        branch = main.create_branch("work")
        nothing = main.branches.diff("work")
        assert (nothing.rows.added, nothing.rows.removed, nothing.partitions, nothing.commits) == (0, 0, (), 0)
        fill(branch.uri, 1, 2)
        fill(branch.uri, 7, 4)
        branch.checkout_latest()
        branch.delete("day = 'd5' and n = 0")
        lance.write_dataset(day(9), uri, mode="append")
        diff = main.branches.diff("work")
        assert (diff.branch, diff.parent, diff.fork_version, diff.commits, diff.drift) == ("work", "main", 5, 3, 1)
        assert (diff.rows.at_fork, diff.rows.on_branch, diff.rows.added, diff.rows.removed) == (18, 20, 6, 4)
        assert (len(diff.fragments.added), diff.fragments.removed, diff.fragments.updated) == (2, (1,), (4,))
        assert diff.partitions == ("d1", "d7")
        assert not diff.schema
        assert diff.num_bytes > 0
        preview = main.branches.diff("work", partition_by=["day"])
        assert preview.partition_rows == {"d1": (3, 2), "d5": (1, 0), "d7": (0, 4)}
        assert preview.partitions == ("d1", "d5", "d7")
        branch.checkout_latest()
        branch.add_columns({"more": "n"})
        assert main.branches.diff("work").schema.added == ("more",)

    def test_values_of_different_partitions_have_different_names(self, tmp_path):
        main = lance_core.write_dataset(pa.table({"a": ["x"], "b": ["y"]}), str(tmp_path / "t"))
        branch = main.create_branch("work")
        pairs = [("a|b", "c"), ("a", "b|c"), ("a", "b"), (None, "c"), ("None", "c"), ("null", "c"), ('"null"', "c")]
        left, right = zip(*pairs, strict=True)
        branch.insert(pa.table({"a": list(left), "b": list(right)}))
        names = {'"a|b"|c', 'a|"b|c"', "a|b", "null|c", "None|c", '"null"|c', '"\\"null\\""|c'}
        found = main.branches.diff("work", partition_by=["a", "b"])
        assert found.partition_rows == dict.fromkeys(names, (0, 1))

    def test_no_such_branch(self, uri):
        branches = lance_core.dataset(uri).branches
        for call in (branches.diff, branches.promote):
            with pytest.raises(VersionNotFoundError, match="nope"):
                call("nope")
        assert branches.discard("nope") is False


class TestSweep:
    def test_orphans(self, uri, monkeypatch):
        main = lance_core.dataset(uri)
        main.create_branch("n/m").delete("n = 1")
        for name in ("n", "z/y", "data/x"):
            lance.dataset(uri).create_branch(name)
            Path(uri, f"_refs/branches/{name.replace('/', '%2F')}.json").unlink()
        Path(uri, "tree/left/data").mkdir(parents=True)
        shutil.copy(f"{uri}/_refs/branches/n%2Fm.json", f"{uri}/tree/left/data/x.lance")
        orphans = ["data/x", "left", "n", "z/y"]
        assert main.branches.orphans() == []  # they may be on their way
        assert main.branches.orphans(dt.timedelta(0)) == orphans
        assert main.branches.sweep(dt.timedelta(days=1)).orphans == ()
        assert main.branches.sweep(dt.timedelta(0), dry_run=True).orphans == tuple(orphans)
        main.branches.sweep(dt.timedelta(seconds=-5))
        assert main.branches.orphans(dt.timedelta(0)) == []
        assert list(main.branches.list()) == []

    def test_stale_branches(self, uri):
        main = lance_core.dataset(uri)
        for name in ("old", "tagged", "parent"):
            main.create_branch(name)
        main.create_branch("child", ("parent", None)).tags.create("on-child")
        main.checkout_version(("tagged", None)).tags.create("on-tagged")
        found = main.branches.sweep(dt.timedelta(days=1))
        assert (found.stale, found.kept) == ((), {})
        found = main.branches.sweep(dt.timedelta(seconds=-5), dry_run=True)
        assert found.stale == ("old",)
        assert found.kept.keys() == {"tagged", "parent", "child"}
        assert len(main.branches.list()) == 4
        main.branches.sweep(dt.timedelta(seconds=-5))
        assert sorted(lance.dataset(uri).branches.list()) == ["child", "parent", "tagged"]


class TestRandomBranches:
    """Any sequence of verbs on a branch; main stays, or other verbs run there meanwhile."""

    @pytest.mark.parametrize("seed", range(6))
    def test_unmoved_main_becomes_the_branch(self, tmp_path, seed):
        rng = random.Random(seed)
        uri = new_table(tmp_path, rng)
        lance_core.dataset(uri).create_branch("work")
        for _ in range(rng.randrange(1, 7)):
            change(rng, rng.choice([lance, lance_core]), f"{uri}/tree/work", range(8))
        expected = rows(open_branch(lance, uri))
        promoted(uri)
        assert rows(lance.dataset(uri)) == expected

    @pytest.mark.parametrize("seed", range(6))
    def test_a_moved_main_is_merged_or_rejected(self, tmp_path, seed):
        rng = random.Random(100 + seed)
        uri = new_table(tmp_path, rng)
        lance_core.dataset(uri).create_branch("work")
        # Days of their own on either side: the merged table is known.
        for _ in range(rng.randrange(1, 5)):
            change(rng, rng.choice([lance, lance_core]), f"{uri}/tree/work", range(4))
        for _ in range(rng.randrange(1, 4)):
            change(rng, rng.choice([lance, lance_core]), uri, range(4, 8))
        ours = [row for row in rows(open_branch(lance, uri)) if row[0] < "d4"]
        theirs = [row for row in rows(lance.dataset(uri)) if row[0] >= "d4"]
        before = rows(lance.dataset(uri))
        try:
            promoted(uri)
        except BranchConflictError:
            assert rows(lance.dataset(uri)) == before
        else:
            assert rows(lance.dataset(uri)) == sorted(ours + theirs)


def new_table(tmp_path, rng):
    uri = str(tmp_path / "t")
    table = pa.concat_tables([day(number, rng.randrange(1, 5)) for number in range(8)])
    lance.write_dataset(table, uri, max_rows_per_file=rng.choice([2, 5, 100]), enable_stable_row_ids=rng.random() < 0.5)
    return uri


def change(rng, library, uri, days):
    """One random verb on rows of some days."""
    dataset = library.dataset(uri)
    number, low = rng.choice(days), rng.randrange(4)
    match rng.randrange(6):
        case 0:
            dataset.delete(f"day = 'd{number}' and n >= {low}")
        case 1:
            dataset.update({"n": "n + 10"}, f"day = 'd{number}' and n >= {low}")
        case 2:
            dataset.insert(day(number, rng.randrange(1, 4), 50))
        case 3:
            fill(uri, number, rng.randrange(1, 4), 200)
        case 4:
            builder = dataset.merge_insert(["day", "n"]).when_matched_update_all().when_not_matched_insert_all()
            builder.execute(pa.table({"day": [f"d{number}"] * 2, "n": np.array([low, 300 + low])}))
        case _:
            dataset.optimize.compact_files(target_rows_per_fragment=rng.choice([4, 100]))


class TestEnsure:
    def test_any_number_may_ask_for_a_branch(self, uri):
        def ask(_):
            return lance_core.dataset(uri).ensure_branch("dagster/backfill/x").version

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(ask, range(24))) == {lance_core.dataset(uri).version}
        assert list(lance.dataset(uri).branches.list()) == ["dagster/backfill/x"]
        assert len([t for t in lance.dataset(uri).tags.list() if t.startswith("fork.")]) == 1
        lance_core.dataset(f"{uri}/tree/dagster/backfill/x").delete("n = 1")
        assert (
            lance_core.dataset(uri).ensure_branch("dagster/backfill/x").version == lance_core.dataset(uri).version + 1
        )
        with pytest.raises(InvalidInputError, match="already exists"):
            lance_core.dataset(uri).create_branch("dagster/backfill/x")

    def test_what_another_began_is_finished(self, uri):
        lance_core.dataset(uri).create_branch("work", 2)
        Path(uri, "_refs/branches/work.json").unlink()
        branch = lance_core.dataset(uri).ensure_branch("work")
        assert branch.version == 2
        assert lance.dataset(uri).branches.list()["work"]["parent_version"] == 2
        branch.delete("n = 1")
        fill(uri, 0)
        with pytest.raises(BranchConflictError):
            promoted(uri)

    def test_what_is_left_of_a_removed_branch_is_no_branch(self, uri):
        lance_core.dataset(uri).create_branch("work").delete("n = 1")
        Path(uri, "_refs/branches/work.json").unlink()
        with pytest.raises(DatasetExistsError, match=r"branches\.delete\('work'\)"):
            lance_core.dataset(uri).ensure_branch("work")


@pytest.mark.on_ceph
class TestOnS3:
    def test_requests_do_not_grow_with_the_table(self, s3, monkeypatch):
        """Of ten partitions: as many as are copied, and a few."""
        counts = {}
        for size in (1, 400):
            uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
            table = pa.concat_tables([day(number, size) for number in range(10)])
            main = lance_core.write_dataset(table, uri, storage_options=options)
            with counted(monkeypatch) as made:
                branch = main.create_branch("work")
            assert len(made) < 7, made
            fragments = []
            for number in range(10):
                fragments += lance_core.write_fragments(day(number, size, 7), branch.uri, storage_options=options)
            lance_core.commit_fragments(
                branch.uri, fragments, table.schema, mode="replace", slices=slices(*range(10)), storage_options=options
            )
            with counted(monkeypatch) as made:
                done = main.branches.promote("work")
            counts[size] = len(made)
            assert done.files_copied == 10
            assert len([name for name in made if name == "copy_object"]) == 10
            assert rows(lance.dataset(uri, storage_options=options)) == rows(branch.checkout_version(("work", None)))
            assert main.branches.promote("work").deduplicated
            assert main.branches.discard("work")
        assert counts[1] == counts[400] < 10 * 2 + 18


@contextmanager
def counted(monkeypatch):
    """Names of the requests that are made."""
    made, real = [], S3Store._call

    def call(self, method, **options):
        made.append(method)
        return real(self, method, **options)

    with monkeypatch.context() as patch:
        patch.setattr(S3Store, "_call", call)
        yield made


class TestTagsOfPromotions:
    """Tags that promotions make by themselves go with the branch; those that were given stay."""

    @pytest.fixture
    def nested(self, tmp_path):
        """A branch that was forked from a branch, and promoted into it."""
        main = lance_core.write_dataset({"n": [1, 2]}, tmp_path / "t.lance")
        outer = main.create_branch("outer")
        inner = outer.create_branch("inner")
        inner.insert(pa.table({"n": [3]}))
        return main

    @pytest.mark.parametrize("inner_first", [True, False])
    def test_a_branch_is_discarded_after_promotions_into_it(self, nested, inner_first):
        outer = nested.checkout_version(("outer", None))
        done = outer.branches.promote("inner")
        assert outer.tags.list()[done.tag]["branch"] == "outer"
        if inner_first:
            assert nested.branches.discard("inner")
            assert done.tag not in nested.tags.list()
        else:
            with pytest.raises(InvalidInputError, match="referenced by"):
                nested.branches.delete("outer")
            nested.branches.delete("inner")
        assert nested.branches.discard("outer")
        assert (nested.branches.list(), nested.tags.list()) == ({}, {})
        assert lance.dataset(nested.uri).branches.list() == {}

    def test_a_tag_that_pylance_left_blocks_neither_discard_nor_sweep(self, nested):
        outer = nested.checkout_version(("outer", None))
        outer.branches.promote("inner")
        lance.dataset(nested.uri).branches.delete("inner")
        assert sorted({tag["branch"] for tag in nested.tags.list().values()}, key=str) == [None, "outer"]
        assert nested.branches.sweep(dt.timedelta(0)).stale == ("outer",)
        assert (nested.branches.list(), nested.tags.list()) == ({}, {})

    def test_a_tag_that_was_given_stays(self, nested):
        outer = nested.checkout_version(("outer", None))
        outer.branches.promote("inner", tag="july")
        nested.branches.discard("inner")
        with pytest.raises(InvalidInputError, match="july"):
            nested.branches.discard("outer")

    def test_other_promotions_keep_their_tags(self, nested):
        nested.create_branch("other").insert(pa.table({"n": [4]}))
        done = nested.branches.promote("other")
        nested.branches.discard("inner")
        nested.branches.discard("outer")
        (fork,) = set(nested.tags.list()) - {done.tag}
        assert fork.startswith("fork.other.")


def test_a_dry_run_raises_what_a_promotion_would_raise_and_commits_nothing(tmp_path):
    table = lance_core.write_dataset(day(0), tmp_path / "t")
    table.create_branch("work").delete("n = 0")
    tags = table.tags.list()
    dry = table.branches.promote("work", dry_run=True)
    assert (dry.rows_removed, dry.version, dry.deduplicated) == (1, 1, False)
    assert lance.dataset(tmp_path / "t").version == 1
    assert table.tags.list() == tags
    lance.dataset(tmp_path / "t").delete("n = 0")
    with pytest.raises(BranchConflictError, match="has changed what the branch changed"):
        table.branches.promote("work", dry_run=True)
    with pytest.raises(BranchConflictError, match="has changed what the branch changed"):
        table.branches.promote("work")


def test_a_promoted_branch_that_was_maintained_is_promoted_already(uri):
    branch = lance_core.dataset(uri).create_branch("work")
    for number in range(2):
        fill(branch.uri, number, commit=lance_core.Commit(idempotency_key=("fill", str(number))))
    done = promoted(uri)
    lance_core.dataset(branch.uri).optimize.compact_files()
    lance_core.dataset(branch.uri).cleanup_old_versions(dt.timedelta(0), delete_unverified=True)
    again = lance_core.dataset(uri).branches.promote("work")
    assert (again.deduplicated, again.version) == (True, done.version)
    lance_core.dataset(branch.uri).delete("n = 100")
    with pytest.raises(InvalidInputError, match="has changed since"):
        lance_core.dataset(uri).branches.promote("work")
