"""Commits alone against pylance, round-robin: manifests of 100,000 fragments, and 50 small commits one after the other.

Ratios of processor time of all threads, the least of some rounds: above 1 we are faster.
"""

import json
import shutil
import tempfile
import time
from pathlib import Path

import lance
import pyarrow as pa

from lance_core.commit import CommitOptions, commit, load_latest
from lance_core.store import open_store
from tests.lance_core.commit.tables import appending, creation, records

ROUNDS = 7


def ratio(ours, theirs):
    """Pylance's processor time over ours, each the least of some rounds."""
    taken = {ours: [], theirs: []}
    for _ in range(ROUNDS):
        for work, results in taken.items():
            start = time.process_time()
            work()
            results.append(time.process_time() - start)
    return min(taken[theirs]) / min(taken[ours])


def large_manifests(folder, fragment):
    """Opening and appending to a table of 100,000 fragments."""
    path = str(folder / "large")
    store, (record,) = open_store(path), records([fragment])
    commit(store, creation(*[record] * 100_000))

    def append_ours():
        base = load_latest(store)
        commit(store, appending(base.version, record), base=base)

    def append_pylance():
        lance.LanceDataset.commit(path, lance.LanceOperation.Append([fragment]), lance.dataset(path).version)

    print(f"open 100,000 fragments: {ratio(lambda: load_latest(store), lambda: lance.dataset(path)):.2f}")
    print(f"open and append: {ratio(append_ours, append_pylance):.2f}")


def small_commits(folder, fragment, *, durable):
    """50 appends to a new table."""
    append, (record,), turns = lance.LanceOperation.Append([fragment]), records([fragment]), iter(range(100))

    def ours():
        store = open_store(str(folder / f"ours{durable}{next(turns)}"))
        manifest = commit(store, creation(record)).manifest
        for _ in range(50):
            change, options = appending(manifest.version, record), CommitOptions(durable=durable)
            manifest = commit(store, change, base=manifest, options=options).manifest

    def pylance():
        dataset = lance.write_dataset(pa.table({"a": [1]}), str(folder / f"pylance{durable}{next(turns)}"))
        for _ in range(50):
            dataset = lance.LanceDataset.commit(dataset, append, read_version=dataset.version)

    print(f"50 small commits, durable={durable}: {ratio(ours, pylance):.2f}")


def main() -> None:
    """Run and print."""
    folder = Path(tempfile.mkdtemp())
    try:
        source = lance.write_dataset(pa.table({"a": [1]}), str(folder / "source"))
        one = json.dumps(source.get_fragments()[0].metadata.to_json())
        fragment = lance.FragmentMetadata.from_json(one)
        large_manifests(folder, fragment)
        for durable in (False, True):
            small_commits(folder, fragment, durable=durable)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
