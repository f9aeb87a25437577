"""Many small fragments against pylance: 365 fragments of 900 rows and 20 columns, as daily loads leave them."""

import shutil
import tempfile
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_core
from tests.benchmarks.timing import medians, report

FRAGMENTS = 365
ROWS = 900


def day() -> pa.Table:
    """The rows of one fragment: integers with and without nulls, doubles, strings."""
    rng = np.random.default_rng(0)
    columns: dict[str, pa.Array] = {}
    for number in range(6):
        columns[f"integer{number}"] = pa.array(rng.integers(0, 1_000 * (number + 1), ROWS))
        columns[f"double{number}"] = pa.array(rng.random(ROWS))
    for number in range(4):
        columns[f"text{number}"] = pa.array([f"v{value}" for value in rng.integers(0, 10 ** (number + 1), ROWS)])
        columns[f"null{number}"] = pa.array(rng.integers(0, 9, ROWS).astype(np.int32), mask=rng.random(ROWS) < 0.1)
    return pa.table(columns)


def main() -> None:
    """Run and print."""
    table = pa.concat_tables([day()] * FRAGMENTS)
    folder = Path(tempfile.mkdtemp())
    scratch, ours, theirs = folder / "scratch", folder / "ours", folder / "theirs"
    sizes = {"max_rows_per_file": ROWS, "max_rows_per_group": ROWS}
    try:
        lance_core.write_dataset(table, ours, **sizes)
        lance.write_dataset(table, theirs, **sizes)
        jobs = {
            "write (ours on disk before it returns)": (
                lambda: lance_core.write_dataset(table, scratch, **sizes),
                lambda: lance.write_dataset(table, scratch, **sizes),
            ),
            "scan of our own": (lambda: lance_core.dataset(ours).to_table(), lambda: lance.dataset(ours).to_table()),
            "scan of pylance's": (
                lambda: lance_core.dataset(theirs).to_table(),
                lambda: lance.dataset(theirs).to_table(),
            ),
        }
        for name, (own, other) in jobs.items():
            times = medians(
                {"own": own, "other": other}, rounds=3, prepare=lambda: shutil.rmtree(scratch, ignore_errors=True)
            )
            report([(name, times["own"], times["other"], 1.0)])
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
