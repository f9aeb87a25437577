"""Packed structs in both directions, and what cannot be packed."""

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader, LanceFileWriter

import lance_core
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from tests.support.data_files import read_ours, write_ours

ROWS = 3000
METADATA = {"lance-encoding:packed": "true"}
NUMBERS = {
    "integers": pa.array(range(ROWS)),
    "bytes": pa.array([i % 100 for i in range(ROWS)], pa.uint8()),
    "floats": pa.array(np.arange(ROWS).astype("f2")),
    "decimals": pa.array(range(ROWS), pa.decimal256(50)),
    "binaries": pa.array([b"%05d" % i for i in range(ROWS)], pa.binary(5)),
    "timestamps": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
}
LISTS = {
    "vectors": pa.array([[float(i), 1.0] for i in range(ROWS)], pa.list_(pa.float32(), 2)),
    "matrices": pa.array([[[i, 1], [2, 3]] for i in range(ROWS)], pa.list_(pa.list_(pa.int16(), 2), 2)),
}
STRINGS = {
    "strings": pa.array([f"text {i}" for i in range(ROWS)]),
    "large binaries": pa.array([b"x" * (i % 7) for i in range(ROWS)], pa.large_binary()),
    "null items": pa.array([[float(i), None] for i in range(ROWS)], pa.list_(pa.float32(), 2)),
    "eights of booleans": pa.array([[i % 2 == 0] * 8 for i in range(ROWS)], pa.list_(pa.bool_(), 8)),
}
POSSIBLE = [
    *((name, version) for name in NUMBERS for version in ("2.0", "2.1", "2.2")),
    *((name, version) for name in LISTS for version in ("2.0", "2.2")),
    *((name, "2.2") for name in STRINGS),
]
NEVER = {
    "booleans": pa.array([True] * ROWS),
    "dictionaries": pa.array(["a"] * ROWS).dictionary_encode(),
    "structs": pa.array([{"x": 1}] * ROWS),
    "lists": pa.array([[1]] * ROWS),
    "nothing": pa.nulls(ROWS),
    "threes of booleans": pa.array([[True] * 3] * ROWS, pa.list_(pa.bool_(), 3)),
}
IMPOSSIBLE = [
    *((name, version) for name in NEVER for version in ("2.0", "2.1", "2.2")),
    *((name, "2.1") for name in LISTS),
    *((name, version) for name in ("strings", "large binaries") for version in ("2.0", "2.1")),
]


def packed(values, mask=None):
    """A table of a packed struct of numbers and other values."""
    array = pa.StructArray.from_arrays([NUMBERS["integers"], values], ["number", "value"], mask=mask)
    return pa.table([array], schema=pa.schema([pa.field("c", array.type, metadata=METADATA)]))


def check_both_ways(root, table, version):
    expected = table.to_pylist()
    rows = np.arange(0, table.num_rows, 37)
    assert len(write_ours(root, table, version, key="ours.lance", batch_rows=1000).field_ids) == 1
    with LanceFileWriter(str(root / "theirs.lance"), table.schema, version=version) as writer:
        writer.write_batch(table)
    assert LanceFileReader(str(root / "ours.lance")).read_all().to_table().to_pylist() == expected
    assert LanceFileReader(str(root / "ours.lance")).take_rows(rows.tolist()).to_table().to_pylist() == expected[::37]
    for key in ("ours.lance", "theirs.lance"):
        assert read_ours(root, key).to_pylist() == expected
        assert read_ours(root, key, rows=rows).to_pylist() == expected[::37]


@pytest.mark.variants(6)
@pytest.mark.parametrize(("name", "version"), POSSIBLE)
def test_what_can_be_packed(tmp_path, name, version):
    check_both_ways(tmp_path, packed({**NUMBERS, **LISTS, **STRINGS}[name]), version)


@pytest.mark.parametrize(("name", "version"), [("integers", "2.1"), ("integers", "2.2"), ("strings", "2.2")])
def test_packed_structs_that_are_null(tmp_path, name, version):
    check_both_ways(
        tmp_path, packed({**NUMBERS, **STRINGS}[name], pa.array([i % 3 == 0 for i in range(ROWS)])), version
    )


@pytest.mark.parametrize(("name", "version"), IMPOSSIBLE)
def test_what_cannot_be_packed_is_rejected_before_anything_is_written(tmp_path, name, version):
    table = packed({**LISTS, **STRINGS, **NEVER}[name])
    with pytest.raises(UnsupportedError, match=f"field 'c': its field 'value' .*cannot be packed in a {version} file"):
        lance_core.write_dataset(table, str(tmp_path / "t"), data_storage_version=version)
    assert not list(tmp_path.rglob("*.lance"))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("has_null_structs", [False, True])
def test_fields_that_are_null_are_rejected(tmp_path, version, has_null_structs):
    """Only the structs can be null, and what is below a null struct does not count."""
    values = pa.array([None if i in (0, 5) else i for i in range(ROWS)], pa.int32())
    mask = pa.array([i == 0 for i in range(ROWS)]) if has_null_structs else None
    with pytest.raises((UnsupportedError, SchemaError), match=r"'c': (its field 'value' has nulls|null structs need)"):
        lance_core.write_dataset(packed(values, mask), str(tmp_path / "t"), data_storage_version=version)
    assert not list(tmp_path.rglob("*.manifest"))
    if version != "2.0" and has_null_structs:
        check_both_ways(tmp_path, packed(values.fill_null(7), mask), version)
        hidden = packed(pa.array([None if i == 0 else i for i in range(ROWS)], pa.int32()), mask)
        write_ours(tmp_path, hidden, version)
        assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table().to_pylist() == hidden.to_pylist()


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_packed_structs_in_lists(tmp_path, version):
    item = pa.field("item", pa.struct([("x", pa.int64()), ("y", pa.int16())]), metadata=METADATA)
    values = [[{"x": i, "y": j} for j in range(i % 4)] if i % 5 else None for i in range(ROWS)]
    expected = pa.table({"c": pa.array(values, pa.list_(item))})
    write_ours(tmp_path, expected, version)
    assert LanceFileReader(str(tmp_path / "ours.lance")).read_all().to_table().to_pylist() == expected.to_pylist()
    assert read_ours(tmp_path, "ours.lance").to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("mode", ["try_binary_copy", "force_binary_copy", "reencode"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize(("written", "declared"), [(True, None), (None, "true")])
def test_compaction_loses_no_struct_that_is_packed_in_the_files_or_in_the_schema_alone(
    tmp_path, written, declared, version, mode
):
    """As pylance 0.33 to 0.37 wrote them, which did not know the key, or after a change of the column's metadata."""
    uri = str(tmp_path / "t")
    kind = pa.struct({"a": pa.int32(), "b": pa.int32()})
    rows = pa.array([{"a": i, "b": i + 1} for i in range(2 * ROWS)], kind)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("c", kind, metadata=METADATA if written else None)])
    table = pa.table([pa.array(range(2 * ROWS)), rows], schema=schema)
    lance_core.write_dataset(table, uri, data_storage_version=version, max_rows_per_file=ROWS)
    lance_core.dataset(uri).update_field_metadata({"c": {"lance-encoding:packed": declared}})
    before = lance_core.dataset(uri).version
    with pytest.raises(
        (InvalidInputError, UnsupportedError), match=r"column 'c|column 'a'|pages of 'c' cannot be copied"
    ):
        lance_core.dataset(uri).optimize.compact_files(compaction_mode=mode)
    assert lance_core.dataset(uri).version == before
    lance_core.dataset(uri).update_field_metadata({"c": {"lance-encoding:packed": "true" if written else None}})
    lance_core.dataset(uri).optimize.compact_files(compaction_mode=mode if version != "2.0" else None)
    assert lance_core.dataset(uri).to_table() == table
