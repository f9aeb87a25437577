"""Damaged tables, and the verbs that meet them: `python -m tests.hostile.fuzz SEED TABLES [FIRST]`.

A table is a dictionary of its files. One file is changed, by bytes or by a lie that still is well-formed, and every verb
runs on a copy of its own in memory. As a program it prints how the calls ended, as JSON; the process may use a few GB.
"""

import gc
import json
import os
import random
import resource
import signal
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

import lance_core as lance
from lance_core.commit import loop
from lance_core.errors import LanceError
from lance_core.maintenance.verify.files import verify
from lance_core.store import open_store
from lance_core.table import deletion
from tests.hostile.lies import lied

ROWS = pa.table({
    "a": range(40),
    "b": [f"t{n}" for n in range(40)],
    "c": [[n, None] for n in range(40)],
    "d": [{"x": n, "y": "z"} for n in range(40)],
})  # fmt: skip
MANY = pa.table({
    "a": range(3000),
    "b": [f"t{n % 50}" for n in range(3000)],
    "c": [[n, None] if n % 3 else None for n in range(3000)],
    "d": [{"x": n // 100, "y": "z" * (n % 7)} for n in range(3000)],
    "e": pa.array([float(n % 10) for n in range(3000)], pa.float32()),
    "f": pa.array([[n, n + 1.0, 0.5] for n in range(3000)], pa.list_(pa.float32(), 3)),
    "g": pa.array([f"k{n % 4}" for n in range(3000)]).dictionary_encode(),
    "h": [bytes(n % 300) for n in range(3000)],
    "i": [n % 5 == 0 for n in range(3000)],
    "j": pa.array([n * 1000 for n in range(3000)], pa.timestamp("us", "UTC")),
})  # fmt: skip
BLOB = pa.schema([*ROWS.schema, pa.field("e", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
BLOBS = ROWS.append_column(BLOB.field("e"), pa.array([bytes([n]) * 300 for n in range(40)], pa.large_binary()))
OLD = MANY.drop_columns(["h"])  # of 2.0 and before
LEGACY = OLD.set_column(OLD.schema.get_field_index("c"), "c", pa.array([[n, n] for n in range(OLD.num_rows)]))

MAX_SECONDS = 2.0
MAX_BYTES = 1 << 30
_SAFETY_BYTES = 6 << 30
_GONE = (KeyboardInterrupt, SystemExit)


def _scan(ds, _):
    scanner = ds.scanner(filter="a > 3 and b <> 't9'", columns=["a", "d"], with_row_id=True, batch_size=7)
    return scanner.explain_plan(), list(scanner.to_batches()), scanner.count_rows()


def _fragments(ds, _):
    for fragment in ds.get_fragments():
        fragment.metadata.to_json()
        fragment.to_table(columns=["b"], limit=5)
        fragment.count_rows("a < 9")
        fragment.take([0, 1])


def _merge(ds, rows):
    ds.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(rows.slice(0, 60))


def _branch(ds, rows):
    branch = ds.checkout_version(("side", None))
    branch.insert(rows.slice(0, 3))
    ds.branches.promote("side")


def _refs(ds, _):
    ds.tags.create("second", ds.version)
    ds.tags.update("first", ds.version)
    ds.tags.delete("first")
    ds.create_branch("other", "second")
    ds.branches.delete("other")


def _indices(ds, _):
    ds.create_scalar_index("a", "BTREE")
    ds.optimize.optimize_indices()
    ds.to_table(filter="a = 3 or b = 't3'")


def _copies(ds, _):
    ds.shallow_clone(f"memory://fuzz/clone{random.random()}", ds.version)
    ds.deep_clone(f"memory://fuzz/copy{random.random()}", ds.version)


def _since(ds, _):
    return ds.latest_version, ds.checkout_version("first").count_rows(), ds.branches.diff("side")


def _alter(ds, _):
    ds.alter_columns({"path": "a", "name": "z", "data_type": pa.int32()})
    ds.update_config({"lance.auto_cleanup.interval": "3"})
    ds.update_metadata({"k": "v"})
    ds.replace_schema_metadata({"k": "v"})


VERBS = {
    "read": lambda ds, _: ds.to_table(),
    "scan": _scan,
    "filter": lambda ds, _: ds.to_table(filter="a > 3 and b <> 't9'", columns=["a", "d"], with_row_id=True),
    "indexed": lambda ds, _: ds.to_table(filter="a = 3 or b in ('t5', 't6')"),
    "take": lambda ds, _: ds.take([0, 5, 38]),
    "sample": lambda ds, _: ds.sample(3),
    "count": lambda ds, _: ds.count_rows(),
    "fragments": _fragments,
    "versions": lambda ds, _: ds.versions(),
    "history": lambda ds, _: ds.get_transactions(),
    "tags": lambda ds, _: ds.tags.list(),
    "branches": lambda ds, _: ds.branches.list(),
    "since": _since,
    "validate": lambda ds, _: ds.validate(),
    "verify": lambda ds, _: verify(ds),
    "stats": lambda ds, _: (ds.stats.dataset_stats(), ds.stats.data_stats()),
    "files": lambda ds, _: ds.tracked_files().read_all(),
    "orphans": lambda ds, _: ds.explain_cleanup_old_versions(
        timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    ),
    "indices": lambda ds, _: (ds.list_indices(), ds.describe_indices()),
    "blobs": lambda ds, _: [blob and blob.read() for blob in ds.take_blobs("e", indices=[0, 5])],
    "insert": lambda ds, rows: ds.insert(rows.slice(0, 3)),
    "delete": lambda ds, _: ds.delete("a = 5"),
    "update": lambda ds, _: ds.update({"b": "'u'"}, where="a < 4"),
    "merge": _merge,
    "columns": lambda ds, _: (ds.add_columns({"n": "a + 1"}), ds.drop_columns(["b"])),
    "alter": _alter,
    "overwrite": lambda ds, rows: lance.write_dataset(rows, ds, mode="overwrite"),
    "restore": lambda ds, _: ds.checkout_version(1).restore(),
    "index": _indices,
    "compact": lambda ds, _: ds.optimize.compact_files(num_threads=1),
    "cleanup": lambda ds, _: ds.cleanup_old_versions(
        timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    ),
    "refs": _refs,
    "branch": _branch,
    "clone": _copies,
}


def build(name, rows, *, bitmaps=False, indices=(), **options):
    """The files of a table of some versions, by key."""
    uri = f"memory://fuzz/{name}"
    random.seed(name)
    urandom, os.urandom = os.urandom, random.randbytes  # so that names of files follow the seed
    dataset = lance.write_dataset(rows, uri, max_rows_per_file=rows.num_rows // 2, **options)
    threshold = deletion.BITMAP_THRESHOLD
    deletion.BITMAP_THRESHOLD = 1 if bitmaps else threshold
    dataset.delete("a % 7 = 2")
    for column, kind in indices:
        dataset.create_scalar_index(column, kind)
    dataset.insert(rows.slice(0, 10))
    dataset.tags.create("first", 1)
    dataset.create_branch("side").insert(rows.slice(0, 2))
    dataset.update({"b": "'v'"}, where="a = 1")
    deletion.BITMAP_THRESHOLD, os.urandom = threshold, urandom
    store = open_store(uri)
    return {meta.key: bytes(store.get(meta.key)) for meta in store.list("")}


KINDS = (
    (ROWS, {}),
    (ROWS, {"enable_stable_row_ids": True, "bitmaps": True}),
    (MANY, {"indices": (("a", "BTREE"), ("b", "BITMAP"))}),
    (OLD, {"data_storage_version": "2.0"}),
    (LEGACY, {"data_storage_version": "legacy"}),
    (MANY, {"data_storage_version": "2.1", "indices": (("a", "ZONEMAP"), ("b", "BLOOMFILTER"))}),
    (BLOBS, {"data_storage_version": "2.1"}),
)


def damaged(files, rng):
    """A copy in which one file is changed, and what was done to it."""
    key = rng.choice(sorted(files))
    kind = rng.choice(("lie", "lie", "lie", "flip", "cut", "zero", "swap"))
    if kind == "lie" and rng.random() < 0.4:
        key = min(name for name in files if name.startswith("_versions/"))  # the latest one
    if kind == "flip" and rng.random() < 0.5:  # where the records are
        key = rng.choice([name for name in sorted(files) if name.endswith((".manifest", ".txn", ".json", ".arrow"))])
    data = lied(files[key], key, rng) if kind == "lie" else None
    if kind == "cut":
        data = files[key][: rng.randrange(len(files[key]))]
    elif kind == "zero":
        at = rng.randrange(len(files[key]))
        data = files[key][:at] + bytes(min(8, len(files[key]) - at)) + files[key][at + 8 :]
    elif kind == "swap":
        data = files[rng.choice(sorted(files))]
    elif data is None:
        changed = bytearray(files[key])
        for _ in range(rng.randint(1, 4)):
            at = rng.choice((rng.randrange(len(changed)), max(len(changed) - rng.randint(1, 200), 0)))
            changed[at] ^= 1 << rng.randrange(8)
        data = bytes(changed)
    return {**files, key: data}, f"{kind} {key}"


class TooSlowError(Exception):
    """A verb took too much of the processor."""


class TooLargeError(Exception):
    """A verb took too much memory."""


@contextmanager
def limited(seconds):
    """Stop the body after so much time of the processor, on the main thread."""

    def stop(*_):
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def measured(most):
    """Raise if the body makes the process larger by as many bytes as allowed; on Linux alone."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        yield
        return
    reset.write_text("5")  # the peak is now what there is
    before = _peak(status)
    yield
    grown = _peak(status) - before
    if grown > most:
        raise TooLargeError(f"{grown >> 20} MB")


def _peak(status):
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def hunt(seed, num_tables, first=0, seconds=MAX_SECONDS, verbs=VERBS):
    """Run all verbs on `calls` damaged tables.

    Returns:
        How the calls ended: "done", names of errors; and what is not to be: (verb, damage, error).
    """
    from lance_core.store import memory

    kinds = [(build(f"{seed}-{n}", rows, **options), rows) for n, (rows, options) in enumerate(KINDS)]
    counts, wrong = Counter(), []
    for number in range(first, first + num_tables):
        random.seed(seed)
        original, rows = kinds[number % len(kinds)]
        files, damage = damaged(original, random.Random(f"{seed}/{number}"))
        for verb, call in verbs.items():
            memory._objects.clear()
            memory._objects.update({f"memory://fuzz/t/{k}": memory._new_entry(v) for k, v in files.items()})
            try:
                with measured(MAX_BYTES), limited(seconds):
                    call(lance.dataset("memory://fuzz/t"), rows)
            except LanceError as error:
                counts[type(error).__name__] += 1
            except BaseException as error:
                counts[type(error).__name__] += 1
                wrong.append((verb, f"{seed}/{number} {damage}", error))
                print(*described(wrong[-1:]), file=sys.stderr, flush=True)
                if isinstance(error, _GONE):
                    raise
            else:
                counts["done"] += 1
        if number % 100 == 0:
            gc.collect()
    assert threading.active_count() < 60
    return counts, wrong


def described(wrong):
    """What is wrong, a line each."""
    return [f"{verb} of {damage}: {type(error).__name__}: {error}" for verb, damage, error in wrong]


def main(seed, tables, first="0"):
    resource.setrlimit(resource.RLIMIT_AS, (_SAFETY_BYTES, _SAFETY_BYTES))
    loop.time.sleep = lambda _: None
    counts, wrong = hunt(int(seed), int(tables), int(first))
    print(json.dumps([counts, described(wrong)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
