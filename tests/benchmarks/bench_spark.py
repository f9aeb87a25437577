"""Spark writing and reading Lance tables against parquet, round-robin in one session; classic and Connect.

    python -m tests.benchmarks spark

A process has one kind of session, so each kind is measured in a process of its own, against parquet in the same one.
Sources are parquet files with two splits. Times are medians of five runs after one that is not counted.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tests.memory import peak_mb

SCALARS = """
    id, rand(1) * 1000 as x, concat('user-', pmod(hash(id), 1000000)) as name,
    timestamp_micros(1600000000000000 + id * 1000003) as at
"""
VECTORS = "id, transform(sequence(1, 128), i -> cast(rand(1) + i as float)) as v"
SCALAR_ROWS, VECTOR_ROWS = 5_000_000, 500_000


def main() -> None:
    """Run each part in a process of its own."""
    if len(sys.argv) > 2 and sys.argv[1] == "part":
        {"classic": sessions, "connect": sessions, "memory": memory}[sys.argv[2]](*sys.argv[2:])
        return
    for part in (["classic"], ["connect"], ["memory", "1"], ["memory", "8"]):
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.bench_spark", "part", *part], check=True, env=environment
        )


def sessions(kind: str) -> None:
    """Times of one kind of session."""
    from pyspark_lance import local_session

    config = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.driver.memory": "2g"}
    spark = local_session("local[2]", config=config, connect=kind == "connect")
    folder = Path(tempfile.mkdtemp())
    try:
        print(f"{kind + ' session':<34}{'lance s':>10}{'parquet s':>10}{'ratio':>8}{'at most':>9}")
        measure(spark, kind, folder)
    finally:
        spark.stop()
        shutil.rmtree(folder)


def measure(spark, kind: str, folder: Path) -> None:
    """All jobs of one session."""
    import pyspark_lance
    from pyspark_lance.types.spark_types import VECTOR_WIDTH
    from tests.benchmarks.timing import medians

    def line(name: str, ours: float, theirs: float, most: float) -> None:
        mark = "" if ours <= most * theirs else "  <-- above"
        print(f"{name:<34}{ours:>10.3f}{theirs:>10.3f}{ours / theirs:>8.2f}{most:>9.2f}{mark}", flush=True)

    def make(name: str, expressions: str, rows: int, splits: int):
        path = str(folder / name)
        spark.range(0, rows, 1, splits).selectExpr(*split_columns(expressions)).write.parquet(path)
        return spark.read.parquet(path)

    def size(path: Path) -> int:
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))

    lance_uri, parquet_uri = folder / "out.lance", folder / "out.parquet"

    def pair(frame):
        def clear() -> None:
            shutil.rmtree(lance_uri, ignore_errors=True)
            # We wait for the disk and parquet does not: the time to write what parquet left must not count as ours.
            os.sync()
            time.sleep(1)

        return medians(
            {
                "lance": lambda: pyspark_lance.write(frame, lance_uri),
                "parquet": lambda: frame.write.mode("overwrite").parquet(str(parquet_uri)),
            },
            prepare=clear,
        )

    scalars = make("scalars", SCALARS, SCALAR_ROWS, 2)
    times = pair(scalars)
    line("write 5M scalar rows", times["lance"], times["parquet"], 0.9 if kind == "classic" else 1.9)
    pyspark_lance.write(scalars, lance_uri, mode="overwrite")
    line("  MB on disk", size(lance_uri) / 1e6, size(parquet_uri) / 1e6, 1.5)
    for name, columns, most in (("read 5M scalar rows", None, 1.0), ("  of it the column x", ["x"], 2.0)):
        times = medians(
            {
                "lance": lambda c=columns: sink(pyspark_lance.read(spark, lance_uri, columns=c)),
                "parquet": lambda c=columns: sink(project(spark.read.parquet(str(parquet_uri)), c)),
            }
        )
        line(name, times["lance"], times["parquet"], most)
    vectors = make("vectors", VECTORS, VECTOR_ROWS, 4)
    marked = vectors.withMetadata("v", {VECTOR_WIDTH: 128})
    times = pair(marked)
    line("write 500k vectors of 128 floats", times["lance"], times["parquet"], 0.6)
    pyspark_lance.write(marked, lance_uri, mode="overwrite", schema_mode="overwrite")
    line("  MB on disk", size(lance_uri) / 1e6, size(parquet_uri) / 1e6, 1.5)
    times = medians(
        {
            "lance": lambda: sink(pyspark_lance.read(spark, lance_uri)),
            "parquet": lambda: sink(spark.read.parquet(str(parquet_uri))),
        }
    )
    line("read 500k vectors of 128 floats", times["lance"], times["parquet"], 2.0)


def split_columns(expressions: str) -> list[str]:
    """The expressions of a select list whose commas are followed by a name and `as`, or stand at the top."""
    depth, parts = 0, [""]
    for letter in expressions.strip():
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def project(frame, columns):
    """The frame, or some columns of it."""
    return frame if columns is None else frame.select(*columns)


def sink(frame) -> None:
    """Compute all rows and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def memory(_: str, factor: str) -> None:
    """Peak memory of the function that runs in a writer task, for a partition of that many million rows."""
    import numpy as np

    from pyspark_lance.writing.task import WriteTask

    rows = 10_000
    rng = np.random.default_rng(1)
    names = pa.array([f"user-{i}" for i in range(rows)])

    def batches(count: int) -> Iterator[pa.RecordBatch]:
        for number in range(count):
            first = number * rows
            yield pa.record_batch(
                {"id": np.arange(first, first + rows), "x": rng.random(rows), "name": names, "y": rng.random(rows)}
            )

    with tempfile.TemporaryDirectory() as folder:
        schema = next(batches(1)).schema
        task = WriteTask(uri=f"{folder}/t.lance", job="0123456789abcdef", stored=schema)
        task.run(0, 0, batches(5))
        before = peak_mb()
        task.run(0, 0, batches(100 * int(factor)))
        peak = peak_mb()
    print(f"writer task, {factor:>2} M rows: peak {peak} MiB, {peak - before:+} by the partition")


if __name__ == "__main__":
    main()
