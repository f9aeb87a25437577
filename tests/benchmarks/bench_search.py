"""Declared indices in maintenance: extensions beside builds, runs with nothing due, promotions with their indices.

200,000 rows of 64 floats and a string, with IVF_PQ, FTS and BTREE. Builds and extensions are the jobs of the child processes,
run in this one, so that the start of processes does not count. Seconds are the least of some rounds.
"""

import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_core
from lance_core.maintenance import MaintenancePolicy, cover_rows, maintain
from lance_core.maintenance.search import child
from lance_core.maintenance.search.declaration import parse_declarations
from lance_core.maintenance.search.jobs import build, extend
from tests.memory import peak_mb

ROWS, DIMENSIONS, ROUNDS = 200_000, 64, 5
KEPT = {"cleanup_older_than": None, "target_rows_per_fragment": ROWS // 4}
DECLARED = {"vector": "IVF_PQ", "text": "FTS", "id": "BTREE"}


def rows(start: int, number: int) -> pa.Table:
    """Rows with distinct keys, vectors around 100 centers, and ten words out of 20,000."""
    random = np.random.default_rng(start)
    centers = np.random.default_rng(0).random((100, DIMENSIONS), np.float32)
    values = centers[random.integers(0, 100, number)] + random.random((number, DIMENSIONS), np.float32) / 5
    words = np.char.add("word", random.integers(0, 20_000, (number, 10)).astype(str))
    return pa.table(
        {
            "id": np.arange(start, start + number),
            "text": [" ".join(line) for line in words],
            "vector": pa.FixedSizeListArray.from_arrays(values.ravel(), DIMENSIONS),
        }
    )


def measure(job: Callable[[], object]) -> float:
    """The seconds of a job."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def request(uri: str, column: str, **more: Any) -> dict[str, Any]:
    """The request by which a column's index is built from the fragments of a table."""
    table = lance_core.dataset(uri)
    (declaration,) = parse_declarations({column: DECLARED[column]})
    return {
        "uri": uri,
        "options": {},
        "version": table.version,
        "column": column,
        "kind": declaration.kind,
        "metric": declaration.metric,
        "parameters": declaration.choose_parameters(table.count_rows(), DIMENSIONS),
        "name": f"{column}_idx",
        "uuid": str(uuid.uuid4()),
        "fragment_ids": [fragment.fragment_id for fragment in table.get_fragments()],
        "is_further": False,
        **more,
    }


def compare_extensions(source: str, folder: Path) -> None:
    """An extension by 1 % of the rows beside a fresh build."""
    for column in ("vector", "text"):
        whole = measure(lambda column=column: build(request(source, column)))
        seconds = []
        for number in range(ROUNDS):
            scratch = str(folder / "scratch")
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(source, scratch)
            table = lance_core.dataset(scratch)
            table.insert(rows(ROWS * (number + 2), ROWS // 100))
            if column == "vector":
                names = {"names": ["vector_idx"], "arguments": {"num_indices_to_merge": 0}}
                job = lambda scratch=scratch, names=names: extend(request(scratch, "vector", **names))  # noqa: E731
            else:
                newest = [table.get_fragments()[-1].fragment_id]
                options = {"fragment_ids": newest, "is_further": True}
                job = lambda scratch=scratch, options=options: build(request(scratch, "text", **options))  # noqa: E731
            seconds.append(measure(job))
        share = min(seconds) / whole
        print(
            f"extension of {DECLARED[column]} by 1 % {min(seconds):.3f} s, build {whole:.2f} s: {100 * share:.1f} % (aim 3)"
        )


def compare_healthy_runs(source: str) -> None:
    """A run over fresh indices beside one without declarations; neither makes a version nor starts a process."""
    policies = {
        "declared": MaintenancePolicy(indices=DECLARED, **KEPT),
        "plain": MaintenancePolicy(**KEPT),
    }
    version, seconds = lance_core.dataset(source).version, dict[str, list[float]]()
    started, child.subprocess.Popen = child.subprocess.Popen, None
    try:
        for _ in range(20):
            for name, policy in policies.items():
                table = lance_core.dataset(source)
                seconds.setdefault(name, []).append(measure(lambda policy=policy, table=table: maintain(table, policy)))
    finally:
        child.subprocess.Popen = started
    assert lance_core.dataset(source).version == version
    more = 1000 * (min(seconds["declared"]) - min(seconds["plain"]))
    print(f"a run over fresh indices: {more:.1f} ms more than without declarations (aim 20)")


def compare_promotions(source: str, folder: Path) -> None:
    """A promotion of 10 % new rows that covers them, beside a promotion and pylance's `optimize_indices`."""
    seconds = dict[str, list[float]]()
    for number in range(ROUNDS):
        for name in ("cover_rows", "optimize_indices"):
            scratch = str(folder / "scratch")
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(source, scratch)
            table = lance_core.dataset(scratch)
            branch = table.create_branch("work")
            branch.insert(rows(ROWS * (number + 2), ROWS // 10))

            def promote(table: Any = table, name: str = name, scratch: str = scratch) -> None:
                table.branches.promote("work")
                if name == "cover_rows":
                    assert not cover_rows(table).problems
                else:
                    lance.dataset(scratch).optimize.optimize_indices()

            seconds.setdefault(name, []).append(measure(promote))
    ours, theirs = min(seconds["cover_rows"]), min(seconds["optimize_indices"])
    print(f"promotion of 10 % new rows: cover_rows {ours:.2f} s, optimize_indices {theirs:.2f} s: {ours / theirs:.2f}")


def main() -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        source = str(folder / "table")
        table = lance_core.write_dataset(rows(0, ROWS), source, max_rows_per_file=ROWS // 4)
        built = measure(lambda: maintain(table, MaintenancePolicy(indices=DECLARED, **KEPT)))
        print(f"all indices of {ROWS:,} rows built and measured: {built:.1f} s")
        compare_extensions(source, folder)
        compare_healthy_runs(source)
        compare_promotions(source, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
    print(f"highest resident set {peak_mb()} MB", file=sys.stderr)
