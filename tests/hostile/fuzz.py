"""Damaged tables, and the verbs that meet them.

A table is a dictionary of its files. One file is changed, by bytes or by a lie that still is a well-formed message, and
every verb runs on a copy of its own in memory.
"""

import random
import signal
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import lance_core as lance
from lance_core._proto import table_pb2, transaction_pb2
from lance_core.errors import LanceError
from lance_core.store import open_store
from lance_core.table.manifest import message_range

NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -1,
    -2,
    -(2**31),
)
TEXTS = (
    "",
    "x",
    "..",
    "../../x",
    "/etc/passwd",
    "\x00",
    "é" * 300,
    "int32",
    "struct",
    "list",
    "decimal:128:0:999",
    "null",
)
ROWS = pa.table({
    "a": range(40),
    "b": [f"t{n}" for n in range(40)],
    "c": [[n, None] for n in range(40)],
    "d": [{"x": n, "y": "z"} for n in range(40)],
})  # fmt: skip

VERBS = {
    "read": lambda ds: ds.to_table(),
    "filter": lambda ds: ds.to_table(filter="a > 3 and b <> 't9'", columns=["a", "d"], with_row_id=True),
    "take": lambda ds: ds.take([0, 5, 39]),
    "count": lambda ds: ds.count_rows(),
    "versions": lambda ds: ds.versions(),
    "history": lambda ds: ds.get_transactions(),
    "tags": lambda ds: ds.tags.list(),
    "branches": lambda ds: ds.branches.list(),
    "validate": lambda ds: ds.validate(),
    "stats": lambda ds: (ds.stats.dataset_stats(), ds.stats.data_stats()),
    "files": lambda ds: ds.tracked_files().read_all(),
    "indices": lambda ds: ds.list_indices(),
    "insert": lambda ds: ds.insert(ROWS.slice(0, 3)),
    "delete": lambda ds: ds.delete("a = 5"),
    "update": lambda ds: ds.update({"b": "'u'"}, where="a < 4"),
    "merge": lambda ds: ds.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(ROWS),
    "columns": lambda ds: (ds.add_columns({"n": "a + 1"}), ds.drop_columns(["b"])),
    "overwrite": lambda ds: lance.write_dataset(ROWS, ds, mode="overwrite"),
    "restore": lambda ds: ds.checkout_version(1).restore(),
    "compact": lambda ds: ds.optimize.compact_files(num_threads=1),
    "cleanup": lambda ds: ds.cleanup_old_versions(timedelta(0), delete_unverified=True),
    "clone": lambda ds: ds.shallow_clone(f"memory://fuzz/clone{random.random()}", ds.version),
}


def build(name, **options):
    """The files of a table of some versions, by key."""
    uri = f"memory://fuzz/{name}"
    dataset = lance.write_dataset(ROWS, uri, max_rows_per_file=20, **options)
    dataset.delete("a % 7 = 2")
    dataset.insert(ROWS.slice(0, 10))
    dataset.tags.create("first", 1)
    dataset.create_branch("side").insert(ROWS.slice(0, 2))
    dataset.update({"b": "'v'"}, where="a = 1")
    store = open_store(uri)
    return {meta.key: bytes(store.get(meta.key)) for meta in store.list("")}


def damaged(files, rng):
    """A copy in which one file is changed, and what was done to it."""
    key = rng.choice(sorted(files))
    data = files[key]
    latest = min(name for name in files if name.startswith("_versions/"))
    kind = rng.choice(("lie", "lie", "flip", "cut", "zero", "swap"))
    if kind == "lie" or rng.random() < 0.3:
        key = latest if rng.random() < 0.7 else rng.choice([k for k in files if k.endswith((".manifest", ".txn"))])
        data = lied(files[key], key, rng)
    elif kind == "flip":
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        data = bytes(changed)
    elif kind == "cut":
        data = data[: rng.randrange(len(data))]
    elif kind == "zero":
        at = rng.randrange(len(data))
        data = data[:at] + bytes(min(8, len(data) - at)) + data[at + 8 :]
    else:
        data = files[rng.choice(sorted(files))]
    return {**files, key: data}, f"{kind} {key}"


def lied(data, key, rng):
    """A manifest or transaction with a field that says something else."""
    if key.endswith(".txn"):
        message = transaction_pb2.Transaction.FromString(data)
        mutate(message, rng)
        return message.SerializeToString()
    start, end = message_range(memoryview(data))
    message = table_pb2.Manifest.FromString(data[start:end])
    for _ in range(rng.randint(1, 2)):
        mutate(message, rng)
    new = message.SerializeToString()
    return data[: start - 4] + len(new).to_bytes(4, "little") + new + data[end:]


def mutate(message, rng):
    """Change one value somewhere in a message."""
    spots = [*_spots(message)]
    owner, field, index = rng.choice(spots)
    try:
        if index is None:
            setattr(owner, field.name, _other(field, rng))
        elif rng.random() < 0.2:
            del getattr(owner, field.name)[index]
        elif isinstance(getattr(owner, field.name)[index], Message):
            getattr(owner, field.name).append(getattr(owner, field.name)[index])
        else:
            getattr(owner, field.name)[index] = _other(field, rng)
    except (ValueError, TypeError, OverflowError):
        return  # the type does not hold it


def _spots(message):
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.label == FieldDescriptor.LABEL_REPEATED:
            for index, item in enumerate(value):
                yield message, field, index
                if isinstance(item, Message):
                    yield from _spots(item)
        elif isinstance(value, Message):
            yield from _spots(value)
        else:
            yield message, field, None


def _other(field, rng):
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((b"", b"\xff" * 5, bytes(40), rng.randbytes(12)))
    return rng.choice(NUMBERS)


class TooSlowError(Exception):
    """A verb took too much of the processor."""


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


def hunt(seed, num_tables, seconds=5.0):
    """Run all verbs on so many damaged tables.

    Returns:
        How the calls ended: "done", names of errors; and what is not to be: (verb, damage, error).
    """
    from lance_core.store import memory

    rng = random.Random(seed)
    kinds = [
        build(f"{seed}-{number}", **options)
        for number, options in enumerate(
            (
                {},
                {"enable_stable_row_ids": True},
                {"data_storage_version": "2.0"},
                {"data_storage_version": "legacy"},
            )
        )
    ]
    counts, wrong = Counter(), []
    for number in range(num_tables):
        files, damage = damaged(kinds[number % len(kinds)], rng)
        for verb, call in VERBS.items():
            memory._objects.clear()
            memory._objects.update({f"memory://fuzz/t/{k}": memory._new_entry(v) for k, v in files.items()})
            try:
                with limited(seconds):
                    call(lance.dataset("memory://fuzz/t"))
            except LanceError as error:
                counts[type(error).__name__] += 1
            except BaseException as error:
                counts[type(error).__name__] += 1
                wrong.append((verb, f"{seed}/{number} {damage}", error))
                if isinstance(error, KeyboardInterrupt):
                    raise
            else:
                counts["done"] += 1
    assert threading.active_count() < 60
    return counts, wrong
