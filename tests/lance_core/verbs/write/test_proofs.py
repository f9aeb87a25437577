"""A committed write whose version was deleted is recognized by what the table's own state says."""

from datetime import timedelta

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import Commit, WriteAttempt, commit_fragments, write_fragments
from lance_core.errors import (
    CorruptFileError,
    EarlierAttemptError,
    IncompatibleConflictError,
    InvalidInputError,
    SupersededError,
    UndecidedWriteError,
)
from lance_core.table import idempotency
from lance_core.table.idempotency import DAYS_KEY, PREFIX

IDEMPOTENCY_KEY = ("job", "2024-01-02")
TOKEN = ("app.token", "x")
NOTHING = timedelta(0)


def rows(*values):
    return pa.table({"v": pa.array(values, pa.int64())})


def write(uri, data, **options):
    try:
        base = lance_core.dataset(uri)
    except lance_core.errors.DatasetNotFoundError:
        base = None
    schema = None if base is None else base.lance_schema_bytes
    options = {"read_version": 0 if base is None else base.version, **options}
    attributes = {
        name: options.pop(name)
        for name in ("idempotency_key", "stream_batch", "undecided_batch", "write_attempt", "properties")
        if name in options
    }
    fragments = write_fragments(data, uri, dataset_schema=schema)
    return commit_fragments(uri, fragments, data.schema, commit=Commit(**attributes), **options)


def values(uri):
    ours = lance_core.dataset(uri).to_table().column("v").to_pylist()
    assert ours == lance.dataset(uri).to_table().column("v").to_pylist()
    return sorted(ours)


def clean(uri):
    """Remove all versions but the latest one."""
    lance.dataset(uri).cleanup_old_versions(NOTHING, delete_unverified=True)


def add(uri, *more):
    lance.write_dataset(rows(*more), uri, mode="append")


@pytest.fixture
def uri(tmp_path):
    uri = str(tmp_path / "t")
    lance_core.write_dataset(rows(100), uri)
    return uri


def compacts(uri):
    lance.dataset(uri).optimize.compact_files()


def updates(uri):
    lance.dataset(uri).update({"v": "v"})


def sets_configuration(uri):
    lance_core.dataset(uri).update_config({"mine": "1"}, replace=True)
    assert lance.dataset(uri).config()["mine"] == "1"


def restores(uri):
    """Restores the version before the write, then the write's."""
    lance_core.dataset(uri, 1).restore()
    lance_core.dataset(uri, 2).restore()


def restores_by_pylance(uri):
    lance.dataset(uri, version=2).restore()


def changes_columns(uri):
    lance.dataset(uri).add_columns({"w": "v + 1"})
    lance.dataset(uri).drop_columns(["w"])


CHANGES = [compacts, updates, sets_configuration, restores, restores_by_pylance, changes_columns]


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_is_committed_once_whatever_becomes_of_its_version(uri, change):
    first = write(uri, rows(1, 2), idempotency_key=IDEMPOTENCY_KEY)
    change(uri)
    add(uri, 50)
    clean(uri)
    again = write(uri, rows(1, 2), idempotency_key=IDEMPOTENCY_KEY)
    assert values(uri) == [1, 2, 50, 100]
    assert (first.deduplicated, again.deduplicated) == (False, True)
    assert (again.operation, again.rows_added, again.version) == ("Unknown", None, lance.dataset(uri).version)
    other = write(uri, rows(3), idempotency_key=("job", "2024-01-03"))
    assert not other.deduplicated


@pytest.mark.parametrize("change", CHANGES)
def test_a_batch_of_a_stream_is_committed_once_whatever_becomes_of_its_version(uri, change):
    write(uri, rows(1, 2), stream_batch=("query", 7))
    change(uri)
    add(uri, 50)
    clean(uri)
    assert write(uri, rows(1, 2), stream_batch=("query", 7)).deduplicated
    assert not write(uri, rows(3), stream_batch=("query", 8)).deduplicated
    assert not write(uri, rows(4), stream_batch=("other", 8)).deduplicated
    assert values(uri) == [1, 2, 3, 4, 50, 100]
    assert lance_core.dataset(uri).committed_batch("query").number == 8


def test_a_batch_below_the_last_one_is_undecided(uri):
    """A stream repeats its last batch alone; an older number comes from an older checkpoint, with rows of its own."""
    for number in range(4):
        write(uri, rows(number), stream_batch=("query", number))
    message = r"batch 1 of stream 'query' .* batch 3 is the last one.* undecided_batch='skip'.* undecided_batch='write'"
    with pytest.raises(UndecidedWriteError, match=message):
        write(uri, rows(11), stream_batch=("query", 1))
    assert values(uri) == [0, 1, 2, 3, 100]
    assert write(uri, rows(11), stream_batch=("query", 1), undecided_batch="skip").deduplicated
    assert not write(uri, rows(11), stream_batch=("query", 1), undecided_batch="write").deduplicated
    assert write(uri, rows(11), stream_batch=("query", 1), undecided_batch="write").deduplicated
    assert not write(uri, rows(12), stream_batch=("query", 2)).deduplicated
    assert values(uri) == [0, 1, 2, 3, 11, 12, 100]
    with pytest.raises(InvalidInputError, match="undecided_batch must be error, write or skip, not 'maybe'"):
        Commit(stream_batch=("query", 1), undecided_batch="maybe")


def test_a_restored_table_does_not_get_the_rows_back_that_the_restore_took_out(uri):
    write(uri, rows(1), stream_batch=("query", 0), idempotency_key=IDEMPOTENCY_KEY)
    lance_core.dataset(uri, 1).restore()
    clean(uri)
    assert write(uri, rows(1), idempotency_key=IDEMPOTENCY_KEY).deduplicated
    assert write(uri, rows(1), stream_batch=("query", 0)).deduplicated
    assert values(uri) == [100]


def test_overwriting_keeps_what_is_known(uri):
    write(uri, rows(1), idempotency_key=IDEMPOTENCY_KEY, stream_batch=("query", 0), mode="overwrite")
    lance.write_dataset(rows(5), uri, mode="overwrite")
    lance_core.write_dataset(rows(6), uri, mode="overwrite")
    clean(uri)
    assert write(uri, rows(1), idempotency_key=IDEMPOTENCY_KEY).deduplicated
    assert write(uri, rows(1), stream_batch=("query", 0), mode="overwrite").deduplicated
    assert values(uri) == [6]


@pytest.mark.parametrize("library", [lance, lance_core])
@pytest.mark.parametrize("what", ["branch", "shallow", "deep"])
def test_branches_and_clones_know_what_their_rows_are(uri, tmp_path, library, what):
    write(uri, rows(1), idempotency_key=IDEMPOTENCY_KEY, stream_batch=("query", 0))
    table, copy = library.dataset(uri), str(tmp_path / "copy")
    if what == "branch":
        copy = table.create_branch("b").uri
    elif what == "shallow":
        table.shallow_clone(copy, table.version)
    else:
        lance_core.dataset(uri).deep_clone(copy, 2)
    assert write(copy, rows(1), idempotency_key=IDEMPOTENCY_KEY).deduplicated
    assert write(copy, rows(1), stream_batch=("query", 0)).deduplicated
    assert values(copy) == [1, 100]


def test_a_promotion_brings_what_the_branch_knows(uri):
    branch = lance_core.dataset(uri).create_branch("b")
    write(branch.uri, rows(1), idempotency_key=IDEMPOTENCY_KEY, stream_batch=("query", 3))
    add(uri, 50)
    done = lance_core.dataset(uri).branches.promote("b")
    assert done.left_behind == ()
    assert write(uri, rows(1), idempotency_key=IDEMPOTENCY_KEY).deduplicated
    assert write(uri, rows(1), stream_batch=("query", 3)).deduplicated
    assert not write(uri, rows(2), stream_batch=("query", 4)).deduplicated
    assert values(uri) == [1, 2, 50, 100]
    assert lance_core.dataset(uri).committed_batch("query").version == lance_core.dataset(uri).version


def test_the_write_that_creates_a_table(tmp_path):
    uri = str(tmp_path / "t")
    write(uri, rows(1), idempotency_key=IDEMPOTENCY_KEY)
    add(uri, 2)
    clean(uri)
    again = commit_fragments(
        uri,
        write_fragments(rows(1), uri),
        rows(1).schema,
        read_version=0,
        commit=Commit(idempotency_key=IDEMPOTENCY_KEY),
    )
    assert (again.deduplicated, values(uri)) == (True, [1, 2])


def test_what_was_looked_back_to_and_is_forgotten_is_undecided(uri, monkeypatch):
    monkeypatch.setitem(idempotency._MOST, "keys", 1)
    write(uri, rows(1), idempotency_key=IDEMPOTENCY_KEY)
    write(uri, rows(2), idempotency_key=("job", "2024-01-03"))
    clean(uri)
    table = lance_core.dataset(uri)
    assert table.known_after("keys") == 2
    with pytest.raises(
        UndecidedWriteError, match=r"job='2024-01-02' was committed since version 1 .* version 2 was clean"
    ):
        table.find_idempotent_commit(*IDEMPOTENCY_KEY, newer_than=1)
    assert table.find_idempotent_commit(*IDEMPOTENCY_KEY, newer_than=2) is None
    assert table.find_idempotent_commit("job", "2024-01-03", newer_than=1)[0] == 3


def test_the_version_at_which_a_search_for_a_key_ends_is_not_searched(uri):
    key = ("job", "2024-01-02")
    lance_core.write_dataset(rows(1), uri, mode="append", transaction_properties=dict([key]))
    table = lance_core.dataset(uri)
    assert table.find_idempotent_commit(*key, newer_than=table.version - 1)[0] == table.version
    assert table.find_idempotent_commit(*key, newer_than=table.version) is None


def test_proofs_are_forgotten_with_age(uri, monkeypatch):
    lance_core.dataset(uri).update_config({DAYS_KEY: "2"})
    hour = idempotency._HOUR_NS
    write(uri, rows(1), idempotency_key=IDEMPOTENCY_KEY, stream_batch=("query", 0))
    monkeypatch.setattr(idempotency, "_HOUR_NS", hour // 49)  # 49 times as many hours since the epoch
    assert lance_core.dataset(uri).find_idempotent_commit(*IDEMPOTENCY_KEY)[0] == 3
    write(uri, rows(2), idempotency_key=("job", "2024-01-03"))
    table = lance_core.dataset(uri)
    assert table.committed_batch("query") is None
    assert table.known_after("streams") == table.known_after("keys") == 3
    assert table.find_idempotent_commit(*IDEMPOTENCY_KEY)[0] == 3, "its version is there"
    for value in ("", "0", "-1", "soon"):
        table.update_config({DAYS_KEY: value})
        with pytest.raises(InvalidInputError, match=r"idempotency.days must be a number of days, at least 1"):
            write(uri, rows(3), idempotency_key=("job", "x"))


def test_entries_that_cannot_be_read_decide_nothing(uri):
    for key in ("keys", "attempts", "since", "stream.query"):
        lance.dataset(uri).update_config({PREFIX + key: "what?"})
        with pytest.raises(CorruptFileError, match=rf"configuration '{PREFIX}{key}' cannot be read"):
            write(uri, rows(1), idempotency_key=IDEMPOTENCY_KEY, stream_batch=("query", 0))
        lance.dataset(uri).update_config({PREFIX + key: None})
    assert values(uri) == [100]


def test_writers_beside_each_other_that_leave_proofs(uri):
    """Each follows the version of the other, whose configuration has one more entry."""
    table = lance_core.dataset(uri)
    for number in range(3):
        key = ("job", str(number))
        write(uri, rows(number), idempotency_key=key, read_version=table.version, stream_batch=("query", number))
    assert values(uri) == [0, 1, 2, 100]


def test_a_plain_write_takes_no_note(uri):
    write(uri, rows(1))
    assert lance_core.dataset(uri).config() == {}
    write(uri, rows(1), mode="overwrite", properties=dict([TOKEN]))
    assert lance_core.dataset(uri).config() == {}


class TestAttempts:
    def attempt(self, number, *earlier, **options):
        return WriteAttempt(token=TOKEN, number=(number,), earlier=earlier, **options)

    def test_the_rows_of_an_attempt_whose_version_was_deleted_are_taken_out(self, uri):
        first = write(uri, rows(1, 2), write_attempt=self.attempt(0, note="run"))
        add(uri, 50)
        clean(uri)
        (known,) = lance_core.dataset(uri).committed_attempts(TOKEN)
        assert (known.version, known.number, known.note, known.fragments) == (first.version, (0,), "run", (1, 2))
        again = write(uri, rows(7), write_attempt=self.attempt(1, first.version))
        assert (values(uri), again.replaced_versions) == ([7, 50, 100], (2,))
        assert [one.number for one in lance_core.dataset(uri).committed_attempts(TOKEN)] == [(1,)]

    @pytest.mark.parametrize("move", [compacts, lambda uri: lance.dataset(uri).update({"v": "v"}, where="v = 2")])
    @pytest.mark.parametrize("stable", [False, True])
    def test_rows_that_were_moved_are_found_by_their_ids_or_not_at_all(self, tmp_path, stable, move):
        uri = str(tmp_path / "t")
        lance.write_dataset(rows(100), uri, enable_stable_row_ids=stable)
        first = write(uri, rows(1, 2), write_attempt=self.attempt(0))
        add(uri, 50)
        move(uri)
        clean(uri)
        if stable:
            write(uri, rows(7), write_attempt=self.attempt(1, first.version))
            assert values(uri) == [7, 50, 100]
            return
        with pytest.raises(
            EarlierAttemptError, match="version 2 was cleaned up, and no record shows where they are now"
        ):
            write(uri, rows(7), write_attempt=self.attempt(1, first.version))
        assert values(uri) == [1, 2, 50, 100]

    def test_a_later_attempt_is_known_when_its_version_was_deleted(self, uri):
        write(uri, rows(1), write_attempt=self.attempt(1))
        add(uri, 50)
        clean(uri)
        with pytest.raises(SupersededError, match="later attempt"):
            write(uri, rows(2), write_attempt=self.attempt(0))
        assert values(uri) == [1, 50, 100]

    def test_an_attempt_that_made_the_table_meanwhile_and_whose_version_was_deleted(self, tmp_path):
        uri = str(tmp_path / "t")
        write(uri, rows(1), write_attempt=self.attempt(0))
        add(uri, 50)
        clean(uri)
        commit_fragments(
            uri,
            write_fragments(rows(2), uri),
            rows(2).schema,
            read_version=0,
            commit=Commit(write_attempt=self.attempt(1)),
        )
        assert values(uri) == [2, 50]

    def test_attempts_before_the_table_took_note_are_not_guessed(self, tmp_path):
        uri = str(tmp_path / "t")
        add_to = write_fragments(rows(2), uri)
        lance.write_dataset(rows(1), uri)
        add(uri, 50)
        clean(uri)
        with pytest.raises(IncompatibleConflictError, match="version 1 was cleaned up"):
            commit_fragments(uri, add_to, rows(2).schema, read_version=0, commit=Commit(write_attempt=self.attempt(1)))
        assert values(uri) == [1, 50]
