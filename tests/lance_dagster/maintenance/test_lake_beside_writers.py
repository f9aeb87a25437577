"""A daemon that maintains a lake of mixed tables beside writers of both libraries, with pylance reading.

LAKE_MINUTES and LAKE_TABLES make it longer and larger: an hour over 300 tables is `LAKE_MINUTES=60 LAKE_TABLES=300`.
"""

import collections
import contextlib
import json
import os
import random
import sys
import time
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.store import open_store
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job
from tests import processes
from tests.lance_dagster.lake import Lake
from tests.lance_dagster.maintenance.lake_writer import KEYS_PER_WRITER, batch
from tests.lance_dagster.maintenance.test_maintenance import run

LOCATION = Path(__file__).with_name("lake_location.py")
YAML = "telemetry: {enabled: false}\nconcurrency: {runs: {max_concurrent_runs: 2}}\n"
NARROW = pa.schema([("k", pa.int64()), ("v", pa.int64())])
WIDE = pa.schema([*NARROW, *((f"c{number}", pa.float64()) for number in range(60))])
SEARCHED = pa.schema([*NARROW, ("words", pa.string())])
SHAPES = ("narrow", "wide", "searched", "foreign", "many", "fine", "broken")
WRITTEN = ("narrow", "wide", "searched", "foreign")
BROKEN = 20
"""One of as many tables is broken."""


def create(uri, shape, number, options):
    """Create a table of a shape."""
    if shape == "foreign":
        for part in range(2):
            rows = batch(NARROW, range(-1 - part, -part))
            stable = number % 2 == 0
            lance.write_dataset(rows, uri, mode="append", storage_options=options, enable_stable_row_ids=stable)
        return
    schema = {"wide": WIDE, "searched": SEARCHED}.get(shape, NARROW)
    for part in range(6 if shape in ("many", "broken") else 1):
        rows = batch(schema, range(-1 - part, -part))
        table = lance_core.write_dataset(rows, uri, mode="append", storage_options=options)
    if shape == "searched":
        table.create_scalar_index("k", "BTREE")
        if number % 2:
            lance.dataset(uri, storage_options=options).create_scalar_index("words", "INVERTED")


def break_table(uri, number, options):
    """Make a table unreadable: by its manifests, or by a data file that was deleted."""
    store = open_store(uri, options)
    for listed in list(store.list("_versions/" if number % 2 else "data/")):
        if number % 2:
            store.put(listed.key, b"nothing")
        else:
            store.delete(listed.key)


class Soak:
    """A lake, its tables by shape, and what happens there."""

    def __init__(self, root, folder, options, count):
        self.root, self.folder, self.options = root, folder, options
        self.tables = {}
        for number in range(count):
            shape = "broken" if number % BROKEN == 0 else SHAPES[number % (len(SHAPES) - 1)]
            self.tables[f"{shape}/t{number}"] = shape
            create(self.uri(f"{shape}/t{number}"), shape, number, options or None)
            if shape == "broken":
                break_table(self.uri(f"broken/t{number}"), number // BROKEN, options or None)
        written = [path for path, shape in self.tables.items() if shape in WRITTEN]
        Path(folder, "tables.json").write_text(json.dumps(written))

    def uri(self, path):
        return f"{self.root}/{path}.lance"

    def of(self, *shapes):
        return [path for path, shape in self.tables.items() if shape in shapes]

    def open(self, path, library=lance):
        return library.dataset(self.uri(path), storage_options=self.options or None)

    def versions(self, *shapes):
        return {path: self.open(path).version for path in self.of(*shapes)}

    @contextlib.contextmanager
    def daemon(self):
        """A daemon on an instance; it and its runs are killed at the end, in the middle of their work."""
        home = self.folder / "home"
        home.mkdir()
        (home / "dagster.yaml").write_text(YAML)
        env = {
            **os.environ,
            "DAGSTER_HOME": str(home),
            "LANCE_TEST_ROOT": self.root,
            "LANCE_TEST_OPTIONS": json.dumps(self.options),
            "PYTHONPATH": str(processes.ROOT),
            "PYTHONWARNINGS": "ignore",
            "DAGSTER_GRPC_TIMEOUT_SECONDS": "240",
        }
        command = [sys.executable, "-m", "dagster._daemon", "run", "-f", LOCATION]
        with (
            dg.DagsterInstance.from_config(str(home)) as instance,
            processes.running(command, env=env, log=self.folder / "daemon.log"),
        ):
            yield instance

    def write(self, instance, minutes):
        """Let both libraries write, and pylance read, for some minutes and until two runs have ended."""
        with contextlib.ExitStack() as stack:
            writers = []
            for number, library in enumerate(("lance_core", "lance"), 1):
                given = [library, self.root, number, self.folder, json.dumps(self.options)]
                command = [sys.executable, "-m", "tests.lance_dagster.maintenance.lake_writer", *map(str, given)]
                log = self.folder / f"writer-{number}.log"
                writers.append((log, stack.enter_context(processes.running(command, log=log))))
            end, draw = time.monotonic() + 60 * minutes, random.Random(3)
            while time.monotonic() < end or len(self.ended(instance)) < 2:
                for log, process in writers:
                    assert process.poll() is None, log.read_text()
                path = draw.choice(self.of(*WRITTEN, "many", "fine"))
                found = self.open(path)
                assert found.to_table().num_rows == found.count_rows(), path
                time.sleep(0.3)
            Path(self.folder, "end").touch()
            for log, process in writers:
                assert process.wait(timeout=300) == 0, log.read_text()

    def ended(self, instance):
        return [one for one in instance.get_runs() if one.is_finished]

    def broken_files(self):
        """The files of the broken tables, with their sizes."""
        return {
            (path, listed.key, listed.size)
            for path in self.of("broken")
            for listed in open_store(self.uri(path), self.options or None).list("")
        }

    def check_runs(self, instance):
        """Runs fail because of the broken tables alone, and name them all together."""
        broken, seen = set(self.of("broken")), set()
        for one in self.ended(instance):
            for event in instance.all_logs(one.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
                error = event.dagster_event.step_failure_data.error
                while error.cause is not None:
                    error = error.cause
                named = {path for path in self.tables if f"{path}:" in error.message}
                assert named, error.to_string()
                assert named <= broken, error.message
                seen |= named
        assert seen == broken, broken - seen

    def check_rows(self):
        """Every table opens, reads the same in both libraries, and holds the acknowledged rows and no others."""
        writers = [json.loads((self.folder / f"writer-{number}.json").read_text()) for number in (1, 2)]
        for path in self.of(*WRITTEN, "many", "fine"):
            theirs, ours = self.open(path), self.open(path, lance_core)
            assert (ours.version, ours.to_table()) == (theirs.version, theirs.to_table()), path
            theirs.validate()
            table = theirs.to_table(columns=["k", "v"])
            found = dict(zip(*table.to_pydict().values(), strict=True))
            assert len(found) == table.num_rows, f"{path}: keys are there twice"
            expected = {int(k): v for one in writers for k, v in one["rows"].get(path, {}).items()}
            assert {k: v for k, v in found.items() if k >= KEYS_PER_WRITER} == expected, path
            assert sum(k < 0 for k in found) == {"foreign": 2, "many": 6}.get(self.tables[path], 1), path
            self.check_indices(path, theirs, table.num_rows)
        counts = sum((collections.Counter(one["counts"]) for one in writers), collections.Counter())
        assert all(counts[verb] for verb in ("append", "delete", "update")), counts
        return dict(sorted(counts.items()))

    def check_indices(self, path, found, rows):
        """An index finds what is there."""
        if self.tables[path] == "searched":
            assert found.to_table(filter="k < 0 or k >= 0").num_rows == rows, path
            key = found.to_table(columns=["k"])["k"][0].as_py()
            assert found.to_table(filter=f"k = {key}")["k"].to_pylist() == [key], path

    def check_log(self):
        """A table that nobody writes is changed once at most, whatever runs there were."""
        log = lance.dataset(f"{self.root}/_maintenance/log.lance", storage_options=self.options or None)
        changes = collections.Counter(
            row["table"]
            for row in log.to_table(filter="step = 'table'").to_pylist()
            if row["outcome"] == "done" and row["version_before"] != row["version_after"]
        )
        assert not [path for path in self.of("fine") if changes[path]]
        assert all(changes[path] <= 1 for path in self.of("many")), changes
        return changes


def soak(root, folder, options):
    minutes, count = float(os.environ.get("LAKE_MINUTES", "0.5")), int(os.environ.get("LAKE_TABLES", "42"))
    lake = Soak(root, folder, options, count)
    before, broken = lake.versions("fine"), lake.broken_files()
    with lake.daemon() as instance:
        lake.write(instance, minutes)
        lake.check_runs(instance)
        ended = collections.Counter(one.status.value for one in lake.ended(instance))
    counts = lake.check_rows()
    assert lake.versions("fine") == before
    changes = lake.check_log()
    policy = LanceMaintenancePolicy(cleanup_older_than="1d")
    job = build_maintenance_job(root=True, policy=policy)
    with dg.DagsterInstance.ephemeral() as instance:
        alone = Lake(root=root, instance=instance, storage_options=options)
        run(alone, job)  # what the killed runs left
        finished = lake.versions(*WRITTEN, "many", "fine")
        run(alone, job)
    assert lake.versions(*WRITTEN, "many", "fine") == finished
    assert {path: len(lake.open(path).get_fragments()) for path in lake.of("many")} == dict.fromkeys(lake.of("many"), 1)
    lake.check_rows()
    assert lake.broken_files() == broken
    print(f"{count} tables, {minutes} minutes, runs {dict(ended)}, {sum(changes.values())} changes, {counts}")


@pytest.mark.slow
def test_on_a_local_disk(tmp_path):
    soak(str(tmp_path / "lake"), tmp_path, {})


@pytest.mark.slow
def test_on_s3(s3, tmp_path):
    soak(f"s3://{s3.new_bucket()}/lake", tmp_path, s3.storage_options)


@pytest.mark.slow
@pytest.mark.ceph
def test_on_ceph(ceph, tmp_path):
    soak(f"s3://{ceph.new_bucket()}/lake", tmp_path, ceph.storage_options)
