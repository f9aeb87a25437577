"""What work on one day costs as a table of one-day fragments grows: 100, 1,000 and 10,000 days of 100 rows.

Reads, replacements and counts of a day, ours with a zone map and without, and pylance's with its own; Delta Lake and
Iceberg, partitioned by day, where `deltalake` and `pyiceberg` are installed. `objects` are the files that were opened.
"""

import shutil
import sys
import tempfile
import time
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import lance
import pyarrow as pa
from lance.indices import IndexConfig

import lance_core
from lance_core.store.local import LocalStore
from tests.benchmarks.timing import medians

SIZES = (100, 1_000, 10_000)
ROWS = 100
FIRST = date(1995, 1, 1)
DAY = FIRST + timedelta(days=57)
CONDITION = f"day = date '{DAY}'"
SLICES = lance_core.Slices([lance_core.Slice(name="day", conditions={"day": lance_core.Equals(DAY)})])
ZONES = IndexConfig("zonemap", {"rows_per_zone": 2**20})


def rows(first: int, days: int) -> pa.Table:
    """The rows of some days."""
    return pa.table({
        "day": pa.array([FIRST + timedelta(days=first + i // ROWS) for i in range(days * ROWS)], pa.date32()),
        "id": pa.array(range(first * ROWS, (first + days) * ROWS), pa.int64()),
        "value": pa.array([i / 7 for i in range(days * ROWS)]),
        "name": [f"name {i % 50}" for i in range(days * ROWS)],
    })  # fmt: skip


def opened(job) -> int:
    """How many files a job of ours reads."""
    keys = set()

    def noting(method):
        def noted(self, key, *args):
            keys.add((self.root, key))
            return method(self, key, *args)

        return noted

    names = ("get", "get_range", "get_tail", "get_ranges")
    patches = [patch.object(LocalStore, name, noting(getattr(LocalStore, name))) for name in names]
    for one in patches:
        one.start()
    try:
        job()
    finally:
        for one in patches:
            one.stop()
    return len(keys)


def replace_day(uri: str) -> None:
    """Replace the rows of a day, from opening the table on."""
    dataset = lance_core.dataset(uri)
    made = lance_core.write_fragments(rows(57, 1), dataset)
    lance_core.commit_fragments(dataset, made, dataset.schema, mode="replace", slices=SLICES)


def replace_day_of_pylance(uri: str) -> None:
    """Replace the rows of a day by pylance, in two commits, as it has no commit that replaces rows."""
    lance.dataset(uri).delete(CONDITION)
    lance.write_dataset(rows(57, 1), uri, mode="append")


def others(folder: Path, days: int) -> dict[str, tuple]:
    """Jobs of the other formats that are installed: read and replace."""
    found = {}
    if find_spec("deltalake"):
        import deltalake

        uri = str(folder / "delta")
        deltalake.write_deltalake(uri, rows(0, days), partition_by=["day"])
        found["Delta Lake"] = (
            lambda: deltalake.DeltaTable(uri).to_pyarrow_table(partitions=[("day", "=", str(DAY))]),
            lambda: deltalake.write_deltalake(uri, rows(57, 1), mode="overwrite", predicate=f"day = '{DAY}'"),
        )
    if find_spec("pyiceberg"):
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.transforms import IdentityTransform

        catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/iceberg")
        catalog.create_namespace("bench")
        table = catalog.create_table("bench.days", schema=rows(0, 1).schema)
        with table.update_spec() as update:
            update.add_field("day", IdentityTransform(), "day_part")
        table.append(rows(0, days))
        found["Iceberg"] = (
            lambda: catalog.load_table("bench.days").scan(row_filter=f"day = '{DAY}'").to_arrow(),
            lambda: catalog.load_table("bench.days").overwrite(rows(57, 1), overwrite_filter=f"day = '{DAY}'"),
        )
    return found


def one_size(folder: Path, days: int) -> None:
    """Make tables of as many days as asked for, and time what is done with one."""
    uris = {name: str(folder / f"{name}{days}") for name in ("indexed", "plain", "pylance")}
    dataset = lance_core.write_dataset(rows(0, 1), uris["plain"])
    made = [one for i in range(1, days) for one in lance_core.write_fragments(rows(i, 1), dataset)]
    lance_core.commit_fragments(dataset, made, dataset.schema)
    for name in ("indexed", "pylance"):
        shutil.copytree(uris["plain"], uris[name])
    lance_core.dataset(uris["indexed"]).create_scalar_index("day", ZONES)
    lance.dataset(uris["pylance"]).create_scalar_index("day", ZONES)

    def read(library, name):
        return lambda: library.dataset(uris[name]).to_table(filter=CONDITION)

    def plan(name):
        return lambda: lance_core.dataset(uris[name]).scanner(filter=CONDITION).explain_plan()

    def append(library, name):
        return lambda: library.write_dataset(rows(0, 1), uris[name], mode="append")

    jobs = {
        "read": {
            "ours": read(lance_core, "indexed"),
            "ours, no index": read(lance_core, "plain"),
            "pylance": read(lance, "pylance"),
        },
        "count": {
            "ours": lambda: lance_core.dataset(uris["indexed"]).count_rows(filter=CONDITION),
            "pylance": lambda: lance.dataset(uris["pylance"]).count_rows(filter=CONDITION),
        },
        "plan": {"ours": plan("indexed")},
        "replace": {
            "ours": lambda: replace_day(uris["indexed"]),
            "ours, no index": lambda: replace_day(uris["plain"]),
            "pylance, 2 commits": lambda: replace_day_of_pylance(uris["pylance"]),
        },
        "append": {"ours": append(lance_core, "indexed"), "pylance": append(lance, "pylance")},
    }
    other = others(folder / f"others{days}", days) if days <= 1_000 else {}
    for name, (reading, replacing) in other.items():
        jobs["read"][name], jobs["replace"][name] = reading, replacing
    counts = {
        "read": {name: opened(jobs["read"][name]) for name in ("ours", "ours, no index")},
        "replace": {name: opened(jobs["replace"][name]) for name in ("ours", "ours, no index")},
        "count": {"ours": opened(jobs["count"]["ours"])},
    }
    for job, ways in jobs.items():
        times = medians(ways, rounds=3)
        texts = [
            f"{way} {1000 * seconds:.1f} ms" + (f" ({counts[job][way]} objects)" if way in counts.get(job, {}) else "")
            for way, seconds in times.items()
        ]
        print(f"{days:>6} days  {job:<8}", "; ".join(texts), flush=True)
    refresh(uris["indexed"])


def refresh(uri: str) -> None:
    """Append 64 days and refresh the zone map."""
    dataset = lance_core.dataset(uri)
    dataset.optimize.optimize_indices()
    dataset = lance_core.dataset(uri)
    made = [one for i in range(64) for one in lance_core.write_fragments(rows(20_000 + i, 1), dataset)]
    lance_core.commit_fragments(dataset, made, dataset.schema)
    handle = lance_core.dataset(uri)
    start = time.perf_counter()
    count = opened(handle.optimize.optimize_indices)
    seconds = time.perf_counter() - start
    print(f"              refresh after 64 appends: {1000 * seconds:.1f} ms ({count} objects)", flush=True)


def main() -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp())
    try:
        for days in [int(text) for text in sys.argv[1:]] or SIZES:
            (folder / f"others{days}").mkdir()
            one_size(folder, days)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
