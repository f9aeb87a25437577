"""Tables whose manifests say what a test wants."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import lance_core as lance
from lance_core.commit.versions import load_latest
from lance_core.store import open_store
from lance_core.table.fragment_list import FragmentList

ROWS = pa.table({"a": range(6), "b": ["x"] * 6})


def table(path, rows=ROWS, **options):
    return lance.write_dataset(rows, path, **options)


def forge(path, change):
    """Write the latest manifest again, changed; its file keeps its name."""
    store = open_store(str(path))
    manifest = load_latest(store)
    store.put(manifest.location.key, change(manifest).to_bytes(manifest.transaction_bytes))
    return Path(store.root)


def forge_fragments(path, change):
    """Change each fragment of the latest manifest."""

    def changed(manifest):
        return replace(manifest, fragments=FragmentList.of([change(fragment) for fragment in manifest.fragments]))

    return forge(path, changed)


def forge_files(root, /, **fields):
    """Change the data files of all fragments."""
    return forge_fragments(root, lambda f: replace(f, files=tuple(replace(file, **fields) for file in f.files)))
