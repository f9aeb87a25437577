"""More than 100,000 broken files: each ends in its rows, in other rows, or in an error of ours.

The damage is seeded, so that "version, number" names an input. What once ended in anything else is kept in `crashers`.
"""

import random
import resource
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core.errors import LanceError
from lance_core.file import DataFileReader, DataFileWriter, FileVersion
from lance_core.schema import schema_from_arrow
from lance_core.store.memory import MemoryStore
from lance_core.table.fragment import DataFile, Fragment, FragmentList
from lance_core.table.manifest import Manifest

VERSIONS = ["0.1", "2.0", "2.1", "2.2"]
INPUTS = 22_000
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


def good_files(version):
    files = []
    for names in GROUPS:
        table = pa.table({name: COLUMNS[name] for name in names})
        store = MemoryStore("memory://fuzz")
        writer = DataFileWriter(store, "f", schema_from_arrow(table.schema), version=FileVersion(version))
        writer.write(table)
        writer.finish()
        files.append(bytes(store.get("f")))
    return files


def good_manifest():
    schema = schema_from_arrow(pa.schema({name: array.type for name, array in COLUMNS.items()}))
    file = DataFile(path="f.lance", fields=(0, 1, 2), column_indices=(0, 1, 2), file_major_version=2,
                    file_minor_version=2, file_size_bytes=999)  # fmt: skip
    fragments = [Fragment(id=number, files=(file,), physical_rows=ROWS) for number in range(3)]
    manifest = Manifest(version=7, schema=schema, fragments=FragmentList.of(fragments), config={"a": "b"})
    return manifest.to_bytes(b"transaction")


def damaged(good, rng):
    """Some bytes set, copied over others, cut out, or the end cut off."""
    data = bytearray(good)
    # The metadata stands at the end, and damage to it does most harm.
    low = max(0, len(data) - 1200) if rng.random() < 0.6 else 0
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at = rng.randrange(low, len(data))
        kind = rng.random()
        if kind < 0.5:
            data[at] = rng.choice([0, 1, 2, 127, 128, 254, 255, rng.randrange(256)])
        elif kind < 0.7:
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 0.85:
            width = rng.choice([2, 4, 8])
            value = rng.choice([0, 1, len(data), 2**15, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1])
            data[at : at + width] = (value & ((1 << (8 * width)) - 1)).to_bytes(width, "little")
        elif kind < 0.95:
            source = rng.randrange(len(data))
            length = rng.randrange(1, 64)
            data[at : at + length] = data[source : source + length]
        else:
            del data[at : at + rng.randrange(1, 32)]
            low = min(low, max(len(data) - 1, 0))
    return bytes(data)


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
        # Flipped bytes of a text are the text, as far as the format lets us know.
        if "UTF8" not in str(error):
            raise


def check(name, data, work):
    start = time.monotonic()
    try:
        work(data)
    except LanceError:
        return
    except Exception as error:
        raise AssertionError(f"{name}: {error!r}") from error
    finally:
        seconds = time.monotonic() - start
        assert seconds < SECONDS, f"{name} took {seconds} s"


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def run(version, numbers):
    files = good_files(version)
    before = peak_mb()
    for number in numbers:
        rng = random.Random(f"{version}, {number}")
        data = damaged(files[number % len(files)], rng)
        check(f"{version}, {number}", data, lambda data, rng=rng: read(data, rng))
    assert peak_mb() < before + EXTRA_MB


@pytest.mark.parametrize("version", VERSIONS)
def test_some_damaged_files(version):
    run(version, range(INPUTS, INPUTS + 150))


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
