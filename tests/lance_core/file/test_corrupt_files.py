"""Broken files end in an error that names the file; never in a crash, a hang, or invented values."""

import random
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from lance_core.errors import CorruptFileError, InvalidInputError, LanceError, StoreError, UnsupportedError
from lance_core.file import DataFileReader, DataFileWriter, FileVersion
from lance_core.file.column import located
from lance_core.file.metadata import Footer
from lance_core.schema import schema_from_arrow
from lance_core.store import open_store

TABLE = pa.table(
    {
        "i": pa.array(range(3000)),
        "r": pa.array(np.random.default_rng(0).integers(0, 2**60, 3000)),
        "s": pa.array([None if i % 7 == 0 else f"text {i} " * (i % 5) for i in range(3000)]),
        "w": pa.array(["ab"[i % 2] for i in range(3000)]),
        "l": pa.array([None if i % 5 == 0 else list(range(i % 4)) for i in range(3000)]),
        "t": pa.array([{"x": i, "y": i % 2 == 0} for i in range(3000)]),
        "v": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6000, dtype="f4")), 2),
        "big": pa.array(["x" * 3000 if i % 100 == 0 else None for i in range(3000)]),
        "c": pa.array([1.5] * 3000),
    }
)
VERSIONS = ["0.1", "2.0", "2.1", "2.2"]


def file_bytes(tmp_path, version):
    store = open_store(str(tmp_path))
    writer = DataFileWriter(store, "good.lance", schema_from_arrow(TABLE.schema), version=FileVersion(version))
    writer.write(TABLE)
    writer.finish()
    return (tmp_path / "good.lance").read_bytes()


def read(tmp_path, data, rows=None):
    (tmp_path / "bad.lance").write_bytes(data)
    reader = DataFileReader.open(open_store(str(tmp_path)), "bad.lance")
    for batch in reader.read(rows=rows):
        batch.validate()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_cut_short_is_rejected(tmp_path, version):
    data = file_bytes(tmp_path, version)
    for size in [0, 1, 7, 8, 39, 40, 100, len(data) // 2, len(data) - 1]:
        with pytest.raises(CorruptFileError, match=r"bad\.lance"):
            read(tmp_path, data[:size])


@pytest.mark.parametrize("version", VERSIONS)
def test_flipped_bytes_give_values_or_an_error_of_ours(tmp_path, version):
    data = file_bytes(tmp_path, version)
    rng = random.Random(version)
    messages = []
    for _ in range(60):
        broken = bytearray(data)
        # Half of the damage goes to the metadata, where it does most harm.
        low = len(data) - 3000 if rng.random() < 0.5 else 0
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(low, len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        rows = np.array([1, 77, 2500]) if rng.random() < 0.5 else None
        try:
            read(tmp_path, bytes(broken), rows)
        except LanceError as error:
            messages.append(str(error))
    assert messages
    assert [message for message in messages if "bad.lance" not in message] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_wrong_size_in_the_manifest_is_noticed(tmp_path, version):
    data = file_bytes(tmp_path, version)
    with pytest.raises(CorruptFileError, match=r"good\.lance.*manifest"):
        DataFileReader.open(open_store(str(tmp_path)), "good.lance", size=len(data) + 1)


def test_a_version_from_the_future_is_rejected_by_name(tmp_path):
    data = bytearray(file_bytes(tmp_path, "2.2"))
    data[-6:-4] = (3).to_bytes(2, "little")
    with pytest.raises(UnsupportedError, match=r"bad\.lance.*2\.3"):
        read(tmp_path, bytes(data))


def test_huge_counts_allocate_nothing(tmp_path):
    data = file_bytes(tmp_path, "2.2")
    footer = Footer.from_bytes(data[-40:])
    broken = (
        data[:-40]
        + Footer(
            column_metadata=footer.column_metadata,
            column_table=footer.column_table,
            buffer_table=footer.buffer_table,
            num_buffers=2**31,
            num_columns=2**32 - 1,
            major=2,
            minor=2,
        ).to_bytes()
    )
    tracemalloc.start()
    with pytest.raises(CorruptFileError, match=r"bad\.lance"):
        read(tmp_path, broken)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 1024 * 1024


def test_the_message_names_file_column_and_page(tmp_path):
    data = bytearray(file_bytes(tmp_path, "2.2"))
    (tmp_path / "bad.lance").write_bytes(data)
    reader = DataFileReader.open(open_store(str(tmp_path)), "bad.lance")
    position = reader.metadata.columns[2].page(0, 0, 3000).buffers[0][0]
    data[position : position + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptFileError, match=r"bad\.lance: column 's', page 0: "):
        read(tmp_path, bytes(data))


def test_a_column_that_is_not_read_may_be_described_by_garbage(tmp_path):
    data = bytearray(file_bytes(tmp_path, "2.2"))
    footer = Footer.from_bytes(bytes(data[-40:]))
    position, length = struct.unpack_from("<QQ", data, footer.column_table + 16)
    data[position : position + length] = b"\xff" * length
    (tmp_path / "bad.lance").write_bytes(data)
    reader = DataFileReader.open(open_store(str(tmp_path)), "bad.lance")
    names = TABLE.schema.names
    (batch,) = reader.read(reader.schema.project([names[0]]), batch_rows=None)
    assert batch.column(0) == TABLE.column(0).combine_chunks()
    with pytest.raises(CorruptFileError, match=r"(?m)^bad\.lance: the metadata of column 1 cannot be parsed$"):
        list(reader.read(reader.schema.project([names[1]])))


def test_a_column_that_is_described_outside_of_its_place_is_rejected_at_once(tmp_path):
    data = bytearray(file_bytes(tmp_path, "2.2"))
    footer = Footer.from_bytes(bytes(data[-40:]))
    struct.pack_into("<Q", data, footer.column_table + 16, footer.column_table)
    (tmp_path / "bad.lance").write_bytes(data)
    with pytest.raises(
        CorruptFileError, match=r"bad\.lance: the metadata of column 1 is not between the pages and the offset table"
    ):
        DataFileReader.open(open_store(str(tmp_path)), "bad.lance")


@pytest.mark.parametrize(
    "error",
    [
        TypeError("a mistake of ours"),
        MemoryError("no memory"),
        InvalidInputError("a row that is not there"),
        StoreError("no answer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_is_not_the_files_is_not_blamed_on_it(error):
    with pytest.raises(type(error), match=str(error)), located("f.lance"):
        raise error
