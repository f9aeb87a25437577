"""Ways through the packages: the files that a call crosses, counted by tracing real calls.

    python -m tests.ways                    prints the files of each way
    python -m tests.ways write compaction   prints these ways only
    python -m tests.ways --check            fails if a way is longer than `LIMITS` allows
    python -m tests.ways --check --no-spark leaves out the ways that need a Spark session

A file is crossed if one of its functions calls a function in another file of our packages: a reader who follows the call
has to open the file to find where the call goes next. Two kinds of files are counted apart:

    leaf     a file in which the call ends: none of its functions calls another file
    supply   a file of `SUPPLIES`: plain values, records of the format, encodings and stores, which are known by their
             names; a supply that calls back, such as a decorator or a pool of threads, counts as its caller

Code that runs while a module is imported does not count (each way is run once before it is traced), nor does code in
another process, such as Spark's executors. Each way counts in the package that it enters first.

A return is a call into a file that was entered before, by a function that has not called that file yet: the reader has to
open that file again. Loops and repeated calls count once.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple
from unittest import mock

import dagster as dg
import pyarrow as pa

import lance_core
import lance_dagster
import pyspark_lance
from lance_dagster.io_manager.manager import LanceTableIOManager
from tests import spark_classes

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("lance_core", "pyspark_lance", "lance_dagster")


class Limit(NamedTuple):
    """How many files a way may cross.

    Attributes:
        package: The package whose files are counted.
        files: The number that is allowed: today's, until the target is reached.
        target: The number that is aimed at.
    """

    package: str
    files: int
    target: int


LIMITS: Final = {
    "write": Limit("lance_core", 12, 12),
    "read": Limit("lance_core", 12, 12),
    "compaction": Limit("lance_core", 14, 14),
    "promotion": Limit("lance_core", 18, 14),
    "output": Limit("lance_dagster", 12, 12),
    "healthy-tick": Limit("lance_dagster", 7, 9),
    "tick": Limit("lance_dagster", 9, 9),
    "spark-write": Limit("pyspark_lance", 9, 9),
    "spark-read": Limit("pyspark_lance", 6, 6),
}

SUPPLIES: Final = (
    "lance_core/*.py",
    "lance_core/_proto",
    "lance_core/schema",
    "lance_core/store",
    "lance_core/encoding",
    "lance_core/table",
)


class Call(NamedTuple):
    """A call into a file by a function of another file; both are None where a thread or another library calls."""

    caller: str | None
    function: str | None
    callee: str


@dataclass
class Way:
    """The calls between files while one thing is done, in the order in which each was made first."""

    calls: dict[Call, None] = field(default_factory=dict)

    def entered(self, package: str) -> list[str]:
        """The files of a package, in the order of first entry."""
        return list(dict.fromkeys(call.callee for call in self.calls if call.callee.startswith(f"{package}/")))

    def crossed(self, package: str) -> list[str]:
        """The files of a package from which control goes on."""
        callers = {call.caller for call in self.calls}
        return [file for file in self.entered(package) if file in callers and not is_supply(file)]

    def leaves(self, package: str) -> list[str]:
        """The files of a package in which the call ends."""
        callers = {call.caller for call in self.calls}
        return [file for file in self.entered(package) if file not in callers and not is_supply(file)]

    def returns(self, package: str) -> int:
        """The number of calls into files of a package that were entered before."""
        files = {file for file in self.entered(package) if not is_supply(file)}
        return sum(call.callee in files for call in self.calls) - len(files)


def is_supply(file: str) -> bool:
    """Whether a file is one of `SUPPLIES`."""
    return any(file.startswith(f"{supply}/") or f"{Path(file).parent}/*.py" == supply for supply in SUPPLIES)


class Tracer:
    """Records calls between files of our packages, in all threads."""

    def __init__(self) -> None:
        self._way: Way | None = None
        self._files: dict[str, str | None] = {}

    def install(self) -> None:
        """Watch this thread, and threads that start from now on."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    @contextlib.contextmanager
    def recording(self, way: Way) -> Iterator[None]:
        """Add the calls that are made within the context to a way."""
        self._way = way
        try:
            yield
        finally:
            self._way = None

    def _event(self, frame: FrameType, event: str, _argument: Any) -> None:
        way = self._way
        callee = self._file(frame) if way is not None and event == "call" else None
        if way is None or callee is None:
            return
        back = frame.f_back
        while back is not None:
            caller = self._file(back)
            if caller == callee:
                return
            if caller is not None and not is_supply(caller):
                function = back.f_code.co_qualname.partition(".<locals>")[0]
                way.calls[Call(caller, function, callee)] = None
                return
            back = back.f_back
        way.calls[Call(None, None, callee)] = None

    def _file(self, frame: FrameType) -> str | None:
        """The file of a frame, relative to the checkout; None if it belongs to none of our packages."""
        name = frame.f_code.co_filename
        if name not in self._files:
            ours = any(name.startswith(f"{ROOT}{os.sep}{package}{os.sep}") for package in PACKAGES)
            self._files[name] = Path(name).relative_to(ROOT).as_posix() if ours else None
        return self._files[name]


def rows(start: int) -> pa.Table:
    """A small table of plain columns."""
    ids = range(start, start + 100)
    return pa.table({"id": ids, "value": [i / 2 for i in ids], "name": [f"row {i}" for i in ids]})


def table_of(uri: str, fragments: int) -> lance_core.LanceDataset:
    """Make a table of small fragments."""
    for number in range(fragments):
        lance_core.write_dataset(rows(100 * number), uri, mode="append" if number else "create")
    return lance_core.dataset(uri)


def write(folder: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Append rows to a table."""
    dataset = table_of(f"{folder}/table.lance", 1)
    with recording:
        lance_core.write_dataset(rows(100), dataset.uri, mode="append")


def read(folder: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Read the rows that meet a condition from a table without an index."""
    dataset = table_of(f"{folder}/table.lance", 3)
    with recording:
        found = dataset.to_table(filter="id >= 90")
    assert found.num_rows == 210


def compaction(folder: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Rewrite small fragments into one."""
    dataset = table_of(f"{folder}/table.lance", 3)
    with recording:
        metrics = dataset.optimize.compact_files()
    assert metrics.fragments_added == 1


def promotion(folder: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Promote a branch that has appended rows."""
    dataset = table_of(f"{folder}/table.lance", 1)
    branch = dataset.create_branch("next")
    lance_core.write_dataset(rows(100), branch, mode="append")
    dataset = lance_core.dataset(dataset.uri)
    with recording:
        dataset.branches.promote("next")
    assert lance_core.dataset(dataset.uri).count_rows() == 200


@dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b"]), metadata={"partition_expr": "letter"})
def numbers(context: dg.AssetExecutionContext) -> pa.Table:
    """A partitioned asset of a few rows."""
    return rows(0).append_column("letter", pa.array([context.partition_key] * 100))


def output(folder: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Store a partition that an asset returns in a table that has another one."""
    handle_output = LanceTableIOManager.handle_output

    def traced(manager: LanceTableIOManager, context: dg.OutputContext, obj: Any) -> None:
        with recording if context.partition_key == "b" else contextlib.nullcontext():
            handle_output(manager, context, obj)

    with mock.patch.object(LanceTableIOManager, "handle_output", traced):
        for partition in ("a", "b"):
            resources = {"io_manager": lance_dagster.LanceIOManager(root_uri=folder)}
            dg.materialize([numbers], resources=resources, partition_key=partition, run_config=QUIET)


QUIET: Final = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def maintain(folder: str, recording: contextlib.AbstractContextManager[None], fragments: int) -> None:
    """Run the ops of a maintenance job on one table."""
    dataset = table_of(f"{folder}/public/numbers.lance", fragments)
    job = lance_dagster.build_maintenance_job([dg.AssetKey("numbers")])
    manager = lance_dagster.LanceIOManager(root_uri=folder).create_io_manager(dg.build_init_resource_context())
    resources = {"io_manager": dg.IOManagerDefinition.hardcoded_io_manager(manager)}
    run = dg.Definitions(jobs=[job], resources=resources).resolve_job_def(job.name)
    with recording:
        run.execute_in_process(run_config=QUIET)
    dataset.checkout_latest()
    assert len(dataset.get_fragments()) == 1


def tick(folder: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Maintain a table of small fragments."""
    maintain(folder, recording, 6)


def healthy_tick(folder: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Maintain a table that needs nothing."""
    maintain(folder, recording, 1)


def spark_session() -> Any:
    """The Spark session of this process."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_classes.submit_options())
    return pyspark_lance.local_session("local[2]", config={"spark.ui.enabled": "false"})


def spark_write(folder: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Append a data frame to a table."""
    frame = spark_session().range(100).selectExpr("id", "id / 2 AS value")
    uri = f"{folder}/table.lance"
    pyspark_lance.write(frame, uri, mode="append")
    with recording:
        pyspark_lance.write(frame, uri, mode="append")


def spark_read(folder: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Read the rows that meet a condition into the driver."""
    uri = table_of(f"{folder}/table.lance", 3).uri
    spark = spark_session()
    with recording:
        found = pyspark_lance.read(spark, uri).where("id >= 90").collect()
    assert len(found) == 210


WAYS: Final = {
    "write": write,
    "read": read,
    "compaction": compaction,
    "promotion": promotion,
    "output": output,
    "healthy-tick": healthy_tick,
    "tick": tick,
    "spark-write": spark_write,
    "spark-read": spark_read,
}


def trace(name: str, tracer: Tracer) -> Way:
    """Run one way twice, and record the calls of the second run."""
    way = Way()
    for recording in (contextlib.nullcontext(), tracer.recording(way)):
        with tempfile.TemporaryDirectory() as folder:
            WAYS[name](folder, recording)
    return way


def describe(name: str, way: Way) -> str:
    """The files of a way, and its numbers."""
    limit = LIMITS[name]
    lines = []
    for package in reversed(PACKAGES):
        if way.entered(package):
            crossed, leaves, returns = way.crossed(package), way.leaves(package), way.returns(package)
            aim = f" (limit {limit.files}, target {limit.target})" if package == limit.package else ""
            lines.append(f"{name}: {package}: {len(crossed)} files{aim}, {len(leaves)} leaves, {returns} returns")
            if aim:
                lines += [f"    {file}" for file in crossed]
                lines += [f"  leaf {file}" for file in leaves]
    return "\n".join(lines)


def main() -> int:
    """Print or check ways."""
    parser = argparse.ArgumentParser(prog="python -m tests.ways", description="Count the files that calls cross.")
    parser.add_argument("ways", nargs="*", help=f"which ones: {', '.join(WAYS)}; all by default")
    parser.add_argument("--check", action="store_true", help="fail if a way is longer than its limit")
    parser.add_argument("--no-spark", action="store_true", help="leave out the ways that need a Spark session")
    given = parser.parse_args()
    unknown = set(given.ways) - set(WAYS)
    if unknown:
        parser.error(f"no such way: {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")
    tracer, longer = Tracer(), False
    tracer.install()
    for name in given.ways or [name for name in WAYS if not (given.no_spark and name.startswith("spark-"))]:
        way, limit = trace(name, tracer), LIMITS[name]
        found = len(way.crossed(limit.package))
        if not given.check or found > limit.files:
            print(describe(name, way), flush=True)
        if given.check:
            aim = "" if found <= limit.target else f", target {limit.target}"
            print(f"{name}: {found} files, limit {limit.files}{aim}", flush=True)
            longer = longer or found > limit.files
    if not given.check:
        print(
            "files: those that call others; leaf: a file in which the call ends; return: a call of a file entered before"
        )
    if given.check and longer:
        print("A way is longer than its limit in tests/ways.py.")
    return int(given.check and longer)


if __name__ == "__main__":
    sys.exit(main())
