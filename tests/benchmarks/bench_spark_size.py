"""Spark at size: the data source beside `read` and `write`, many fragments, large upserts, wide and long rows.

    python -m tests.benchmarks spark_size
    python -m tests.benchmarks.bench_spark_size upserts fragments

Each part runs in a classic session of its own process. Times are the least of the rounds after one that is not counted,
round-robin with the other job of a line; **ratio = our time / the other's**, so that less is better.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.bench_spark import SCALARS, sink, split_columns
from tests.benchmarks.bench_spark_changes import costs, emptied, line

ROWS = 5_000_000
FRAGMENTS, FRAGMENT_ROWS = 5_000, 200
TARGET_ROWS, SOURCE_ROWS = 4_000_000, 300_000


def main() -> None:
    """Run the parts that are named, or all of them, each in a process of its own."""
    parts = {part.__name__: part for part in (source, fragments, upserts, shapes, long_rows)}
    if sys.argv[1:2] == ["part"]:
        run(parts[sys.argv[2]])
        return
    named = [name for name in sys.argv[1:] if name in parts] if sys.argv[0].endswith("bench_spark_size.py") else []
    for name in named or parts:
        command = [sys.executable, "-m", "tests.benchmarks.bench_spark_size", "part", name]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})


def run(part: Callable) -> None:
    """Run a part in a session."""
    from pyspark_lance import local_session

    memory = "512m" if part is long_rows else "3g"
    config = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.driver.memory": memory}
    spark = local_session("local[2]", config=config)
    folder = Path(tempfile.mkdtemp())
    try:
        print(f"{part.__name__:<44}{'ours s':>10}{'other s':>10}{'ratio':>8}{'at most':>9}{'cpu ratio':>11}")
        part(spark, folder)
    finally:
        spark.stop()
        shutil.rmtree(folder)


def source(spark, folder: Path) -> None:
    """The data source beside the functions: a scan of all columns, and a write."""
    import pyspark_lance

    plain, table, other = folder / "rows.parquet", folder / "rows.lance", folder / "other.lance"
    spark.range(0, ROWS, 1, 2).selectExpr(*split_columns(SCALARS)).write.parquet(str(plain))
    frame = spark.read.parquet(str(plain))
    pyspark_lance.write(frame, table)
    times = costs(
        {
            "source": lambda: sink(spark.read.format("lance").load(str(table))),
            "read": lambda: sink(pyspark_lance.read(spark, table)),
            "parquet": lambda: sink(spark.read.parquet(str(plain))),
        },
        7,
        emptied(),
    )
    line("format('lance') scans, to read", times["source"], times["read"], 2.0)
    line("  to parquet", times["source"], times["parquet"], None)
    times = costs(
        {
            "source": lambda: frame.write.format("lance").mode("append").save(str(other)),
            "write": lambda: pyspark_lance.write(frame, other),
        },
        7,
        emptied(other),
    )
    line("format('lance') writes, to write", times["source"], times["write"], 1.3)


def fragments(spark, folder: Path) -> None:
    """Many small fragments: what is planned, and reads beside as many files of parquet."""
    import lance_core
    import pyspark_lance

    table, files = folder / "small.lance", folder / "small.parquet"
    files.mkdir()
    rng = np.random.default_rng(1)
    batch = pa.table(
        {
            "id": np.arange(FRAGMENT_ROWS),
            "x": rng.random(FRAGMENT_ROWS),
            "name": [f"user-{i}" for i in range(FRAGMENT_ROWS)],
        }
    )
    for number in range(FRAGMENTS):
        pq.write_table(batch, files / f"{number}.parquet")
    for _ in range(FRAGMENTS // 500):
        lance_core.write_dataset(
            pa.concat_tables([batch] * 500),
            table,
            mode="append" if table.exists() else "create",
            max_rows_per_file=FRAGMENT_ROWS,
        )
    start = time.perf_counter()
    frame = pyspark_lance.read(spark, table)
    planned = time.perf_counter() - start
    print(f"{'plan of 5,000 fragments (at most 1 s)':<44}{planned:>10.3f}  {frame.rdd.getNumPartitions()} tasks")
    jobs = {
        "read": lambda: sink(pyspark_lance.read(spark, table)),
        "source": lambda: sink(spark.read.format("lance").load(str(table))),
        "parquet": lambda: sink(spark.read.parquet(str(files))),
    }
    times = costs(jobs, 5, emptied())
    line("read of 5,000 fragments, to 5,000 files", times["read"], times["parquet"], 1.5)
    line("  by format('lance')", times["source"], times["parquet"], 1.5)


def upserts(spark, folder: Path) -> None:
    """Upserts of many rows by a key, beside an anti-join and a rewrite in parquet."""
    import lance_core
    import pyspark_lance

    for kind, key, most in (("integer", "id", 1.0), ("string", "concat('key-', id)", 1.2)):
        old, new, again = folder / f"{kind}.parquet", folder / f"{kind}-new.parquet", folder / "again.parquet"
        table, copy = folder / f"{kind}.lance", folder / "copy.lance"
        columns = [f"{key} as key", "rand(1) * 1000 as x", "concat('user-', pmod(hash(id), 1000000)) as name"]
        spark.range(0, TARGET_ROWS, 1, 2).selectExpr(*columns).write.parquet(str(old))
        step = TARGET_ROWS // SOURCE_ROWS
        half = f"id * {step} + {TARGET_ROWS // 20} as id"  # some of the keys are new
        spark.range(0, SOURCE_ROWS, 1, 2).selectExpr(half).selectExpr(*columns).write.parquet(str(new))
        pyspark_lance.write(spark.read.parquet(str(old)), table)

        def fresh(table=table, copy=copy, again=again) -> None:
            emptied(copy, again)()
            shutil.copytree(table, copy)
            os.sync()

        def rewrite(old=old, new=new, again=again) -> None:
            changes = spark.read.parquet(str(new))
            kept = spark.read.parquet(str(old)).join(changes, "key", "left_anti")
            kept.unionByName(changes).write.parquet(str(again))

        def merge(new=new, copy=copy) -> None:
            pyspark_lance.merge(spark.read.parquet(str(new)), copy, on="key")

        times = costs({"merge": merge, "rewrite": rewrite}, 5, fresh)
        line(f"upsert of 300,000 into 4M, {kind} key", times["merge"], times["rewrite"], most)
    indexed = folder / "integer.lance"
    lance_core.dataset(indexed).create_scalar_index("key", "BTREE")
    few = spark.range(0, 1_000).selectExpr("id * 4000 as key", "-1D as x", "'changed' as name")
    few.write.parquet(str(folder / "few.parquet"))
    times = costs(
        {"merge": lambda: pyspark_lance.merge(spark.read.parquet(str(folder / "few.parquet")), indexed, on="key")},
        5,
        emptied(),
    )
    print(f"{'upsert of 1,000 by a B-tree (at most 3 s)':<44}{times['merge'].wall:>10.3f}")


def shapes(spark, folder: Path) -> None:
    """Many columns, long vectors, many partitions, one huge fragment, and skewed rows."""
    import pyspark_lance
    from pyspark_lance.types.spark_types import VECTOR_WIDTH

    wide = spark.range(0, 20_000, 1, 2).selectExpr(*[f"id + {i} as c{i}" for i in range(2_000)])
    vectors = spark.range(0, 1_000_000, 1, 8).selectExpr(
        "id", "transform(sequence(1, 256), i -> cast(i + id as float)) as v"
    )
    skewed = spark.range(0, 2_000_000, 1, 8).selectExpr(
        "id", "rand(1) as x", "case when id < 10 then repeat('x', 1000000) else 'short' end as name"
    )
    frames = {
        "2,000 columns": (wide, {}, None),
        "1M vectors of 256 floats": (vectors.withMetadata("v", {VECTOR_WIDTH: 256}), {}, None),
        "one fragment of 5M rows": (
            spark.range(0, ROWS, 1, 1).selectExpr(*split_columns(SCALARS)),
            {"max_rows_per_file": ROWS},
            None,
        ),
        "2M short and 10 long rows": (skewed, {}, None),
        "3,000 partitions": (
            spark.range(0, 600_000, 1, 2).selectExpr("id", "rand(1) as x", "pmod(hash(id), 3000) as part"),
            {"partition_by": ["part"]},
            ["part"],
        ),
    }
    for name, (made, options, by) in frames.items():
        plain, ours, theirs = folder / "source.parquet", folder / "shape.lance", folder / "shape.parquet"
        emptied(plain, ours, theirs)()
        made.write.parquet(str(plain))
        frame = spark.read.schema(made.schema).parquet(str(plain))

        def rewrite(frame=frame, by=by, theirs=theirs) -> None:
            writer = frame.write if by is None else frame.write.partitionBy(*by)
            writer.parquet(str(theirs))

        def write(frame=frame, options=options, ours=ours) -> None:
            pyspark_lance.write(frame, ours, **options)

        times = costs({"ours": write, "parquet": rewrite}, 2, emptied(ours, theirs))
        # Frames with strings go in batches of 2,048 rows, so that a batch of undetected long strings fits into memory.
        line(f"write {name}", times["ours"], times["parquet"], 2.2 if name.startswith("2M short") else 1.2)
        emptied(ours, theirs)()
        write()
        rewrite()
        jobs = {
            "ours": lambda ours=ours: sink(pyspark_lance.read(spark, ours)),
            "parquet": lambda theirs=theirs: sink(spark.read.parquet(str(theirs))),
        }
        times = costs(jobs, 3, emptied())
        line(f"read {name}", times["ours"], times["parquet"], 1.5)


def long_rows(spark, folder: Path) -> None:
    """Strings of a megabyte by the fast way: memory of the JVM, whose heap has 512 MB, and of the workers."""
    import pyspark_lance

    plain, table = folder / "long.parquet", folder / "long.lance"
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", "16")
    plain.mkdir()
    for part in range(2):  # by pyarrow: Spark's writer of Parquet needs a larger heap
        ids = range(500 * part, 500 * part + 500)
        bodies = [f"{one}{hashlib.sha512(str(one).encode()).hexdigest()[:125] * 8_000}" for one in ids]
        rows = pa.table({"id": list(ids), "body": bodies})
        pq.write_table(rows, plain / f"{part}.parquet", row_group_size=16, use_dictionary=False)
    frame = spark.read.parquet(str(plain))
    times = costs({"ours": lambda: pyspark_lance.write(frame, table)}, 1, emptied(table))
    jvm, worker = highest_memory()
    print(
        f"{'write 1,000 strings of 1 MB':<44}{times['ours'].wall:>10.3f}  JVM {jvm} MB (1,000), worker {worker} MB (300)"
    )
    times = costs({"ours": lambda: sink(pyspark_lance.read(spark, table))}, 1, emptied())
    jvm, worker = highest_memory()
    print(
        f"{'read 1,000 strings of 1 MB':<44}{times['ours'].wall:>10.3f}  JVM {jvm} MB (1,000), worker {worker} MB (300)"
    )


def highest_memory() -> tuple[int, int]:
    """The highest resident sets so far, in MB: of the JVM, and of the largest Python worker that is alive."""
    found: dict[str, int] = {"java": 0, "python": 0}
    parents = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(part.split(":\t", 1) for part in path.read_text().splitlines() if ":\t" in part)
        except OSError:  # it has ended
            continue
        parents[int(path.parent.name)] = (int(fields["PPid"]), fields)
    own = {os.getpid()}
    while more := {pid for pid, (parent, _) in parents.items() if parent in own} - own:
        own |= more
    for pid in own - {os.getpid()}:
        fields = parents[pid][1]
        kind = "java" if fields["Name"].strip() == "java" else "python"
        found[kind] = max(found[kind], int(fields.get("VmHWM", "0 kB").split()[0]) // 1024)
    return found["java"], found["python"]


if __name__ == "__main__":
    main()
