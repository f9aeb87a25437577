"""Two handles on one version: what the second does after the first has committed."""

import itertools
from datetime import timedelta

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CommitConflictError, IncompatibleConflictError, RetryableConflictError
from tests.interop.pairs import described

BOTH = list(itertools.product((lance_core, lance), repeat=2))


@pytest.fixture(params=BOTH, ids=lambda pair: " then ".join("ours" if lib is lance_core else "theirs" for lib in pair))
def handles(request, tmp_path):
    """Two handles on version 1 of ten rows in one fragment."""
    uri = str(tmp_path / "t")
    request.param[0].write_dataset(pa.table({"k": range(10), "v": ["old"] * 10}), uri)
    return tuple(library.dataset(uri) for library in request.param)


def rows(handle) -> dict[int, str]:
    """What is in the latest version, as both libraries see it."""
    ours, theirs = (lib.dataset(handle.uri).to_table().sort_by("k") for lib in (lance_core, lance))
    assert ours == theirs
    assert len(set(ours["k"].to_pylist())) == ours.num_rows, "no key twice"
    return dict(zip(ours["k"].to_pylist(), ours["v"].to_pylist(), strict=True))


def test_deletions_in_one_fragment_are_merged(handles):
    first, second = handles
    first.delete("k < 3")
    second.delete("k > 7")
    assert set(rows(first)) == {3, 4, 5, 6, 7}
    assert (second.version, described(second.uri)["read_version"]) == (3, 2)


def test_deletions_that_leave_nothing_take_the_fragment_away(handles):
    first, second = handles
    first.delete("k < 5")
    second.delete("k >= 5")
    assert rows(first) == {}
    assert described(first.uri)["fragments"] == []


def test_the_same_rows_are_deleted_once(handles):
    first, second = handles
    first.delete("k < 3")
    assert second.delete("k < 5") == {"num_deleted_rows": 2}
    assert set(rows(first)) == {5, 6, 7, 8, 9}


def test_an_update_of_other_rows_follows_a_deletion(handles):
    first, second = handles
    first.delete("k < 3")
    assert second.update({"v": "'new'"}, "k = 7") == {"num_rows_updated": 1}
    assert rows(first) == {k: "new" if k == 7 else "old" for k in range(3, 10)}


def test_an_update_of_rows_that_moved_is_done_again(handles):
    first, second = handles
    first.update({"v": "'first'"}, "k < 3")
    assert second.update({"v": "concat(v, '+')"}, "k < 5") == {"num_rows_updated": 5}
    assert rows(first) == {k: "first+" if k < 3 else "old+" if k < 5 else "old" for k in range(10)}


def test_rows_that_were_appended_meanwhile_stay(handles):
    first, second = handles
    first.insert(pa.table({"k": [100], "v": ["late"]}))
    second.delete("k > 5")
    assert set(rows(first)) == {0, 1, 2, 3, 4, 5, 100}


def test_an_upsert_follows_one_of_other_keys(handles):
    first, second = handles
    for handle, keys in ((first, [1, 20]), (second, [2, 30])):
        table = pa.table({"k": keys, "v": ["up"] * 2})
        handle.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(table)
    assert {k for k, v in rows(first).items() if v == "up"} == {1, 2, 20, 30}


def test_upserts_of_one_key_are_done_one_after_the_other(handles):
    first, second = handles
    for handle, value in ((first, "first"), (second, "second")):
        table = pa.table({"k": [1], "v": [value]})
        handle.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(table)
    assert rows(first)[1] == "second"


def test_an_overwritten_dataset_is_not_changed(handles):
    first, second = handles
    library = lance_core if isinstance(first, lance_core.LanceDataset) else lance
    library.write_dataset(pa.table({"k": [1], "v": ["x"]}), first.uri, mode="overwrite")
    with pytest.raises(OSError, match="Incompatible transaction"):
        second.delete("k = 1")
    assert rows(first) == {1: "x"}


def test_columns_are_not_added_over_new_rows(handles):
    first, second = handles
    first.insert(pa.table({"k": [100], "v": ["late"]}))
    with pytest.raises(OSError, match="preempted by concurrent transaction Append"):
        second.add_columns({"w": "k + 1"})
    second.checkout_latest()
    second.add_columns({"w": "k + 1"})
    assert lance.dataset(first.uri).to_table()["w"].to_pylist() == [*range(1, 11), 101]


def test_rows_follow_new_columns(handles):
    first, second = handles
    first.add_columns(pa.field("w", pa.int32()))
    second.insert(pa.table({"k": [100], "v": ["late"]}))
    assert rows(first)[100] == "late"


def test_a_key_is_inserted_once_where_it_is_declared(tmp_path):
    """Of two writers that insert one new key, the second finds and updates it."""
    key = pa.field("k", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"})
    schema = pa.schema([key, pa.field("v", pa.string())])

    def keyed(keys, value):
        return pa.table({"k": keys, "v": [value] * len(keys)}, schema=schema)

    for number, libraries in enumerate(BOTH):
        uri = str(tmp_path / str(number))
        libraries[0].write_dataset(keyed([1, 2], "old"), uri)
        handles = [library.dataset(uri) for library in libraries]
        for handle, value in zip(handles, ("first", "second"), strict=True):
            merge = handle.merge_insert().when_matched_update_all().when_not_matched_insert_all()
            merge.execute(keyed([1, 50 if value == "first" else 51, 100], value))
        assert rows(handles[0]) == {1: "second", 2: "old", 50: "first", 51: "second", 100: "second"}


def test_keys_of_ours_that_differ_do_not_conflict(tmp_path):
    key = pa.field("k", pa.string(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"})
    schema = pa.schema([key])
    uri = str(tmp_path / "t")
    lance_core.write_dataset(pa.table({"k": ["a"]}, schema=schema), uri)
    handles = [lance_core.dataset(uri) for _ in range(2)]
    for handle, value in zip(handles, "bc", strict=True):
        merge = handle.merge_insert().when_not_matched_insert_all().conflict_retries(0)
        merge.execute(pa.table({"k": [value]}, schema=schema))
    late = lance_core.dataset(uri, version=1).merge_insert().when_not_matched_insert_all().conflict_retries(0)
    with pytest.raises(RetryableConflictError):
        late.execute(pa.table({"k": ["c"]}, schema=schema))
    assert sorted(lance_core.dataset(uri).to_table()["k"].to_pylist()) == ["a", "b", "c"]


class TestRetries:
    @pytest.fixture
    def stale(self, tmp_path):
        """A handle on a version the rows of which have moved since."""
        dataset = lance_core.write_dataset(pa.table({"k": range(10), "v": ["old"] * 10}), tmp_path / "t")
        stale = lance_core.dataset(tmp_path / "t")
        dataset.update({"v": "'new'"}, "k < 5")
        self.files = self.all_files(tmp_path)
        return stale

    def all_files(self, folder):
        return {path for path in folder.rglob("*") if path.is_file()}

    def test_none_are_made_if_none_are_wanted(self, stale, tmp_path):
        for verb in (
            lambda: stale.delete("k = 1", conflict_retries=0),
            lambda: stale.update({"v": "'x'"}, "k = 1", conflict_retries=0),
            lambda: (
                stale.merge_insert("k")
                .when_matched_update_all()
                .conflict_retries(0)
                .execute(pa.table({"k": [1], "v": ["x"]}))
            ),
            lambda: stale.delete("k = 1", retry_timeout=timedelta(0)),
        ):
            with pytest.raises(RetryableConflictError, match=r"Too many concurrent writers\. Attempted 0 retries"):
                verb()
            assert self.all_files(tmp_path) == self.files, "nothing is left behind"
        with pytest.raises(ValueError, match="negative"):
            stale.delete("k = 1", conflict_retries=-1)

    def test_an_incompatible_conflict_leaves_nothing_behind(self, tmp_path):
        stale = lance_core.write_dataset(pa.table({"k": range(10), "v": ["old"] * 10}), tmp_path / "t")
        lance_core.write_dataset(pa.table({"k": [1], "v": ["x"]}), tmp_path / "t", mode="overwrite")
        files = self.all_files(tmp_path)
        for verb in (
            lambda: stale.delete("k = 1"),
            lambda: stale.update({"v": "'x'"}),
            lambda: stale.add_columns({"w": "k"}),
            lambda: stale.alter_columns({"path": "k", "data_type": pa.int32()}),
        ):
            with pytest.raises(IncompatibleConflictError):
                verb()
            assert self.all_files(tmp_path) == files

    def test_the_handle_moves_to_what_it_committed(self, stale):
        stale.delete("k = 1")
        assert stale.version == stale.latest_version == 3
        assert 1 not in stale.to_table()["k"].to_pylist()

    def test_a_transaction_knows_the_rows_it_takes_away(self, stale, tmp_path):
        """A merge that is committed later follows changes of other rows; pylance's forgets the rows and conflicts."""
        fresh = lance_core.dataset(tmp_path / "t")
        merge = fresh.merge_insert("k").when_matched_update_all()
        transaction, _ = merge.execute_uncommitted(pa.table({"k": [8], "v": ["merged"]}))
        lance.dataset(str(tmp_path / "t")).delete("k = 9")
        after = lance_core.LanceDataset.commit(fresh, transaction)
        assert rows(after)[8] == "merged"
        assert 9 not in rows(after)
        with pytest.raises(CommitConflictError):
            lance_core.LanceDataset.commit(fresh, transaction)

    @pytest.mark.parametrize("succeeds", [False, True])
    def test_an_interrupted_commit_loses_no_file(self, tmp_path, monkeypatch, succeeds):
        """Whether it was committed is not known: files that nothing refers to are better than a version without its files."""
        from lance_core.commit.handler import VersionWriter

        dataset = lance_core.write_dataset(pa.table({"k": range(10), "v": ["old"] * 10}), tmp_path / "t")
        put = VersionWriter.put

        def interrupted(*args):
            if succeeds:
                put(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(VersionWriter, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dataset.update({"v": "'new'"}, "k < 3")
        monkeypatch.undo()
        after = lance_core.dataset(tmp_path / "t")
        assert sum(value == "new" for value in rows(after).values()) == (3 if succeeds else 0)
