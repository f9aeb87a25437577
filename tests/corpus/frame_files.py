"""Files of pandas, with every kind of index, of polars and of DuckDB."""

import datetime as dt
import decimal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.corpus.sample import Sample

__all__ = ["files"]

pd, pl, duckdb = (pytest.importorskip(name, reason="an extra") for name in ("pandas", "polars", "duckdb"))

INDICES = {
    "row numbers": lambda: pd.RangeIndex(3),
    "row numbers with a name": lambda: pd.RangeIndex(3, name="k"),
    "other numbers": lambda: pd.Index([7, 5, 9], name="k"),
    "strings": lambda: pd.Index(["x", "y", "z"], name="k"),
    "strings without a name": lambda: pd.Index(["x", "y", "z"]),
    "times": lambda: pd.date_range("2024-01-01", periods=3, tz="Europe/Paris", name="k"),
    "categories": lambda: pd.CategoricalIndex(["x", "y", "x"], name="k"),
    "durations": lambda: pd.to_timedelta([1, 2, 3], unit="s").rename("k"),
    "periods": lambda: pd.period_range("2024-01", periods=3, freq="M", name="k"),
    "intervals": lambda: pd.interval_range(0, 3, name="k"),
    "two levels": lambda: pd.MultiIndex.from_tuples([(1, "x"), (1, "y"), (2, "x")], names=["k", "l"]),
    "two levels, one without a name": lambda: pd.MultiIndex.from_tuples([(1, "x"), (1, "y"), (2, "x")], names=["k", None]),
    "the name of a column": lambda: pd.Index([5, 6, 8], name="a"),
}  # fmt: skip

COLUMNS = {
    "numbers that may be missing": lambda: pd.array([1, None, 3], "Int64"),
    "floats with missing ones": lambda: [1.5, float("nan"), None],
    "strings of Python": lambda: pd.array(["a", None, "c"], "string"),
    "objects": lambda: pd.Series([b"a", None, b"c"], dtype=object),
    "categories": lambda: pd.Categorical(["x", None, "y"], ordered=True),
    "nanoseconds": lambda: pd.to_datetime([1, None, 3], unit="ns"),
    "lists": lambda: [[1, 2], None, []],
    "dicts": lambda: [{"a": 1, "b": "x"}, None, {"a": 2}],
    "booleans that may be missing": lambda: pd.array([True, None, False], "boolean"),
    "dates": lambda: [dt.date(2024, 1, 1), None, dt.date(1969, 1, 1)],
}


def _pandas() -> Iterator[Sample]:
    for name, index in INDICES.items():
        yield _of_frame(
            f"pandas/index of {name}",
            lambda index=index: pd.DataFrame({"a": [1, 2, 3], "b": [1.5, None, 2.5]}, index=index()),
        )
    for name, values in COLUMNS.items():
        yield _of_frame(f"pandas/{name}", lambda values=values: pd.DataFrame({"c": values()}))


def _of_frame(name: str, frame: Callable[[], Any]) -> Sample:
    def write(folder: Path) -> Path:
        frame().to_parquet(folder / "file.parquet")
        return folder / "file.parquet"

    return Sample(name=name, write=write, read=pq.read_table, frame=frame, form="parquet")


POLARS = {
    "categories": lambda: pl.Series(["x", None, "y"], dtype=pl.Categorical),
    "enumerations": lambda: pl.Series(["x", None, "y"], dtype=pl.Enum(["x", "y"])),
    "decimals": lambda: pl.Series([decimal.Decimal("1.10"), None, decimal.Decimal("2.20")]),
    "times of day": lambda: pl.Series([dt.time(1, 2, 3), None, dt.time(0)]),
    "durations": lambda: pl.Series([dt.timedelta(seconds=1), None, dt.timedelta(days=1)]),
    "arrays": lambda: pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int64, 2)),
    "lists of structs": lambda: pl.Series([[{"a": 1, "b": "x"}], None, []]),
    "structs": lambda: pl.Series([{"a": 1, "b": "x"}, {"a": None, "b": None}, {"a": 2, "b": "z"}]),
    "bytes": lambda: pl.Series([b"a", None, b"\xff"]),
    "unsigned numbers": lambda: pl.Series([1, None, 2**64 - 1], dtype=pl.UInt64),
    "nulls": lambda: pl.Series([None, None, None]),
    "moments in a zone": lambda: pl.Series([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None, dt.datetime(1960, 1, 1, tzinfo=dt.UTC)]),
}  # fmt: skip


def _polars() -> Iterator[Sample]:
    for name, series in POLARS.items():

        def write(folder: Path, series: Callable[[], Any] = series) -> Path:
            pl.DataFrame({"c": series()}).write_parquet(folder / "file.parquet")
            return folder / "file.parquet"

        def write_ipc(folder: Path, series: Callable[[], Any] = series) -> Path:
            pl.DataFrame({"c": series()}).write_ipc(folder / "file.arrow")
            return folder / "file.arrow"

        yield Sample(name=f"polars/{name}", write=write, read=pq.read_table, form="parquet")
        if name in ("categories", "arrays", "structs", "bytes"):  # in Arrow files polars has views
            yield Sample(
                name=f"polars/{name} in ipc", write=write_ipc, read=lambda path: pa.ipc.open_file(path).read_all()
            )


DUCKDB = {
    "huge integers": "SELECT (i * 1000000000000)::HUGEINT AS c FROM range(9) t(i)",
    "UUIDs": "SELECT md5(i::VARCHAR)::UUID AS c FROM range(9) t(i)",
    "enumerations": "SELECT (CASE i % 2 WHEN 0 THEN 'x' ELSE 'y' END)::ENUM('x', 'y') AS c FROM range(9) t(i)",
    "maps": "SELECT MAP {'k': i, 'l': NULL} AS c FROM range(9) t(i)",
    "structs": "SELECT {'a': i, 'b': {'c': i::VARCHAR}} AS c FROM range(9) t(i)",
    "lists": "SELECT CASE WHEN i % 3 = 0 THEN NULL ELSE [i, NULL] END AS c FROM range(9) t(i)",
    "intervals": "SELECT to_days(i::INT) AS c FROM range(9) t(i)",
    "moments in a zone": "SELECT TIMESTAMPTZ '2024-01-01 00:00:00+02' + to_days(i::INT) AS c FROM range(9) t(i)",
    "times": "SELECT TIME '01:02:03.456789' AS c, TIMESTAMP_NS '2024-01-01 00:00:00.123456789' AS d FROM range(9) t(i)",
    "decimals": "SELECT (i / 4)::DECIMAL(18, 3) AS c FROM range(9) t(i)",
    "JSON": "SELECT '{\"a\": 1}'::JSON AS c FROM range(9) t(i)",
    "bytes": "SELECT encode(i::VARCHAR) AS c FROM range(9) t(i)",
    "odd names": 'SELECT i AS "a b", i AS "Select", i AS "1" FROM range(9) t(i)',
}


def _duckdb() -> Iterator[Sample]:
    for name, query in DUCKDB.items():

        def write(folder: Path, query: str = query) -> Path:
            duckdb.execute(f"COPY ({query}) TO '{folder / 'file.parquet'}' (FORMAT parquet)")
            return folder / "file.parquet"

        yield Sample(name=f"duckdb/{name}", write=write, read=pq.read_table, form="parquet")


def files() -> Iterator[Sample]:
    """The files of pandas, polars and DuckDB."""
    yield from _pandas()
    yield from _polars()
    yield from _duckdb()
