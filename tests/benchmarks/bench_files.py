"""Data files against pylance: write, scan, take; 1M rows of mixed columns, and 200,000 vectors."""

import shutil
import tempfile
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_core
from tests.benchmarks.timing import medians, report

ROWS = 1_000_000


def mixed(rows: int = ROWS) -> pa.Table:
    """int64, date, nullable int32, double, low-cardinality and free strings, timestamps, 64-float vectors."""
    rng = np.random.default_rng(7)
    words = np.array([f"word{i:05d}" for i in range(20_000)])
    free = [" ".join(row) for row in words[rng.integers(0, len(words), (rows, 3))]]
    nulls = rng.random(rows) < 0.1
    return pa.table({
        "id": pa.array(np.arange(rows, dtype=np.int64)),
        "day": pa.array((15_000 + np.arange(rows) // 2_740).astype(np.int32)).cast(pa.date32()),
        "delay": pa.array(rng.integers(-60, 1_500, rows).astype(np.int32), mask=nulls),
        "distance": pa.array(rng.normal(1_000, 300, rows)),
        "carrier": pa.array(np.array(["UA", "AA", "DL", "WN", "B6", "EV", "MQ", "US"])[rng.integers(0, 8, rows)]),
        "note": pa.array(free),
        "at": pa.array(1_600_000_000_000_000 + np.cumsum(rng.integers(0, 2_000_000, rows)), pa.timestamp("us", "UTC")),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(rows * 64, dtype=np.float32)), 64),
    })  # fmt: skip


def vectors(rows: int = 200_000) -> pa.Table:
    """128-float vectors."""
    values = np.random.default_rng(8).normal(size=rows * 128).astype(np.float32)
    return pa.table({"vector": pa.FixedSizeListArray.from_arrays(pa.array(values), 128)})


def data_bytes(uri: Path) -> int:
    """Bytes of the data files of a dataset."""
    return sum(path.stat().st_size for path in (uri / "data").iterdir())


def main() -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    """All jobs, on datasets below `folder`."""
    table, embedded = mixed(), vectors()
    ours, theirs, scratch = folder / "ours", folder / "theirs", folder / "scratch"

    def pair(name: str, own, other, must: float) -> tuple[str, float, float, float]:
        times = medians({"own": own, "other": other}, prepare=lambda: shutil.rmtree(scratch, ignore_errors=True))
        report([(name, times["own"], times["other"], must)])
        return name, times["own"], times["other"], must

    lance_core.write_dataset(table, ours)
    lance.write_dataset(table, theirs)
    print(f"bytes on disk: ours {data_bytes(ours):,}, pylance {data_bytes(theirs):,}, "
          f"{data_bytes(ours) / data_bytes(theirs):.2f} x (at most 1.2)")  # fmt: skip
    pair("write", lambda: lance_core.write_dataset(table, scratch), lambda: lance.write_dataset(table, scratch), 1.0)
    pair(
        "full scan of our own", lambda: lance_core.dataset(ours).to_table(), lambda: lance.dataset(ours).to_table(), 1.0
    )
    pair(
        "full scan of pylance's",
        lambda: lance_core.dataset(theirs).to_table(),
        lambda: lance.dataset(theirs).to_table(),
        0.6,
    )
    two = ["id", "distance"]
    pair(
        "two numeric columns",
        lambda: lance_core.dataset(ours).to_table(columns=two),
        lambda: lance.dataset(ours).to_table(columns=two),
        0.8,
    )
    for name in table.column_names:
        pair(
            f"  scan {name} of our own",
            lambda n=name: lance_core.dataset(ours).to_table(columns=[n]),
            lambda n=name: lance.dataset(ours).to_table(columns=[n]),
            1.0,
        )
        pair(
            f"  scan {name} of pylance's",
            lambda n=name: lance_core.dataset(theirs).to_table(columns=[n]),
            lambda n=name: lance.dataset(theirs).to_table(columns=[n]),
            0.6,
        )
    rows = np.sort(np.random.default_rng(9).choice(ROWS, 1_000, replace=False)).tolist()
    pair(
        "take of 1,000 random rows",
        lambda: lance_core.dataset(ours).take(rows),
        lambda: lance.dataset(ours).take(rows),
        1.2,
    )
    pair(
        "vectors: write",
        lambda: lance_core.write_dataset(embedded, scratch),
        lambda: lance.write_dataset(embedded, scratch),
        2.0,
    )
    lance_core.write_dataset(embedded, folder / "vectors")
    pair(
        "vectors: scan",
        lambda: lance_core.dataset(folder / "vectors").to_table(),
        lambda: lance.dataset(folder / "vectors").to_table(),
        2.0,
    )


if __name__ == "__main__":
    main()
