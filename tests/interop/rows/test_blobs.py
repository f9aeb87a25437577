"""Columns of blobs, written by us and read by pylance, and the other way round."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError

PAYLOADS = [b"abc", None, b"", b"x" * 5000, b"yy" * 40, bytes(range(256))]
KEPT = {"lance-encoding:blob": "true", "note": "kept"}
SCHEMA = pa.schema([pa.field("i", pa.int64()), pa.field("b", pa.large_binary(), metadata=KEPT)])
VERSIONS = ["2.0", "2.1", "2.2"]


def rows(payloads=PAYLOADS):
    return pa.table([pa.array(range(len(payloads))), pa.array(payloads, pa.large_binary())], schema=SCHEMA)


def by_us(uri):
    return lance_core.dataset(uri).to_table(blob_handling="all_binary")["b"].to_pylist()


def by_pylance(uri, count):
    """Payloads of the blobs that are not null, in order."""
    dataset = lance.dataset(uri)
    present = [i for i, value in enumerate(by_us(uri)) if value]
    blobs = dataset.take_blobs("b", indices=present)
    assert dataset.count_rows() == count
    return [blob.readall() for blob in blobs]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "writers", [(lance_core, lance_core), (lance, lance), (lance, lance_core), (lance_core, lance)]
)
def test_blobs_of_either_library_are_read_by_both(tmp_path, version, writers):
    writers[0].write_dataset(rows(), tmp_path, data_storage_version=version)
    writers[1].write_dataset(rows([b"more", None]), tmp_path, mode="append")
    expected = [*PAYLOADS, b"more", None]
    assert by_us(tmp_path) == expected
    assert by_pylance(tmp_path, len(expected)) == [payload for payload in expected if payload]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_is_that_of_pylance(tmp_path, version):
    for library in (lance_core, lance):
        library.write_dataset(rows(), tmp_path / library.__name__, data_storage_version=version)
    ours, theirs = (lance.dataset(tmp_path / name).schema for name in ("lance_core", "lance"))
    assert ours.equals(theirs, check_metadata=True)


def test_blobs_outside_of_base_paths_are_rejected(tmp_path):
    lance_core.write_dataset(rows(), tmp_path)
    dataset = lance_core.dataset(tmp_path)
    kind = pa.struct([pa.field("data", pa.large_binary()), pa.field("uri", pa.string())])
    away = pa.StructArray.from_arrays([pa.nulls(1, pa.large_binary()), pa.array(["s3://bucket/x"])], fields=list(kind))
    field = pa.field("b", kind, metadata={"ARROW:extension:name": "lance.blob.v2"})
    data = pa.table([pa.array([1]), away], schema=pa.schema([pa.field("i", pa.int64()), field]))
    with pytest.raises(InvalidInputError, match="'s3://bucket/x' lies outside of the dataset's base paths"):
        lance_core.write_dataset(data, tmp_path, mode="append")
    assert dataset.latest_version == 1


BINARY = pa.schema([pa.field("i", pa.int64()), pa.field("b", pa.binary(), metadata=KEPT)])


def test_binary_becomes_a_blob_in_2_2(tmp_path):
    table = rows().cast(BINARY)
    for library in (lance_core, lance):
        path = tmp_path / library.__name__
        library.write_dataset(table, path, data_storage_version="2.2")
        lance_core.write_dataset(rows([b"more", None]).cast(BINARY), path, mode="append")
        lance.write_dataset(rows([b"theirs"]).cast(BINARY), path, mode="append")
        expected = [*PAYLOADS, b"more", None, b"theirs"]
        assert by_us(path) == expected
        assert by_pylance(path, len(expected)) == [payload for payload in expected if payload]
    ours, theirs = (lance.dataset(tmp_path / name).schema for name in ("lance_core", "lance"))
    assert ours.equals(theirs, check_metadata=True)


@pytest.mark.parametrize("library", [lance_core, lance])
@pytest.mark.parametrize(
    ("kind", "version"),
    [
        *((pa.binary(), version) for version in ("2.0", "2.1")),
        *((kind, version) for kind in (pa.string(), pa.int64(), pa.binary(4)) for version in VERSIONS),
    ],
    ids=str,
)
def test_other_types_are_rejected_before_anything_is_written(tmp_path, library, kind, version):
    schema = pa.schema([pa.field("b", kind, metadata=KEPT)])
    table = pa.table(
        [pa.array([1, 2]).cast(pa.string()).cast(kind) if kind != pa.binary(4) else pa.array([b"1234"], kind)],
        schema=schema,
    )
    with pytest.raises((SchemaError, OSError)) as failure:
        library.write_dataset(table, tmp_path / "t", data_storage_version=version)
    if library is lance_core:
        assert "large_binary" in str(failure.value)
        assert not (tmp_path / "t").exists()
        # The message's remedies work.
        library.write_dataset(
            table.cast(pa.schema([pa.field("b", kind)])), tmp_path / "plain", data_storage_version=version
        )
        if kind == pa.binary():
            cast = table.cast(pa.schema([pa.field("b", pa.large_binary(), metadata=KEPT)]))
            library.write_dataset(cast, tmp_path / "large", data_storage_version=version)


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1"])
def test_blobs_inside_of_structs_and_in_old_files_are_rejected(tmp_path, version):
    field = pa.field("b", pa.large_binary(), metadata=KEPT)
    inside = [pa.struct([field]), pa.list_(field), pa.list_(pa.struct([field]))]
    for kind in [*inside, *([pa.large_binary()] if version == "legacy" else [])]:
        schema = pa.schema([pa.field("s", kind, metadata=KEPT if kind == pa.large_binary() else None)])
        with pytest.raises(UnsupportedError, match="blob"):
            lance_core.write_dataset(schema.empty_table(), tmp_path / "t", data_storage_version=version)
        assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_binary_column_that_is_added_as_a_blob_is_rejected(tmp_path, version):
    dataset = lance_core.write_dataset(pa.table({"i": [1, 2]}), tmp_path, data_storage_version=version)
    with pytest.raises(SchemaError, match="large_binary"):
        dataset.add_columns(pa.table([pa.array([b"x", b"y"])], schema=pa.schema([BINARY.field("b")])).to_reader())
    with pytest.raises(SchemaError, match="large_binary"):
        dataset.add_columns(pa.schema([BINARY.field("b")]))
    assert dataset.latest_version == 1
