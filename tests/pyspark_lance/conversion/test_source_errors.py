"""Sources that their own library or Spark cannot read: one error of our own, before a file is written."""

import json
import pathlib
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pyspark_lance
from lance_core.errors import (
    DatasetNotFoundError,
    InvalidInputError,
    LanceError,
    ObjectNotFoundError,
    UnsupportedError,
)

FIELDS = [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
CATALOG_OWNED = {
    "protocol": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["catalogOwned"],
        "writerFeatures": ["catalogOwned"],
    }
}


def table(*, fields=FIELDS, mode="none"):
    return {
        "metaData": {
            "id": "7a2b0f5e-0000-4000-8000-000000000000",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {"delta.columnMapping.mode": mode},
        }
    }


def add(path, **more):
    values = {"path": path, "partitionValues": {}, "size": 9, "modificationTime": 1, "dataChange": True}
    return {"add": values | more}


def delta(folder, *actions):
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    text = "\n".join(action if isinstance(action, str) else json.dumps(action) for action in actions)
    (log / ("0" * 20 + ".json" if actions else "a.crc")).write_text(text)
    return folder


DELTA = {
    "no commits": ((), DatasetNotFoundError),
    "a feature": ((CATALOG_OWNED, table()), UnsupportedError),
    "no JSON": (("{no",), InvalidInputError),
    "a type": (
        (PROTOCOL, table(fields=[{"name": "x", "type": "what", "nullable": True, "metadata": {}}])),
        UnsupportedError,
    ),
    "a missing file": ((PROTOCOL, table(), add("missing.parquet")), LanceError),
    "a file elsewhere": ((PROTOCOL, table(), add("s3a://nowhere/x.parquet")), LanceError),
    "files of two storages": ((PROTOCOL, table(), add("x.parquet"), add("hdfs://nowhere:1/y.parquet")), LanceError),
    "a torn file": ((PROTOCOL, table(), add("torn.parquet")), LanceError),
}


TORN = ("a torn file", "a torn data file")  # found in the middle of a write


def check(raised, source, uri, *, name=""):
    message = str(raised.value)
    assert str(source) in message
    assert "Nothing was written" in message or name in TORN
    assert "\n" not in message
    assert raised.value.__cause__ is not None
    assert not list(pathlib.Path(uri).rglob("*.lance"))
    assert not (pathlib.Path(uri) / "_versions").exists()


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", DELTA)
def test_delta(spark, tmp_path, uri, name):
    pytest.importorskip("deltalake")
    actions, kind = DELTA[name]
    source = delta(tmp_path / "source", *actions)
    pq.write_table(pa.table({"x": [1]}), source / "x.parquet")
    (source / "torn.parquet").write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(kind) as raised:
        pyspark_lance.convert(source, uri)
    check(raised, source, uri, name=name)


def iceberg(folder):
    """The metadata of a table with one file."""
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    (folder / "lake").mkdir(parents=True)
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/lake")
    catalog.create_namespace("n")
    rows = pa.table({"x": [1, 2]})
    made = catalog.create_table("n.t", rows.schema)
    made.append(rows)
    return pathlib.Path(made.metadata_location.removeprefix("file://"))


def rewritten(metadata, change):
    values = json.loads(metadata.read_text())
    change(values)
    metadata.write_text(json.dumps(values))


def without_list(values):
    values["snapshots"][-1].pop("manifest-list")


def of_lists(metadata):
    metadata.write_text("[]")


def torn(metadata):
    metadata.write_text("{no")


def no_manifest_list(metadata):
    next(metadata.parent.glob("snap-*.avro")).unlink()


def torn_manifest_list(metadata):
    next(metadata.parent.glob("snap-*.avro")).write_bytes(b"Obj\x01what")


def no_data_file(metadata):
    next(metadata.parent.parent.glob("data/*.parquet")).unlink()


def torn_data_file(metadata):
    next(metadata.parent.parent.glob("data/*.parquet")).write_bytes(b"PAR1" + b"x" * 100)


def elsewhere(metadata):
    rewritten(metadata, lambda values: values["snapshots"][-1].update({"manifest-list": "hdfs://nowhere:1/x.avro"}))


ICEBERG = {
    "manifests in the snapshot": (lambda metadata: rewritten(metadata, without_list), InvalidInputError),
    "a list": (of_lists, InvalidInputError),
    "no JSON": (torn, InvalidInputError),
    "no metadata": (pathlib.Path.unlink, ObjectNotFoundError),
    "no manifest list": (no_manifest_list, ObjectNotFoundError),
    "a torn manifest list": (torn_manifest_list, InvalidInputError),
    "a storage that is unknown": (elsewhere, LanceError),
    "no data file": (no_data_file, LanceError),
    "a torn data file": (torn_data_file, LanceError),
}


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", ICEBERG)
def test_iceberg(spark, tmp_path, uri, name):
    damage, kind = ICEBERG[name]
    source = iceberg(tmp_path)
    damage(source)
    with pytest.raises(kind) as raised:
        pyspark_lance.convert(source, uri)
    check(raised, source, uri, name=name)


def test_equality_deletes_of_iceberg(spark, tmp_path, uri, monkeypatch):
    from pyiceberg.table import DataScan

    source = iceberg(tmp_path)

    def planned(*_):
        raise ValueError(
            "PyIceberg does not yet support equality deletes: https://github.com/apache/iceberg/issues/6568"
        )

    monkeypatch.setattr(DataScan, "plan_files", planned)
    with pytest.raises(UnsupportedError) as raised:
        pyspark_lance.convert(source, uri)
    check(raised, source, uri)


@pytest.mark.parametrize("source", ["hdfs://nowhere:1/t", "what://nowhere/t", "s3a://nowhere/t"])
def test_a_storage_that_is_not_known(spark, source, uri):
    with pytest.raises(LanceError) as raised:
        pyspark_lance.convert(source, uri)
    check(raised, source, uri)


def test_a_torn_parquet_file(spark, tmp_path, uri):
    (tmp_path / "torn.parquet").write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(LanceError) as raised:
        pyspark_lance.convert(tmp_path, uri)
    check(raised, tmp_path, uri)


TYPES = {
    "integers": (pa.array([1], pa.int32()), pa.array([1], pa.int64()), "'x' is bigint, and int before"),
    "a field": (pa.array([{"A": "a"}]), pa.array([{"a": 1.5}]), "'x.a' is double, and string before"),
    "zones": (
        pa.array([0], pa.timestamp("us", tz="UTC")),
        pa.array([0], pa.timestamp("us")),
        "'x' is timestamp_ntz, and timestamp before",
    ),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", TYPES)
def test_parquet_files_with_two_types_of_a_column(spark, tmp_path, uri, name):
    first, other, said = TYPES[name]
    for number in range(7):
        rows = {"id": [number], "x": other if number in (4, 5) else first, f"y{number}": [1]}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet")
    with pytest.raises(
        InvalidInputError, match=rf"4\.parquet does not fit.*{re.escape(said)}.*read the files by Spark"
    ) as raised:
        pyspark_lance.convert(tmp_path, uri)
    check(raised, tmp_path, uri)


def test_a_target_that_has_files(spark, tmp_path, uri):
    pyspark_lance.write(spark.range(3), uri)
    (tmp_path / "target").mkdir()
    with pytest.raises(InvalidInputError, match=r"target.*PATH_ALREADY_EXISTS.*mode='overwrite'"):
        pyspark_lance.to_parquet(uri, tmp_path / "target")
    with pytest.raises(LanceError, match="what://nowhere"):
        pyspark_lance.to_parquet(uri, "what://nowhere/target")


@pytest.mark.parametrize("partition_by", [(), "s"])
def test_a_table_that_cannot_be_read_is_named_instead_of_the_target(spark, tmp_path, uri, partition_by):
    written = pyspark_lance.write(spark.sql("SELECT id, CAST(id % 2 AS STRING) AS s FROM range(10)"), uri)
    for file in (pathlib.Path(written.dataset.uri) / "data").iterdir():
        file.unlink()
    with pytest.raises(ObjectNotFoundError, match=r"/data/\S*\.lance: no such file") as raised:
        pyspark_lance.to_parquet(uri, tmp_path / "target", partition_by=partition_by)
    assert "target" not in str(raised.value)
