"""One fault at every single call of a commit: the table stays whole, and the commit succeeds once or not at all."""

import uuid

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from lance_core.commit.loop import commit
from lance_core.commit.records import Commit
from lance_core.commit.versions import list_versions, load_latest, load_manifest, load_transaction
from lance_core.errors import OutcomeUnknownError, StoreError
from lance_core.store import open_store
from lance_core.table.deletion import DeletionFile, DeletionVector, new_deletion_file_id
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.operations import Append, Delete, Overwrite
from lance_core.table.transaction import Transaction
from tests.faults.faulty_store import Fault, FaultyStore, Killed
from tests.lance_core.commit.tables import SCHEMA, appending, creation, fragment_of

FILE = DataFile(path="x.lance", fields=(0,), column_indices=(0,), file_major_version=2, file_minor_version=2)


def memory_table():
    """A table at version 2, and the manifest of version 1, from which a slow writer starts."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    fragment = Fragment(files=(FILE,), physical_rows=10)
    base = commit(store, creation(fragment)).manifest
    commit(store, appending(1, fragment))
    return store, base


def deletion(store, base, rows):
    """Delete rows of fragment 0, as of version 1."""
    data, kind = DeletionVector(rows).to_bytes()
    file = DeletionFile(file_type=kind, read_version=1, id=new_deletion_file_id(), num_deleted_rows=len(rows))
    store.put(file.key(0), data)
    return Delete(
        updated_fragments=(Fragment(id=0, files=base.fragments[0].files, physical_rows=10, deletion_file=file),)
    )


def table_with_deletion():
    """The same, but version 2 deletes a row of the fragment from which the slow writer deletes another."""
    store = open_store(f"memory://{uuid.uuid4().hex}")
    base = commit(store, creation(Fragment(files=(FILE,), physical_rows=10))).manifest
    commit(store, Transaction(read_version=1, operation=deletion(store, base, [1])))
    return store, base


def pending_append(*_):
    return Append(fragments=(Fragment(files=(FILE,), physical_rows=5),)), None


def pending_delete(store, base):
    return deletion(store, base, [2]), {0: BitMap([2])}


SCENES = {"append": (memory_table, pending_append), "delete with merge": (table_with_deletion, pending_delete)}


def start(scene):
    """A table, and a transaction with its affected rows that is about to be committed to it."""
    prepare, pending = SCENES[scene]
    store, base = prepare()
    operation, affected = pending(store, base)
    transaction = Transaction(read_version=1, operation=operation, properties={"run": "7"})
    return store, base, transaction, affected


def number_of_calls(scene):
    store, base, transaction, affected = start(scene)
    counting = FaultyStore(store)
    commit(counting, transaction, base=base, affected_rows=affected, options=Commit(idempotency_key=("run", "7")))
    return len(counting.calls)


def committed(store):
    """Versions that carry the property of the pending transaction."""
    manifest, found = load_latest(store), []
    for version in list_versions(store):
        recorded = load_transaction(store, load_manifest(store, version))
        if recorded.properties.get("run") == "7":
            found.append(version)
    assert manifest.version == len(list_versions(store))
    return found


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("scene", SCENES)
def test_a_fault_at_every_call(scene, fault):
    outcomes = set()
    for at in range(number_of_calls(scene)):
        store, base, transaction, affected = start(scene)
        options = Commit(idempotency_key=("run", "7"))
        faulty = FaultyStore(store, at, fault)
        try:
            commit(faulty, transaction, base=base, affected_rows=affected, options=options)
        except OutcomeUnknownError:
            outcomes.add("unknown")
        except (StoreError, Killed):
            outcomes.add("failed")
            if fault is Fault.FAIL:
                assert committed(store) == []
        else:
            outcomes.add("committed")
            assert len(committed(store)) == 1
        assert len(committed(store)) <= 1
        # The caller, or its successor, tries again.
        commit(store, transaction, affected_rows=affected, options=options)
        assert len(committed(store)) == 1
        latest = load_latest(store)
        if scene == "append":
            assert [fragment.physical_rows for fragment in latest.fragments] == [10, 10, 5]
        else:
            assert latest.fragments[0].num_rows == 8
    if fault is Fault.LOST_ANSWER:
        assert "committed" in outcomes  # the lost answer to the manifest's put is found out


def test_an_answer_that_stays_lost_is_not_guessed():
    class Deaf(FaultyStore):
        def put_if_absent(self, key, data, **kwargs):
            raise OutcomeUnknownError("injected")

    store, base = memory_table()
    with pytest.raises(OutcomeUnknownError, match="The version was committed if"):
        commit(Deaf(store), appending(2), base=base)
    # The transaction file stays: the put may still arrive.
    assert sum(1 for _ in store.list("_transactions/2-")) == 1


def test_losing_leaves_no_transaction_file_behind():
    store, _ = memory_table()

    class Slow(FaultyStore):
        lost = 0

        def put_if_absent(self, key, data, **kwargs):
            if Slow.lost < 2:
                Slow.lost += 1
                latest = load_latest(store).version
                commit(store, appending(latest))
            return store.put_if_absent(key, data, **kwargs)

    done = commit(Slow(store), appending(2))
    assert (done.attempts, done.manifest.version) == (3, 5)
    assert sum(1 for _ in store.list("_transactions/")) == 5


def test_a_full_disk_while_committing(tmp_path, monkeypatch):
    from lance_core.store import local

    place = str(tmp_path / "t")
    lance.write_dataset(pa.table({"a": [1]}, schema=SCHEMA), place)
    store = open_store(place)
    transaction = appending(1, fragment_of(0, 5, place))
    real, calls = local.os.write, []

    def full(fd, data):
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(local.os, "write", full)
    with pytest.raises(StoreError, match="No space left"):
        commit(store, transaction)
    monkeypatch.undo()
    assert lance.dataset(place).version == 1
    assert not [found.key for found in store.list("") if "#" in found.key]
    commit(store, transaction)
    assert lance.dataset(place).count_rows() == 6


def test_overwrite_is_applied_to_what_is_there():
    store, _ = memory_table()
    schema = load_latest(store).schema
    done = commit(store, Transaction(read_version=1, operation=Overwrite(fragments=(), schema=schema)))
    assert (done.manifest.version, len(done.manifest.fragments), done.manifest.max_fragment_id) == (3, 0, 1)
