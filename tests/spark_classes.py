"""An archive of Spark's classes, which lets sessions of tests start in a third of the time: Java maps it into memory.

    python -m tests.spark_classes     makes the file (`make test` does, once for each .venv)
    submit_options()                  the SPARK_SUBMIT_OPTS of all sessions that tests start
    workers_python_path()             a PYTHONPATH with which a session's workers import once: tests/spark_workers

A session that writes and reads one table takes 15 s of a processor's time, most of it for loading classes and compiling
code that runs a few times: <https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html>. The file only fits the
Java and the jars that it was made with; another Java ignores it.
"""

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
WORKERS = Path(__file__).parent / "spark_workers"

# Short jobs: the time that goes into compiling them well is not earned back.
SHORT_JOBS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Of sessions that say nothing else: 200 partitions of a few rows each, and a web interface, take time and show nothing.
SMALL = "-Dspark.sql.shuffle.partitions=4 -Dspark.ui.enabled=false"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def submit_options() -> str:
    """Options of the Java of a session's driver, or of its Spark Connect server."""
    always = f"{SHORT_JOBS} {SMALL}"
    return f"{always} -XX:SharedArchiveFile={ARCHIVE} {QUIET}" if ARCHIVE.exists() else always


def workers_python_path() -> str:
    """The PYTHONPATH of a session that starts many Python workers, for the time in which it starts."""
    return os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(WORKERS)]))


def make(archive: Path) -> None:
    """Start a session, use what most tests use, and store the classes that were loaded."""
    from pyspark_lance import local_session

    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_JOBS} -XX:ArchiveClassesAtExit={archive} {QUIET}"
    spark = local_session("local[2]", config={"spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder, "table.lance"))
        frame = spark.range(100).selectExpr("id", "cast(id as string) as text", "id % 3 as third")
        frame.write.format("lance").mode("append").save(uri)
        table = spark.read.format("lance").load(uri)
        table.join(frame, "id").groupBy(table.third).count().orderBy("third").collect()
        table.createOrReplaceTempView("table_of_lance")
        spark.sql("SELECT max(text) FROM table_of_lance WHERE id > 5").toArrow()
        table.mapInArrow(lambda batches: batches, table.schema).count()
    gateway = spark.sparkContext._gateway
    spark.stop()
    # Java ends with its standard input, and writes the file then.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(600)
    assert archive.exists()


if __name__ == "__main__":
    make(ARCHIVE)
