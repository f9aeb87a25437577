"""More than 100,000 broken files: each ends in its rows, in other rows, or in an error of ours.

The files are ours, with every encoding that can be asked for, and pylance's. The damage is seeded, so that "version, number" names an input. What once ended in anything else is kept in `crashers`.
"""

import functools
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

from lance_core.errors import LanceError
from lance_core.file import DataFileReader, DataFileWriter, FileVersion
from lance_core.schema import schema_from_arrow
from lance_core.store.memory import MemoryStore
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.table.manifest.manifest import Manifest
from tests.lance_core.file.damage import damaged, misdescribed
from tests.memory import forget_peak, peak_mb

VERSIONS = ["0.1", "2.0", "2.1", "2.2"]
INPUTS = 40_000
MANIFESTS = 16_000
SECONDS = 5
EXTRA_MB = 1_000
ROWS = 300
CRASHERS = Path(__file__).parent / "crashers"

COLUMNS = {
    "i": pa.array(range(ROWS)),
    "n": pa.array([None if i % 7 == 0 else i * i for i in range(ROWS)], pa.int32()),
    "r": pa.array([i // 50 for i in range(ROWS)]),
    "f": pa.array(np.random.default_rng(0).normal(size=ROWS)),
    "s": pa.array([None if i % 7 == 0 else f"text {i} " * (i % 5) for i in range(ROWS)]),
    "w": pa.array(["ab"[i % 2] for i in range(ROWS)]),
    "d": pa.array([f"key {i % 9}" for i in range(ROWS)]).dictionary_encode(),
    "l": pa.array([None if i % 5 == 0 else list(range(i % 4)) for i in range(ROWS)]),
    "t": pa.array([{"x": i, "y": i % 2 == 0} for i in range(ROWS)]),
    "v": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 2, dtype="f4")), 2),
    "big": pa.array(["x" * 3000 if i % 100 == 0 else None for i in range(ROWS)]),
    "b": pa.array([i % 3 == 0 for i in range(ROWS)]),
    "c": pa.array([1.5] * ROWS),
}
GROUPS = [["i", "n", "w"], ["s", "c"], ["l", "b"], ["t", "r"], ["v", "d"], ["big", "f"]]
# Columns whose fields ask for an encoding.
REQUESTS = [
    {"s": {"compression": "fsst"}},
    {"s": {"compression": "fsst", "structural-encoding": "fullzip"}},
    {"s": {"compression": "zstd", "structural-encoding": "fullzip"}, "i": {"structural-encoding": "fullzip"}},
    {"s": {"compression": "lz4"}, "f": {"bss": "on"}, "r": {"rle-threshold": "1"}},
    {"s": {"compression": "zstd"}, "w": {"dict-divisor": "2", "dict-values-compression": "zstd"}},
    {"l": {"structural-encoding": "fullzip"}, "b": {"structural-encoding": "fullzip"}},
    {"t": {"packed": "true"}, "v": {"structural-encoding": "miniblock"}},
    {"blob": {"blob": "true"}},
]
# A struct in chunks, one of varying length that is zipped, null items in lists of equal length, entries of maps.
ASKED = {
    "t": pa.array([{"x": i, "y": i / 2} for i in range(ROWS)]),
    "v": pa.array([None if i % 9 == 0 else [i, None if i % 4 else i] for i in range(ROWS)], pa.list_(pa.int32(), 2)),
    "blob": pa.array([None if i % 9 == 0 else b"blob" * i for i in range(ROWS)], pa.large_binary()),
}
OF_2_2 = {
    "p": pa.array([{"x": i, "y": f"text {i}"} for i in range(ROWS)]),
    "m": pa.array([[("key", i)] * (i % 3) for i in range(ROWS)], pa.map_(pa.string(), pa.int64())),
}


def tables(version):
    # 0.1 holds no null numbers
    columns = COLUMNS | {"n": COLUMNS["n"].fill_null(0)} if version == "0.1" else COLUMNS
    yield from (pa.table({name: columns[name] for name in names}) for names in GROUPS)
    if version == "0.1":
        return
    for wishes in REQUESTS:
        if version == "2.0" and "t" in wishes:
            continue
        fields, arrays = [], []
        for name, wish in wishes.items():
            arrays.append(ASKED.get(name, COLUMNS.get(name)))
            metadata = {f"lance-encoding:{key}": value for key, value in wish.items()}
            fields.append(pa.field(name, arrays[-1].type, metadata=metadata))
        if version != "2.2" or "blob" not in wishes:
            yield pa.table(arrays, schema=pa.schema(fields))
    if version == "2.2":
        packed = pa.field("p", OF_2_2["p"].type, metadata={"lance-encoding:packed": "true"})
        yield pa.table([OF_2_2["p"], OF_2_2["m"]], schema=pa.schema([packed, pa.field("m", OF_2_2["m"].type)]))


@functools.cache
def good_files(version):
    """What we and pylance write, as bytes."""
    files = []
    for table in tables(version):
        store = MemoryStore("memory://fuzz")
        writer = DataFileWriter(store, "f", schema_from_arrow(table.schema), version=FileVersion(version))
        writer.write(table)
        writer.finish()
        files.append(bytes(store.get("f")))
        if version != "0.1":
            with tempfile.NamedTemporaryFile(suffix=".lance") as file:
                with LanceFileWriter(file.name, table.schema, version=version) as theirs:
                    theirs.write_batch(table)
                files.append(Path(file.name).read_bytes())
    return files


def good_manifest():
    schema = schema_from_arrow(pa.schema({name: array.type for name, array in COLUMNS.items()}))
    file = DataFile(path="f.lance", fields=(0, 1, 2), column_indices=(0, 1, 2), file_major_version=2,
                    file_minor_version=2, file_size_bytes=999)  # fmt: skip
    fragments = [Fragment(id=number, files=(file,), physical_rows=ROWS) for number in range(3)]
    manifest = Manifest(version=7, schema=schema, fragments=FragmentList.of(fragments), config={"a": "b"})
    return manifest.to_bytes(b"transaction")


def read(data, rng):
    store = MemoryStore("memory://fuzz")
    store.put("f", data)
    reader = DataFileReader.open(store, "f")
    rows = np.array([1, 77, 250]) if rng.random() < 0.3 else None
    for batch in reader.read(rows=rows, batch_rows=None):
        validate(batch)


def validate(batch):
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        # Flipped bytes of a string are the text, as far as the format lets us know.
        if "UTF8" not in str(error):
            raise


def check(name, data, work):
    start = time.process_time()  # what it costs, and not what runs beside it
    try:
        work(data)
    except LanceError:
        return
    except Exception as error:
        raise AssertionError(f"{name}: {error!r}") from error
    finally:
        seconds = time.process_time() - start
        assert seconds < SECONDS, f"{name} took {seconds} s"


def run(version, numbers):
    files = good_files(version)
    forget_peak()
    before = peak_mb()
    for number in numbers:
        rng = random.Random(f"{version}, {number}")
        turn, index = divmod(number, len(files))
        data = (misdescribed if turn % 2 and version != "0.1" else damaged)(files[index], rng)
        check(f"{version}, {number}", data, lambda data, rng=rng: read(data, rng))
    assert peak_mb() < before + EXTRA_MB


@pytest.mark.parametrize("version", VERSIONS)
def test_some_damaged_files(version):
    run(version, range(INPUTS, INPUTS + 400))


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_many_damaged_files(version):
    run(version, range(INPUTS))


def run_manifests(numbers):
    good = good_manifest()
    for number in numbers:
        rng = random.Random(f"manifest, {number}")
        check(f"manifest, {number}", damaged(good, rng), read_manifest)


def read_manifest(data):
    manifest = Manifest.from_bytes(data)
    assert manifest.max_field_id >= -1
    assert sum(fragment.num_rows for fragment in manifest.fragments) >= -(2**63)


def test_some_damaged_manifests():
    run_manifests(range(MANIFESTS, MANIFESTS + 500))


@pytest.mark.slow
def test_many_damaged_manifests():
    run_manifests(range(MANIFESTS))


def test_files_that_once_did_harm():
    for path in sorted(CRASHERS.glob("*")):
        data = path.read_bytes()
        for seed in range(4):
            rng = random.Random(seed)
            check(path.name, data, read_manifest if path.suffix == ".manifest" else lambda d, rng=rng: read(d, rng))
