"""Append the same one-row file some times: `appender.py ours|pylance URI COUNT FRAGMENT_JSON OPTIONS_JSON`."""

import json
import sys


def main(library, uri, count, fragment, options):
    append = {"ours": append_ours, "pylance": append_pylance}[library](uri, json.loads(fragment), json.loads(options))
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(count)):
        append()
    print("done", flush=True)


def append_ours(uri, fragment, options):
    from lance_core.commit.loop import commit
    from lance_core.commit.versions import load_latest
    from lance_core.store import open_store
    from lance_core.table.fragment import DataFile, Fragment
    from lance_core.table.operations import Append
    from lance_core.table.transaction import Transaction

    (file,) = fragment["files"]
    fields = {name: tuple(file.pop(name)) for name in ("fields", "column_indices")}
    new = Fragment(files=(DataFile(**file, **fields),), physical_rows=fragment["physical_rows"])

    def append():
        store = open_store(uri, options)
        base = load_latest(store)
        commit(store, Transaction(read_version=base.version, operation=Append(fragments=(new,))), base=base)

    return append


def append_pylance(uri, fragment, options):
    import lance

    operation = lance.LanceOperation.Append([lance.FragmentMetadata.from_json(json.dumps(fragment))])

    def append():
        ds = lance.dataset(uri, storage_options=options)
        lance.LanceDataset.commit(ds, operation, read_version=ds.version, max_retries=200)

    return append


if __name__ == "__main__":
    main(*sys.argv[1:])
