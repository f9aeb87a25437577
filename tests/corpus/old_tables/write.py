"""Write the tables of an early release of pylance: run in an environment of its own, in which that release is installed.

    python write.py FOLDER      writes FOLDER/<release>.zip

Python 3.11, `numpy<2` and `pyarrow==14.0.2` go with all releases from 0.3.19 to 0.18.2.
"""

import datetime as dt
import shutil
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

OPTIONS = {
    "legacy": [{"data_storage_version": "legacy"}, {}],
    "2.0": [{"data_storage_version": "2.0"}, {"use_legacy_format": False}],
}
"""For each version of files the arguments that ask for it, in the words of late and of early releases."""


def rows(start, count):
    """Rows whose values follow from their `id`; early releases have no nulls but those of strings."""
    ids = range(start, start + count)
    vectors = pa.array([float((i + place) % 97) for i in ids for place in range(4)], pa.float32())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "n": pa.array([i % 3 for i in ids], pa.int32()),
            "f": pa.array([i / 4 for i in ids], pa.float64()),
            "s": pa.array([f"text {i % 4}" for i in ids]),
            "b": pa.array([b"\x00" * (i % 3) for i in ids], pa.binary()),
            "day": pa.array([dt.date(2024, 1, 1) + dt.timedelta(i) for i in ids]),
            "at": pa.array([dt.datetime(2024, 1, 1, i % 24) for i in ids], pa.timestamp("us")),
            "l": pa.array([[i] * (i % 3) for i in ids], pa.list_(pa.int32())),
            "v": pa.FixedSizeListArray.from_arrays(vectors, 4),
            "d": pa.array([f"d{i % 2}" for i in ids]).dictionary_encode(),
            "st": pa.array([{"x": i, "y": f"y{i % 3}"} for i in ids]),
        }
    )


def is_done(work):
    """Whether the release can do something; what it cannot do is an error or a panic."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - its panics are no Exception
        sys.stderr.write(f"{error!r:.200}\n")
        return False
    return True


def write(folder, leaves_out=(), **options):
    """A table of three fragments of two versions, one of which lost a row; and an index, if the release builds one."""
    import lance

    def write_column(name):
        place = f"{folder}-{name}"
        try:
            lance.write_dataset(rows(0, 2).select([name]), place, **options)
            assert lance.dataset(place).to_table().num_rows == 2
        finally:
            shutil.rmtree(place, ignore_errors=True)

    names = [name for name in rows(0, 1).column_names if name not in leaves_out]
    columns = [name for name in names if is_done(lambda name=name: write_column(name))]
    assert columns
    lance.write_dataset(rows(0, 8).select(columns), folder, max_rows_per_file=5, max_rows_per_group=5, **options)
    appends = is_done(lambda: lance.write_dataset(rows(8, 3).select(columns), folder, mode="append", **options))
    if not appends and not leaves_out:  # the earliest releases append no dictionaries
        shutil.rmtree(folder)
        return write(folder, ["d"], **options)
    is_done(lambda: lance.dataset(folder).delete("id = 6"))
    is_done(lambda: lance.dataset(folder).create_scalar_index("id", "BTREE"))
    return None


def main(target):
    """Write the archive."""
    release = version("pylance")
    with tempfile.TemporaryDirectory() as place:
        for version_of_files, attempts in OPTIONS.items():
            folder = Path(place, version_of_files)
            for options in attempts:
                if is_done(lambda folder=folder, options=options: write(str(folder), **options)):
                    break
                shutil.rmtree(folder, ignore_errors=True)
        with zipfile.ZipFile(Path(target, f"{release}.zip"), "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(place).rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(place))


if __name__ == "__main__":
    main(sys.argv[1])
