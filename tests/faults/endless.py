"""A write that does not end: `python -m tests.faults.endless URI ROWS_PER_FILE MODE`; it says when files are there."""

import itertools
import sys

import pyarrow as pa

import lance_core

BATCH = pa.record_batch({"a": range(100_000)})


def batches():
    for number in itertools.count():
        if number == 8:
            sys.stdout.write("going\n")
            sys.stdout.flush()
        yield BATCH


if __name__ == "__main__":
    uri, rows, mode = sys.argv[1:]
    reader = pa.RecordBatchReader.from_batches(BATCH.schema, batches())
    lance_core.write_dataset(reader, lance_core.dataset(uri), mode=mode, max_rows_per_file=int(rows))
