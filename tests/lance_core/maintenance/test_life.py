"""A table that many small runs fill, delete from, compact and clean up stays right, small and readable."""

import contextlib
import datetime as dt
import random
import sys
import time

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CommitConflictError
from lance_core.maintenance import compact
from lance_core.store import open_store
from tests import processes

SCHEMA = pa.schema([("day", pa.int32()), ("id", pa.int64()), ("text", pa.string())])


def part(day, ids):
    return pa.table(
        {"day": [day] * len(ids), "id": list(ids), "text": [f"{i} of day {day}" for i in ids]}, schema=SCHEMA
    )


class Life:
    """A table, and what should be in it."""

    def __init__(self, uri, options, seed):
        self.uri, self.options = uri, options
        self.random = random.Random(seed)
        self.days: dict[int, list[int]] = {}
        self.next_id = 0
        self.history: dict[int, list[tuple[int, int]]] = {}

    def new_ids(self):
        count = self.random.randrange(1, 60)
        self.next_id += count
        return range(self.next_id - count, self.next_id)

    def dataset(self):
        return lance_core.dataset(self.uri, storage_options=self.options)

    def append(self):
        day, ids = self.random.randrange(12), self.new_ids()
        library = self.random.choice([lance, lance_core])
        library.write_dataset(part(day, ids), self.uri, mode="append", storage_options=self.options)
        self.days.setdefault(day, []).extend(ids)

    def replace(self):
        day, ids = self.random.randrange(12), self.new_ids()
        dataset = self.dataset()
        rows = part(day, ids)
        written = lance_core.write_fragments(
            rows, self.uri, dataset_schema=dataset.lance_schema_bytes, storage_options=self.options
        )
        slices = lance_core.Slices((lance_core.Slice(name=str(day), conditions={"day": lance_core.Equals(day)}),))
        lance_core.commit_fragments(
            self.uri, written, rows.schema, mode="replace", slices=slices, storage_options=self.options
        )
        self.days[day] = list(ids)

    def delete(self):
        modulus, rest = self.random.randrange(5, 30), self.random.randrange(5)
        lance.dataset(self.uri, storage_options=self.options).delete(f"id % {modulus} = {rest}")
        for day, ids in self.days.items():
            self.days[day] = [i for i in ids if i % modulus != rest]

    def compact(self):
        options = self.random.choice(
            [{}, {"partition_by": ["day"]}, {"deletions_only": True}, {"target_rows_per_fragment": 200}]
        )
        compact(self.dataset(), options)

    def clean(self):
        self.dataset().cleanup_old_versions(retain_versions=5, delete_unverified=bool(self.options))

    def rows(self):
        return sorted((day, i) for day, ids in self.days.items() for i in ids)

    def remember(self):
        self.history[self.dataset().version] = self.rows()

    def check(self):
        dataset = lance.dataset(self.uri, storage_options=self.options)
        versions = [v["version"] for v in dataset.versions()]
        for version in versions:
            expected = self.history.get(version)
            if expected is not None:
                old = self.dataset().checkout_version(version).to_table(columns=["day", "id"])
                assert sorted(zip(*(c.to_pylist() for c in old.columns), strict=True)) == expected
        table = dataset.to_table(columns=["day", "id"])
        assert sorted(zip(*(c.to_pylist() for c in table.columns), strict=True)) == self.rows()
        dataset.validate()
        return len(versions)

    def count_files(self):
        return sum(1 for _ in open_store(self.uri, self.options).list(""))


def live(uri, options, rounds, seed):
    life = Life(uri, options, seed)
    life.append()
    most_files = 0
    for number in range(rounds):
        life.random.choice([life.append, life.append, life.replace, life.delete])()
        life.remember()
        if number % 4 == 3:
            life.compact()
            life.remember()
        if number % 8 == 7:
            life.clean()
            assert life.check() <= 5
            most_files = max(most_files, life.count_files())
    # Five versions, each with a manifest, a transaction and at most a deletion file per fragment.
    assert most_files < 150, most_files
    compact(life.dataset())
    life.dataset().cleanup_old_versions(retain_versions=1, delete_unverified=bool(options))
    life.check()
    names = [meta.key.partition("/")[0] for meta in open_store(uri, options).list("") if "hint" not in meta.key]
    assert names.count("_versions") == 1
    # In a bucket the manifest alone holds the transaction.
    assert names.count("_transactions") == ("://" not in uri)
    assert names.count("data") == len(life.dataset().get_fragments())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_short_life(tmp_path, seed):
    live(str(tmp_path / "t"), None, 24, seed)


def test_a_short_life_on_s3(s3):
    live(f"s3://{s3.new_bucket()}/t", dict(s3.storage_options), 8, 3)


@pytest.mark.slow
def test_a_day_of_200_rounds(tmp_path):
    live(str(tmp_path / "t"), None, 200, 4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_day_of_200_rounds_on_s3(s3):
    live(f"s3://{s3.new_bucket()}/t", dict(s3.storage_options), 200, 5)


WRITER = """
import sys, lance_core, pyarrow as pa
uri, worker = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
for i in range(12):
    ids = [worker * 1000 + i * 10 + k for k in range(10)]
    lance_core.write_dataset(pa.table({"id": pa.array(ids, pa.int64())}), uri, mode="append")
"""


def test_appends_go_on_while_it_compacts_and_cleans(tmp_path):
    uri = str(tmp_path / "t")
    lance_core.write_dataset(pa.table({"id": pa.array([0], pa.int64())}), uri)
    rounds = 0
    with contextlib.ExitStack() as stack:
        commands = [[sys.executable, "-c", WRITER, uri, n] for n in (1, 2)]
        writers = [stack.enter_context(processes.running(command, talks=True)) for command in commands]
        for writer in writers:
            writer.stdout.readline()
        while any(writer.poll() is None for writer in writers):
            rounds += 1
            try:
                compact(lance_core.dataset(uri))
                lance_core.dataset(uri).cleanup_old_versions(dt.timedelta(seconds=60))
            except CommitConflictError:
                time.sleep(0.05)
        assert [writer.wait() for writer in writers] == [0, 0]
    assert rounds
    compact(lance_core.dataset(uri))
    expected = sorted([0] + [w * 1000 + i * 10 + k for w in (1, 2) for i in range(12) for k in range(10)])
    assert sorted(lance.dataset(uri).to_table().column("id").to_pylist()) == expected
    assert len(lance.dataset(uri).get_fragments()) == 1


COMPACTOR = """
import sys, lance_core
from lance_core.maintenance import compact
print("ready", flush=True)
compact(lance_core.dataset(sys.argv[1]), {"target_rows_per_fragment": 400})
"""


@pytest.mark.variants(2)
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1])
def test_killed_at_any_time_it_leaves_the_table_as_it_was_or_done(tmp_path, after_s):
    uri = str(tmp_path / "t")
    for start in range(0, 2000, 100):
        lance_core.write_dataset(part(1, range(start, start + 100)), uri, mode="append")
    expected = lance.dataset(uri).to_table()
    with processes.running([sys.executable, "-c", COMPACTOR, uri], talks=True) as process:
        process.stdout.readline()
        time.sleep(after_s)
        process.kill()
        process.wait()
    assert lance.dataset(uri).to_table().sort_by("id").equals(expected)
    compact(lance_core.dataset(uri))
    dataset = lance_core.dataset(uri)
    assert len(dataset.get_fragments()) == 1
    dataset.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert len(list((tmp_path / "t" / "data").iterdir())) == 1
    assert lance.dataset(uri).to_table().sort_by("id").equals(expected)
