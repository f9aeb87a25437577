"""What a step that appends reads does not grow with the number of versions of its table."""

import collections
from dataclasses import replace

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_core.commit.loop import commit
from lance_core.commit.records import Commit
from lance_core.commit.versions import load_latest
from lance_core.store import local, open_store
from lance_core.store.s3_client import S3Client
from lance_core.table import fragment_list
from lance_core.table.operations import Append
from lance_core.table.transaction import Transaction
from lance_dagster import LanceIOManager


@dg.asset(metadata={"lance/write_mode": "append"})
def events() -> pa.Table:
    return pa.table({"id": [1]})


def step(manager):
    with dg.DagsterInstance.ephemeral() as instance:
        assert dg.materialize([events], resources={"io_manager": manager}, instance=instance).success


def lengthen(uri, options, count, fragments=0):
    """Commit versions without rows, and one with as many fragments as asked for."""
    store = open_store(uri, options)
    latest = load_latest(store)
    for number in range(count):
        files = latest.fragments[:1] * fragments if number == 0 else []
        operation = Append(fragments=tuple(replace(one, id=0) for one in files))
        transaction = Transaction(read_version=latest.version, operation=operation)
        latest = commit(store, transaction, base=latest, options=Commit(durable=False)).manifest


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the storage, by kind, since the last call."""
    made = collections.Counter()

    def counting(owner, name, kind):
        real = getattr(owner, name)

        def call(*args, **options):
            made[kind] += 1
            return real(*args, **options)

        monkeypatch.setattr(owner, name, call)

    for name in ("get", "read", "head", "list", "get_ranges", "get_tail"):
        counting(local.LocalStore, name, name)
    counting(local, "_read_status", "files listed")
    counting(S3Client, "_once", "requests")
    counting(fragment_list, "_parse", "fragments parsed")

    def taken():
        taken = dict(made)
        made.clear()
        return taken

    return taken


def test_on_a_disk(tmp_path, calls):
    manager = LanceIOManager(root_uri=str(tmp_path))
    step(manager)
    step(manager)
    uri = str(tmp_path / "public" / "events.lance")
    assert lance_core.dataset(uri).version == 2
    lengthen(uri, {}, 48)
    calls()
    step(manager)
    at_50 = calls()
    lengthen(uri, {}, 448)
    calls()
    step(manager)
    at_500 = calls()
    del at_50["fragments parsed"], at_500["fragments parsed"]  # each step has added one
    assert at_500 == at_50
    lengthen(uri, {}, 15, fragments=1000)
    calls()
    step(manager)
    assert calls()["fragments parsed"] < 5 * 1000, "most are the same in all versions that are shown"


def test_the_rows_of_a_partition_are_counted_at_the_same_price(tmp_path, calls):
    manager = LanceIOManager(root_uri=str(tmp_path))
    parts = dg.StaticPartitionsDefinition(["x", "y"])

    @dg.asset(name="events", partitions_def=parts, metadata={"lance/write_mode": "append", "partition_expr": "p"})
    def parted(context) -> pa.Table:
        return pa.table({"p": [context.partition_key]})

    def append(partition):
        calls()
        with dg.DagsterInstance.ephemeral() as instance:
            found = dg.materialize(
                [parted], resources={"io_manager": manager}, instance=instance, partition_key=partition
            )
        (event,) = found.asset_materializations_for_node("events")
        return event.metadata["dagster/partition_row_count"].value, calls()

    append("x")
    append("x")
    rows, at_3 = append("x")
    assert rows == 3
    lengthen(str(tmp_path / "public" / "events.lance"), {}, 500, fragments=500)
    lance_core.dataset(str(tmp_path / "public" / "events.lance")).create_scalar_index("p", "ZONEMAP")
    for partition, rows in (("x", 504), ("y", 1), ("x", 505)):
        found, at_500 = append(partition)
        assert found == rows
        assert at_500["get_tail"] <= at_3["get_tail"] + 1


def test_on_s3(s3, calls):
    options = s3.storage_options
    root = f"s3://{s3.new_bucket()}/lake"
    manager = LanceIOManager(root_uri=root, storage_options=options)
    step(manager)
    step(manager)
    uri = f"{root}/public/events.lance"
    lengthen(uri, options, 28)  # more than the step looks back at
    calls()
    step(manager)
    at_30 = calls()["requests"]
    lengthen(uri, options, 80)
    calls()
    step(manager)
    assert calls()["requests"] == at_30
