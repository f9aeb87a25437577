"""Commits to one table of an object store by two writers of ours beside two of pylance's, in two ways, for a minute each.

The store is moto on a loopback port, which answers one request after the other. A writer appends ten rows, again and
again: by its handle, or by a new `write_dataset` each time. The commits that were acknowledged are counted.
`python -m tests.benchmarks.bench_turns SECONDS` runs for another time.
"""

import contextlib
import importlib
import json
import sys
import time

import pyarrow as pa

LIBRARIES = ("lance_core", "lance_core", "lance", "lance")
ROWS = pa.table({"a": range(10), "b": ["x"] * 10})


def write(library: str, uri: str, options: str, way: str, until: str) -> None:
    """Append until a point in time; print the number of commits, and the errors in between."""
    module = importlib.import_module(library)
    storage = json.loads(options)
    dataset = module.dataset(uri, storage_options=storage)
    done, errors = 0, {}
    print("ready", flush=True)
    sys.stdin.readline()
    while time.time() < float(until):
        try:
            if way == "handle":
                dataset.insert(ROWS)
            else:
                module.write_dataset(ROWS, uri, mode="append", storage_options=storage)
            done += 1
        except OSError as error:  # both libraries raise it for a lost race
            name = type(error).__name__
            errors[name] = errors.get(name, 0) + 1
            dataset = module.dataset(uri, storage_options=storage)
    print(json.dumps([done, errors]), flush=True)


def turns(server, seconds: float, way: str) -> dict[str, int]:
    """Commits by library within a number of seconds, and what was rejected."""
    import lance

    from tests import processes

    options = server.storage_options
    uri = f"s3://{server.new_bucket()}/t"
    lance.write_dataset(ROWS, uri, storage_options=options)
    command = [sys.executable, "-m", "tests.benchmarks.bench_turns", "write"]
    counts = dict.fromkeys((*LIBRARIES, "rejected"), 0)
    with contextlib.ExitStack() as stack:
        until = time.time() + seconds + 5
        arguments = [uri, json.dumps(options), way, until]
        writers = [
            stack.enter_context(processes.running([*command, library, *arguments], talks=True)) for library in LIBRARIES
        ]
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("\n")
            writer.stdin.flush()
        for library, writer in zip(LIBRARIES, writers, strict=True):
            done, errors = json.loads(writer.stdout.readline())
            counts[library] += done
            counts["rejected"] += sum(errors.values())
            print(f"    {library}: {done} commits, rejected {errors}", flush=True)
    version = lance.dataset(uri, storage_options=options).version
    assert version == 1 + counts["lance_core"] + counts["lance"], (version, counts)
    return counts


def main(seconds: str = "60") -> None:
    """Run and print."""
    from tests.s3_server import s3_server

    with s3_server() as server:
        for way in ("handle", "write_dataset"):
            counts = turns(server, float(seconds), way)
            share = counts["lance_core"] / max(counts["lance_core"] + counts["lance"], 1)
            print(f"2 + 2 writers, {seconds} s, {way}: {counts}, our share {share:.0%}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
