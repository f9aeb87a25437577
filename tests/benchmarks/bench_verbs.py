"""Verbs that change a table of 1M rows, against pylance; each run begins with a fresh copy of the table."""

import shutil
import tempfile
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_core
from tests.benchmarks.bench_files import mixed
from tests.benchmarks.timing import medians, report

ROWS = 1_000_000


def main() -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    """All jobs, on copies of one table below `folder`."""
    table = mixed(ROWS).drop_columns(["vector"])
    start, scratch = folder / "start", folder / "scratch"
    lance.write_dataset(table, start)
    keys = np.random.default_rng(3).choice(2 * ROWS, 20_000, replace=False)
    upserts = table.take(keys % ROWS).set_column(0, "id", pa.array(keys))

    def prepare() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        # Hard links: a copy of a gigabyte between runs would leave the disk busy.
        shutil.copytree(start, scratch, copy_function=lambda a, b: Path(b).hardlink_to(a))

    def merge(library):
        builder = library.dataset(scratch).merge_insert("id")
        return builder.when_matched_update_all().when_not_matched_insert_all().execute(upserts)

    jobs = {
        "filter of two columns, 1 % of the rows": (
            lambda lib: lib.dataset(start).to_table(filter="distance > 1000 and id % 50 = 0"), 0.5,
        ),
        "delete 20 % of the rows": (lambda lib: lib.dataset(scratch).delete("id % 5 = 0"), 0.6),
        "update 1 % of the rows": (lambda lib: lib.dataset(scratch).update({"delay": "0"}, "id % 100 = 0"), 0.5),
        "merge_insert of 20,000 rows": (merge, 0.4),
        "add a column by an expression": (
            lambda lib: lib.dataset(scratch).add_columns({"miles": "distance * 1.6 + delay"}), 0.8,
        ),
    }  # fmt: skip
    for name, (job, must) in jobs.items():
        times = medians({"own": lambda j=job: j(lance_core), "other": lambda j=job: j(lance)}, prepare=prepare)
        report([(name, times["own"], times["other"], must)])


if __name__ == "__main__":
    main()
