"""What `test_killed_streams.py` runs: `python stream_driver.py <folder> <mode> <batch> <step>`; the query ends there.

    begins       a task of the batch starts                   no file yet
    written      all tasks have reported, before the commit   files that no version uses
    committed    the version is there                         Spark has not noted the batch in its checkpoint

No step: the query goes on until it has read all that is there. Mode `feed` writes the changes of `source.lance`, one version
at a time; other modes write rows of files.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pyspark_lance import local_session
from pyspark_lance.datasource.source import DefaultSource
from pyspark_lance.datasource.streams import StreamWriter
from pyspark_lance.types.spark_types import batch_schema


def die() -> None:
    """End Spark's driver, which is the JVM above this worker, at once."""
    pid = os.getpid()
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    time.sleep(60)


class Dying(StreamWriter):
    """Ends Spark at one step of one batch."""

    def __init__(self, *args: Any, batch: str, step: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batch, self.step = batch, step

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if self.step == "begins" and context.getLocalProperty("streaming.sql.batchId") == self.batch:
            die()
        return super().write(iterator)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        if str(batchId) == self.batch and self.step == "written":
            die()
        super().commit(messages, batchId)
        if str(batchId) == self.batch and self.step == "committed":
            die()


class Source(DefaultSource):
    """The data source with such a writer."""

    end = ("", "")

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        batch, step = self.end
        return Dying(self._options, batch_schema(schema), overwrite=overwrite, batch=batch, step=step)


def main(folder: Path, mode: str, *end: str) -> None:
    """Run the query."""
    if end:
        Source.end = end
    spark = local_session("local[2]", config={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
    spark.dataSource.register(Source)
    if mode == "feed":
        feed = spark.readStream.format("lance").option("readChangeFeed", "true").option("maxVersionsPerTrigger", 1)
        stream = feed.load(str(folder / "source.lance"))
    else:
        files = spark.readStream.schema("id long, kind long").option("maxFilesPerTrigger", 1)
        stream = files.json(str(folder / "arrivals"))
    if mode == "complete":
        stream = stream.groupBy("kind").count()
    writer = (
        stream.writeStream.format("lance")
        .outputMode("append" if mode == "feed" else mode)
        .option("checkpointLocation", str(folder / "check"))
    )
    writer.trigger(availableNow=True).start(str(folder / "table.lance")).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
