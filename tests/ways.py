"""How large the packages are, and how many files a call enters: the numbers of `LIMITS`.

    python -m tests.ways             prints each number beside its limit and its target
    python -m tests.ways append      prints the files that an append enters, in the order of entry
    python -m tests.ways --check     fails if a number is above its limit

A file is entered if one of its functions runs between the public call and its return, in any thread, as a debugger would
stop there. Code that runs while a module is imported does not count (each call is made once before it is traced).
"""

import argparse
import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import pyarrow as pa

import lance_core
from tests.sizes import PACKAGES, ROOT, count_code_lines, generic_names


class Limit(NamedTuple):
    """A number that is allowed, which is today's until the target is reached; and the target."""

    allowed: int
    target: int


LIMITS: Final = {
    "create": Limit(45, 45),
    "append": Limit(41, 45),
    "filtered read": Limit(39, 40),
    "merge": Limit(54, 70),
    "compaction": Limit(59, 70),
    "lines of code": Limit(85_274, 69_000),
    "generic names": Limit(10, 150),
}


class Tracer:
    """Records the files of the packages in which a function runs, in all threads."""

    def __init__(self) -> None:
        self.entered: dict[str, None] = {}
        self._is_on = False

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Add the files that are entered within the context."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False
            sys.setprofile(None)
            threading.setprofile(None)

    def _event(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._is_on and event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PACKAGES:
                self.entered[path.relative_to(ROOT).as_posix()] = None


def make_rows(start: int) -> pa.Table:
    """A small table of plain columns."""
    ids = range(start, start + 100)
    return pa.table({"id": ids, "value": [i / 2 for i in ids], "name": [f"row {i}" for i in ids]})


def make_table(uri: str, fragments: int) -> lance_core.LanceDataset:
    """A table of small fragments."""
    for number in range(fragments):
        lance_core.write_dataset(make_rows(100 * number), uri, mode="append" if number else "create")
    return lance_core.dataset(uri)


def create(uri: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Write rows to a table that does not exist."""
    with recording:
        lance_core.write_dataset(make_rows(0), uri)


def append(uri: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Append rows to a table."""
    make_table(uri, 1)
    with recording:
        lance_core.write_dataset(make_rows(100), uri, mode="append")


def read(uri: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Open a table without an index, and read the rows that meet a condition."""
    make_table(uri, 3)
    with recording:
        rows = lance_core.dataset(uri).to_table(filter="id >= 90")
    assert rows.num_rows == 210


def merge(uri: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Update the rows that match and insert the others."""
    dataset = make_table(uri, 3)
    with recording:
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(make_rows(250))
    assert dataset.count_rows() == 350


def compact(uri: str, recording: contextlib.AbstractContextManager[None]) -> None:
    """Rewrite small fragments into one."""
    dataset = make_table(uri, 3)
    with recording:
        metrics = dataset.optimize.compact_files()
    assert metrics.fragments_added == 1


CALLS: Final = {"create": create, "append": append, "filtered read": read, "merge": merge, "compaction": compact}


def trace_files(name: str) -> list[str]:
    """The files that a call enters, in the order of entry."""
    tracer = Tracer()
    for recording in (contextlib.nullcontext(), tracer.recording()):
        with tempfile.TemporaryDirectory() as folder:
            CALLS[name](f"{folder}/table.lance", recording)
    return list(tracer.entered)


def measure(name: str) -> int:
    """One of the numbers."""
    if name == "lines of code":
        return count_code_lines()
    return len(generic_names()) if name == "generic names" else len(trace_files(name))


def main() -> int:
    """Print or check the numbers."""
    parser = argparse.ArgumentParser(prog="python -m tests.ways", description="Count files, lines and names.")
    parser.add_argument("calls", nargs="*", choices=[*CALLS, []], help="print the files of these calls")
    parser.add_argument("--check", action="store_true", help="fail if a number is above its limit")
    arguments = parser.parse_args()
    for name in arguments.calls:
        print(name, *trace_files(name), sep="\n    ")
    if arguments.calls:
        return 0
    failed = False
    print(f"{'':14} {'number':>8} {'limit':>8} {'target':>8}")
    for name, limit in LIMITS.items():
        number = measure(name)
        failed |= number > limit.allowed
        print(f"{name:14} {number:8,} {limit.allowed:8,} {limit.target:8,}")
    if arguments.check and failed:
        print("A number is above its limit in tests/ways.py.")
    return int(arguments.check and failed)


if __name__ == "__main__":
    sys.exit(main())
