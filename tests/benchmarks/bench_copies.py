"""Copies of data files on a disk beside `cp`, and on S3: a compaction of clean fragments, and a deep clone.

A compaction that reads and writes, as where the kernel does not copy, is a third job. Processor time is that of this
process and of `cp`; the files are on the disk in the end. On S3 the bodies of requests and responses are counted.
"""

import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

import lance_core
from lance_core.maintenance import compact
from lance_core.store import ObjectWriter
from lance_core.store.local import LocalWriter
from lance_core.store.s3_client import S3Client, s3_client
from tests.benchmarks.bench_files import ROWS, mixed
from tests.benchmarks.bench_maintenance import FRAGMENTS
from tests.s3_server import s3_server

ROUNDS = 7
MOST_OF_CP = 1.1
MOST_OF_READING = 0.7
MOST_THROUGH_S3 = 0.02


def main() -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table, size = mixed(), ROWS // FRAGMENTS
        for start in range(0, ROWS, size):
            lance_core.write_dataset(table.slice(start, size), folder / "source", mode="append")
        measure(folder)
    for by_server in (True, False):
        measure_s3(by_server=by_server)


def measure(folder: Path) -> None:
    """Print the medians of each job."""
    scratch = folder / "scratch"
    reading = mock.patch.object(LocalWriter, "copy_range", ObjectWriter.copy_range)

    def read_and_write() -> None:
        with reading:
            compact(lance_core.dataset(scratch))

    jobs: dict[str, Callable[[], object]] = {
        "cp": lambda: copy_files(scratch),
        "compaction": lambda: compact(lance_core.dataset(scratch)),
        "compaction, read and written": read_and_write,
        "deep clone": lambda: lance_core.dataset(scratch).deep_clone(folder / "clone", FRAGMENTS),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for round_number in range(ROUNDS + 1):
        for name, job in jobs.items():
            shutil.rmtree(folder / "clone", ignore_errors=True)
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(folder / "source", scratch, copy_function=os.link)
            os.sync()
            wall, processor = time.perf_counter(), processor_time()
            job()
            if round_number:
                found[name].append((time.perf_counter() - wall, processor_time() - processor))
    medians = {name: [statistics.median(each) for each in zip(*times, strict=True)] for name, times in found.items()}
    megabytes = sum(path.stat().st_size for path in (folder / "source/data").iterdir()) >> 20
    print(f"{f'{megabytes} MB in {FRAGMENTS} files':<32}{'wall s':>10}{'of cp':>8}{'cpu s':>10}{'of reading':>12}")
    for name, (wall, processor) in medians.items():
        of_cp, of_reading = wall / medians["cp"][0], processor / medians["compaction, read and written"][1]
        late = name == "compaction" and (of_cp > MOST_OF_CP or of_reading > MOST_OF_READING)
        print(f"{name:<32}{wall:>10.3f}{of_cp:>8.2f}{processor:>10.3f}{of_reading:>12.2f}{'  <-- above' * late}")


def measure_s3(*, by_server: bool, count: int = 9_000, fragments: int = 8) -> None:
    """Print how many bytes pass through this process when fragments of some megabytes become one."""
    through, request_once = 0, S3Client._once

    async def counted(client: S3Client, method: str, parameters: dict[str, Any]) -> Any:
        nonlocal through
        response = await request_once(client, method, parameters)
        through += len(response["Body"] if method == "get_object" else parameters.get("Body", b""))
        return response

    with s3_server() as s3, mock.patch.object(S3Client, "_once", counted):
        uri, rng = f"s3://{s3.new_bucket()}/t", np.random.default_rng(4)
        for start in range(0, fragments * count, count):
            vector = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 256, dtype=np.float32)), 256)
            table = pa.table({"id": range(start, start + count), "vector": vector})
            lance_core.write_dataset(table, uri, mode="append", storage_options=s3.storage_options)
        dataset = lance_core.dataset(uri, storage_options=s3.storage_options)
        size = sum(file.file_size_bytes for each in dataset.get_fragments() for file in each.metadata.files)
        s3_client(dataset.snapshot.store.options).copies_parts = None if by_server else False
        through, wall, processor = 0, time.perf_counter(), time.process_time()
        compact(dataset)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    late = by_server and through > MOST_THROUGH_S3 * size
    print(f"S3, {'by the server' if by_server else 'read and written'}: {through / size:.2%} of {size >> 20} MB, wall "
          f"{wall:.2f} s, processor {processor:.3f} s{'  <-- above' * late}")  # fmt: skip


def copy_files(scratch: Path) -> None:
    """Copy all data files into a folder, and write them to the disk."""
    (scratch / "copy").mkdir()
    subprocess.run(["cp", *scratch.joinpath("data").iterdir(), scratch / "copy"], check=True)
    for path in scratch.joinpath("copy").iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def processor_time() -> float:
    """Seconds of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    main()
