"""Columns that a function computes, beside calling it on `to_batches` and one `write_columns`; both in one run.

1M rows of an integer, a string of some 20 bytes and 12 floats, in one fragment and in forty. The function returns a float
for each row. A run in which nothing is due follows 100 appends that were computed, in a table of 10,000 fragments. Processor
time, the least of some rounds.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import lance_core
from tests.memory import peak_mb

ROWS = 1_000_000
ROUNDS = 3
COLUMN = pa.schema([("score", pa.float64())])
COMPUTED = {"inputs": ["text"], "columns": COLUMN, "name": "score", "code_version": "1"}


def rows(number: int) -> pa.Table:
    """The rows, with distinct keys."""
    values = np.random.default_rng(3).random((number, 12), np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 12)
    texts = pa.array([f"some text of row {i}" for i in range(number)])
    return pa.table({"id": np.arange(number), "text": texts, "vector": vectors})


def score(batch: pa.RecordBatch) -> pa.Array:
    """The function, which does next to nothing."""
    return pa.array(np.sqrt(np.arange(batch.num_rows)))


def compute(uri: Path) -> None:
    """Ours."""
    lance_core.dataset(uri).compute_columns(score, **COMPUTED, batch_size=8192)


def by_hand(uri: Path) -> None:
    """What a user would write: all rows are held in memory, and a kill loses them."""
    table = lance_core.dataset(uri)
    batches = table.to_batches(columns=["text"], with_row_id=True, batch_size=8192)
    tables = [pa.table({"_rowid": batch["_rowid"], "score": score(batch)}) for batch in batches]
    table.write_columns(pa.concat_tables(tables), on="_rowid")


def timed(job: Callable[[Path], None], source: Path, folder: Path) -> tuple[float, int]:
    """The least processor seconds of a job on a copy of a table, and the bytes that it adds."""
    seconds, written = [], 0
    for _ in range(ROUNDS):
        scratch = folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(source, scratch)
        before = sum(path.stat().st_size for path in scratch.rglob("*.lance"))
        start = time.process_time()
        job(scratch)
        seconds.append(time.process_time() - start)
        written = sum(path.stat().st_size for path in scratch.rglob("*.lance")) - before
    return min(seconds), written


def main() -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        table = rows(ROWS)
        for fragments in (1, 40):
            source = folder / f"table-{fragments}"
            lance_core.write_dataset(table, source, max_rows_per_file=ROWS // fragments, enable_stable_row_ids=True)
            (ours, ours_bytes), (plain, plain_bytes) = (timed(job, source, folder) for job in (compute, by_hand))
            print(
                f"{fragments:>3} fragments: compute_columns {ours:.3f} s, {ours_bytes / 1e6:.1f} MB; by hand {plain:.3f} s, "
                f"{plain_bytes / 1e6:.1f} MB; ours / by hand {ours / plain:.2f} (aim 1.3)",
                flush=True,
            )
        many = folder / "many"
        lance_core.write_dataset(rows(10_000), many, max_rows_per_file=1, enable_stable_row_ids=True)
        compute(many)
        for number in range(100):
            lance_core.dataset(many).insert(rows(1).set_column(0, "id", pa.array([-number])))
            compute(many)
        start = time.process_time()
        compute(many)
        print(f"nothing due in {10_100:,} fragments: {1000 * (time.process_time() - start):.0f} ms (aim 100)")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
    print(f"highest resident set {peak_mb()} MB", file=sys.stderr)
