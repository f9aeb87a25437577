"""The same jobs on 1, 2, 4, 8 and 16 cores, as far as there are, beside pylance and zstd Parquet.

Each figure is measured in a process of its own that may use only these cores: the least wall time of some rounds after
one that is not counted, the processor time of that round, and the share of the interpreter lock: how often a thread
that wakes up each millisecond has to wait for it. Files are in memory where the system has such a folder. Words of jobs
may be given, to measure only these: `python -m tests.benchmarks.bench_cores scan update`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tests.benchmarks.bench_files import mixed

MILLIONS = 4
ROUNDS = 7
MOST_SECONDS = 4  # after two rounds
IN_MEMORY = Path("/dev/shm")
FILTER = "distance > 1900 and carrier = 'AA'"
CONDITION = (pc.field("distance") > 1900) & (pc.field("carrier") == "AA")
TWO = ["id", "distance"]
CHANGES = ("delete", "update", "upsert", "add a column", "BTREE")
LIBRARIES = {"ours": "lance_core", "pylance": "lance", "Parquet": ""}


def scalars() -> pa.Table:
    """The seven scalar columns of bench_files, 4M rows with distinct keys."""
    table = pa.concat_tables([mixed().drop_columns(["vector"])] * MILLIONS).combine_chunks()
    return table.set_column(0, "id", pa.array(np.arange(len(table))))


def embeddings() -> pa.Table:
    """200,000 vectors of 256 floats."""
    values = np.random.default_rng(8).random(200_000 * 256, dtype=np.float32)
    return pa.table({"vector": pa.FixedSizeListArray.from_arrays(pa.array(values), 256)})


def prepare(folder: Path) -> None:
    """Write the tables that the jobs read: four files, one file, those of pylance, and 40 fragments for changes."""
    import lance

    import lance_core

    table, vectors = scalars(), embeddings()
    for name, rows in (("four", len(table) // 4), ("single", len(table)), ("changed", len(table) // 40)):
        lance_core.write_dataset(table, folder / name, max_rows_per_file=rows)
    lance.write_dataset(table, folder / "theirs", max_rows_per_file=len(table) // 4)
    lance_core.write_dataset(vectors, folder / "vectors")
    _write_parquet(table, folder / "parquet")
    _write_parquet(vectors, folder / "parquet-vectors")
    for name, rows in (("table", table), ("embeddings", vectors)):
        with pa.ipc.new_file(folder / f"{name}.arrow", rows.schema) as file:
            file.write_table(rows)


def _write_parquet(rows: pa.Table, folder: Path) -> None:
    kind = ds.ParquetFileFormat()
    zstd = kind.make_write_options(compression="zstd")
    ds.write_dataset(rows, folder, format=kind, file_options=zstd, max_rows_per_file=1 << 20)  # as many as in a group


def _stored(folder: Path, name: str) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow"))).read_all()


def lance_jobs(library: Any, folder: Path) -> dict[str, Callable[[], object]]:
    """The jobs of this library or of pylance, by name; those that change a table change its copy `scratch`."""
    scratch = folder / "scratch"
    rng = np.random.default_rng(3)
    table, vectors = _stored(folder, "table"), _stored(folder, "embeddings")
    rows = rng.choice(len(table), 10_000, replace=False)
    keys = rng.choice(2 * len(table), len(table) // 50, replace=False)
    upserts = table.take(keys % len(table)).set_column(0, "id", pa.array(keys))

    def read(name: str, **options: Any) -> Callable[[], object]:
        return lambda: library.dataset(folder / name).to_table(**options)

    def upsert() -> object:
        merge = library.dataset(scratch).merge_insert("id")
        return merge.when_matched_update_all().when_not_matched_insert_all().execute(upserts)

    return {
        "write": lambda: library.write_dataset(table, scratch, max_rows_per_file=len(table) // 4),
        "full scan": read("four"),
        "full scan of one file": read("single"),
        "full scan of pylance's": read("theirs"),
        "two columns": read("four", columns=TWO),
        "filter of few rows": read("four", filter=FILTER),
        "filter of one file": read("single", filter=FILTER),
        "count by a filter": lambda: library.dataset(folder / "four").count_rows(FILTER),
        "take of 10,000": lambda: library.dataset(folder / "four").take(rows),
        "delete 10 %": lambda: library.dataset(scratch).delete("id % 10 = 0"),
        "update 1 %": lambda: library.dataset(scratch).update({"delay": "0"}, "id % 100 = 0"),
        "upsert 2 %": upsert,
        "add a column": lambda: library.dataset(scratch).add_columns({"miles": "distance * 1.6 + delay"}),
        "BTREE build": lambda: library.dataset(scratch).create_scalar_index("distance", "BTREE"),
        "vectors: write": lambda: library.write_dataset(vectors, scratch),
        "vectors: scan": read("vectors"),
    }


def parquet_jobs(folder: Path) -> dict[str, Callable[[], object]]:
    """Those of the jobs that a user of zstd Parquet has."""
    table, vectors = _stored(folder, "table"), _stored(folder, "embeddings")

    def read(name: str = "parquet", **options: Any) -> Callable[[], object]:
        return lambda: ds.dataset(folder / name).to_table(**options)

    return {
        "write": lambda: _write_parquet(table, folder / "scratch"),
        "full scan": read(),
        "two columns": read(columns=TWO),
        "filter of few rows": read(filter=CONDITION),
        "count by a filter": lambda: ds.dataset(folder / "parquet").count_rows(filter=CONDITION),
        "vectors: write": lambda: _write_parquet(vectors, folder / "scratch"),
        "vectors: scan": read("parquet-vectors"),
    }


def jobs_of(who: str, folder: Path) -> dict[str, Callable[[], object]]:
    """The jobs of one of `LIBRARIES`."""
    return lance_jobs(__import__(LIBRARIES[who]), folder) if LIBRARIES[who] else parquet_jobs(folder)


def measure(who: str, name: str, folder: Path) -> tuple[float, float, float]:
    """Least wall seconds of a job in this process, processor seconds of that round, and the share of the lock."""
    job, scratch = jobs_of(who, folder)[name], folder / "scratch"

    def timed(run: Callable[[], object]) -> tuple[float, float, object]:
        shutil.rmtree(scratch, ignore_errors=True)
        if name.startswith(CHANGES):
            shutil.copytree(folder / "changed", scratch)
        start, started = time.perf_counter(), time.process_time()
        result = run()
        return time.perf_counter() - start, time.process_time() - started, result

    seconds = [timed(job)[:2]]
    while len(seconds) <= ROUNDS and (len(seconds) < 3 or sum(wall for wall, _ in seconds) < MOST_SECONDS):
        seconds.append(timed(job)[:2])
    share = timed(lambda: lock_share(job))[2]
    return *min(seconds[1:]), share


def lock_share(job: Callable[[], object]) -> float:
    """The share of wake-ups of a thread, one each millisecond while the job runs, that waited for the lock."""
    late: list[bool] = []
    done = threading.Event()

    def sample() -> None:
        while not done.is_set():
            start = time.perf_counter()
            time.sleep(0.001)
            late.append(time.perf_counter() - start > 0.0015)

    thread = threading.Thread(target=sample)
    thread.start()
    job()
    done.set()
    thread.join()
    return sum(late) / max(len(late), 1)


def measure_on(cores: int, who: str, name: str, folder: Path) -> tuple[float, float, float] | None:
    """`measure` in a process that may use some of the cores of this one; None if there is no such job."""
    some = set(sorted(os.sched_getaffinity(0))[:cores])
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_cores", "--measure", who, name, str(folder)],
        check=True, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, some),
    )  # fmt: skip
    return json.loads(done.stdout)


def main(words: list[str]) -> None:
    """Run and print."""
    most = len(os.sched_getaffinity(0))
    counts = [cores for cores in (1, 2, 4, 8, 16) if cores <= most]
    folder = Path(tempfile.mkdtemp(dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    try:
        prepare(folder)
        print(f"{'job':<24}{'who':<9}" + "".join(f"{f'{cores}: wall, cpu s, lock':>26}" for cores in counts)
              + f"{f'{most} / 1':>8}{'ratio':>7}")  # fmt: skip
        for name in lance_jobs(None, folder):
            if words and not any(word in name for word in words):
                continue
            ours = 0.0
            for who, library in LIBRARIES.items():
                if not library and name not in parquet_jobs(folder):
                    continue
                figures = [measure_on(cores, who, name, folder) for cores in counts]
                ours = ours or figures[-1][0]
                cells = "".join(f"{wall:>13.3f},{cpu:>6.3f},{lock:>5.2f}" for wall, cpu, lock in figures)
                print(f"{name:<24}{who:<9}{cells}{figures[-1][0] / figures[0][0]:>8.2f}{figures[-1][0] / ours:>7.2f}",
                      flush=True)  # fmt: skip
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], Path(sys.argv[4]))))
    else:
        main(sys.argv[1:])
