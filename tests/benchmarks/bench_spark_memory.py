"""Peak memory of the task that writes frames as large as Lance tables are: vectors, images, many columns.

    python -m tests.benchmarks spark_memory

Each frame comes as Spark hands it over, as a stream of Arrow messages of at most 10,000 rows and 64 MB that hold all
columns, into the function that runs in a Python worker, in a process of its own. The figure is the highest resident set
of that process; that after its imports and the first message is shown beside it. As in a task it has one core.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tests.memory import peak_mb

LIMIT_MB: Final = 300
MESSAGE_ROWS, MESSAGE_BYTES = 10_000, 64 << 20
FRAMES: Final = {"vectors": 1_200, "images": 1_200, "columns": 800}
"""Megabytes of each frame."""
SCHEMAS: Final = {
    "vectors": pa.schema({"id": pa.int64(), "v": pa.list_(pa.float32(), 768)}),
    "images": pa.schema({"id": pa.int64(), "b": pa.binary()}),
    "columns": pa.schema({f"c{i}": pa.int64() for i in range(1_000)}),
}


def main() -> None:
    """Write each frame in a process of its own, and print."""
    if len(sys.argv) > 2 and sys.argv[1] == "part":
        print(*peak(sys.argv[2], FRAMES[sys.argv[2]]))
        return
    print(f"{'frame':<12}{'MB':>6}{'first MB':>10}{'peak MB':>9}   limit {LIMIT_MB}")
    too_much = []
    for name, size in FRAMES.items():
        arguments = [sys.executable, "-m", "tests.benchmarks.bench_spark_memory", "part", name]
        environment = os.environ | {"LANCE_CPU_THREADS": "1"}
        done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        first, found = map(int, done.stdout.split())
        too_much += [name] if found > LIMIT_MB else []
        print(f"{name:<12}{size:>6}{first:>10}{found:>9}{'   too much' if too_much[-1:] == [name] else ''}", flush=True)
    if too_much:
        sys.exit(f"above {LIMIT_MB} MB: {', '.join(too_much)}")


def peak(name: str, megabytes: int) -> tuple[int, int]:
    """MB that a process needed, after the first message and at most."""
    from pyspark_lance.writing.task import WriteTask

    schema = SCHEMAS[name]
    reading, writing = os.pipe()
    if not os.fork():  # so that what makes the messages is not counted
        os.close(reading)
        feed(writing, schema, megabytes)
        os._exit(0)
    os.close(writing)
    first = 0

    def batches(source: pa.ipc.RecordBatchStreamReader) -> Iterator[pa.RecordBatch]:
        nonlocal first
        for batch in source:
            first = first or peak_mb()
            yield batch

    with tempfile.TemporaryDirectory() as folder, os.fdopen(reading, "rb") as pipe:
        task = WriteTask(uri=str(Path(folder, "t.lance")), job="0123456789abcdef", stored=schema)
        task.run(0, 0, batches(pa.ipc.open_stream(pipe)))
    os.wait()
    return first, peak_mb()


def feed(descriptor: int, schema: pa.Schema, megabytes: int) -> None:
    """Write a frame into a pipe, in messages."""
    row = sum(768 * 4 if pa.types.is_fixed_size_list(kind) else 8 for kind in schema.types)
    row = 1_000_000 if pa.binary() in schema.types else row
    rows = min(MESSAGE_ROWS, MESSAGE_BYTES // row)
    rng = np.random.default_rng(1)
    columns = []
    for kind in schema.types:
        if pa.types.is_fixed_size_list(kind):
            items = rng.random(rows * kind.list_size, dtype=np.float32)
            columns.append(pa.FixedSizeListArray.from_arrays(pa.array(items), type=kind))
        elif pa.types.is_binary(kind):
            columns.append(pa.array([rng.bytes(row) for _ in range(rows)], kind))
        else:
            columns.append(pa.array(rng.integers(0, 1 << 40, rows)))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    with os.fdopen(descriptor, "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
        for _ in range(megabytes * 1_000_000 // batch.nbytes):
            stream.write_batch(batch)


if __name__ == "__main__":
    main()
