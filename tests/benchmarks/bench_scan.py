"""Filtered scans against pylance on 1M rows of mixed columns: few rows, many rows, counts, computed columns, order.

Few rows are looked up in two tables of the seven columns without the vectors; each library wrote one of the tables.
"""

import shutil
import tempfile
from pathlib import Path

import lance
import numpy as np

import lance_core
from tests.benchmarks.bench_files import ROWS, mixed
from tests.benchmarks.timing import medians, report

# Name, arguments of `to_table`, and the least ratio: pylance's time / ours.
JOBS = (
    ("filter of two columns at 1 %, all columns", {"filter": "delay < -29 AND distance > 1000"}, 0.5),
    ("the same, two columns", {"filter": "delay < -29 AND distance > 1000", "columns": ["id", "distance"]}, 0.5),
    ("the same, the filter's columns", {"filter": "delay < -29 AND distance > 1000", "columns": ["delay"]}, 0.5),
    ("filter at 50 %, all columns", {"filter": "distance > 1000"}, 0.5),
    ("filter of one range of rows", {"filter": "id BETWEEN 500000 AND 501000"}, 0.5),
    ("filter by text", {"filter": "carrier = 'UA' AND note LIKE '%word00017%'", "columns": ["id", "note"]}, 0.5),
    ("filter by IN", {"filter": "carrier IN ('UA', 'AA') AND delay > 1400", "columns": ["id", "carrier"]}, 0.5),
    ("computed column", {"columns": {"speed": "distance / 3.6 + delay"}}, 0.5),
    ("limit 100", {"limit": 100, "filter": "distance > 1000"}, 0.5),
)


FEW = "delay < -29 AND distance > 1500"


def few_rows(folder: Path) -> None:
    """A filter that keeps 0.1 % of the rows, and 1,000 random rows, beside reading everything."""
    scalars = mixed().drop_columns(["vector"])
    rows = np.sort(np.random.default_rng(9).choice(ROWS, 1_000, replace=False)).tolist()
    for writer, by in ((lance_core, "ours"), (lance, "pylance's")):
        uri = str(folder / f"scalars of {by}")
        writer.write_dataset(scalars, uri)
        jobs = {
            f"filter of few rows, {by}": (lambda library, uri=uri: library.dataset(uri).to_table(filter=FEW), 1.2),
            f"take of 1,000 random rows, {by}": (lambda library, uri=uri: library.dataset(uri).take(rows), 1.2),
            f"all rows, {by}": (lambda library, uri=uri: library.dataset(uri).to_table(), 1.0),
        }
        for name, (job, must) in jobs.items():
            times = medians({"own": lambda job=job: job(lance_core), "other": lambda job=job: job(lance)}, rounds=9)
            report([(name, times["own"], times["other"], must)])


def main() -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp())
    try:
        few_rows(folder)
        lance_core.write_dataset(mixed(), folder / "t")
        for name, arguments, must in JOBS:
            times = medians({
                "own": lambda a=arguments: lance_core.dataset(folder / "t").to_table(**a),
                "other": lambda a=arguments: lance.dataset(folder / "t").to_table(**a),
            })  # fmt: skip
            report([(name, times["own"], times["other"], must)])
        filters = "delay < -29 AND distance > 1000"
        times = medians({
            "own": lambda: lance_core.dataset(folder / "t").count_rows(filters),
            "other": lambda: lance.dataset(folder / "t").count_rows(filters),
        })  # fmt: skip
        report([("count of a filter", times["own"], times["other"], 0.5)])
        order = [lance.dataset.ColumnOrdering("distance")] if hasattr(lance.dataset, "ColumnOrdering") else ["distance"]
        arguments = {"columns": ["distance", "id"], "order_by": order, "limit": 1000}
        times = medians({
            "own": lambda: lance_core.dataset(folder / "t").to_table(**arguments),
            "other": lambda: lance.dataset(folder / "t").to_table(**arguments),
        })  # fmt: skip
        report([("first 1,000 by a column", times["own"], times["other"], 0.5)])
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
