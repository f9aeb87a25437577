"""How much memory rows keep that wait until they make a page, beside columns of other widths."""

import sys

import numpy as np
import pyarrow as pa
import pytest

import lance_core
from tests import processes

MB = 1 << 20


def as_message(batch):
    """The batch as it comes from a file or another process: its columns are parts of one message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


def vectors(rows, dimension):
    items = pa.array(np.random.default_rng(1).random(rows * dimension, dtype=np.float32))
    return pa.FixedSizeListArray.from_arrays(items, dimension)


BATCHES = {
    "vectors": (60, {"id": pa.array(range(1000)), "v": vectors(1000, 768)}),
    "small batches of vectors": (2500, {"id": pa.array(range(10)), "v": vectors(10, 768)}),
    "images": (
        60,
        {
            "id": pa.array(range(4)),
            "label": pa.array(["a", "b", None, "d"]).dictionary_encode(),
            "image": pa.array([bytes([i]) * MB for i in range(4)]),
        },
    ),
    "structs and lists": (
        60,
        {"st": pa.array([{"a": i, "l": ["x"] * (i % 3)} for i in range(1000)]), "v": vectors(1000, 768)},
    ),
    "wide at first": (60, {"id": pa.array(range(1000)), "v": vectors(1000, 768)}),
}


def stream(name, seen):
    """Batches of about 150 MB in all; what Arrow has allocated is noted before each."""
    count, columns = BATCHES[name]
    batch = pa.record_batch(columns)
    narrow = pa.record_batch(columns | {"v": pa.nulls(1000, columns["v"].type)}) if name == "wide at first" else batch

    def batches():
        for index in range(count):
            seen.append(pa.total_allocated_bytes())
            yield as_message(batch if index < 2 or index % 2 else narrow)

    return pa.RecordBatchReader.from_batches(batch.schema, batches())


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("name", "version"), [*((name, "2.2") for name in BATCHES), ("vectors", "2.0"), ("vectors", "legacy")]
)
def test_waiting_rows_do_not_keep_what_is_written(tmp_path, name, version):
    seen = []
    lance_core.write_dataset(stream(name, seen), tmp_path / "t", data_storage_version=version)
    assert max(seen) - seen[0] < 96 * MB
    count, columns = BATCHES[name]
    dataset = lance_core.dataset(tmp_path / "t")
    assert dataset.count_rows() == count * len(next(iter(columns.values())))
    first = next(name for name in columns if name != "v")
    assert dataset.to_table(columns=[first]).column(first).to_pylist() == columns[first].to_pylist() * count


def test_rows_of_a_table_are_not_copied(tmp_path, monkeypatch):
    """All columns of these are as wide as the others: nothing of them is copied."""
    table = pa.table({f"c{i}": pa.array(np.arange(200_000)) for i in range(3)})
    monkeypatch.setattr(pa, "concat_arrays", lambda _: pytest.fail("an array is copied"))
    lance_core.write_dataset(table, tmp_path / "t", max_rows_per_file=1_000_000)


def test_a_stream_is_not_held_while_it_makes_the_next_batch():
    """Neither by a write nor by a merge: the batch before is freed, also the pages that were made of it."""
    rows = 20 * MB // 4096
    half = pa.array(np.zeros(rows * 512, np.float32))
    before = []

    def batches(start):
        for index in range(3):
            before.append(pa.total_allocated_bytes())
            items = pa.concat_arrays([half, half])
            ids = pa.array(np.arange(start + index * rows, start + (index + 1) * rows))
            yield pa.record_batch({"id": ids, "v": pa.FixedSizeListArray.from_arrays(items, 1024)})
            del items, ids

    schema = pa.schema({"id": pa.int64(), "v": pa.list_(pa.float32(), 1024)})
    dataset = lance_core.write_dataset(batches(0), "memory://streams", schema=schema)
    assert max(before) - before[0] < 12 * MB
    before.clear()
    stream = pa.RecordBatchReader.from_batches(schema, batches(rows))
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(stream)
    assert max(before) - before[0] < 12 * MB


PEAK = """
import itertools, sys
import numpy as np
import pyarrow as pa
import lance_core
from tests.memory import peak_mb
shape, verb, uri = sys.argv[1:]
rng = np.random.default_rng(1)

def vectors():
    for start in range(0, 400_000, 10_000):
        items = pa.array(rng.random(10_000 * 768, dtype=np.float32))
        yield {"id": pa.array(np.arange(start, start + 10_000)), "v": pa.FixedSizeListArray.from_arrays(items, 768)}

def images():
    for start in range(0, 1200, 20):
        values = pa.array([rng.bytes(1 << 20) for _ in range(20)])
        yield {"id": pa.array(range(start, start + 20)), "label": pa.array(["x"] * 20), "image": values}

def columns():
    for start in range(0, 150_000, 2_500):
        yield {f"c{i}": pa.array(rng.random(2_500)) for i in range(1000)}

def messages(make):
    for one in make():
        batch = pa.record_batch(one)
        yield pa.ipc.read_record_batch(pa.ipc.read_message(batch.serialize()), batch.schema)

make = {"vectors": vectors, "images": images, "columns": columns}[shape]
schema = pa.record_batch(next(make())).schema
reader = pa.RecordBatchReader.from_batches(schema, messages(make))
if verb == "write":
    lance_core.write_dataset(reader, uri)
elif verb == "insert":
    lance_core.write_dataset(schema.empty_table(), uri).insert(reader)
elif verb == "merge":
    # As a list these batches alone would take as much as the limit.
    before = pa.RecordBatchReader.from_batches(schema, itertools.islice(messages(make), 3))
    dataset = lance_core.write_dataset(before, uri)
    del before
    key = "c0" if shape == "columns" else "id"
    dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(reader)
else:
    lance_core.write_fragments(reader, uri)
print(peak_mb())
"""


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["write", "insert", "merge", "fragments"])
@pytest.mark.parametrize("shape", ["vectors", "images", "columns"])
def test_a_process_that_writes_a_gigabyte_stays_small(tmp_path, shape, verb):
    done = processes.run([sys.executable, "-c", PEAK, shape, verb, str(tmp_path / "t")], check=True)
    assert int(done.stdout) < 300
