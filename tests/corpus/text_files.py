"""CSV and JSON files with odd names and values, as pyarrow reads them, and tables of Delta, Iceberg and Spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest

from tests.corpus.sample import Sample

__all__ = ["files", "spark_files"]

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


def _delta(name: str, **options: Any) -> Iterator[Sample]:
    deltalake = pytest.importorskip("deltalake", reason="an extra")

    def write(folder: Path) -> Path:
        deltalake.write_deltalake(str(folder / "table"), PARTITIONED, **options)
        deltalake.DeltaTable(str(folder / "table")).delete("id = 3")
        return folder / "table"

    def read(path: Path) -> pa.Table:
        return pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())

    yield Sample(name=f"delta/{name}", write=write, read=read)


def _iceberg() -> Iterator[Sample]:
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="an extra")
    from pyiceberg.transforms import IdentityTransform

    for name, transform in (
        ("no partitions", None),
        ("identity", IdentityTransform()),
    ):

        def write(folder: Path, transform: Any = transform) -> Path:
            (folder / "lake").mkdir()
            catalog = sql.SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/lake")
            catalog.create_namespace("n")
            table = catalog.create_table("n.t", PARTITIONED.schema)
            if transform is not None:
                with table.update_spec() as update:
                    update.add_field("day", transform, "p")
            table.append(PARTITIONED)
            pq.write_table(table.scan().to_arrow(), folder / "scan.parquet")
            return folder / "scan.parquet"

        yield Sample(name=f"iceberg/{name}", write=write, read=pq.read_table)


SPARK = {
    "types of SQL": "SELECT id, 'x' s, CAST(id AS DECIMAL(9, 2)) d, DATE'2024-01-01' day, TIMESTAMP'2024-01-01 00:00:00' at FROM range(9)",
    "nested": "SELECT id, struct(id AS a, array(id, NULL) AS l) s, map('k', id) m FROM range(9)",
    "odd names": "SELECT id AS `a b`, id AS `Select`, id AS `größe` FROM range(9)",
    "nulls": "SELECT id, CAST(NULL AS STRING) s, CAST(NULL AS STRUCT<a: INT, b: STRING>) t FROM range(9)",
}  # fmt: skip


def spark_files(spark: Any) -> Iterator[Sample]:
    """The files that Spark writes."""
    for name, query in SPARK.items():

        def write(folder: Path, query: str = query) -> Path:
            spark.sql(query).coalesce(1).write.parquet(str(folder / "file"))
            return folder / "file"

        yield Sample(name=f"spark/{name}", write=write, read=pq.read_table)


def files() -> Iterator[Sample]:
    """The CSV and JSON files, and the tables of Delta and Iceberg."""
    for name, content in CSV.items():
        yield _csv(name, content)
    for name, content in JSON.items():
        yield _json(name, content)
    yield from _delta("no partitions")
    yield from _delta("partitions", partition_by=["day"])
    yield from _iceberg()
