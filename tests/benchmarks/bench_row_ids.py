"""What stable row ids cost: processor time of verbs on a table of 1M rows, and bytes of its newest manifest."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import lance_core
from tests.benchmarks.bench_files import mixed

ROWS = 1_000_000
NAMES = ("with", "without")


def manifest_bytes(uri: Path) -> int:
    """The bytes of the newest manifest."""
    return max(
        (file.stat() for file in (uri / "_versions").glob("*.manifest")), key=lambda stat: stat.st_mtime_ns
    ).st_size


def main() -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    """All jobs, on copies of a table of ten fragments."""
    table = mixed(ROWS).drop_columns(["vector"])
    keys = np.random.default_rng(3).choice(2 * ROWS, 20_000, replace=False)
    upserts = table.take(keys % ROWS).set_column(0, "id", pa.array(keys))

    def write(target: Path, stable: bool) -> None:
        lance_core.write_dataset(table, target, max_rows_per_file=ROWS // 10, enable_stable_row_ids=stable)

    def merge(uri: Path) -> object:
        merged = lance_core.dataset(uri).merge_insert("id")
        return merged.when_matched_update_all().when_not_matched_insert_all().execute(upserts)

    for name in NAMES:
        write(folder / name, name == "with")
    jobs: dict[str, Callable[[Path], object]] = {
        "append of 1,000 rows": lambda uri: lance_core.dataset(uri).insert(table[:1000]),
        "full scan": lambda uri: lance_core.dataset(uri).to_table(),
        "delete of 20 %, scattered": lambda uri: lance_core.dataset(uri).delete("id % 5 = 0"),
        "update of 1 %, scattered": lambda uri: lance_core.dataset(uri).update({"delay": "0"}, "id % 100 = 0"),
        "upsert of 2 %, scattered": merge,
        "compaction of ten fragments": lambda uri: lance_core.dataset(uri).optimize.compact_files(),
    }
    print(f"{'job':<32}{'with s':>10}{'without s':>11}{'manifest with':>15}{'without':>10}")
    written = least({name: lambda n=name: rewrite(folder / "new", lambda t: write(t, n == "with")) for name in NAMES})
    show("write of 1M rows", written, {name: manifest_bytes(folder / name) for name in NAMES})
    for title, job in jobs.items():
        for name in NAMES:
            copy(folder / name, folder / f"scratch-{name}")
        times = least(
            {name: lambda n=name, j=job: j(folder / f"scratch-{n}") for name in NAMES},
            prepare=lambda: [copy(folder / name, folder / f"scratch-{name}") for name in NAMES],
        )
        for name in NAMES:
            copy(folder / name, folder / f"scratch-{name}")
            job(folder / f"scratch-{name}")
        show(title, times, {name: manifest_bytes(folder / f"scratch-{name}") for name in NAMES})


def least(jobs: dict[str, Callable[[], object]], prepare: Callable[[], object] = lambda: None) -> dict[str, float]:
    """The least processor seconds of each job in seven rounds: waits for the disk would hide what ids cost."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(7):
        for name, job in jobs.items():
            prepare()
            start = time.process_time()
            job()
            seconds[name].append(time.process_time() - start)
    return {name: min(times) for name, times in seconds.items()}


def rewrite(target: Path, write: Callable[[Path], None]) -> None:
    """Write a new table where one may be."""
    shutil.rmtree(target, ignore_errors=True)
    write(target)


def copy(source: Path, target: Path) -> None:
    """Copy a table by hard links: a copy of its bytes would leave the disk busy."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=lambda a, b: Path(b).hardlink_to(a))


def show(title: str, seconds: dict[str, float], sizes: dict[str, int]) -> None:
    """One line."""
    figures = f"{seconds['with']:>10.3f}{seconds['without']:>11.3f}{sizes['with']:>15,}{sizes['without']:>10,}"
    print(f"{title:<32}{figures}", flush=True)


if __name__ == "__main__":
    main()
