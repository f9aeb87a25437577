"""Commits alone against pylance, round-robin: manifests of 100,000 fragments, and 50 small commits one after the other.

Milliseconds of processor time of all threads, the least of some rounds; ratios above 1: we are faster.
"""

import json
import shutil
import tempfile
import time
from pathlib import Path

import lance
import pyarrow as pa

from lance_core.commit.loop import commit
from lance_core.commit.records import Commit
from lance_core.commit.versions import load_latest
from lance_core.store import open_store
from lance_core.table.operations import Delete
from lance_core.table.transaction import Transaction
from tests.lance_core.commit.tables import appending, creation, records

ROUNDS = 7


def compare(name, ours, theirs, rounds=ROUNDS):
    """Print the processor time of both and pylance's over ours, each the least of some rounds."""
    taken = {ours: [], theirs: []}
    for _ in range(rounds):
        for work, results in taken.items():
            start = time.process_time()
            work()
            results.append(time.process_time() - start)
    own, other = min(taken[ours]), min(taken[theirs])
    print(f"{name}: {1e3 * own:.1f}, pylance {1e3 * other:.1f}, ratio {other / own:.2f}", flush=True)


def repeat(name, work):
    """Print the least processor time of some calls, without other writers in between."""
    results = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        results.append(time.process_time() - start)
    print(f"{name}: {1e3 * min(results):.1f}", flush=True)


def large_manifests(folder, fragment):
    """Opening and changing a table of 100,000 fragments."""
    path = str(folder / "large")
    store, (record,) = open_store(path), records([fragment])
    commit(store, creation(*[record] * 100_000))

    def append_ours():
        base = load_latest(store)
        commit(store, appending(base.version, record), base=base)

    def append_pylance():
        lance.LanceDataset.commit(path, lance.LanceOperation.Append([fragment]), lance.dataset(path).version)

    def remove_ours():
        base = load_latest(store)
        change = Delete(deleted_fragment_ids=(base.fragments.ids[50_000],), predicate="a = 1")
        commit(store, Transaction(read_version=base.version, operation=change), base=base)

    def remove_pylance():
        base = lance.dataset(path)
        deleted = base.get_fragments()[50_000].fragment_id
        lance.LanceDataset.commit(path, lance.LanceOperation.Delete([], [deleted], "a = 1"), base.version)

    handles = {}

    def append_again_ours():
        base = handles["ours"]
        handles["ours"] = commit(store, appending(base.version, record), base=base).manifest

    def append_again_pylance():
        base = handles["pylance"]
        handles["pylance"] = lance.LanceDataset.commit(base, lance.LanceOperation.Append([fragment]), base.version)

    compare("100,000 fragments: open", lambda: load_latest(store), lambda: lance.dataset(path))
    compare("100,000 fragments: open and append", append_ours, append_pylance)
    compare("100,000 fragments: open and remove one of them", remove_ours, remove_pylance)
    handles["ours"] = load_latest(store)
    repeat("100,000 fragments: append on an open handle", append_again_ours)
    handles["pylance"] = lance.dataset(path)
    repeat("the same by pylance", append_again_pylance)


def small_commits(folder, fragment, *, durable):
    """50 appends to a new table."""
    append, (record,), turns = lance.LanceOperation.Append([fragment]), records([fragment]), iter(range(100))

    def ours():
        store = open_store(str(folder / f"ours{durable}{next(turns)}"))
        manifest = commit(store, creation(record)).manifest
        for _ in range(50):
            change, options = appending(manifest.version, record), Commit(durable=durable)
            manifest = commit(store, change, base=manifest, options=options).manifest

    def pylance():
        dataset = lance.write_dataset(pa.table({"a": [1]}), str(folder / f"pylance{durable}{next(turns)}"))
        for _ in range(50):
            dataset = lance.LanceDataset.commit(dataset, append, read_version=dataset.version)

    compare(f"50 small commits, durable={durable}", ours, pylance)


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
