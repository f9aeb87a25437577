"""Write tables with the release of pylance that is installed: run by `test_history.py` in an environment of its own.

python write_tables.py FOLDER       a table per file version; prints, as JSON, the indices of each
"""

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa

VERSIONS = ("legacy", "2.0", "2.1", "2.2")
INDICES = (
    ("id", "BTREE"),
    ("s", "BITMAP"),
    ("l", "LABEL_LIST"),
    ("s", "INVERTED"),
    ("s", "NGRAM"),
    ("n", "ZONEMAP"),
    ("id", "BLOOMFILTER"),
    ("v", "IVF_PQ"),
)


def rows(start, count):
    """Rows whose values follow from their `id`."""
    ids = range(start, start + count)
    vectors = pa.array([float((i + place) % 97) for i in ids for place in range(8)], pa.float32())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "n": pa.array([None if i % 7 == 0 else i % 13 for i in ids], pa.int32()),
            "s": pa.array([f"text {i % 11}" for i in ids]),
            "l": pa.array([[f"t{i % 5}", f"t{i % 3}"] for i in ids]),
            "v": pa.FixedSizeListArray.from_arrays(vectors, 8),
            "d": pa.array([f"d{i % 4}" for i in ids]).dictionary_encode(),
            "st": pa.array([{"x": i, "y": f"y{i % 3}"} for i in ids]),
        }
    )


def write(uri, version):
    """A table of four fragments with a deletion; returns the kinds of its indices."""
    import lance

    lance.write_dataset(rows(0, 300), uri, data_storage_version=version, max_rows_per_file=150)
    dataset = lance.write_dataset(rows(300, 300), uri, mode="append", max_rows_per_file=150)
    made = []
    for column, kind in INDICES:
        name = f"{column}_{kind.lower()}"
        try:
            if kind == "IVF_PQ":
                dataset.create_index(column, kind, name=name, num_partitions=2, num_sub_vectors=2)
            else:
                dataset.create_scalar_index(column, kind, name=name)
        except BaseException:  # noqa: BLE001 - kinds that a release does not know, or panics over
            continue
        dataset = lance.dataset(uri)
        made.append(kind)
    lance.dataset(uri).delete("id = 17")
    return made


def main(folder):
    found = {}
    for version in VERSIONS:
        uri = str(Path(folder) / version)
        try:
            found[version] = write(uri, version)
        except BaseException:  # noqa: BLE001 - versions that a release does not know, or panics over
            shutil.rmtree(uri, ignore_errors=True)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
