"""Spark changing Lance tables, in many partitions and in streams, against parquet, round-robin in one session.

    python -m tests.benchmarks spark_changes
    python -m tests.benchmarks.bench_spark_changes streaming reading

A change in parquet is a read of the whole table and a write of another one. Times are the least of the rounds after one
that is not counted; beside their ratio stands that of the processor time of Spark and its workers, which says more on
a machine with other work.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.bench_spark import SCALARS, sink, split_columns

ROWS = 5_000_000
PARTS = sys.argv[1:] if __name__ == "__main__" and sys.argv[0].endswith("bench_spark_changes.py") else []
BATCHES, BATCH_ROWS = 100, 10_000


@dataclass(frozen=True)
class Cost:
    """What a job took: seconds, and seconds of processors."""

    wall: float
    cpu: float


def main() -> None:
    """Run all parts in one classic session, or those that are named."""
    from pyspark_lance import local_session

    config = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.driver.memory": "2g"}
    spark = local_session("local[2]", config=config)
    folder = Path(tempfile.mkdtemp())
    try:
        print(f"{'classic session':<44}{'lance s':>10}{'parquet s':>10}{'ratio':>8}{'at most':>9}{'cpu ratio':>11}")
        for part in (partitions, merging, reading, streaming):
            if not PARTS or part.__name__ in PARTS:
                part(spark, folder)
    finally:
        spark.stop()
        shutil.rmtree(folder)


def line(name: str, ours: Cost, theirs: Cost, most: float | None) -> None:
    """Print a ratio, and whether it is above what it must be."""
    mark = "" if most is None or ours.wall <= most * theirs.wall else "  <-- above"
    wanted = "" if most is None else f"{most:.2f}"
    ratio, cpu = ours.wall / theirs.wall, ours.cpu / max(theirs.cpu, 0.01)
    print(f"{name:<44}{ours.wall:>10.3f}{theirs.wall:>10.3f}{ratio:>8.2f}{wanted:>9}{cpu:>11.2f}{mark}", flush=True)


def costs(jobs: Mapping[str, Callable[[], object]], rounds: int, prepare: Callable[[], None]) -> dict[str, Cost]:
    """The least cost of each job in some rounds, round-robin, after one that is not counted."""
    found: dict[str, list[Cost]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, job in jobs.items():
            prepare()
            cpu, start = processor_seconds(), time.perf_counter()
            job()
            if number:
                found[name].append(Cost(time.perf_counter() - start, processor_seconds() - cpu))
    return {name: Cost(min(one.wall for one in all_), min(one.cpu for one in all_)) for name, all_ in found.items()}


_ticks: dict[tuple[int, str], int] = {}
"""By process, as it was last seen: a pool of workers does not add up those that have ended."""


def processor_seconds() -> float:
    """Processor time so far of this process and all below it that were seen."""
    parents, found = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        parents[pid], found[pid] = int(fields[1]), ((pid, fields[19]), sum(map(int, fields[11:13])))
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    _ticks.update(found[pid] for pid in own)
    return sum(_ticks.values()) / os.sysconf("SC_CLK_TCK")


def emptied(*folders: Path) -> Callable[[], None]:
    """A function that removes folders and brings the disk to rest: we wait for it and parquet does not."""

    def clear() -> None:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os.sync()

    return clear


def partitions(spark, folder: Path) -> None:
    """Many partitions, each in files of its own."""
    import pyspark_lance

    ours, theirs = folder / "parts.lance", folder / "parts.parquet"
    for rows, count, rounds in ((1_000_000, 1_000, 3), (100_000, 10_000, 1)):
        source = folder / f"source-{count}"
        expressions = [*split_columns(SCALARS), f"pmod(hash(id), {count}) as part"]
        spark.range(0, rows, 1, 2).selectExpr(*expressions).write.parquet(str(source))
        frame = spark.read.parquet(str(source))
        times = costs(
            {
                "lance": lambda frame=frame: pyspark_lance.write(frame, ours, partition_by=["part"]),
                "parquet": lambda frame=frame: frame.write.partitionBy("part").parquet(str(theirs)),
            },
            rounds,
            emptied(ours, theirs),
        )
        line(f"write {rows:,} rows in {count:,} partitions", times["lance"], times["parquet"], 1.2)


def merging(spark, folder: Path) -> None:
    """A merge of 1 % of the rows by key, and reads of its table."""
    import pyspark_lance

    ours, theirs = folder / "merged.lance", folder / "merged.parquet"
    table = spark.range(0, ROWS, 1, 2).selectExpr(*split_columns(SCALARS))
    table.write.parquet(str(theirs))
    pyspark_lance.write(spark.read.parquet(str(theirs)), ours)
    changes = folder / "changes.parquet"
    step = f"id in (select id * 100 from range({ROWS // 100}))"
    table.where(step).withColumn("x", table.x + 1).write.parquet(str(changes))
    before, columns = spark.read.parquet(str(theirs)), table.columns
    again = folder / "again.parquet"

    def rewrite() -> None:
        new = spark.read.parquet(str(changes))
        kept = before.join(new, "id", "left_anti")
        kept.unionByName(new).select(*columns).write.mode("overwrite").parquet(str(again))

    def plain_rewrite() -> None:
        before.write.mode("overwrite").parquet(str(again))

    def merge() -> None:
        pyspark_lance.merge(spark.read.parquet(str(changes)), ours, on="id")

    times = costs({"lance": merge, "joined": rewrite, "plain": plain_rewrite}, 8, emptied(again))
    line("merge 1 % of 5M rows, to read and rewrite", times["lance"], times["plain"], 0.6)
    line("  to read, join and rewrite", times["lance"], times["joined"], None)


def reading(spark, folder: Path) -> None:
    """A count without columns, and one column of ten."""
    import pyspark_lance

    ours, theirs = folder / "wide.lance", folder / "wide.parquet"
    more = [f"id * {number} as extra{number}" for number in range(6)]
    spark.range(0, ROWS, 1, 2).selectExpr(*split_columns(SCALARS), *more).write.parquet(str(theirs))
    pyspark_lance.write(spark.read.parquet(str(theirs)), ours)
    times = costs(
        {
            "lance": lambda: pyspark_lance.read(spark, ours).count(),
            "parquet": lambda: spark.read.parquet(str(theirs)).count(),
        },
        5,
        emptied(),
    )
    line("count of 5M rows (at most 0.1 s)", times["lance"], times["parquet"], 0.1 / times["parquet"].wall)
    for column in ("id", "name"):
        times = costs(
            {
                "lance": lambda column=column: sink(pyspark_lance.read(spark, ours).select(column)),
                "option": lambda column=column: sink(
                    spark.read.format("lance").option("columns", column).load(str(ours))
                ),
                "parquet": lambda column=column: sink(spark.read.parquet(str(theirs)).select(column)),
            },
            12,
            emptied(),
        )
        line(f"select of one column of 10, {column}", times["lance"], times["parquet"], 1.0)
        line("  data source with its option", times["option"], times["parquet"], None)


def streaming(spark, folder: Path) -> None:
    """A stream of many batches, of one file each."""
    source = folder / "arrivals"
    expressions = split_columns(SCALARS)
    spark.range(0, BATCHES * BATCH_ROWS, 1, BATCHES).selectExpr(*expressions).write.parquet(str(source))
    schema = spark.read.parquet(str(source)).schema
    places = [folder / "stream.lance", folder / "stream.parquet", folder / "checkpoint"]

    def run(kind: str) -> None:
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
        writer = stream.writeStream.format(kind).option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start(str(folder / f"stream.{kind}")).awaitTermination()

    times = costs({kind: lambda kind=kind: run(kind) for kind in ("lance", "parquet")}, 3, emptied(*places))
    line(f"stream of {BATCHES} batches of {BATCH_ROWS:,} rows", times["lance"], times["parquet"], 1.0)


if __name__ == "__main__":
    main()
