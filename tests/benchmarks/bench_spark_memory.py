"""Peak memory of the Python workers that write frames as large as Lance tables are: vectors, images, many columns.

    python -m tests.benchmarks spark_memory

Each frame is written by one task of a session of its own, over both transports; the figure is the highest resident set
of any Python worker of the session, as the kernel keeps it, with what the worker imports (about 100 MB) in it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LIMIT_MB: Final = 300
FRAMES: Final = {
    "id and vectors of 768, 600 MB": ("id, array_repeat(cast(id as float), 768) as v", 200_000, {"v": 768}),
    "id and images of 1 MB, 600 MB": ("id, cast(repeat(cast(id % 10 as string), 1000000) as binary) as b", 600, None),
    "1,000 columns, 400 MB": (", ".join(f"id + {n} as c{n}" for n in range(1000)), 50_000, None),
}
"""Columns, rows, and widths of vectors."""


def main() -> None:
    """Run each frame over each transport in a process of its own, and print.

    Raises:
        SystemExit: A worker needed more than the limit.
    """
    if len(sys.argv) > 3 and sys.argv[1] == "part":
        print(peak(sys.argv[2], sys.argv[3]))
        return
    print(f"{'frame':<34}{'transport':<16}{'peak MB':>8}   limit {LIMIT_MB}")
    highest = 0
    for name in FRAMES:
        for transport in ("auto", "map_in_arrow"):
            arguments = [sys.executable, "-m", "tests.benchmarks.bench_spark_memory", "part", name, transport]
            environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
            done = subprocess.run(arguments, check=True, env=environment, stdout=subprocess.PIPE, text=True)
            found = int(done.stdout.split()[-1])
            highest = max(highest, found)
            print(f"{name:<34}{transport:<16}{found:>8}", flush=True)
    if highest > LIMIT_MB:
        raise SystemExit(f"a worker needed {highest} MB")


def peak(name: str, transport: str) -> int:
    """MB that the Python workers of a write needed, at most."""
    from pyspark_lance import local_session
    from pyspark_lance.write_options import WriteOptions
    from pyspark_lance.writer import write_with

    columns, rows, vectors = FRAMES[name]
    config = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.driver.memory": "3g"}
    spark = local_session("local[1]", config=config)
    folder = Path(tempfile.mkdtemp())
    try:
        frame = spark.range(0, rows, 1, 1).selectExpr(*_split(columns))
        with watched() as seen:
            options = WriteOptions(mode="create", vector_columns=vectors)
            done = write_with(frame, str(folder / "t.lance"), options, transport=transport)
        assert done is not None
        assert done.rows_written == rows
        return max(seen.values()) // 1024
    finally:
        spark.stop()
        shutil.rmtree(folder)


def _split(columns: str) -> list[str]:
    """The columns one by one; none of the expressions above has a comma outside of brackets."""
    parts, depth = [""], 0
    for letter in columns:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


@contextmanager
def watched() -> Iterator[dict[int, int]]:
    """The highest resident set in kB of each Python process below this one, looked up again and again."""
    seen: dict[int, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            for pid in _below(os.getpid()):
                seen[pid] = max(_high_water(pid), seen.get(pid, 0))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _below(root: int) -> list[int]:
    """Python workers that descend from a process."""
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = []
    for pid in parents:
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above == root and pid != root and _is_worker(pid):
            found.append(pid)
    return found


def _is_worker(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _high_water(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    main()
