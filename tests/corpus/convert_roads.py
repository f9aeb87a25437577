"""The roads of `pyspark_lance.convert`: each file as a Parquet folder, a Delta table and an Iceberg table.

The oracle is the library of the format. What a library does not write, or Spark does not read from Parquet, is no table of it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lance_core
import pyspark_lance
from tests.corpus.sample import Sample
from tests.corpus.spark_roads import parquet_of, session
from tests.corpus.values import different_values, named_error

__all__ = ["CONVERT_ROADS", "delta_rows", "iceberg_rows", "iceberg_table"]


def delta_rows(path: Path) -> pa.Table:
    """The rows of a Delta table."""
    deltalake = pytest.importorskip("deltalake", reason="an extra")
    return pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())


def iceberg_rows(path: Path) -> pa.Table:
    """The rows of an Iceberg table."""
    tables = pytest.importorskip("pyiceberg.table", reason="an extra")
    newest = max(path.glob("metadata/*.metadata.json"))
    sink = pa.BufferOutputStream()  # a Parquet file more, so that nothing is left below null structs
    pq.write_table(tables.StaticTable.from_metadata(str(newest)).scan().to_arrow(), sink)
    return pq.read_table(pa.BufferReader(sink.getvalue()))


def iceberg_table(folder: Path, rows: pa.Table, **partitions: Any) -> Path:
    """Write an Iceberg table with a catalog; `partitions` are transforms of columns.

    pyiceberg alone writes rows by identity only; other transforms are those of a specification that was added later.
    """
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="an extra")
    (folder / "lake").mkdir(parents=True)
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/lake")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", rows.schema)
    identities = {name: transform for name, transform in partitions.items() if str(transform) == "identity"}
    with table.update_spec() as update:
        for column, transform in identities.items():
            update.add_field(column, transform, f"{column}_part")
    if rows.num_rows:
        table.append(rows)
    with table.update_spec() as update:
        for column, transform in partitions.items() - identities.items():
            update.add_field(column, transform, f"{column}_part")
    return Path(table.location().removeprefix("file://"))


def _delta_table(folder: Path, rows: pa.Table) -> Path:
    deltalake = pytest.importorskip("deltalake", reason="an extra")
    deltalake.write_deltalake(str(folder / "table"), rows)
    return folder / "table"


def _converted(source: Path, expected: pa.Table, folder: Path) -> str | None:
    try:
        pyspark_lance.convert(str(source), str(folder / "table"), spark=session())
    except Exception as error:  # noqa: BLE001 - judged
        if named_error(error) is None:
            return f"an error of another library: {type(error).__name__}: {str(error)[:300]}"
        if any(path.is_file() for path in (folder / "table").rglob("data/*")):
            return f"files are left after {str(error)[:300]}"
        return f"a table is rejected: {str(error)[:300]}"
    return different_values(lance_core.dataset(folder / "table").to_table(), expected)


def convert_parquet(sample: Sample, rows: pa.Table, folder: Path) -> str | None:
    """Convert a Parquet file that Spark reads."""
    source = parquet_of(sample, rows, folder / "source")
    try:
        expected = session().read.parquet(str(source)).toArrow()
    except Exception:  # noqa: BLE001 - the oracle has no answer
        return None
    return _converted(source, expected, folder) if source is not None and expected.num_columns else None


def _of_table(
    form: str, write: Callable[[Path, pa.Table], Path], read: Callable[[Path], pa.Table]
) -> Callable[[Sample, pa.Table, Path], str | None]:
    """A road of a table format."""

    def convert(sample: Sample, rows: pa.Table, folder: Path) -> str | None:
        if sample.form == form:
            folder.mkdir(parents=True)
            return _converted(sample.write(folder), rows, folder)
        try:
            source = write(folder / "source", rows)
            expected = read(source)
        except BaseException:  # noqa: BLE001 - the format has no such types; delta-rs panics
            return None
        return _converted(source, expected, folder)

    return convert


CONVERT_ROADS: dict[str, Callable[[Sample, pa.Table, Path], str | None]] = {
    "convert Parquet": convert_parquet,
    "convert Delta": _of_table("delta", _delta_table, delta_rows),
    "convert Iceberg": _of_table("iceberg", iceberg_table, iceberg_rows),
}
