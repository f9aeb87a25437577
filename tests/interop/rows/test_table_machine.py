"""Any interleaving of changes through handles of any age leaves the rows that a plain model says."""

import shutil
import tempfile
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import lance_core
from lance_core import Equals, Slice, Slices
from lance_core.errors import CommitConflictError
from tests.support.moves import move_all

# Of a declared key no two upserts insert the same value at the same time.
KEY = pa.field("k", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"})
SCHEMA = pa.schema([KEY, ("day", pa.int64()), ("v", pa.int64())])
DAYS = st.integers(0, 3)
HANDLES = st.integers(0, 2)
Rows = dict[int, tuple[int, int]]


def table(rows: Rows) -> pa.Table:
    columns = [list(rows), [day for day, _ in rows.values()], [v for _, v in rows.values()]]
    return pa.table(columns, schema=SCHEMA)


class Tables(RuleBasedStateMachine):
    """The model is a list of versions, each the rows that it has: key to day and value.

    A change goes through one of three handles, whatever version that shows. If it is acknowledged, it has been done to
    the latest rows, or to what it saw where that cannot make a difference; if it is rejected, nothing has changed.
    """

    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.uri = str(Path(self.folder) / "t")
        self.versions: list[Rows] = []
        self.next_key = 0

    def teardown(self):
        try:
            if self.versions:
                self.check_history()
        finally:
            shutil.rmtree(self.folder)

    @initialize(stable=st.booleans(), days=st.lists(DAYS, min_size=1, max_size=8))
    def create(self, stable, days):
        rows = self.fresh(days)
        lance_core.write_dataset(table(rows), self.uri, max_rows_per_file=4, enable_stable_row_ids=stable)
        self.versions.append(rows)
        self.handles = [lance_core.dataset(self.uri) for _ in range(3)]

    def fresh(self, days) -> Rows:
        keys = range(self.next_key, self.next_key + len(days))
        self.next_key += len(days)
        return {key: (day, 0) for key, day in zip(keys, days, strict=True)}

    @property
    def rows(self) -> Rows:
        return self.versions[-1]

    def seen(self, handle) -> Rows:
        return self.versions[handle.version - 1]

    def change(self, handle, call, *outcomes: Rows) -> None:
        """Make a change; afterwards the table has the rows of one of the outcomes, or those from before."""
        before = len(self.versions)
        try:
            call()
        except CommitConflictError:
            assert handle.version < before, "there was nothing to conflict with"
            assert lance_core.dataset(self.uri).version == before, "rejected, and done all the same"
            return
        latest = lance_core.dataset(self.uri)
        actual = as_rows(latest)
        assert actual in outcomes
        assert latest.version - before in (0, 1, 2)
        if latest.version == before:
            assert actual == self.rows
        # A compaction of rows without stable ids reserves fragment numbers in a version of its own.
        self.versions.extend([self.rows] * (latest.version - before - 1) + [actual] * (latest.version > before))

    @rule(which=HANDLES, days=st.lists(DAYS, min_size=1, max_size=6))
    def append(self, which, days):
        handle, new = self.handles[which], self.fresh(days)
        self.change(handle, lambda: handle.insert(table(new)), self.rows | new)

    @rule(which=HANDLES, days=st.lists(DAYS, min_size=1, max_size=4))
    def overwrite(self, which, days):
        new = self.fresh(days)
        options = {"mode": "overwrite", "max_rows_per_file": 2}
        handle = self.handles[which]
        self.change(handle, lambda: lance_core.write_dataset(table(new), handle, **options), new)

    @rule(which=HANDLES, divisor=st.integers(2, 5))
    def delete(self, which, divisor):
        """Rows that were added since the handle's version may be kept: a deletion can be placed before them."""
        handle, seen = self.handles[which], self.seen(self.handles[which])
        deleted = {k for k in self.rows if k % divisor == 0}
        everything = {k: v for k, v in self.rows.items() if k not in deleted}
        what_it_saw = {k: v for k, v in self.rows.items() if k not in deleted or k not in seen}
        self.change(handle, lambda: handle.delete(f"k % {divisor} = 0"), everything, what_it_saw)

    @rule(which=HANDLES, day=DAYS)
    def update(self, which, day):
        """Rows that came to the day since the handle's version may be left alone, as by an update before that."""
        handle, seen = self.handles[which], self.seen(self.handles[which])
        touched = {k for k, (d, _) in self.rows.items() if d == day}
        seen_there = {k for k, (d, _) in seen.items() if d == day}

        def updated(keys):
            return {k: (d, v + (k in keys)) for k, (d, v) in self.rows.items()}

        call = lambda: handle.update({"v": "v + 1"}, f"day = {day}")  # noqa: E731
        self.change(handle, call, updated(touched), updated(touched & seen_there))

    @rule(which=HANDLES, days=st.sets(DAYS, min_size=1, max_size=2), count=st.integers(0, 4))
    def replace(self, which, days, count):
        handle, seen = self.handles[which], self.seen(self.handles[which])
        new = self.fresh([sorted(days)[i % len(days)] for i in range(count)])
        slices = Slices(tuple(Slice(name=str(day), conditions={"day": Equals(day)}) for day in sorted(days)))

        def call():
            writer = lance_core.FragmentWriter(self.uri, SCHEMA, dataset_schema=handle.lance_schema_bytes)
            if new:
                for batch in table(new).to_batches():
                    writer.write(batch)
            fragments = writer.finish()
            lance_core.commit_fragments(
                self.uri, fragments, SCHEMA, mode="replace", slices=slices, read_version=handle.version
            )

        kept = {k: row for k, row in self.rows.items() if row[0] not in days}
        late = {k: row for k, row in self.rows.items() if k not in seen or seen[k][0] not in days}
        self.change(handle, call, kept | new, kept | late | new)

    @rule(which=HANDLES, keys=st.sets(st.integers(0, 30), min_size=1, max_size=5), day=DAYS)
    def upsert(self, which, keys, day):
        handle = self.handles[which]
        new = dict.fromkeys(keys, (day, 100))
        self.next_key = max(self.next_key, max(keys) + 1)

        def call():
            builder = handle.merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
            builder.execute(table(new))

        self.change(handle, call, self.rows | new)

    @rule(which=HANDLES)
    def compact(self, which):
        handle = self.handles[which]
        self.change(handle, lambda: handle.optimize.compact_files(target_rows_per_fragment=20), self.rows)

    @rule(which=HANDLES)
    def migrate(self, which):
        handle = self.handles[which]
        self.change(handle, handle.migrate_to_stable_row_ids, self.rows)
        assert lance.dataset(self.uri).has_stable_row_ids

    @rule()
    def move(self):
        self.change(None, lambda: move_all(self.uri), self.rows)

    @rule(which=HANDLES, choice=st.integers(0, 100))
    def restore(self, which, choice):
        version = 1 + choice % len(self.versions)
        old = self.handles[which].checkout_version(version)
        self.change(old, old.restore, self.versions[version - 1])

    @rule(which=HANDLES, choice=st.integers(0, 100))
    def checkout(self, which, choice):
        version = 1 + choice % len(self.versions)
        self.handles[which] = self.handles[which].checkout_version(version)

    @rule(which=HANDLES)
    def checkout_latest(self, which):
        self.handles[which].checkout_latest()
        assert self.handles[which].version == len(self.versions)

    @invariant()
    def handles_show_their_versions(self):
        for handle in self.handles if self.versions else ():
            assert as_rows(handle) == self.seen(handle)

    def check_history(self):
        theirs = lance.dataset(self.uri)
        theirs.validate()
        assert [version["version"] for version in theirs.versions()] == list(range(1, len(self.versions) + 1))
        for number, rows in enumerate(self.versions, 1):
            assert as_rows(lance.dataset(self.uri, version=number)) == rows
            assert as_rows(lance_core.dataset(self.uri, version=number)) == rows


def as_rows(dataset) -> Rows:
    found = dataset.to_table()
    keys = found["k"].to_pylist()
    rows = dict(zip(keys, zip(found["day"].to_pylist(), found["v"].to_pylist(), strict=True), strict=True))
    assert len(rows) == len(keys) == dataset.count_rows(), "a row is there twice"
    return rows


def test_short_histories():
    chosen = settings(
        max_examples=5,
        stateful_step_count=12,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Tables, settings=chosen)


@pytest.mark.slow
def test_long_histories():
    chosen = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Tables, settings=chosen)
