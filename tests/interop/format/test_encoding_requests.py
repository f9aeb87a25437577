"""What the metadata of fields asks of the writer: it is done, and pylance reads what comes out."""

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader, LanceFileWriter

import lance_core
from lance_core.errors import InvalidInputError
from lance_core.file import DataFileReader
from lance_core.store import open_store
from tests.support.data_files import read_ours, write_ours

ROWS = 20_000
RNG = np.random.default_rng(0)
COLUMNS = {
    "sequence": pa.array(np.arange(ROWS)),
    "rounded": pa.array(np.round(RNG.standard_normal(ROWS), 2)),
    "short runs": pa.array(np.repeat(RNG.integers(0, 2**15, ROWS), RNG.integers(1, 3, ROWS))[:ROWS].astype(np.uint16)),
    "few": pa.array(RNG.integers(0, 40, ROWS) * 10**12, mask=RNG.random(ROWS) < 0.1),
    "bytes": pa.array(RNG.integers(0, 255, ROWS).astype(np.uint8)),
    "strings": pa.array([f"the quick brown fox {i} jumps over {i * 7}" if i % 9 else None for i in range(ROWS)]),
    "words": pa.array([f"word {i}" for i in RNG.permutation(ROWS) % 3900]),
    "codes": pa.array([f"{n:04x}" for n in RNG.integers(0, 2**16, ROWS)]),
    "raw": pa.array([b"abc%d-the-quick" % i for i in range(ROWS)], pa.binary()),
    "tags": pa.array([[f"tag {i % 50}", f"tag {i % 7}"][: i % 3] for i in range(ROWS)]),
    "flags": pa.array([None if i % 7 == 0 else i % 3 == 0 for i in range(ROWS)]),
    "eights of flags": pa.FixedSizeListArray.from_arrays(pa.array(RNG.random(ROWS * 8) < 0.5), 8),
    "items": pa.array([f"item {i % 60}" for i in range(ROWS)]).dictionary_encode(),
}
# What is asked for, column, and what is then found in the description of its 2.2 page, which is not there otherwise.
EFFECTS = [
    ({"compression": "lz4"}, "strings", "COMPRESSION_ALGORITHM_LZ4"),
    ({"compression": "lz4"}, "raw", "COMPRESSION_ALGORITHM_LZ4"),
    ({"compression": "zstd"}, "rounded", "COMPRESSION_ALGORITHM_ZSTD"),
    ({"compression": "zstd", "compression-level": "9"}, "strings", "level: 9"),
    ({"compression": "zstd", "compression-level": "0"}, "codes", "COMPRESSION_ALGORITHM_ZSTD"),
    ({"compression": "fsst"}, "strings", "fsst"),
    ({"compression": "fsst"}, "raw", "fsst"),
    ({"compression": "fsst", "structural-encoding": "fullzip"}, "strings", "fsst"),
    ({"compression": "lz4", "structural-encoding": "fullzip"}, "codes", "COMPRESSION_ALGORITHM_ZSTD"),
    ({"structural-encoding": "fullzip"}, "sequence", "full_zip_layout"),
    ({"structural-encoding": "fullzip"}, "flags", "full_zip_layout"),
    ({"structural-encoding": "fullzip"}, "eights of flags", "full_zip_layout"),
    ({"structural-encoding": "miniblock"}, "noise", "mini_block_layout"),
    ({"bss": "on"}, "rounded", "byte_stream_split"),
    ({"compression": "zstd", "bss": "on"}, "rounded", "byte_stream_split"),
    ({"rle-threshold": "0.8"}, "short runs", "rle"),
    ({"rle-threshold": "0.8", "compression": "lz4"}, "short runs", "rle"),
    ({"dict-divisor": "5"}, "words", "num_dictionary_items: 3900"),
    ({"dict-size-ratio": "0.5"}, "words", "num_dictionary_items: 3900"),
    ({"dict-max-size": "100000"}, "words", "num_dictionary_items: 3900"),
    ({"dict-values-compression": "zstd", "dict-values-compression-level": "7"}, "items", "level: 7"),
]
# The same, of what is found otherwise and then no more.
ABSENCES = [
    ({"compression": "none"}, "sequence", "general"),
    ({"compression": "none"}, "few", "num_dictionary_items"),
    ({"bss": "off"}, "sequence", "byte_stream_split"),
    ({"rle-threshold": "0"}, "runs", "rle"),
    ({"dict-divisor": "1000"}, "few", "num_dictionary_items"),
    ({"dict-size-ratio": "0.01"}, "few", "num_dictionary_items"),
    ({"dict-max-size": "300"}, "few", "num_dictionary_items"),
    ({"dict-max-size": "100"}, "tags", "num_dictionary_items"),
    ({"dict-values-compression": "none"}, "many items", "general"),
]
MORE = {
    "noise": pa.array(RNG.standard_normal(ROWS)),
    "runs": pa.array(np.repeat(RNG.integers(0, 2**60, ROWS // 20), 20)),
    "many items": pa.array([f"item number {i}" for i in RNG.integers(0, 600, ROWS)]),
}


IMPOSSIBLE = [
    ("compression", "brotli"),
    ("compression-level", "fast"),
    ("compression-level", "23"),
    ("structural-encoding", "zipped"),
    ("bss", "maybe"),
    ("rle-threshold", "1.5"),
    ("rle-threshold", "nan"),
    ("dict-divisor", "0"),
    ("dict-divisor", "2.5"),
    ("dict-size-ratio", "0"),
    ("dict-max-size", "-1"),
    ("dict-values-compression", "fsst"),
    ("dict-values-compression-level", "-1"),
    ("minichunk-size", "1"),
]


def asked(column, wishes):
    """A table of one column with wishes where its values are: at the item of a list, otherwise at the field."""
    array = {**COLUMNS, **MORE}[column]
    metadata = keys_of(wishes)
    kind = array.type
    if pa.types.is_list(kind):
        array = array.cast(pa.list_(pa.field("item", kind.value_type, metadata=metadata)))
    return pa.table([array], schema=pa.schema([pa.field("c", array.type, metadata=metadata)]))


def all_wishes():
    return list({str(wishes): wishes for wishes, *_ in EFFECTS + ABSENCES}.values())


def keys_of(wishes):
    return {f"lance-encoding:{key}": value for key, value in wishes.items()}


def same(found, expected):
    """Whether two columns hold the same, whatever their types; that of equal types is seen at once."""
    found, expected = found.combine_chunks(), expected.combine_chunks()
    return (found.type == expected.type and found.equals(expected)) or found.to_pylist() == expected.to_pylist()


def described(root, key):
    """The descriptions of all pages of a file."""
    reader = DataFileReader.open(open_store(str(root)), key)
    pages = [
        column.page(index, 0, int(items))
        for column in reader.metadata.columns
        for index, items in enumerate(column.num_items)
    ]
    return " ".join(str(page.encoding) for page in pages)


def written(root, column, wishes, version="2.2"):
    """What our writer says about the pages, after everybody has read them."""
    table = asked(column, wishes)
    result = write_ours(root, table, version)
    path = str(root / result.key)
    rows = sorted(RNG.choice(ROWS, 40, replace=False).tolist())
    for found in (LanceFileReader(path).read_all().to_table(), read_ours(root, result.key)):
        assert same(found["c"], table["c"])
    for found in (LanceFileReader(path).take_rows(rows).to_table(), read_ours(root, result.key, rows=np.array(rows))):
        assert found["c"].to_pylist() == table["c"].take(rows).to_pylist()
    return described(root, result.key)


@pytest.mark.parametrize(("wishes", "column", "expected"), EFFECTS, ids=str)
def test_what_is_asked_for_is_done(tmp_path, wishes, column, expected):
    without = wishes if expected.startswith("level") else {}
    assert expected not in written(tmp_path, column, {k: v for k, v in without.items() if "level" not in k})
    assert expected in written(tmp_path, column, wishes)


@pytest.mark.parametrize(("wishes", "column", "unexpected"), ABSENCES, ids=str)
def test_what_is_not_wanted_is_left(tmp_path, wishes, column, unexpected):
    assert unexpected in written(tmp_path, column, {})
    assert unexpected not in written(tmp_path, column, wishes)


@pytest.mark.variants(13)
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("column", [*COLUMNS, *MORE])
@pytest.mark.parametrize("third", range(3))
def test_whatever_is_asked_for_is_readable(tmp_path, column, version, third):
    for wishes in all_wishes()[third::3]:
        written(tmp_path, column, wishes, version)


@pytest.mark.variants(13)
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("column", [*COLUMNS, *MORE])
@pytest.mark.parametrize("third", range(3))
def test_what_pylance_writes_on_request_is_read(tmp_path, column, version, third):
    rows = np.sort(RNG.choice(ROWS, 40, replace=False))
    for wishes in all_wishes()[third::3]:
        table = asked(column, wishes)
        with LanceFileWriter(str(tmp_path / "theirs.lance"), table.schema, version=version) as writer:
            writer.write_batch(table)
        assert same(read_ours(tmp_path, "theirs.lance")["c"], table["c"])
        assert read_ours(tmp_path, "theirs.lance", rows=rows)["c"].to_pylist() == table["c"].take(rows).to_pylist()


@pytest.mark.parametrize("compression", ["lz4", "zstd", "fsst"])
def test_strings_of_2_0_are_compressed(tmp_path, compression):
    for column in ("strings", "raw"):
        plain = written(tmp_path, column, {}, "2.0")
        asked_for = written(tmp_path, column, {"compression": compression}, "2.0")
        assert compression not in plain
        assert compression in asked_for


def test_chunks_of_strings_are_as_small_as_asked_for(tmp_path):
    def chunks(version, wishes):
        table = asked("words", wishes)
        result = write_ours(tmp_path, table, version)
        assert (
            LanceFileReader(str(tmp_path / result.key)).read_all().to_table()["c"].to_pylist() == table[0].to_pylist()
        )
        column = DataFileReader.open(open_store(str(tmp_path)), result.key).metadata.columns[0]
        # The first buffer of a page has 2 bytes (2.1) or 4 bytes (2.2) per chunk.
        ranges = [column.page(i, 0, int(n)).buffers[0] for i, n in enumerate(column.num_items)]
        return sum(end - start for start, end in ranges) // (2 if version == "2.1" else 4)

    for version in ("2.1", "2.2"):
        assert chunks(version, {"minichunk-size": "1024"}) > 3 * chunks(version, {"minichunk-size": "8192"}) > 3
        # Not smaller than for two of the longest values.
        assert chunks(version, {"minichunk-size": "16"}) <= ROWS // 2


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_dictionaries_are_written_however_small_chunks_are_to_be(tmp_path, version):
    array = pa.array([f"the same item {i}" for i in np.random.default_rng(0).integers(0, 39, 817)])
    for size in ("64", "128", "1024"):
        field = pa.field("c", array.type, metadata=keys_of({"minichunk-size": size}))
        table = pa.table([array], schema=pa.schema([field]))
        path = str(tmp_path / write_ours(tmp_path, table, version).key)
        assert LanceFileReader(path).read_all().to_table()["c"].to_pylist() == array.to_pylist()


def test_the_layout_of_a_top_level_field_holds_for_the_leaves_below(tmp_path):
    wish = keys_of({"structural-encoding": "fullzip"})
    array = pa.array([[{"x": i, "y": i * 2}] * (i % 3) for i in range(500)])
    table = pa.table([array], schema=pa.schema([pa.field("c", array.type, metadata=wish)]))
    result = write_ours(tmp_path, table)
    assert LanceFileReader(str(tmp_path / result.key)).read_all().to_table().to_pylist() == table.to_pylist()
    text = described(tmp_path, result.key)
    assert text.count("full_zip_layout") == 2
    assert "mini_block_layout" not in text
    # What the leaf says is nearer.
    leaf = pa.field("x", pa.int64(), metadata=keys_of({"structural-encoding": "miniblock"}))
    array = pa.array([{"x": i} for i in range(500)], pa.struct([leaf]))
    table = pa.table([array], schema=pa.schema([pa.field("c", array.type, metadata=wish)]))
    assert "full_zip_layout" not in described(tmp_path, write_ours(tmp_path, table).key)


@pytest.mark.parametrize(("key", "value"), IMPOSSIBLE, ids=str)
@pytest.mark.parametrize("version", ["legacy", "2.0", "2.2"])
def test_what_is_not_possible_is_rejected_before_anything_is_written(tmp_path, key, value, version):
    inner = pa.field("inner", pa.string(), metadata=keys_of({key: value}))
    table = pa.table({"c": pa.array([{"inner": "a"}], pa.struct([inner]))})
    with pytest.raises(InvalidInputError, match=f"field 'inner': lance-encoding:{key} is '{value}', but must be "):
        lance_core.write_dataset(table, str(tmp_path / "t"), data_storage_version=version)
    assert not list(tmp_path.rglob("*.lance"))
    assert not list(tmp_path.rglob("*.manifest"))


def test_keys_of_others_are_kept(tmp_path):
    mine = {"lance-encoding:later": "1", "mine": "2", "lance-encoding:compression": " ZSTD "}
    table = pa.table({"c": [1, 2]}, schema=pa.schema([pa.field("c", pa.int64(), metadata=mine)]))
    found = lance_core.write_dataset(table, str(tmp_path / "t")).schema.field("c").metadata
    assert {key.decode(): value.decode() for key, value in found.items()} == mine
