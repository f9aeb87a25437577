"""One column of wide rows: bytes written and time, against pylance's ways and against writing the table again.

The time is processor time, which other work on the machine hardly changes: the least of five runs, round-robin. Each run begins
with a fresh copy of the table. Bytes are those of all files that a run leaves and that were not there before.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_core

ROWS, PAYLOAD, WIDTH, ROUNDS = 20_000, 8_000, 128, 5

Job = Callable[[str], object]


def main() -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    """All jobs, on copies of one table below `folder`."""
    rng = np.random.default_rng(0)
    payload = pa.array([rng.bytes(PAYLOAD) for _ in range(ROWS)], pa.large_binary())
    ids = pa.array(range(ROWS), pa.int64())
    table = pa.table({"id": ids, "label": pa.array(rng.integers(0, 9, ROWS)), "payload": payload})
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(ROWS * WIDTH, dtype=np.float32)), WIDTH)
    data = pa.table({"id": ids, "vector": vectors}).take(pa.array(rng.permutation(ROWS)))
    few = pa.table({"id": ids, "label": pa.array([7] * ROWS)}).take(pa.array(rng.choice(ROWS, 200, replace=False)))
    start = str(folder / "start")
    lance.write_dataset(table, start, max_rows_per_file=ROWS // 4, enable_stable_row_ids=True)

    def again(uri: str) -> None:
        whole = lance.dataset(uri).to_table().append_column("vector", vectors)
        lance.write_dataset(whole, uri, mode="overwrite")

    def merge(uri: str) -> None:
        lance.dataset(uri).merge_insert("id").when_matched_update_all().execute(few)

    def fewest(uri: str) -> lance_core.MergeInsertBuilder:
        return lance_core.dataset(uri).merge_insert("id").when_matched_update_all().write_mode("fewest_bytes")

    parts = {
        f"a new column: {WIDTH} floats for {ROWS:,} rows in random order": {
            "write_columns": lambda uri: lance_core.dataset(uri).write_columns(data, on="id"),
            "pylance merge (add_columns by key)": lambda uri: lance.dataset(uri).merge(data, "id"),
            "pylance add_columns, in the table's order": lambda uri: lance.dataset(uri).add_columns(
                pa.table({"vector": vectors})
            ),
            "the table written again": again,
        },
        "a label of 200 rows": {
            "write_columns": lambda uri: lance_core.dataset(uri).write_columns(few, on="id", missing="keep"),
            "merge_insert, fewest_bytes": lambda uri: fewest(uri).execute(few),
            "pylance merge_insert": merge,
            "update, fewest_bytes": lambda uri: lance_core.dataset(uri).update(
                {"label": "7"}, "id % 100 = 1", write_mode="fewest_bytes"
            ),
            "pylance update": lambda uri: lance.dataset(uri).update({"label": "7"}, "id % 100 = 1"),
        },
    }
    for title, jobs in parts.items():
        report(title, jobs, start, str(folder / "scratch"))


def report(title: str, jobs: dict[str, Job], start: str, scratch: str) -> None:
    """Run jobs round-robin and print them."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    num_bytes = dict.fromkeys(jobs, 0)
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(start, scratch)
            known = {path.relative_to(scratch) for path in Path(scratch).rglob("*")}
            before = time.process_time()
            job(scratch)
            seconds[name].append(time.process_time() - before)
            new = (path for path in Path(scratch).rglob("*") if path.relative_to(scratch) not in known)
            num_bytes[name] = sum(path.stat().st_size for path in new if path.is_file())
    own = min(seconds["write_columns"])
    print(f"\n{title}\n{'job':<44}{'MB written':>12}{'processor s':>13}{'ratio':>8}")
    for name, times in seconds.items():
        print(f"{name:<44}{num_bytes[name] / 1e6:>12.2f}{min(times):>13.3f}{min(times) / own:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
