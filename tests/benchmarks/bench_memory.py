"""Peak memory of a stream of 2 GB that is written, and of a scan of it with `to_batches`.

Each job runs in a process of its own, whose highest resident set is what counts; that of a process that only imports
the library is shown beside it. A size in MB may be given: `python -m tests.benchmarks.bench_memory 500`.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.memory import peak_mb

BATCH_ROWS = 50_000
LIMIT_MB = 400
SCHEMA = pa.schema({"id": pa.int64(), "value": pa.float64(), "text": pa.string(), "vector": pa.list_(pa.float32(), 32)})


def stream(megabytes: int) -> Iterator[pa.RecordBatch]:
    """Batches of about `size` bytes in all, each made when it is asked for."""
    rng = np.random.default_rng(1)
    words = pa.array([f"word number {i:06d}, and some more" for i in range(50_000)])
    total = 0
    while total < megabytes * 1_000_000:
        numbers = rng.integers(0, 1 << 40, BATCH_ROWS)
        items = pa.array(rng.random(BATCH_ROWS * 32, dtype=np.float32))
        columns = [
            pa.array(numbers),
            pa.array(rng.random(BATCH_ROWS)),
            words.take(pa.array(numbers % len(words))),
            pa.FixedSizeListArray.from_arrays(items, 32),
        ]
        batch = pa.record_batch(columns, schema=SCHEMA)
        total += batch.nbytes
        yield batch


def run(job: str, library_name: str, uri: str, megabytes: int) -> None:
    """One job in this process; prints the highest resident set in MB."""
    # Each process shall load only the library that it measures.
    library = __import__(library_name)
    if job == "write":
        library.write_dataset(pa.RecordBatchReader.from_batches(SCHEMA, stream(megabytes)), uri)
    elif job == "scan":
        rows = sum(batch.num_rows for batch in library.dataset(uri).to_batches())
        assert rows > 0
    print(peak_mb())


def main(megabytes: int) -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp())
    try:
        print(f"peak memory in MB, stream of {megabytes} MB (limit {LIMIT_MB})")
        for library in ("lance_core", "lance"):
            for job in ("import", "write", "scan"):
                arguments = [sys.executable, "-m", "tests.benchmarks.bench_memory", job, library, str(folder / library)]
                done = subprocess.run([*arguments, str(megabytes)], check=True, capture_output=True, text=True)
                print(f"  {library:<12}{job:<8}{int(done.stdout):>6}", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if len(sys.argv) == 5:
        run(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdigit() else 2_000)
