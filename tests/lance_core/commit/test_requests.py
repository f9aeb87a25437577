"""What commits ask of S3, and that pylance does without the transaction files that are not written there."""

import time
from datetime import timedelta

import lance
import lance.commit
import pyarrow as pa
import pytest

import lance_core
from lance_core.commit.versions import load_latest
from lance_core.store import open_store
from lance_core.store.s3_client import S3Client
from lance_core.table.flags import NO_TRANSACTION_FILES

CONFLICT = {lance_core: lance_core.errors.CommitConflictError, lance: lance.commit.CommitConflictError}


def rows(*values):
    return pa.table({"a": pa.array(values, pa.int64()), "b": ["x"] * len(values)})


@pytest.fixture
def place(s3):
    """URI and options of a table of one version, two fragments of five rows."""
    uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
    lance_core.write_dataset(rows(*range(10)), uri, storage_options=options, max_rows_per_file=5)
    return uri, options


@pytest.fixture
def requests(monkeypatch):
    """The requests since the last call: verb and folder of each."""
    real = S3Client._once
    made = []

    async def request_once(self, method, parameters):
        deleted = parameters.get("Delete", {}).get("Objects", [])
        keys = [found["Key"] for found in deleted] or [parameters.get("Key", parameters.get("Prefix"))]
        made.append(" ".join([method, *dict.fromkeys(key.split("/")[1] for key in keys)]))
        return await real(self, method, parameters)

    monkeypatch.setattr(S3Client, "_once", request_once)

    def taken():
        taken, made[:] = list(made), []
        return taken

    return taken


@pytest.mark.on_ceph
def test_requests(place, requests):
    uri, options = place
    dataset = lance_core.dataset(uri, storage_options=options)
    assert requests() == ["list_objects_v2 _versions", "get_object _versions"]
    for number in range(3):
        dataset.insert(rows(number))
        assert requests() == ["put_object data", "list_objects_v2 _versions", "put_object _versions"]
    lance_core.write_dataset(rows(3), uri, mode="append", storage_options=options)
    assert len(requests()) <= 5
    dataset.delete("a = 7")
    assert "put_object _transactions" not in requests()
    assert dataset.latest_version == lance.dataset(uri, storage_options=options).version == 6
    assert requests() == ["list_objects_v2 _versions"]


def test_a_lost_attempt_costs_a_put_a_list_and_a_read(place, requests, monkeypatch):
    uri, options = place
    dataset = lance_core.dataset(uri, storage_options=options)
    rival = lance.dataset(uri, storage_options=options)
    ours, faster = S3Client._once, [1, 1, 3, 1]  # commits of the rival before each of our puts but the last

    async def overtaken(self, method, parameters):
        if method == "put_object" and "_versions" in parameters["Key"] and faster:
            for number in range(faster.pop(0)):
                rival.insert(rows(100 + number))
        return await ours(self, method, parameters)

    dataset.insert(rows(1))  # what a process does once
    requests()
    monkeypatch.setattr(S3Client, "_once", overtaken)
    dataset.insert(rows(2))
    made = requests()
    assert made[:2] == ["put_object data", "list_objects_v2 _versions"]
    put, read, listed = "put_object _versions", "get_object _versions", "list_objects_v2 _versions"
    assert made.count("put_object data") == 1
    assert made.count(put) == made.count(listed) == 5
    # Each version of the rival is read once.
    assert made.count(read) == 6
    assert len(made) == 1 + 5 + 5 + 6
    assert dataset.version == 9
    assert dataset.count_rows() == lance.dataset(uri, storage_options=options).count_rows()


@pytest.mark.parametrize("count", [1, 40])
def test_opening_does_not_depend_on_the_number_of_versions(s3, requests, count, monkeypatch):
    uri = f"s3://{s3.new_bucket()}/t"
    for number in range(count):
        lance_core.write_dataset(rows(number), uri, mode="append", storage_options=s3.storage_options)
    requests()
    assert lance_core.dataset(uri, storage_options=s3.storage_options).version == count
    assert requests() == ["list_objects_v2 _versions", "get_object _versions"]


def test_the_format_says_that_there_are_no_transaction_files(place):
    uri, options = place
    store = open_store(uri, options)
    latest = load_latest(store)
    assert (latest.transaction_file, latest.writer_flags & NO_TRANSACTION_FILES) == ("", NO_TRANSACTION_FILES)
    lance.dataset(uri, storage_options=options).delete("a = 1")
    theirs = load_latest(store)
    assert theirs.transaction_file
    assert not theirs.writer_flags & NO_TRANSACTION_FILES
    lance_core.dataset(uri, storage_options=options).delete("a = 2")
    ours = load_latest(store)
    assert (ours.transaction_file, ours.writer_flags) == ("", latest.writer_flags | 1)
    assert lance.dataset(uri, storage_options=options).count_rows() == 8


CHANGES = {
    "append": lambda dataset: dataset.insert(rows(20)),
    "delete": lambda dataset: dataset.delete("a = 3"),
    "update": lambda dataset: dataset.update({"b": "'y'"}, "a = 4"),
    "merge": lambda dataset: (
        dataset.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(rows(9, 30))
    ),
    "config": lambda dataset: dataset.update_config({"k": "v"}),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_pylance_follows_our_versions(place, verb):
    """A handle of pylance's from before our commits: it must find out from their manifests what they changed."""
    uri, options = place
    stale = lance.dataset(uri, storage_options=options)
    ours = lance_core.dataset(uri, storage_options=options)
    ours.insert(rows(10, 11))
    ours.delete("a = 1")
    CHANGES[verb](stale)
    expected = {"append": [20], "merge": [30]}.get(verb, [])
    removed = {1, 3} if verb == "delete" else {1}
    both = [library.dataset(uri, storage_options=options) for library in (lance, lance_core)]
    for dataset in both:
        assert dataset.version == 4
        assert sorted(dataset.to_table()["a"].to_pylist()) == sorted({*range(12), *expected} - removed)
    both[0].validate()
    names = [[type(each.operation).__name__ for each in dataset.get_transactions(10)] for dataset in both]
    assert names[0] == names[1]
    assert names[0][1:3] == ["Delete", "Append"]


def test_pylance_compacts_over_our_versions(place):
    uri, options = place
    stale = lance.dataset(uri, storage_options=options)
    lance_core.dataset(uri, storage_options=options).insert(rows(10, 11))
    assert stale.optimize.compact_files().fragments_removed == 2
    assert lance_core.dataset(uri, storage_options=options).count_rows() == 12


@pytest.mark.parametrize("ours_is_first", [True, False])
def test_conflicts_are_seen_by_the_second(place, ours_is_first):
    uri, options = place
    first, second = (lance_core, lance) if ours_is_first else (lance, lance_core)
    other = second.dataset(uri, storage_options=options)
    fragment = other.get_fragments()[0].delete("a = 1")
    first.dataset(uri, storage_options=options).delete("a = 2")
    operation = second.LanceOperation.Delete([fragment], [], "a = 1")
    with pytest.raises(CONFLICT[second], match=r"Retryable commit conflict for version 2.*Delete") as e:
        second.LanceDataset.commit(uri, operation, read_version=1, storage_options=options)
    assert e.value.retryable
    first.write_dataset(rows(1), uri, mode="overwrite", storage_options=options)
    with pytest.raises(OSError, match=r"Incompatible transaction.*Overwrite"):
        other.insert(rows(5))
    assert lance.dataset(uri, storage_options=options).version == 3


def test_pylance_cleans_up_our_versions(place):
    uri, options = place
    for number in range(3):
        lance_core.write_dataset(rows(number), uri, mode="overwrite", storage_options=options)
    lance.write_dataset(rows(4), uri, mode="append", storage_options=options)
    done = lance.dataset(uri, storage_options=options).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert (done.old_versions, done.failed_deletes) == (4, 0)
    assert lance_core.dataset(uri, storage_options=options).to_table()["a"].to_pylist() == [2, 4]
    lance_core.dataset(uri, storage_options=options).delete("a = 2")
    lance_core.dataset(uri, storage_options=options).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert not list(open_store(uri, options).list("_transactions/"))


def test_a_lost_answer_is_resolved_by_the_manifest(place, monkeypatch):
    """There is no transaction file to compare with: the manifest under that number says whose it is."""
    uri, options = place
    real = S3Client._once
    lost = []

    async def request_once(self, method, parameters):
        answer = await real(self, method, parameters)
        if "IfNoneMatch" in parameters and not lost:
            lost.append(1)
            raise TimeoutError
        return answer

    dataset = lance_core.dataset(uri, storage_options=options)
    monkeypatch.setattr(S3Client, "_once", request_once)
    dataset.insert(rows(10))
    assert (dataset.version, dataset.count_rows(), lost) == (2, 11, [1])


def test_requests_for_one_partition_do_not_grow_with_the_table(s3, requests):
    uri, options = f"s3://{s3.new_bucket()}/t", s3.storage_options
    table = pa.table({"day": [i // 5 for i in range(200)], "n": range(200)})
    dataset = lance_core.write_dataset(table, uri, storage_options=options, max_rows_per_file=5)
    dataset.create_scalar_index("day", "ZONEMAP")
    requests()
    dataset = lance_core.dataset(uri, storage_options=options)
    assert dataset.to_table(filter="day = 7")["n"].to_pylist() == list(range(35, 40))
    assert requests() == [
        "list_objects_v2 _versions",
        "get_object _versions",
        "get_object _indices",
        "get_object data",
    ]
    dataset = lance_core.dataset(uri, storage_options=options)
    made = lance_core.write_fragments(table.slice(35, 5), dataset)
    slices = lance_core.Slices([lance_core.Slice(name="7", conditions={"day": lance_core.Equals(7)})])
    lance_core.commit_fragments(dataset, made, table.schema, mode="replace", slices=slices)
    assert sorted(requests()) == [
        "get_object _indices",
        "get_object _versions",
        "list_objects_v2 _versions",
        "list_objects_v2 _versions",
        "put_object _versions",
        "put_object data",
    ]


def test_a_partition_of_many_is_replaced_and_read_with_few_requests(place, requests):
    uri, options = place
    dataset = lance_core.dataset(uri, storage_options=options)
    one_per_file = [one for i in range(30) for one in lance_core.write_fragments(rows(100 + i), dataset)]
    dataset = lance_core.commit_fragments(dataset, one_per_file, dataset.schema).dataset
    dataset.create_scalar_index("a", "ZONEMAP", rows_per_zone=2**20)
    requests()
    for number in (105, 106, 105):
        dataset = lance_core.dataset(uri, storage_options=options)
        made = lance_core.write_fragments(rows(number), dataset)
        one = lance_core.Slice(name="a", conditions={"a": lance_core.Equals(number)})
        lance_core.commit_fragments(dataset, made, dataset.schema, mode="replace", slices=lance_core.Slices([one]))
        assert len(requests()) <= 8
    dataset = lance_core.dataset(uri, storage_options=options)
    assert dataset.to_table(filter="a = 110").num_rows == 1
    assert len(requests()) <= 2 + 1 + 1 + 3  # the table, its zone map, a file, and those that it does not cover


def test_a_cleanup_removes_the_files_of_all_versions_by_one_request(place, requests):
    uri, options = place
    for number in range(30):
        lance_core.write_dataset(rows(number), uri, mode="overwrite", storage_options=options)
    dataset = lance_core.dataset(uri, storage_options=options)
    requests()
    stats = dataset.cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert (stats.old_versions, stats.data_files_removed, stats.failed_deletes) == (30, 31, 0)
    removed = [found for found in requests() if found.startswith("delete")]
    assert removed == ["delete_objects data", "delete_objects _versions", "delete_object _refs"]  # its claim
    assert dataset.to_table() == rows(29)


def test_a_cleanup_with_a_rate_removes_no_more_at_a_time(place, requests):
    uri, options = place
    for number in range(6):
        lance_core.write_dataset(rows(number), uri, mode="overwrite", storage_options=options)
    dataset = lance_core.dataset(uri, storage_options=options)
    requests()
    began = time.monotonic()
    dataset.cleanup_old_versions(timedelta(0), delete_unverified=True, delete_rate_limit=4)
    assert time.monotonic() - began >= 2  # 7 data files and 6 versions, the first four at once
    assert [found for found in requests() if found.startswith("delete")] == [
        *["delete_objects data"] * 2, *["delete_objects _versions"] * 2, "delete_object _refs"
    ]  # fmt: skip
