"""Small commits against pylance, through its own Python API and round-robin: what a commit costs beside its rows.

Each figure is the minimum of many, as the machine is never quiet. Our commits are on disk when they return, with the names of
their files. Processor time is that of all threads, and leaves out the waits for the disk.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_core
from tests.benchmarks.bench_files import mixed
from tests.benchmarks.bench_small_files import FRAGMENTS, ROWS, day

Job = Callable[[Any], object]
Times = tuple[float, float]


def main() -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp())
    try:
        print(f"load {os.getloadavg()[0]:.0f}; milliseconds, and milliseconds of processor time")
        print(f"{'job':<44}{'ours':>9}{'pylance':>9}{'ratio':>7}{'must':>6}{'ours':>9}{'pylance':>9}{'ratio':>7}")
        appends(folder)
        tiny_files(folder)
        lists(folder)
        for rows in (100_000, 1_000_000):
            changes(folder, rows)
        changes(folder, 1_000_000, fragments=10)
        changes(folder, 1_000_000, fragments=10, maker=lance)
        compaction(folder)
    finally:
        shutil.rmtree(folder)


def appends(folder: Path) -> None:
    """Appends on open handles."""
    wide = pa.table({f"c{number}": np.random.default_rng(number).random(10) for number in range(1_000)})
    for name, rows, rounds, must in (
        ("append of 2 rows, 2 columns", pa.table({"id": [1, 2], "x": [0.5, 0.25]}), 40, 0.8),
        ("append of 10 rows", mixed(10), 40, 0.8),
        ("append of 100 rows", mixed(100), 40, 0.67),
        ("append of 1,000 rows", mixed(1_000), 30, 0.8),
        ("append of 10 rows, 1,000 columns", wide, 12, 0.6),
    ):
        open_tables = {m: m.write_dataset(rows, folder / f"{name} {m.__name__}") for m in (lance_core, lance)}
        compare(name, lambda m, d=open_tables: d[m], lambda d, r=rows: d.insert(r), rounds, must)


def tiny_files(folder: Path) -> None:
    """A table of small fragments."""
    rows = pa.concat_tables([day()] * FRAGMENTS)
    sizes = {"max_rows_per_file": ROWS, "max_rows_per_group": ROWS}

    def fresh(module: Any) -> Any:
        shutil.rmtree(folder / "tiny", ignore_errors=True)
        return module

    compare("365 tiny files", fresh, lambda m: m.write_dataset(rows, folder / "tiny", **sizes), 2, 0.6)


def lists(folder: Path) -> None:
    """Long lists of fragments and of versions."""
    uri = folder / "fragments"
    made = lance_core.write_dataset(pa.table({"x": range(10)}), uri, max_rows_per_file=1)
    one = lance.dataset(uri).get_fragments()[0].metadata
    lance.LanceDataset.commit(uri, lance.LanceOperation.Append([one] * 99_990), read_version=made.version)
    compare("get_fragments of 100,000", lambda m: m.dataset(uri), lambda d: d.get_fragments(), 7, 0.8)
    uri = folder / "versions"
    dataset = lance.write_dataset(pa.table({"x": [1]}), uri)
    for _ in range(999):
        dataset.insert(pa.table({"x": [1]}))
    compare("versions, 1,000 appends", lambda m: m.dataset(uri), lambda d: d.versions(), 7, 0.8)


def changes(folder: Path, rows: int, fragments: int = 1, maker: Any = None) -> None:
    """Changes of a fresh copy of a table.

    Args:
        folder: Where tables lie.
        rows: Rows of the table.
        fragments: Its fragments.
        maker: The library that writes it; None for pylance if there is one fragment, and for ours if there are more.
    """
    table = mixed(rows).drop_columns(["vector"])
    maker = maker or (lance if fragments == 1 else lance_core)
    uri, scratch = folder / f"{rows} in {fragments} by {maker.__name__}", folder / "scratch"
    maker.write_dataset(table, uri, max_rows_per_file=rows // fragments)
    ids = np.concatenate([np.arange(0, rows, 100), np.arange(rows, rows + rows // 100)])
    source = table.slice(0, len(ids)).set_column(0, "id", pa.array(ids).cast(table.schema.field("id").type))

    def fresh(module: Any) -> Any:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(uri, scratch)
        os.sync()  # or a commit would wait for the bytes of the copy
        return module.dataset(scratch)

    def upsert(dataset: Any) -> None:
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)

    jobs: dict[str, tuple[Job, float]] = {
        "delete 10 %": (lambda d: d.delete("id % 10 = 3"), 0.8),
        "add a column": (lambda d: d.add_columns({"double": "distance * 2"}), 1.0),
        "update 1 %": (lambda d: d.update({"distance": "distance + 1"}, where="id % 100 = 7"), 0.9),
        "upsert 2 %": (upsert, 1.0),
    }
    place = f"{rows:,} rows" if fragments == 1 else f"{rows:,} rows in {fragments} fragments"
    place = f"{place} of pylance" if fragments > 1 and maker is lance else place
    for name, (job, must) in jobs.items():
        compare(f"{place}: {name}", fresh, job, 9 if fragments == 1 else 25, must)


def compaction(folder: Path) -> None:
    """Compaction of clean fragments beside a copy of the same files that waits for the disk too."""
    uri, scratch = folder / "clean", folder / "copy"
    lance_core.write_dataset(mixed(), uri, max_rows_per_file=50_000)

    def copied(source: Path) -> None:
        shutil.copytree(source / "data", scratch)
        for file in scratch.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())

    ours: list[Times] = []
    theirs: list[Times] = []
    for number in range(7):
        target = folder / f"clean {number}"
        shutil.copytree(uri, target)
        os.sync()
        ours.append(seconds(lambda d: d.optimize.compact_files(), lance_core.dataset(target)))
        os.sync()
        theirs.append(seconds(copied, uri))
        shutil.rmtree(scratch)
        shutil.rmtree(target)
    print_row("compaction of clean fragments, beside a copy", ours, theirs, 0.62)


def compare(name: str, prepare: Callable[[Any], Any], job: Job, rounds: int, must: float) -> None:
    """Time a job of both libraries round-robin, after one round that is not counted."""
    times: dict[Any, list[Times]] = {lance_core: [], lance: []}
    for _ in range(rounds + 1):
        for module, found in times.items():
            found.append(seconds(job, prepare(module)))
    print_row(name, times[lance_core][1:], times[lance][1:], must)


def seconds(job: Job, argument: Any) -> Times:
    """What one call takes, and how much of that is processor time."""
    start, busy = time.perf_counter(), time.process_time()
    job(argument)
    return time.perf_counter() - start, time.process_time() - busy


def print_row(name: str, own: list[Times], other: list[Times], must: float) -> None:
    """One line of the table."""
    (ours, our_cpu), (theirs, their_cpu) = (tuple(map(min, zip(*times, strict=True))) for times in (own, other))
    line = f"{1e3 * ours:>9.2f}{1e3 * theirs:>9.2f}{theirs / ours:>7.2f}{must:>6.2f}"
    print(f"{name:<44}{line}{1e3 * our_cpu:>9.2f}{1e3 * their_cpu:>9.2f}{their_cpu / our_cpu:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
