"""Write tables with the release of pylance that is installed: run by `test_history.py` in an environment of its own.

python write_tables.py FOLDER       a table per file version; prints, as JSON, the columns and kinds of indices of each
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


def is_written(uri, table, version):
    """Whether the release writes the rows in files of that version, and does not panic over them."""
    import lance

    try:
        lance.write_dataset(table, uri, data_storage_version=version, max_rows_per_file=150)
    except BaseException:  # noqa: BLE001 - its panics are no Exception
        return False
    finally:
        shutil.rmtree(uri, ignore_errors=True)
    return True


def write(uri, version):
    """A table of four fragments with a deletion; returns its columns, and the kinds of its indices."""
    import lance

    columns = [name for name in rows(0, 1).column_names if is_written(uri, rows(0, 300).select([name]), version)]
    if not columns:
        return None
    lance.write_dataset(rows(0, 300).select(columns), uri, data_storage_version=version, max_rows_per_file=150)
    dataset = lance.write_dataset(rows(300, 300).select(columns), uri, mode="append", max_rows_per_file=150)
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
    return {"columns": columns, "indices": made}


def main(folder):
    found = {version: write(str(Path(folder) / version), version) for version in VERSIONS}
    sys.stdout.write(json.dumps({version: made for version, made in found.items() if made}))


if __name__ == "__main__":
    main(sys.argv[1])
