"""CSV and JSON files with odd names and values, as pyarrow reads them, and tables of Delta, Iceberg and Spark."""

import datetime as dt
import json
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest

from tests.corpus.convert_roads import delta_rows, iceberg_rows, iceberg_table
from tests.corpus.sample import Sample
from tests.corpus.spark_roads import session

__all__ = ["files"]

CSV = {
    "a header with spaces": "first name,last name,age\nAnn,Lee,3\nBob,,\n",
    "quotes and line breaks": 'id,text\n1,"a, ""b""\nc"\n2,\n',
    "names of one letter each case": "a,A\n1,x\n2,y\n",
    "no name": ",b\n1,2\n3,4\n",
    "the same name twice": "a,a\n1,2\n",
    "a dotted name": "a.b,c\n1,2\n",
    "keywords": "select,from,where\n1,2,3\n",
    "letters of all kinds": "größe,名\n1,x\n2,日本\n",
    "times and dates": "day,at\n2024-01-01,2024-01-01 00:00:00\n2024-02-29,\n",
    "numbers and words": "n\n1\n2.5\nx\n",
    "nothing but a header": "a,b\n",
    "bytes that are no UTF-8": b"id,name\n1,caf\xe9\n2,x\n",
    "a long line": "id,text\n" + "\n".join(f"{n},{'x' * (n * 37 % 900)}" for n in range(60)) + "\n",
}
JSON = {
    "records": '{"a": 1, "b": "x"}\n{"a": null, "b": "y"}\n',
    "missing fields": '{"a": 1}\n{"b": {"c": [1, 2]}}\n{"b": {"d": "x"}}\n',
    "nested records": '{"s": {"p": {"q": 1, "r": [{"t": "x"}]}}}\n{"s": {"p": {"q": 2, "r": []}}}\n',
    "odd names": '{"a b": 1, "select": 2, "Ünï": {"x y": 3}}\n' * 4,
    "a dotted name": '{"a.b": 1, "c": 2}\n',
    "empty records": '{"s": {}, "n": 1}\n{"s": {}, "n": 2}\n',
    "moments": '{"at": "2024-01-01 00:00:00"}\n{"at": null}\n',
}


def _csv(name: str, content: str | bytes) -> Sample:
    def write(folder: Path) -> Path:
        (folder / "file.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / "file.csv"

    def read(path: Path) -> pa.Table:
        # What a user does whose file has another encoding, and who takes the bytes as they are.
        checks = pa.csv.ConvertOptions(check_utf8=not isinstance(content, bytes), strings_can_be_null=True)
        return pa.csv.read_csv(path, pa.csv.ReadOptions(), pa.csv.ParseOptions(newlines_in_values=True), checks)

    if isinstance(content, bytes):
        schema = pa.schema([("id", pa.int64()), ("name", pa.binary())])

        def read(path: Path) -> pa.Table:
            table = pa.csv.read_csv(path, convert_options=pa.csv.ConvertOptions(column_types=schema))
            return table.set_column(1, "name", [chunk.view(pa.string()) for chunk in table["name"].chunks])

    return Sample(name=f"csv/{name}", write=write, read=read)


def _json(name: str, content: str) -> Sample:
    def write(folder: Path) -> Path:
        (folder / "file.json").write_text(content)
        return folder / "file.json"

    return Sample(name=f"json/{name}", write=write, read=pa.json.read_json)


PARTITIONED = pa.table({"id": [1, 2, 3, 4], "day": ["a", "a", "b", "b"], "s": [{"x": 1}, {"x": 2}, None, {"x": 4}]})


def _delta() -> Iterator[Sample]:
    deltalake = pytest.importorskip("deltalake", reason="an extra")

    def sample(name: str, rows: pa.Table, without: str | None = None, **options: Any) -> Sample:
        def write(folder: Path) -> Path:
            place = folder / "table"
            deltalake.write_deltalake(str(place), rows.slice(0, 0), **options)
            if rows.num_rows:
                deltalake.write_deltalake(str(place), rows, mode="append", **options)
            if without is not None:
                deltalake.DeltaTable(str(place)).delete(without)
            return place

        return Sample(name=f"delta/{name}", write=write, read=delta_rows, form="delta")

    yield sample("no partitions", PARTITIONED, "id = 3")
    yield sample("partitions", PARTITIONED, "id = 3", partition_by=["day"])
    yield sample("partitions of odd values", ODD_PARTITIONS, partition_by=["day", "n"])
    yield sample("no rows", PARTITIONED.slice(0, 0))

    def write_with_vector(folder: Path) -> Path:
        place = folder / "table"
        deltalake.write_deltalake(str(place), PARTITIONED)
        add_deletion_vector(place, [1])
        return place

    def read_with_vector(path: Path) -> pa.Table:
        del path  # delta-rs reads no deletion vectors
        return pa.concat_tables([PARTITIONED.slice(0, 1), PARTITIONED.slice(2)])

    yield Sample(name="delta/deletion vectors", write=write_with_vector, read=read_with_vector, form="delta")


def add_deletion_vector(table: Path, rows: list[int]) -> None:
    """Delete rows of the only file of a Delta table as Spark does: by an inline deletion vector, in Z85."""
    bitmap = pytest.importorskip("pyroaring", reason="of the development set").BitMap64(rows)
    data = struct.pack("<i", 1681511377) + bitmap.serialize()
    text, size = "", len(data)
    for (number,) in struct.iter_unpack(">I", data + bytes(-size % 4)):
        text += "".join(Z85[number // 85**place % 85] for place in (4, 3, 2, 1, 0))
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": size, "cardinality": len(rows)}
    log = table / "_delta_log"
    added = next(
        line["add"] for line in map(json.loads, (log / f"{0:020}.json").read_text().splitlines()) if "add" in line
    )
    features = {name: ["deletionVectors"] for name in ("readerFeatures", "writerFeatures")}
    lines = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": added["path"], "dataChange": True, "deletionTimestamp": 1}},
        {"add": {**added, "deletionVector": vector}},
    ]
    (log / f"{1:020}.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _iceberg() -> Iterator[Sample]:
    transforms = pytest.importorskip("pyiceberg.transforms", reason="an extra")
    identity = transforms.IdentityTransform()

    def sample(name: str, rows: pa.Table, removes: str | None = None, **partitions: Any) -> Sample:
        def write(folder: Path) -> Path:
            place = iceberg_table(folder, rows, **partitions)
            if removes is not None:  # as files of Hive have it, which Iceberg adopts
                for path in place.glob("data/**/*.parquet"):
                    pq.write_table(pq.ParquetFile(path).read().drop_columns([removes]), path)
            return place

        return Sample(
            name=f"iceberg/{name}",
            write=write,
            read=lambda path: rows if removes else iceberg_rows(path),
            form="iceberg",
        )

    yield sample("no partitions", PARTITIONED)
    yield sample("identity", PARTITIONED, day=identity)
    yield sample("identity that files lack", PARTITIONED, "day", day=identity)
    yield sample(
        "buckets and truncated strings",
        PARTITIONED,
        id=transforms.BucketTransform(2),
        day=transforms.TruncateTransform(1),
    )
    yield sample("years", DATED, at=transforms.YearTransform())
    yield sample("UUIDs", UUIDS)
    yield sample("no rows", PARTITIONED.slice(0, 0))


Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
ODD_PARTITIONS = pa.table({"day": ["a b", "a=b", "x/y", "é%20", "01", None], "n": [1, 2, None, 4, 5, 6], "v": range(6)})
DATED = pa.table({"at": pa.array([dt.date(2024, 1, 1), None, dt.date(1969, 12, 31)]), "n": [1, 2, 3]})
UUIDS = pa.table({"u": pa.array([uuid.UUID(int=n).bytes for n in range(4)], pa.uuid()), "n": range(4)})


SPARK = {
    "types of SQL": "SELECT id, 'x' s, CAST(id AS DECIMAL(9, 2)) d, DATE'2024-01-01' day, TIMESTAMP'2024-01-01 00:00:00' at FROM range(9)",
    "nested": "SELECT id, struct(id AS a, array(id, NULL) AS l) s, map('k', id) m FROM range(9)",
    "odd names": "SELECT id AS `a b`, id AS `Select`, id AS `größe` FROM range(9)",
    "intervals": "SELECT id, INTERVAL '1' DAY * id i, INTERVAL '1' MONTH * id m FROM range(9)",
    "bytes and small numbers": "SELECT CAST(id AS TINYINT) t, CAST(id AS SMALLINT) s, CAST(CAST(id AS STRING) AS BINARY) b, CAST(id AS FLOAT) f FROM range(9)",
    "moments without a zone": "SELECT TIMESTAMP_NTZ'2024-03-10 02:30:00' + make_dt_interval(CAST(id AS INT)) c FROM range(9)",
    "strings of fixed length": "SELECT CAST('ab' AS CHAR(5)) c, CAST('ab' AS VARCHAR(5)) v FROM range(9)",
    "nulls": "SELECT id, CAST(NULL AS STRING) s, CAST(NULL AS STRUCT<a: INT, b: STRING>) t FROM range(9)",
}  # fmt: skip


def _spark() -> Iterator[Sample]:
    for name, query in SPARK.items():

        def write(folder: Path, query: str = query) -> Path:
            session().sql(query).coalesce(1).write.parquet(str(folder / "file"))
            return folder / "file"

        yield Sample(name=f"spark/{name}", write=write, read=pq.read_table, form="parquet")


def files() -> Iterator[Sample]:
    """The CSV and JSON files, the tables of Delta and Iceberg, and the files of Spark."""
    for name, content in CSV.items():
        yield _csv(name, content)
    for name, content in JSON.items():
        yield _json(name, content)
    yield from _delta()
    yield from _iceberg()
    yield from _spark()
