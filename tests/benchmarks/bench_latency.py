"""Small reads, changes and appends against pylance: what a call costs beside its rows. Each figure is of ten calls."""

import shutil
import tempfile
from pathlib import Path
from types import ModuleType

import lance
import numpy as np
import pyarrow as pa

import lance_core
from tests.benchmarks.bench_files import mixed
from tests.benchmarks.timing import medians, report

CALLS = 10
ROUNDS = 9
TWO = ["id", "distance"]
ROWS = [5, 1_000, 50_000, 77_777, 99_999]

READS = {
    "open": lambda dataset: dataset.schema,
    "count_rows": lambda dataset: dataset.count_rows(),
    "limit 100": lambda dataset: dataset.to_table(limit=100),
    "limit 100, two columns": lambda dataset: dataset.to_table(TWO, limit=100),
    "limit 100 of a filter": lambda dataset: dataset.to_table(filter="distance > 1000", limit=100),
    "take of 5 rows": lambda dataset: dataset.take(ROWS),
    "take of 5 rows, two columns": lambda dataset: dataset.take(ROWS, TWO),
    "filter of one row": lambda dataset: dataset.to_table(filter="id = 77777"),
    "filter of one row, two columns": lambda dataset: dataset.to_table(TWO, filter="id = 77777"),
}

CHANGES = {
    "delete of one row": lambda dataset: dataset.delete("id = 77777"),
    "update of one row": lambda dataset: dataset.update({"delay": "5"}, where="id = 77777"),
}


WIDE = {
    "open": lambda dataset: dataset.schema,
    "count_rows": lambda dataset: dataset.count_rows(),
    "one column": lambda dataset: dataset.to_table(["c7"]),
    "take of 5 rows, one column": lambda dataset: dataset.take([5, 10, 500, 777, 999], ["c7"]),
    "filter of one column": lambda dataset: dataset.to_table(["c7"], filter="c9 > 0.99"),
}


def main() -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp())
    try:
        few = mixed(100_000)
        lance_core.write_dataset(mixed(), folder / "one fragment")
        lance_core.write_dataset(few, folder / "100 fragments", max_rows_per_file=1_000)
        for table in ("one fragment", "100 fragments"):
            for name, read in READS.items():
                print_pair(f"{table}: {name}", lambda m, t=table, r=read: r(m.dataset(folder / t)))
        for name, change in CHANGES.items():
            print_changes(f"100 fragments: {name}", folder / "100 fragments", change)
        wide = pa.table({f"c{number}": np.random.default_rng(number).random(1_000) for number in range(1_000)})
        lance_core.write_dataset(wide, folder / "1000 columns")
        for name, read in WIDE.items():
            print_pair(f"1000 columns: {name}", lambda m, r=read: r(m.dataset(folder / "1000 columns")))
        for _ in range(1_000):
            lance.write_dataset(pa.table({"x": [1]}), folder / "versions", mode="append")
        print_pair("1000 versions: open", lambda m: m.dataset(folder / "versions"))
        rows = mixed(10)
        print_pair("append of 10 rows", lambda m: m.write_dataset(rows, folder / m.__name__, mode="append"))
        rows = wide.slice(0, 10)
        print_pair(
            "append of 10 rows, 1000 columns",
            lambda m: m.write_dataset(rows, folder / f"wide {m.__name__}", mode="append"),
        )
    finally:
        shutil.rmtree(folder)


def print_pair(name: str, job) -> None:
    """Time a job of either library."""

    def calls(module: ModuleType) -> None:
        for _ in range(CALLS):
            job(module)

    times = medians({"own": lambda: calls(lance_core), "other": lambda: calls(lance)}, rounds=ROUNDS)
    report([(name, times["own"], times["other"], 0.15)])


def print_changes(name: str, uri: Path, change) -> None:
    """Time a change of a fresh copy of a table, once for each figure."""
    scratch = uri.with_name("scratch")

    def fresh() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(uri, scratch)

    jobs = {"own": lambda: change(lance_core.dataset(scratch)), "other": lambda: change(lance.dataset(scratch))}
    times = medians(jobs, rounds=ROUNDS, prepare=fresh)
    report([(f"{name} (one call)", times["own"], times["other"], 0.15)])


if __name__ == "__main__":
    main()
