"""Several attempts of one write: what the last one was given is what the table holds, once, whatever happened between."""

from datetime import timedelta

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

import lance_core
from lance_core import Commit, Equals, Slice, Slices, WriteAttempt, commit_fragments, write_fragments
from lance_core.errors import (
    DatasetExistsError,
    EarlierAttemptCommittedError,
    EarlierAttemptError,
    InvalidInputError,
    RetryableConflictError,
    SupersededError,
)
from lance_core.maintenance import Compaction, commit_what_fits
from lance_core.verbs.context import handle
from tests.support.moves import move_all
from tests.support.write_attempts import TOKEN, attempt, compact, latest, ours, rows, theirs, values, write


@pytest.fixture
def table(tmp_path):
    return lance_core.write_dataset(rows(100, 101), tmp_path / "t")


class TestAppend:
    def test_a_retry_takes_the_place_of_the_try_before_it_in_one_update(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        again = write(table.uri, rows(7), attempt(1, first.version), base=latest(table))
        assert values(table.uri) == [7, 100, 101]
        assert (first.operation, again.operation) == ("Append", "Update")
        assert again.version == first.version + 1
        assert (again.rows_added, again.rows_deleted, again.fragments_removed) == (1, 3, 1)
        assert again.replaced_versions == (first.version,)
        assert not again.deduplicated
        recorded = lance.dataset(table.uri).read_transaction(again.version).transaction_properties
        assert recorded["app.token"] == "x"
        assert recorded["lance.replaces"] == str(first.version)

    def test_three_attempts(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        second = write(table.uri, rows(4, 5), attempt(1, first.version), base=latest(table))
        third = write(table.uri, rows(6), attempt(2, first.version, second.version), base=latest(table))
        assert values(table.uri) == [6, 100, 101]
        assert third.replaced_versions == (first.version, second.version)

    def test_a_retry_without_rows_takes_them_out(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        write(table.uri, rows(), attempt(1, first.version), base=latest(table))
        assert values(table.uri) == [100, 101]

    def test_a_try_without_rows(self, table):
        first = write(table.uri, rows(), attempt(0), base=table)
        write(table.uri, rows(5), attempt(1, first.version), base=latest(table))
        assert values(table.uri) == [5, 100, 101]

    def test_a_try_that_created_the_table(self, tmp_path):
        uri = str(tmp_path / "t")
        first = write(uri, rows(1, 2), attempt(0))
        lance_core.write_dataset(rows(50), uri, mode="append")
        write(uri, rows(3), attempt(1, first.version), base=lance_core.dataset(uri))
        assert values(uri) == [3, 50]

    @pytest.mark.parametrize("mode", ["append", "overwrite", "create"])
    def test_two_tries_that_create_the_table(self, tmp_path, mode):
        uri = str(tmp_path / "t")
        write(uri, rows(1, 2), attempt(0), mode=mode)
        again = write(uri, rows(3), attempt(1), mode=mode)
        assert values(uri) == [3]
        assert again.replaced_versions == (1,)

    @pytest.mark.parametrize("mode", ["append", "overwrite", "create"])
    def test_the_older_try_does_not_create_it_again(self, tmp_path, mode):
        uri = str(tmp_path / "t")
        write(uri, rows(1, 2), attempt(1), mode=mode)
        with pytest.raises(SupersededError, match="later attempt"):
            write(uri, rows(3), attempt(0), mode=mode)
        assert values(uri) == [1, 2]

    def test_other_tokens_are_other_writes(self, table):
        write(table.uri, rows(1), attempt(0), base=table)
        write(table.uri, rows(2), attempt(1, token=("app.token", "y")), base=table)
        assert values(table.uri) == [1, 2, 100, 101]


class TestTwoAtOnce:
    """Both began at the same version."""

    def test_the_later_try_takes_the_place_of_the_earlier_one(self, table):
        first = write(table.uri, rows(1, 2), attempt((4, 0)), base=table)
        write(table.uri, rows(50), None, base=table)
        later = write(table.uri, rows(3), attempt((4, 1)), base=table)
        assert values(table.uri) == [3, 50, 100, 101]
        assert later.replaced_versions == (first.version,)

    @pytest.mark.parametrize("number", [(4, 0), (3, 9)])
    def test_the_earlier_one_stops(self, table, number):
        write(table.uri, rows(3), attempt((4, 1)), base=table)
        with pytest.raises(
            SupersededError, match=r"version 2 was committed by a later attempt of the same write \(attempt 4\.1"
        ):
            write(table.uri, rows(1, 2), attempt(number), base=table)
        assert values(table.uri) == [3, 100, 101]

    def test_numbers_are_compared_as_numbers(self, table):
        write(table.uri, rows(1), attempt((9,)), base=table)
        write(table.uri, rows(2), attempt((10,)), base=table)
        assert values(table.uri) == [2, 100, 101]

    @pytest.mark.parametrize("part", ["a", "new"])
    def test_replacements_of_one_slice(self, table, part):
        slices = Slices([Slice(name=part, conditions={"p": Equals(part)})])
        write(table.uri, rows(1, part=part), attempt(0), base=table, mode="replace", slices=slices)
        write(table.uri, rows(2, part=part), attempt(1), base=table, mode="replace", slices=slices)
        with pytest.raises(SupersededError):
            write(table.uri, rows(3, part=part), attempt(0), base=table, mode="replace", slices=slices)
        with pytest.raises(RetryableConflictError):
            write(
                table.uri,
                rows(3, part=part),
                attempt(5, token=("t", "other")),
                base=table,
                mode="replace",
                slices=slices,
            )
        assert values(table.uri) == ([2] if part == "a" else [2, 100, 101])

    @pytest.mark.parametrize("mode", ["append", "replace"])
    @pytest.mark.parametrize("made", [False, True], ids=["new", "table"])
    def test_slices_that_must_be_empty(self, table, tmp_path, mode, made):
        slices = {part: Slices([Slice(name=part, conditions={"p": Equals(part)})]) for part in "xyz"}
        seen = {"base": table if made else None, "mode": mode, "require_empty": True}
        uri, before = table.uri if made else str(tmp_path / "new"), [100, 101] if made else []
        write(uri, rows(1, part="x"), attempt(0), slices=slices["x"], **seen)
        write(uri, rows(2, part="x"), attempt(1), slices=slices["x"], **seen)  # another attempt's rows are its own
        files = set(tmp_path.rglob("*.arrow"))
        other = attempt(5, token=("t", "other"), conflict_policy="later_wins")
        with pytest.raises(DatasetExistsError, match=r"rows in 'x' \(1 in all\)"):
            write(uri, rows(3, part="x"), other, slices=slices["x"], **seen)
        assert set(tmp_path.rglob("*.arrow")) == files
        write(uri, rows(4, part="y"), other, slices=slices["y"], **seen)
        write(uri, rows(5, part="z"), None, base=latest(lance_core.dataset(uri)))
        with pytest.raises(DatasetExistsError, match="'z'"):
            write(uri, rows(6, part="z"), attempt(6, token=("t", "z")), slices=slices["z"], **seen)
        assert values(uri) == [2, 4, 5, *before]

    @pytest.mark.parametrize("mode", ["append", "replace"])
    @pytest.mark.parametrize("policy", ["replace", "adopt", "append"])
    def test_rows_of_other_writes_in_slices_that_must_be_empty(self, table, mode, policy):
        slices = Slices([Slice(name="x", conditions={"p": Equals("x")})])
        options = {"mode": mode, "slices": slices, "require_empty": True}
        first = write(table.uri, rows(1, part="x"), attempt(0), base=table, **options)
        lance.write_dataset(rows(99, part="x"), table.uri, mode="append")
        again = attempt(1, first.version, on_earlier_attempt=policy)
        with pytest.raises(DatasetExistsError, match=r"rows in 'x' \(1 in all\)"):
            write(table.uri, rows(2, part="x"), again, base=latest(table), **options)
        assert values(table.uri) == [1, 99, 100, 101]

    @pytest.mark.parametrize("mode", ["append", "replace"])
    def test_slices_that_must_be_empty_keep_rows_that_cannot_be_identified(self, table, mode):
        slices = Slices([Slice(name="x", conditions={"p": Equals("x")})])
        options = {"mode": mode, "slices": slices, "require_empty": True}
        first = write(table.uri, rows(1, 2, part="x"), attempt(0), base=table, **options)
        lance.write_dataset(rows(99, part="x"), table.uri, mode="append")
        lose(table.uri)
        again = attempt(1, first.version, on_earlier_attempt="append")
        written = write(table.uri, rows(7, part="x"), again, base=latest(table), **options)
        assert values(table.uri) == [1, 7, 20, 99, 100, 101]
        assert (written.rows_deleted, written.replaced_versions) == (0, ())

    def test_overwrites(self, table):
        write(table.uri, rows(1), attempt(0), base=table, mode="overwrite")
        write(table.uri, rows(2), attempt(1), base=table, mode="overwrite")
        with pytest.raises(SupersededError):
            write(table.uri, rows(3), attempt(0), base=table, mode="overwrite")
        assert values(table.uri) == [2]

    def test_a_commit_without_a_number_is_an_earlier_one(self, table):
        data = rows(1)
        fragments = write_fragments(data, table.uri, dataset_schema=table.lance_schema_bytes)
        commit_fragments(table.uri, fragments, data.schema, commit=Commit(properties=dict([TOKEN])))
        write(table.uri, rows(2), attempt(0), base=table)
        assert values(table.uri) == [2, 100, 101]


def compact_beside_a_delete(dataset):
    """The row that goes meanwhile is in the new fragment, and hidden."""
    table = lance_core.dataset(dataset.uri)
    results = [task.execute(table) for task in Compaction.plan(table, {"target_rows_per_fragment": 1000}).tasks]
    dataset.delete("v = 2")
    assert commit_what_fits(table, results, {}, keep_up=True).fragments_added == 1


BETWEEN = {
    "append": (lambda d: d.insert(rows(60)), [60]),
    "compaction": (compact, []),
    "compaction beside a delete": (compact_beside_a_delete, []),
    "compaction twice": (lambda d: (compact(d), d.insert(rows(60)), compact(d)), [60]),
    "delete of one row of it": (lambda d: d.delete("v = 2"), []),
    "delete of all rows of it": (lambda d: d.delete("v < 50"), []),
    "delete, compaction, delete": (lambda d: (d.delete("v = 2"), compact(d), d.delete("v = 3")), []),
    "update of other rows": (lambda d: d.update({"v": "v + 1000"}, where="v >= 100"), None),
    "move": (lambda d: move_all(d.uri), []),
    "delete, move, delete, compaction": (
        lambda d: (d.delete("v = 2"), move_all(d.uri), latest(d).delete("v = 3"), compact(latest(d))),
        [],
    ),
    "new column": (lambda d: d.add_columns({"n": "v * 2"}), []),
    "configuration": (lambda d: d.update_config({"a": "b"}), []),
    "restore of it": (lambda d: (compact(d), lance.dataset(d.uri, version=2).restore()), []),
    "restore of before": (lambda d: lance.dataset(d.uri, version=1).restore(), []),
    "overwrite": (lambda d: lance.write_dataset(rows(70), d.uri, mode="overwrite"), None),
    "merge of other rows": (
        lambda d: d.merge_insert("v").when_not_matched_insert_all().execute(rows(80, 100)),
        [80],
    ),
}


class TestBetween:
    """What others do between two attempts of an append is kept, and the earlier attempt's rows go."""

    @pytest.mark.variants(9)
    @pytest.mark.parametrize("stable", [False, True])
    @pytest.mark.parametrize("who", [ours, theirs])
    @pytest.mark.parametrize("what", BETWEEN)
    def test_rows_are_distinguished_from_others(self, tmp_path, what, who, stable):
        uri = str(tmp_path / "t")
        table = lance_core.write_dataset(rows(100, 101), uri, enable_stable_row_ids=stable)
        first = write(uri, rows(1, 2, 3), attempt(0), base=table)
        change, added = BETWEEN[what]
        who(uri, change)
        before = values(uri)
        now = lance_core.dataset(uri)
        data = rows(7)
        if "n" in now.schema.names:
            data = data.append_column("n", pa.array([14], now.schema.field("n").type))
        write(uri, data, attempt(1, first.version), base=now)
        assert values(uri) == sorted([v for v in before if v > 50] + [7])
        if added is not None:
            assert values(uri) == sorted([7, 100, 101, *added])
        lance.dataset(uri).validate()

    def test_many_fragments_compacted_with_others(self, table):
        for value in range(5):
            table.insert(rows(200 + value))
        data = pa.concat_tables([rows(*range(20)), rows(*range(20, 40))])
        fragments = write_fragments(data, table.uri, dataset_schema=table.lance_schema_bytes, max_rows_per_file=7)
        first = commit_fragments(table.uri, fragments, data.schema, commit=Commit(write_attempt=attempt(0)))
        table.checkout_latest()
        table.delete("v % 3 = 0 and v < 50")
        lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=10)
        lance.dataset(table.uri).delete("v = 4")
        lance_core.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=1000)
        write(table.uri, rows(55), attempt(1, first.version), base=latest(table))
        assert values(table.uri) == [55, 100, 101, *range(200, 205)]

    def test_a_compaction_while_the_retry_writes(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        seen = latest(table)
        lance.dataset(table.uri).optimize.compact_files()
        write(table.uri, rows(7), attempt(1, first.version), base=seen)
        assert values(table.uri) == [7, 100, 101]

    def test_rows_outside_of_the_slices_go_too(self, table):
        slices = Slices([Slice(name="b", conditions={"p": Equals("b")})])
        data = pa.concat_tables([rows(1, part="b"), rows(2, part="c")])
        first = write(table.uri, data, attempt(0, outside_slices=True), base=table, mode="replace", slices=slices)
        write(
            table.uri,
            data,
            attempt(1, first.version, outside_slices=True),
            base=latest(table),
            mode="replace",
            slices=slices,
        )
        assert values(table.uri) == [1, 2, 100, 101]


def lose(uri):
    """Update a row of the earlier attempt: without row ids its place is unknown."""
    lance.dataset(uri).update({"v": "v * 10"}, where="v = 2")


class TestLost:
    def test_an_error_names_the_version_and_the_ways_out(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        lose(table.uri)
        with pytest.raises(
            EarlierAttemptError, match=r"rows in version 2, .* version 3 changed 1 of its rows.*'append'.*'adopt'"
        ):
            write(table.uri, rows(7), attempt(1, first.version), base=latest(table))
        assert values(table.uri) == [1, 3, 20, 100, 101]
        assert latest(table).version == 3

    def test_adopt_keeps_the_earlier_commit(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        lose(table.uri)
        kept = write(table.uri, rows(7), attempt(1, first.version, on_earlier_attempt="adopt"), base=latest(table))
        assert (kept.deduplicated, kept.version, kept.replaced_versions) == (True, first.version, ())
        assert latest(table).version == 3

    def test_append_adds(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        lose(table.uri)
        write(table.uri, rows(7), attempt(1, first.version, on_earlier_attempt="append"), base=latest(table))
        assert values(table.uri) == [1, 3, 7, 20, 100, 101]

    def test_row_ids_find_changed_rows(self, tmp_path):
        uri = str(tmp_path / "t")
        table = lance_core.write_dataset(rows(100, 101), uri, enable_stable_row_ids=True)
        first = write(uri, rows(1, 2, 3), attempt(0), base=table)
        lose(uri)
        write(uri, rows(7), attempt(1, first.version), base=latest(table))
        assert values(uri) == [7, 100, 101]

    @pytest.mark.parametrize("policy", ["adopt", "append"])
    def test_identified_rows_are_replaced_whatever_the_policy(self, table, policy):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        write(table.uri, rows(7), attempt(1, first.version, on_earlier_attempt=policy), base=latest(table))
        assert values(table.uri) == [7, 100, 101]

    def test_versions_between_that_were_cleaned_up(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        latest(table).delete("v = 3")
        latest(table).tags.create("keep", first.version)
        compact(latest(table))
        latest(table).cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
        with pytest.raises(EarlierAttemptError, match="version 3 was cleaned up"):
            write(table.uri, rows(7), attempt(1, first.version), base=latest(table))

    def test_a_try_that_was_cleaned_up_after_a_later_one_took_its_place(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        second = write(table.uri, rows(4, 5), attempt(1, first.version), base=latest(table))
        latest(table).cleanup_old_versions(older_than=timedelta(0))
        assert [version["version"] for version in latest(table).versions()] == [second.version]
        write(table.uri, rows(7), attempt(2, first.version, second.version), base=latest(table))
        assert values(table.uri) == [7, 100, 101]

    def test_a_try_that_was_cleaned_up(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        table.insert(rows(60))
        latest(table).cleanup_old_versions(older_than=timedelta(0))
        write(table.uri, rows(7), attempt(1, first.version), base=latest(table))
        assert values(table.uri) == [7, 60, 100, 101]

    def test_a_try_that_was_cleaned_up_and_whose_rows_were_moved(self, table):
        first = write(table.uri, rows(1, 2, 3), attempt(0), base=table)
        latest(table).optimize.compact_files()
        latest(table).cleanup_old_versions(older_than=timedelta(0))
        with pytest.raises(EarlierAttemptError, match=f"version {first.version} was cleaned up"):
            write(table.uri, rows(7), attempt(1, first.version), base=latest(table))
        assert values(table.uri) == [1, 2, 3, 100, 101]


def take_back(dataset, version):
    """Remove the fragments of a version, as an undo does."""
    mine = {one.fragment_id for one in dataset.checkout_version(version).get_fragments()}
    mine -= {one.fragment_id for one in dataset.checkout_version(version - 1).get_fragments()}
    operation = lance_core.LanceOperation.Update(removed_fragment_ids=sorted(mine))
    properties = {"lance.takes_back": str(version)}
    made = lance_core.Transaction(dataset.version, operation, transaction_properties=properties)
    lance_core.LanceDataset.commit(dataset, made)


REMOVALS = {
    "undo": (take_back, [60, 100, 101]),
    "restore": (lambda dataset, version: dataset.checkout_version(version - 1).restore(), [100, 101]),
    "overwrite": (lambda dataset, _: lance_core.write_dataset(rows(5), dataset.uri, mode="overwrite"), [5]),
    "delete": (lambda dataset, _: dataset.delete("true"), []),
}


class TestRemoved:
    """The rows of an attempt were removed before its next attempt, and its version was cleaned up."""

    @pytest.mark.parametrize("policy", ["replace", "adopt", "append"])
    @pytest.mark.parametrize("removal", REMOVALS)
    def test_the_next_attempt_is_written(self, table, removal, policy):
        remove, left = REMOVALS[removal]
        first = write(table.uri, rows(1, 2), attempt(0), base=table)
        table.insert(rows(60))
        remove(latest(table), first.version)
        latest(table).cleanup_old_versions(timedelta(0), delete_unverified=True)
        (proof,) = latest(table).committed_attempts(TOKEN)
        assert proof.is_removed
        write(table.uri, rows(7), attempt(1, first.version, on_earlier_attempt=policy), base=latest(table))
        assert values(table.uri) == sorted([7, *left])
        with pytest.raises(SupersededError):
            write(table.uri, rows(8), attempt(0), base=latest(table))

    def test_rows_that_a_restore_brings_back_are_replaced(self, table):
        first = write(table.uri, rows(1, 2), attempt(0), base=table)
        take_back(latest(table), first.version)
        latest(table).checkout_version(first.version).restore()
        latest(table).cleanup_old_versions(timedelta(0), delete_unverified=True)
        write(table.uri, rows(7), attempt(1, first.version), base=latest(table))
        assert values(table.uri) == [7, 100, 101]

    def test_a_restore_keeps_the_proofs_of_rows_that_stay(self, table):
        first = write(table.uri, rows(1, 2), attempt(0), base=table)
        table.insert(rows(60))
        latest(table).checkout_version(first.version).restore()
        latest(table).cleanup_old_versions(timedelta(0), delete_unverified=True)
        write(table.uri, rows(7), attempt(1, first.version), base=latest(table))
        assert values(table.uri) == [7, 100, 101]

    def test_an_undo_on_a_branch_is_promoted(self, table):
        branch = table.create_branch("b")
        first = write(branch.uri, rows(1, 2), attempt(0), base=branch)
        branch = table.checkout_version(("b", None))
        take_back(branch, first.version)
        table.checkout_version(("b", None)).insert(rows(60))
        table.branches.promote("b")
        assert all(one.is_removed for one in latest(table).committed_attempts(TOKEN))


def test_transactions_are_found_by_a_property(table):
    write(table.uri, rows(1), attempt(0), base=table)
    table.checkout_latest()
    table.insert(rows(2))
    write(table.uri, rows(3), attempt(1, 2), base=table)
    found, missing = latest(table).find_transactions(*TOKEN)
    assert (list(found), missing) == ([4, 2], [])
    assert found[2].operation.name == "Append"
    latest(table).cleanup_old_versions(older_than=timedelta(0))
    assert latest(table).find_transactions(*TOKEN)[1] == [3, 2, 1]


@pytest.mark.parametrize(
    "wrong",
    [{"on_earlier_attempt": "x"}, {"conflict_policy": "x"}, {"number": ()}, {"number": (-1,)}, {"number": ("1",)}],
)
def test_a_try_says_what_can_be_used(wrong):
    with pytest.raises(InvalidInputError):
        WriteAttempt(token=TOKEN, **wrong)


def test_once_and_tries_are_two_things(table):
    with pytest.raises(InvalidInputError, match="idempotency_key"):
        commit_fragments(table.uri, [], table.schema, commit=Commit(idempotency_key=TOKEN, write_attempt=attempt(0)))


class TestOverruling:
    """Two writes of the same rows at a time: the later one wins, whichever commits first."""

    def replace(self, table, number, part="a", **options):
        slices = Slices([Slice(name=part, conditions={"p": Equals(part)})])
        own = attempt(number, token=("t", str(number)), conflict_policy="later_wins")
        return write(table.uri, rows(number, part=part), own, base=table, mode="replace", slices=slices, **options)

    @pytest.mark.parametrize("part", ["a", "new"])
    def test_replacements(self, table, part):
        first = self.replace(table, 1, part)
        second = self.replace(table, 2, part)
        assert second.overruled_versions == (first.version,)
        with pytest.raises(SupersededError, match="version 3 was committed by a later write of the same rows"):
            self.replace(table, 1, part)
        assert values(table.uri) == ([2] if part == "a" else [2, 100, 101])

    def test_other_slices_are_left_alone(self, table):
        self.replace(table, 2, "b")
        assert self.replace(table, 1, "c").overruled_versions == ()
        assert values(table.uri) == [1, 2, 100, 101]

    @pytest.mark.parametrize("config", [None, {"a": "b"}])
    def test_overwrites(self, table, config):
        for number, overruled in ((1, ()), (2, (2,))):
            own = attempt(number, token=("t", str(number)), conflict_policy="later_wins")
            done = write(table.uri, rows(number), own, base=table, mode="overwrite", table_config=config)
            assert done.overruled_versions == overruled
        own = attempt(1, token=("t", "0"), conflict_policy="later_wins")
        with pytest.raises(SupersededError):
            write(table.uri, rows(0), own, base=table, mode="overwrite", table_config=config)
        assert values(table.uri) == [2]

    def test_two_that_create_the_table(self, tmp_path):
        uri = str(tmp_path / "t")
        slices = Slices([Slice(name="a", conditions={"p": Equals("a")})])
        for number in (1, 2):
            own = attempt(number, token=("t", str(number)), conflict_policy="later_wins")
            write(uri, rows(number), own, mode="replace", slices=slices)
        assert values(uri) == [2]


class TestMerge:
    """Merging on top of an earlier attempt is the caller's to decide; a later attempt stops it."""

    def merge(self, dataset, write_attempt, *values):
        builder = dataset.merge_insert("v").when_matched_update_all().when_not_matched_insert_all()
        return builder.write_attempt(write_attempt).execute(rows(*values, part="new"))

    def test_a_later_attempt_that_committed_meanwhile_stops_it(self, table):
        base = latest(table)
        self.merge(latest(table), attempt(1), 100, 7)
        with pytest.raises(SupersededError, match="later attempt of the same write"):
            self.merge(base, attempt(0), 100, 8)
        assert values(table.uri) == [7, 100, 101]

    def test_an_earlier_attempt_that_committed_meanwhile_is_named(self, table):
        base = latest(table)
        self.merge(latest(table), attempt(0), 100, 7)
        with pytest.raises(EarlierAttemptCommittedError) as raised:
            self.merge(base, attempt(1), 100, 8)
        assert raised.value.version == 2
        self.merge(base, attempt(1, 2), 100, 8)
        assert values(table.uri) == [7, 8, 100, 101]
        assert lance.dataset(table.uri).read_transaction(3).transaction_properties["app.token"] == "x"

    def test_an_attempt_before_the_version_that_the_write_restarts_from_is_found(self, table, monkeypatch):
        """The first attempt meets a conflict; a later attempt is older than the version that the second begins with."""
        base, load = latest(table), handle.reload_latest

        def busy(*args):
            self.merge(latest(table), attempt(1), 7)
            latest(table).update({"p": "'x'"}, where="v = 100")
            return load(*args)

        latest(table).update({"p": "'x'"}, where="v = 100")
        monkeypatch.setattr(handle, "reload_latest", busy)
        with pytest.raises(SupersededError):
            self.merge(base, attempt(0), 100)
        assert values(table.uri) == [7, 100, 101]


def test_a_creation_takes_the_place_of_an_earlier_one_but_of_nobody_elses_rows(tmp_path):
    uri = str(tmp_path / "t")
    write(uri, rows(1), attempt(0), mode="create")
    assert write(uri, rows(2), attempt(1), mode="create").replaced_versions == (1,)
    lance_core.write_dataset(rows(3), uri, mode="append")
    with pytest.raises(DatasetExistsError):
        write(uri, rows(4), attempt(2), mode="create")
    assert values(uri) == [2, 3]


def test_a_commit_of_fragments_that_carries_once_is_committed_once(table):
    base, token = latest(table), ("app.batch", "7")
    fragments = write_fragments(rows(1), table.uri, dataset_schema=base.lance_schema_bytes)
    operation = lance_core.LanceOperation.Append(fragments)
    first = lance_core.commit_transaction(
        base, lance_core.Transaction(base.version, operation), Commit(idempotency_key=token)
    )
    again = lance_core.commit_transaction(
        base, lance_core.Transaction(base.version, operation), Commit(idempotency_key=token)
    )
    assert (first.version, again.version) == (2, 2)
    assert (first.attempts, first.deduplicated, again.attempts, again.deduplicated) == (1, False, 0, True)
    assert (first.operation, first.rows_added, again.transaction_uuid) == ("Append", 1, first.transaction_uuid)
    newer = lance_core.write_dataset(rows(2), table.uri, mode="append")
    late = lance_core.commit_transaction(
        newer, lance_core.Transaction(newer.version, operation), Commit(idempotency_key=token, checked_through=1)
    )
    assert late.version == 2
    assert values(table.uri) == [1, 2, 100, 101]


def test_an_update_of_fragments_and_rows_is_one_version(table):
    base = latest(table)
    fragments = write_fragments(rows(1), table.uri, dataset_schema=base.lance_schema_bytes)
    deleted = {base.get_fragments()[0].fragment_id: BitMap([0])}
    operation = base.update_operation(fragments, deleted)
    change = lance_core.Transaction(base.version, operation, affected_rows=deleted)
    done = lance_core.commit_transaction(base, change)
    assert (done.version, done.operation, done.rows_added, done.rows_deleted) == (base.version + 1, "Update", 1, 1)
    assert values(table.uri) == [1, 101]
    with pytest.raises(InvalidInputError, match="no fragment 77"):
        base.update_operation([], {77: BitMap([0])})
