"""Moves the files of all fragments of a table to a base path beside it, or back."""

import lance_core
from lance_core.maintenance.moves import OWN_FOLDER, move_fragments


def move_all(uri):
    """Move the fragments that are not in the base path, or all of them back; returns the table."""
    table = lance_core.dataset(uri)
    if "cold" not in {base.name for base in table.base_paths().values()}:
        table.add_bases([lance_core.DatasetBasePath(f"{uri}-cold", name="cold")])
        table.checkout_latest()
    fragments = list(table.snapshot.manifest.fragments)
    hot = [fragment for fragment in fragments if any(file.base_id is None for file in fragment.files)]
    move_fragments(table, hot or fragments, "cold" if hot else OWN_FOLDER)
    return table
