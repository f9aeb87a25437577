from dataclasses import replace
from datetime import UTC, datetime, timedelta

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

import lance_core
from lance_core.commit import loop as loop_module
from lance_core.commit.handler import VersionWriter
from lance_core.commit.history import find_by_property
from lance_core.commit.loop import commit
from lance_core.commit.rebase import Rebased, load_deletion_vector
from lance_core.commit.records import Commit
from lance_core.commit.versions import latest_version, list_versions, load_latest, load_manifest, load_transaction
from lance_core.errors import (
    CommitConflictError,
    DatasetExistsError,
    DatasetNotFoundError,
    IncompatibleConflictError,
    InvalidInputError,
    RetryableConflictError,
    StoreError,
    UnsupportedError,
    VersionNotFoundError,
)
from lance_core.store import open_store
from lance_core.store.local import LocalStore
from lance_core.table.deletion import DeletionFile, DeletionVector, new_deletion_file_id
from lance_core.table.operations import Delete, Overwrite, Restore, UnknownOperation, Update, UpdateConfig, UpdateMap
from lance_core.table.paths import Naming, transaction_key
from lance_core.table.transaction import Transaction
from lance_core.testing.racing import race
from tests.lance_core.commit.tables import appending, creation, fragment_of


@pytest.fixture
def path(tmp_path):
    place = str(tmp_path / "t")
    lance.write_dataset(pa.table({"a": list(range(40))}), place, max_rows_per_file=10)
    return place


def deletion(store, fragment, read_version, rows):
    """The fragment with some rows deleted, and the rows."""
    data, kind = DeletionVector(rows).to_bytes()
    file = DeletionFile(
        file_type=kind, read_version=read_version, id=new_deletion_file_id(), num_deleted_rows=len(rows)
    )
    store.put(file.key(fragment.id), data)
    return type(fragment)(
        id=fragment.id, files=fragment.files, physical_rows=fragment.physical_rows, deletion_file=file
    )


def delete_rows(store, manifest, rows_by_fragment):
    updated = tuple(
        deletion(store, manifest.fragments.get(i), manifest.version, rows) for i, rows in rows_by_fragment.items()
    )
    transaction = Transaction(read_version=manifest.version, operation=Delete(updated_fragments=updated, predicate="x"))
    return transaction, {i: BitMap(rows) for i, rows in rows_by_fragment.items()}


def test_a_table_of_ours_is_a_table_of_pylance(tmp_path):
    place = str(tmp_path / "t")
    files = [fragment_of(i, i + 10, place) for i in range(0, 30, 10)]
    store = open_store(place)
    created = commit(store, creation(files[0], run="1"))
    commit(store, appending(1, files[1], files[2]), base=created.manifest)
    ds = lance.dataset(place)
    assert ds.version == 2
    assert ds.to_table().column("a").to_pylist() == list(range(30))
    assert ds.read_transaction(1).transaction_properties == {"run": "1"}
    ds.validate()
    ds.delete("a = 5")
    assert load_latest(store).version == 3


def test_two_deletes_on_one_fragment_are_merged(path):
    store = open_store(path)
    base = load_latest(store)
    transaction, affected = delete_rows(store, base, {0: [1, 2], 1: [0]})
    lance.dataset(path).delete("a = 4 or a = 21")
    done = commit(store, transaction, base=base, affected_rows=affected)
    assert (done.manifest.version, done.transaction.read_version) == (3, 2)
    assert load_deletion_vector(store, done.manifest, done.manifest.fragments.get(0)) == DeletionVector([1, 2, 4])
    rest = lance.dataset(path).to_table().column("a").to_pylist()
    assert rest == [i for i in range(40) if i not in (1, 2, 4, 10, 21)]
    lance.dataset(path).validate()


def test_a_failure_while_deletions_are_merged_leaves_no_file(path, monkeypatch):
    store = open_store(path)
    base = load_latest(store)
    transaction, affected = delete_rows(store, base, {0: [1, 2], 1: [0]})
    lance.dataset(path).delete("a = 4 or a = 15")
    before = {found.key for found in store.list("_deletions/")}
    real = LocalStore.put

    def put(self, key, data, **durable):
        if key.startswith("_deletions/1-"):
            raise StoreError("the disk is full")
        return real(self, key, data, **durable)

    monkeypatch.setattr(LocalStore, "put", put)
    with pytest.raises(StoreError, match="the disk is full"):
        commit(store, transaction, base=base, affected_rows=affected)
    assert {found.key for found in store.list("_deletions/")} == before


def test_pylance_merges_over_ours(path):
    stale = lance.dataset(path)
    store = open_store(path)
    transaction, affected = delete_rows(store, load_latest(store), {0: [1]})
    commit(store, transaction, affected_rows=affected)
    stale.delete("a = 2")
    assert lance.dataset(path).version == 3
    assert lance.dataset(path).count_rows() == 38


@pytest.mark.parametrize(("theirs", "affected"), [("a = 1", True), ("a = 4", False)])
def test_the_same_row_or_an_unknown_one_is_a_conflict(path, theirs, affected):
    store = open_store(path)
    transaction, rows = delete_rows(store, load_latest(store), {0: [1], 2: [0]})
    lance.dataset(path).delete(theirs)
    with pytest.raises(RetryableConflictError, match="Retryable commit conflict for version 2"):
        commit(store, transaction, affected_rows=rows if affected else None)
    assert latest_version(store) == 2
    names = [found.key for found in store.list("")]
    assert sum("_transactions/1-" in name for name in names) == 1


def test_a_fragment_that_a_merge_empties_is_removed(path):
    store = open_store(path)
    transaction, affected = delete_rows(store, load_latest(store), {0: [0, 1, 2, 3, 4]})
    lance.dataset(path).delete("a >= 5 and a < 10")
    done = commit(store, transaction, affected_rows=affected)
    assert list(done.manifest.fragments.ids) == [1, 2, 3]
    assert lance.dataset(path).to_table().column("a").to_pylist() == list(range(10, 40))


def test_partitions_are_replaced_at_the_same_time(path):
    """Two Updates that share fragment 0 but no row, from one version."""
    store = open_store(path)
    base = load_latest(store)
    for rows, new in (([0, 1], (100, 103)), ([5, 6], (200, 203))):
        updated = deletion(store, base.fragments.get(0), base.version, rows)
        operation = Update(updated_fragments=(updated,), new_fragments=(fragment_of(*new, path),))
        transaction = Transaction(read_version=base.version, operation=operation)
        commit(store, transaction, base=base, affected_rows={0: BitMap(rows)})
    values = lance.dataset(path).to_table().column("a").to_pylist()
    assert values == [2, 3, 4, 7, 8, 9, *range(10, 40), 100, 101, 102, 200, 201, 202]


def test_once_finds_the_earlier_commit(path):
    store = open_store(path)
    file = fragment_of(40, 50, path)
    options = Commit(idempotency_key=("run", "7"))
    first = commit(store, appending(1, file, run="7"), options=options)
    lance.dataset(path).delete("a = 1")
    again = commit(store, appending(1, file, run="7"), options=options)
    assert (again.deduplicated, again.manifest.version, again.transaction.uuid) == (True, 2, first.transaction.uuid)
    other = commit(store, appending(1, file, run="8"), options=Commit(idempotency_key=("run", "8")))
    assert not other.deduplicated
    assert list_versions(store) == [1, 2, 3, 4]


def test_once_holds_between_racing_writers(path):
    store = open_store(path)
    file = fragment_of(40, 50, path)
    options = Commit(idempotency_key=("run", "7"))
    results = race(6, lambda _: commit(store, appending(1, file, run="7"), options=options))
    assert sorted(result.deduplicated for result in results) == [False] + [True] * 5
    assert lance.dataset(path).count_rows() == 50


def test_a_gap_in_the_history_is_rejected(path):
    store = open_store(path)
    lance.write_dataset(pa.table({"a": [1]}), path, mode="overwrite")
    ds = lance.dataset(path)
    ds.delete("false")
    store.delete(load_manifest(store, 2).location.key)
    with pytest.raises(IncompatibleConflictError, match="version 2 is missing"):
        commit(store, appending(1, fragment_of(0, 5, path)))
    assert list_versions(store) == [1, 3]


def test_a_version_without_transaction_is_rejected(path):
    store = open_store(path)
    manifest = load_latest(store)
    operation = UpdateConfig(config=UpdateMap(entries={"k": "v"}))
    done = commit(store, Transaction(read_version=1, operation=operation)).manifest
    store.delete(f"_transactions/{done.transaction_file}")
    store.put(done.location.key, done.to_bytes())
    with pytest.raises(IncompatibleConflictError, match="records no transaction"):
        commit(store, appending(1, fragment_of(0, 5, path)), base=manifest)


def test_creation_happens_once(path, tmp_path):
    store = open_store(path)
    with pytest.raises(DatasetExistsError):
        commit(store, creation(fragment_of(0, 5, path)))
    with pytest.raises(DatasetNotFoundError):
        commit(open_store(str(tmp_path / "nothing")), appending(0, fragment_of(0, 5, path)))
    assert not list(open_store(str(tmp_path / "nothing")).list(""))


def test_a_strict_overwrite_follows_its_read_version_only(path):
    store = open_store(path)
    base = load_latest(store)
    lance.dataset(path).delete("a = 1")
    operation = Overwrite(fragments=(fragment_of(0, 5, path),), schema=base.schema)
    with pytest.raises(CommitConflictError, match="after 0 retries"):
        commit(store, Transaction(read_version=1, operation=operation), options=Commit(max_retries=0))
    commit(store, Transaction(read_version=2, operation=operation), options=Commit(max_retries=0))
    assert lance.dataset(path).count_rows() == 5


def test_retries_end(path, monkeypatch):
    store = open_store(path)
    monkeypatch.setattr(loop_module.VersionWriter, "put", lambda *_: None)
    monkeypatch.setattr(loop_module.time, "sleep", lambda _: None)
    with pytest.raises(RetryableConflictError, match="after 3 attempts"):
        commit(store, appending(1, fragment_of(0, 5, path)), options=Commit(max_retries=3))


def test_from_a_version_to_come(path):
    with pytest.raises(InvalidInputError, match="the latest version is 1"):
        commit(open_store(path), appending(5, fragment_of(0, 5, path)))


def test_detached_versions_stay_beside_the_history(path):
    store = open_store(path)
    done = commit(store, appending(1, fragment_of(40, 50, path)), options=Commit(detached=True))
    assert done.manifest.version >= 1 << 63
    assert list_versions(store) == [1]
    assert latest_version(store) == 1
    assert lance.dataset(path, version=done.manifest.version).count_rows() == 50
    assert load_manifest(store, done.manifest.version).version == done.manifest.version
    assert lance.dataset(path).count_rows() == 40


def test_v1_names_stay_v1(tmp_path):
    place = str(tmp_path / "t")
    lance.write_dataset(pa.table({"a": list(range(10))}), place, enable_v2_manifest_paths=False)
    store = open_store(place)
    for version in range(1, 12):
        commit(store, appending(version, fragment_of(0, 1, place)))
    assert {found.key for found in store.list("_versions/") if "hint" not in found.key} == {
        f"_versions/{v}.manifest" for v in range(1, 13)
    }
    assert latest_version(store) == 12
    assert lance.dataset(place).count_rows() == 21
    lance.dataset(place).migrate_manifest_paths_v2()
    assert load_latest(store).location.naming is Naming.V2


def test_restore_goes_back(path):
    store = open_store(path)
    lance.dataset(path).delete("a < 20")
    done = commit(store, Transaction(read_version=2, operation=Restore(version=1)))
    assert done.manifest.version == 3
    assert lance.dataset(path).count_rows() == 40


def test_known_manifests_are_read_once(path):
    store = open_store(path)
    known = load_latest(store)
    assert load_latest(store, known) is known
    lance.dataset(path).delete("a = 1")
    assert load_latest(store, known).version == 2
    with pytest.raises(VersionNotFoundError):
        load_manifest(store, 77)
    assert load_latest(open_store(path + "-other")) is None


def test_commits_are_found_by_property(path):
    store = open_store(path)
    for run in ("1", "2", "3"):
        lance.write_dataset(pa.table({"a": [1]}), path, mode="append", transaction_properties={"run": run})
    newest = load_latest(store)
    manifest, transaction = find_by_property(store, "run", "2", newest=newest)
    assert (manifest.version, transaction.properties["run"]) == (3, "2")
    assert find_by_property(store, "run", "9", newest=newest) is None
    assert find_by_property(store, "run", "3", newest=load_manifest(store, 3)) is None
    soon = datetime.now(UTC) + timedelta(minutes=1)
    assert find_by_property(store, "run", "2", newest=newest, not_before=soon) is None


def test_a_transaction_without_inline_section_is_read_from_its_file(path):
    store = open_store(path)
    manifest = load_latest(store)
    store.put(manifest.location.key, manifest.to_bytes())
    assert load_transaction(store, load_latest(store)).operation.name == "Overwrite"


def test_the_file_of_a_transaction_that_followed_another_says_what_was_committed(path):
    store = open_store(path)
    base = load_latest(store)
    first, rows = delete_rows(store, base, {0: [1]})
    second, other_rows = delete_rows(store, base, {0: [2]})
    commit(store, first, affected_rows=rows)
    followed = commit(store, second, affected_rows=other_rows)
    (updated,) = followed.transaction.operation.updated_fragments
    assert updated.deletion_file.num_deleted_rows == 2
    inline = load_transaction(store, followed.manifest)
    store.put(followed.manifest.location.key, followed.manifest.to_bytes())
    filed = load_transaction(store, load_latest(store))
    assert filed.operation == inline.operation == followed.transaction.operation
    assert lance.dataset(path).read_transaction(3).read_version == filed.read_version


@pytest.mark.parametrize("changed_by", ["rebase", "caller"])
def test_the_file_of_a_transaction_is_that_of_the_attempt_that_won(path, monkeypatch, changed_by):
    store = open_store(path)
    base = load_latest(store)
    (mine, rows), (other, other_rows) = (delete_rows(store, base, {0: [row]}) for row in (1, 2))
    if changed_by == "caller":
        mine, rows = appending(1, fragment_of(0, 3, path)), None
    put, turns = VersionWriter.put, []

    def put_late(writer, manifest, transaction):
        turns.append(manifest.version)
        if len(turns) == 1:
            commit(store, other, affected_rows=other_rows)
        return put(writer, manifest, transaction)

    def prepare(transaction, latest):
        return Rebased(transaction=replace(transaction, properties={"follows": str(latest.version)}))

    monkeypatch.setattr(VersionWriter, "put", put_late)
    done = commit(store, mine, affected_rows=rows, prepare=prepare)
    assert (done.attempts, turns) == (2, [2, 2, 3])
    store.put(done.manifest.location.key, done.manifest.to_bytes())  # without the transaction in it
    filed = load_transaction(store, load_latest(store))
    assert filed.properties == {"follows": "2"}
    assert filed.operation == done.transaction.operation
    named = {transaction_key(load_manifest(store, version).transaction_file) for version in (1, 2, 3)}
    assert {found.key for found in store.list("_transactions/")} == named


def test_what_an_attempt_wrote_goes_when_another_was_faster(path, monkeypatch):
    """Merged deletion vectors are written for each attempt: those of lost ones are nobody's."""
    store = open_store(path)
    base = load_latest(store)
    mine, rows = delete_rows(store, base, {0: [1]})
    others = [delete_rows(store, base, {0: [row]}) for row in (2, 3)]
    commit(store, others[0][0], affected_rows=others[0][1])
    put = VersionWriter.put
    turns = []

    def put_second(writer, manifest, transaction):
        turns.append(manifest.version)
        if len(turns) == 1:
            commit(store, others[1][0], affected_rows=others[1][1])
            return None
        return put(writer, manifest, transaction)

    monkeypatch.setattr(VersionWriter, "put", put_second)
    done = commit(store, mine, affected_rows=rows)
    assert load_deletion_vector(store, done.manifest, done.manifest.fragments.get(0)) == DeletionVector([1, 2, 3])
    named = {
        fragment.deletion_file.key(fragment.id)
        for version in list_versions(store)
        for fragment in load_manifest(store, version).fragments
        if fragment.deletion_file is not None
    }
    given = {
        fragment.deletion_file.key(fragment.id)
        for transaction in (mine, others[0][0], others[1][0])
        for fragment in transaction.operation.updated_fragments
    }
    assert {found.key for found in store.list("_deletions/")} - given <= named


def test_what_an_attempt_wrote_goes_when_it_fails(path, monkeypatch):
    store = open_store(path)
    base = load_latest(store)
    (mine, rows), (other, other_rows) = (delete_rows(store, base, {0: [row]}) for row in (1, 2))
    commit(store, other, affected_rows=other_rows)
    before = {found.key for found in store.list("")}
    merged = []

    def fails(writer, manifest, transaction):
        merged.extend(found.key for found in store.list("_deletions/") if found.key not in before)
        raise StoreError("the disk is full")

    monkeypatch.setattr(VersionWriter, "put", fails)
    with pytest.raises(StoreError, match="full"):
        commit(store, mine, affected_rows=rows)
    assert len(merged) == 1
    assert {found.key for found in store.list("")} == before


def test_no_attempt_begins_after_the_time_is_up(path, monkeypatch):
    store = open_store(path)
    attempts = []
    monkeypatch.setattr(VersionWriter, "put", lambda *_: attempts.append(1))
    options = Commit(timeout_s=1e-9, max_retries=50)
    with pytest.raises(RetryableConflictError, match="other writers committed first"):
        commit(store, appending(1, fragment_of(0, 3, path)), options=options)
    assert len(attempts) == 1


def test_callers_say_how_long_a_commit_may_take(path, monkeypatch):
    attempts = []
    monkeypatch.setattr(VersionWriter, "put", lambda *_: attempts.append(1))
    operation = lance_core.LanceOperation.Append(lance_core.write_fragments(pa.table({"a": [1]}), path))
    verbs = (
        lambda **given: lance_core.LanceDataset.commit(path, operation, 1, **given),
        lambda **given: lance_core.LanceDataset.commit_batch(path, [lance_core.Transaction(1, operation)], **given),
    )
    for verb in verbs:
        for given, made in (
            ({"commit_timeout": timedelta(microseconds=1)}, 1),
            ({"commit_timeout": None}, 3),
            ({}, 3),
        ):
            attempts.clear()
            with pytest.raises(RetryableConflictError):
                verb(max_retries=3, **given)
            assert len(attempts) == made
        for rejected in (timedelta(0), timedelta(seconds=-1)):
            with pytest.raises(InvalidInputError, match="commit_timeout must be positive"):
                verb(commit_timeout=rejected)


def test_memory_serves_as_well():
    import uuid

    store = open_store(f"memory://{uuid.uuid4().hex}")
    first = commit(store, creation())
    commit(store, appending(1), base=first.manifest)
    assert list_versions(store) == [1, 2]


def test_a_transaction_file_that_stays_behind_hides_no_error(path, monkeypatch):
    store = open_store(path)

    def full(self, key, data, **_):
        raise StoreError("the disk is full")

    def denied(self, key):
        raise StoreError("no right to delete")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", full)
        patch.setattr(LocalStore, "delete", denied)
        with pytest.raises(StoreError, match="the disk is full"):
            commit(store, appending(1))
    assert commit(store, appending(1)).manifest.version == 2


@pytest.mark.parametrize("read_version", [1, 2])
@pytest.mark.parametrize("detached", [False, True])
def test_an_unknown_operation_is_not_committed(tmp_path, read_version, detached):
    for mode in ("create", "append"):
        lance_core.write_dataset({"a": [1]}, tmp_path / "t", mode=mode)
    unknown = Transaction(read_version=read_version, operation=UnknownOperation(described="of a newer library"))
    with pytest.raises(UnsupportedError, match=r"of a newer library cannot be committed.*the library that made it"):
        commit(open_store(tmp_path / "t"), unknown, options=Commit(detached=detached))
    assert lance_core.dataset(tmp_path / "t").version == 2
