"""Indices of 10M rows against pylance: building them, and the rows of one value."""

import shutil
import tempfile
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_core
from tests.benchmarks.timing import medians, report

ROWS = 10_000_000
LIBRARIES = {"own": lance_core, "other": lance}


def one_kind(uris: dict[str, str], kind: str, column: str) -> None:
    """Build an index, and look values up by new handles and by open ones."""
    condition = f"{column} = 77"

    def build(name: str):
        return lambda: LIBRARIES[name].dataset(uris[name]).create_scalar_index(column, kind)

    def look_up(name: str):
        return lambda: LIBRARIES[name].dataset(uris[name]).to_table(filter=condition)

    built = medians({name: build(name) for name in uris}, rounds=1)
    report([(f"{kind}: build on {column}", built["own"], built["other"], 0.5)])
    cold = medians({name: look_up(name) for name in uris})
    report([(f"{kind}: {condition}, a new handle", cold["own"], cold["other"], 1.0)])
    handles = {name: LIBRARIES[name].dataset(uri) for name, uri in uris.items()}
    warm = medians({name: lambda one=one: one.to_table(filter=condition) for name, one in handles.items()})
    report([(f"{kind}: {condition}, an open handle", warm["own"], warm["other"], 1.0)])
    for name, uri in uris.items():
        LIBRARIES[name].dataset(uri).drop_index(f"{column}_idx")


def main() -> None:
    """Run and print."""
    rng = np.random.default_rng(0)
    rows = pa.table({
        "key": pa.array(rng.permutation(ROWS)),
        "group": pa.array(rng.integers(0, 1000, ROWS).astype(np.int32)),
        "value": pa.array(rng.random(ROWS)),
    })  # fmt: skip
    folder = Path(tempfile.mkdtemp())
    uris = {"own": str(folder / "ours"), "other": str(folder / "theirs")}
    try:
        lance_core.write_dataset(rows, uris["own"], max_rows_per_file=1_000_000)
        shutil.copytree(uris["own"], uris["other"])
        for kind, column in (("BTREE", "key"), ("BITMAP", "group"), ("ZONEMAP", "key")):
            one_kind(uris, kind, column)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
