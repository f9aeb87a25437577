"""Compaction and cleanup against pylance, on 1M rows of mixed columns in 20 fragments; plans over 100,000 fragments."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_core
from lance_core.maintenance import compact
from lance_core.optimize import Compaction
from tests.benchmarks.bench_files import ROWS, mixed
from tests.benchmarks.timing import medians, report
from tests.memory import peak_mb

FRAGMENTS = 20
VERSIONS = 300
MANY = 100_000


def main() -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp())
    try:
        for name, prepare in (
            ("no deletions", leave),
            ("20 % of rows deleted", delete_at_random),
            ("deletions in 10 % of pages", delete_in_two_fragments),
        ):
            measure_compaction(folder, name, prepare)
        measure_cleanup(folder)
        measure_plan(folder)
        print(f"peak memory: {peak_mb():,} MB")
    finally:
        shutil.rmtree(folder)


MUST = {"no deletions": 4.0, "20 % of rows deleted": 1.0, "deletions in 10 % of pages": 2.0}


def leave(path: Path) -> None:
    """Delete nothing."""


def delete_at_random(path: Path) -> None:
    """Delete every fifth row or so."""
    dataset = lance.dataset(path)
    chosen = np.flatnonzero(np.random.default_rng(3).random(ROWS) < 0.2)
    flags = np.zeros(ROWS, bool)
    flags[chosen] = True
    table = pa.table({"id": pa.array(np.arange(ROWS)), "dropped": pa.array(flags)})
    dataset.merge(table, "id")
    dataset.delete("dropped")
    dataset.drop_columns(["dropped"])


def delete_in_two_fragments(path: Path) -> None:
    """Delete a third of two of the twenty fragments."""
    size = ROWS // FRAGMENTS
    lance.dataset(path).delete(f"id % 3 = 0 AND ((id >= {4 * size} AND id < {5 * size}) OR id < {size})")


def scratch_of(source: Path, scratch: Path) -> Callable[[], object]:
    """Make a copy of a dataset before each run; files are linked, as none is ever changed."""

    def prepare() -> None:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(source, scratch, copy_function=os.link)

    return prepare


def measure_compaction(folder: Path, name: str, change: Callable[[Path], object]) -> None:
    """Twenty fragments into one."""
    table, size = mixed(), ROWS // FRAGMENTS
    for library in (lance_core, lance):
        source, scratch = folder / "source", folder / "scratch"
        for start in range(0, ROWS, size):
            library.write_dataset(table.slice(start, size), source, mode="append")
        change(source)
        times = medians(ways(scratch), rounds=3, prepare=scratch_of(source, scratch))
        whose = "ours" if library is lance_core else "pylance's"
        report([
            (f"compact {whose}, {name}", times["own"], times["other"], MUST[name]),
            ("  by decoding", times["own decoding"], times["other"], 0.0),
        ])  # fmt: skip
        shutil.rmtree(source)
        shutil.rmtree(scratch)


def ways(scratch: Path) -> dict[str, Callable[[], object]]:
    """Ways to compact."""
    return {
        "own": lambda: compact(lance_core.dataset(scratch)),
        "own decoding": lambda: compact(lance_core.dataset(scratch), {"compaction_mode": "reencode"}),
        "other": lambda: lance.dataset(scratch).optimize.compact_files(),  # noqa: PLW0108 - opened when it runs
    }


def measure_cleanup(folder: Path) -> None:
    """All but one of 300 versions."""
    source, scratch = folder / "versions", folder / "scratch"
    for number in range(VERSIONS):
        part = pa.table({"id": range(number * 10, number * 10 + 10)})
        lance.write_dataset(part, source, mode="append" if number % 10 else "overwrite")
    times = medians(
        {
            "own": lambda: lance_core.dataset(scratch).cleanup_old_versions(retain_versions=1),
            "other": lambda: lance.dataset(scratch).cleanup_old_versions(retain_versions=1),
        },
        prepare=scratch_of(source, scratch),
    )
    report([(f"cleanup of {VERSIONS} versions", times["own"], times["other"], 1.0)])
    shutil.rmtree(scratch)


def measure_plan(folder: Path) -> None:
    """Plan over 100,000 small fragments."""
    lance_core.write_dataset(pa.table({"id": [1]}), folder / "many")
    dataset = lance_core.dataset(folder / "many")
    (fragment,) = dataset.get_fragments()
    schema = pa.schema([("id", pa.int64())])
    many = [fragment.metadata] * MANY
    for metadata in many:
        metadata.id = 0
    lance_core.commit_fragments(folder / "many", many, schema)
    dataset = lance_core.dataset(folder / "many")
    started = time.perf_counter()
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": 1000})
    seconds = time.perf_counter() - started
    print(f"plan over {MANY:,} fragments: {seconds:.2f} s, {plan.num_tasks()} tasks (at most 2 s)")


if __name__ == "__main__":
    main()
