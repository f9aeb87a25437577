"""Conversions of Delta and Iceberg whose partition values only the metadata of the table has, and what is rejected."""

import datetime as dt
import decimal
import json
import pathlib
import struct
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

import pyspark_lance
from lance_core.errors import UnsupportedError

STRINGS = ["a b", "a=b", "x/y", "é%20", "1", "01", None, "+", "__HIVE_DEFAULT_PARTITION__"]


def sorted_rows(table):
    return sorted(table.to_pylist(), key=lambda row: row["n"])


def actions(place, version=0):
    lines = pathlib.Path(place, "_delta_log", f"{version:020}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def commit(place, version, lines):
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    pathlib.Path(place, "_delta_log", f"{version:020}.json").write_text(text)


@pytest.fixture
def delta(tmp_path):
    """A table by strings, dates, numbers, decimals and times."""
    deltalake = pytest.importorskip("deltalake")
    place = str(tmp_path / "delta")
    count = len(STRINGS)
    rows = pa.table(
        {
            "day": STRINGS,
            "d": [dt.date(2024, 1, 1), None] * (count // 2) + [dt.date(1969, 1, 1)],
            "i": pa.array(range(count), pa.int32()),
            "p": pa.array([decimal.Decimal("1.50")] * count, pa.decimal128(5, 2)),
            "t": pa.array([dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)] * count, pa.timestamp("us", "UTC")),
            "n": range(count),
        }
    )
    deltalake.write_deltalake(place, rows, partition_by=["day", "d", "i", "p", "t"])
    return place, rows


def test_partition_values_of_delta_come_from_the_log(spark, delta, uri, lance):
    place, rows = delta
    pyspark_lance.convert(place, uri)
    found = lance.dataset(uri).to_table()
    assert found.schema.names == rows.schema.names
    assert sorted_rows(found) == sorted_rows(rows)


def test_folders_of_delta_are_no_values(spark, delta, uri, lance):
    """A log may name files in folders of any name, as a clone or a manual move leaves them."""
    place, rows = delta
    log = actions(place)
    for number, line in enumerate(log):
        if "add" in line:
            path = pathlib.Path(place, line["add"]["path"].replace("%25", "%"))
            moved = pathlib.Path(place, f"i=9{number}", path.name)
            moved.parent.mkdir(exist_ok=True)
            path.rename(moved)
            line["add"]["path"] = f"i=9{number}/{path.name}"
    commit(place, 0, log)
    pyspark_lance.convert(place, uri)
    assert sorted_rows(lance.dataset(uri).to_table()) == sorted_rows(rows)


ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def deletion_vector(rows):
    """An inline deletion vector: the magic number and 64-bit roaring bitmaps, as Z85."""
    data = struct.pack("<i", 1681511377) + BitMap64(rows).serialize()
    size = len(data)
    data += bytes(-size % 4)
    text = ""
    for (number,) in struct.iter_unpack(">I", data):
        text += "".join(ALPHABET[number // 85**place % 85] for place in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": size, "cardinality": len(rows)}


@pytest.mark.parametrize("vector", [{0}, None, "broken"])
def test_deletion_vectors_are_rejected_before_anything_is_written(spark, delta, uri, lance, vector, tmp_path):
    place, rows = delta
    features = {"minReaderVersion": 3, "minWriterVersion": 7}
    features |= {key: ["deletionVectors"] for key in ("readerFeatures", "writerFeatures")}
    lines = [{"protocol": features}]
    if vector is not None:
        added = next(line["add"] for line in actions(place) if "add" in line)
        vector = deletion_vector([0]) if vector == {0} else {**deletion_vector([0]), "pathOrInlineDv": "0" * 40}
        removed = {"path": added["path"], "dataChange": True, "deletionTimestamp": 1}
        lines += [{"remove": removed}, {"add": {**added, "deletionVector": vector}}]
    commit(place, 1, lines)
    if vector is None:  # the feature is on, and no row is deleted
        pyspark_lance.convert(place, uri)
        assert sorted_rows(lance.dataset(uri).to_table()) == sorted_rows(rows)
        return
    with pytest.raises(UnsupportedError, match=r"deletion vectors.*Nothing was written"):
        pyspark_lance.convert(place, uri)
    assert not pathlib.Path(uri).exists()


def iceberg(place, **columns):
    """A catalog, and a table by identity."""
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.memory import InMemoryCatalog
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import NestedField

    catalog = InMemoryCatalog("here", warehouse=place.as_uri())
    catalog.create_namespace("n")
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(columns.items(), 1)]
    parts = [PartitionField(one.field_id, 1000 + one.field_id, IdentityTransform(), f"by_{one.name}") for one in fields]
    return catalog.create_table("n.t", Schema(*fields), partition_spec=PartitionSpec(*parts[1:]))


def test_identity_partition_columns_of_iceberg_that_files_lack(spark, tmp_path, uri, lance):
    """As `add_files` of a Hive table leaves them: the files have the other columns alone."""
    types = pytest.importorskip("pyiceberg.types")
    table = iceberg(
        tmp_path,
        n=types.LongType(),
        day=types.StringType(),
        d=types.DateType(),
        t=types.TimestampType(),
        z=types.TimestamptzType(),
        b=types.BooleanType(),
        i=types.IntegerType(),
    )
    count = len(STRINGS)
    rows = pa.table(
        {
            "n": range(count),
            "day": STRINGS,
            "d": [dt.date(2024, 1, 1), None] * (count // 2) + [dt.date(1969, 1, 1)],
            "t": [dt.datetime(2024, 1, 1, 12)] * count,
            "z": [dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)] * count,
            "b": [True] * count,
            "i": pa.array([7] * count, pa.int32()),
        },
        schema=table.schema().as_arrow(),
    )
    table.append(rows)
    files = [pathlib.Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]
    for file in files[: count // 2 + 1]:
        pq.write_table(pq.read_table(file, partitioning=None).select(["n"]), file)
    pyspark_lance.convert(table.metadata_location, uri)
    found = lance.dataset(uri).to_table()
    assert [(row["n"], row["day"], row["d"], row["b"], row["i"]) for row in sorted_rows(found)] == [
        (row["n"], row["day"], row["d"], row["b"], row["i"]) for row in sorted_rows(rows)
    ]
    assert [row["t"] for row in sorted_rows(found)] == [dt.datetime(2024, 1, 1, 12)] * count
    assert [row["z"].timestamp() for row in sorted_rows(found)] == [rows["z"][0].as_py().timestamp()] * count


def test_uuid_columns_of_iceberg(spark, tmp_path, uri, lance):
    types = pytest.importorskip("pyiceberg.types")
    table = iceberg(tmp_path, n=types.UUIDType())
    keys = [uuid.uuid4().bytes, None, uuid.uuid4().bytes]
    table.append(pa.table({"n": pa.array(keys, pa.binary(16))}, schema=table.schema().as_arrow()))
    pyspark_lance.convert(table.metadata_location, uri)
    found = lance.dataset(uri).to_table()["n"].to_pylist()
    assert sorted(found, key=str) == sorted(keys, key=str)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_empty_tables(spark, tmp_path, uri, lance, form):
    if form == "delta":
        deltalake = pytest.importorskip("deltalake")
        source = str(tmp_path / "delta")
        deltalake.DeltaTable.create(source, pa.schema([("n", pa.int64()), ("day", pa.string())]), partition_by=["day"])
    else:
        types = pytest.importorskip("pyiceberg.types")
        source = iceberg(tmp_path, n=types.LongType(), day=types.StringType()).metadata_location
    assert pyspark_lance.convert(source, uri).rows == 0
    table = lance.dataset(uri)
    assert (table.count_rows(), table.schema.names) == (0, ["n", "day"])
    assert pyspark_lance.convert(source, uri).rows == 0
