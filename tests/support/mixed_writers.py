"""Processes of both libraries that change one table; some are killed."""

import collections
import contextlib
import json
import random
import sys
import time

import lance
import pyarrow as pa

import lance_core
from lance_core.commit.versions import list_versions
from lance_core.store import open_store
from tests import processes
from tests.faults.mixer import KEYS_PER_WRITER, SCHEMA

VERBS = ("append", "delete", "update")


class Writers:
    """The processes, and what their logs say."""

    def __init__(self, uri, folder, options, seconds):
        self.uri, self.folder, self.options = uri, folder, options
        self.begin_s, self.least_s = time.monotonic(), seconds
        self.started = 0
        self.killed = set()
        self.stack = contextlib.ExitStack()

    def log(self, writer):
        return self.folder / f"writer-{writer}.log"

    def errors(self, writer):
        return self.folder / f"writer-{writer}.errors"

    def start(self, library):
        self.started += 1
        arguments = [
            library,
            self.uri,
            self.started,
            self.folder / "end",
            self.log(self.started),
            json.dumps(self.options),
        ]
        command = [sys.executable, "-m", "tests.faults.mixer", *map(str, arguments)]
        context = processes.running(command, log=self.errors(self.started))
        return self.started, self.stack.enter_context(context)

    def run(self, kill):
        with self.stack:
            ours = [self.start("lance_core") for _ in range(4)]
            theirs = [self.start("lance") for _ in range(2)]
            while not self.is_enough(kill) and all(process.poll() is None for _, process in ours + theirs):
                if kill:
                    self.kill_one(ours)
                time.sleep(0.1)
            (self.folder / "end").touch()
            for writer, process in ours + theirs:
                process.wait(timeout=300)
                assert process.returncode == 0, f"writer {writer}: {self.errors(writer).read_text()}"

    def is_enough(self, kill):
        """Whether they ran so long, and each verb was done, and some were killed: a busy machine takes longer."""
        if time.monotonic() < self.begin_s + self.least_s or (kill and len(self.killed) < 3):
            return False
        counts = self.counts()
        return all(counts[f"{verb} done"] for verb in VERBS)

    def counts(self):
        entries = (entry for writer in range(1, self.started + 1) for entry in self.entries(writer))
        return collections.Counter(f"{v} {k}" for entry in entries if "verb" not in entry for k, v in entry.items())

    def kill_one(self, ours):
        """Kill the oldest writer of ours if it works, at any point of what it does, and start another."""
        writer, process = ours[0]
        if not self.entries(writer):
            return
        time.sleep(random.random() * 0.5)
        if process.poll() is not None:
            return
        del ours[0]
        process.kill()
        process.wait(timeout=30)
        self.killed.add(writer)
        ours.append(self.start("lance_core"))

    def entries(self, writer):
        log = self.log(writer)
        lines = log.read_text().split("\n")[:-1] if log.exists() else []
        return [json.loads(line) for line in lines]

    def check(self, rows):
        """Compare the rows that there are with the logs."""
        found = collections.defaultdict(dict)
        for k, v in rows:
            assert k not in found[k // KEYS_PER_WRITER], f"row {k} is there twice"
            found[k // KEYS_PER_WRITER][k] = v
        for writer in range(1, self.started + 1):
            expected, pending = {}, None
            for entry in self.entries(writer):
                if "verb" in entry:
                    pending = {int(k): v for k, v in entry["rows"].items()}
                    continue
                (outcome,) = entry
                expected = pending if outcome == "done" else expected
                pending = None
            assert pending is None or writer in self.killed
            assert found.pop(writer, {}) in ([expected] if pending is None else [expected, pending]), writer
        assert not found


def mix(uri, folder, options, *, kill, seconds):
    lance.write_dataset(pa.table({"k": [-1], "v": [0]}, schema=SCHEMA), uri, storage_options=options)
    writers = Writers(uri, folder, options, seconds)
    writers.run(kill)
    ours, theirs = (library.dataset(uri, storage_options=options) for library in (lance_core, lance))
    assert list_versions(open_store(uri, options)) == list(range(1, theirs.version + 1))
    assert ours.version == theirs.version
    tables = [dataset.to_table() for dataset in (ours, theirs)]
    assert tables[0] == tables[1]
    theirs.validate()
    rows = set(zip(*tables[0].to_pydict().values(), strict=True))
    assert len(rows) == tables[0].num_rows == theirs.count_rows() == ours.count_rows()
    writers.check(rows - {(-1, 0)})
    assert bool(writers.killed) == kill
    counts = writers.counts()
    for verb in VERBS:
        assert counts[f"{verb} done"] > 0, counts
    print(f"{theirs.version} versions, {len(writers.killed)} killed, {dict(sorted(counts.items()))}")
