"""The roads through Dagster's IO manager: the rows of a file as a frame of each library, written by an asset."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import LanceError
from lance_dagster import LanceIOManager
from tests.corpus.sample import Sample
from tests.corpus.spark_roads import session
from tests.corpus.values import different_values

__all__ = ["KINDS", "dagster_difference"]

pl = pytest.importorskip("polars", reason="an extra")
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def _of_polars(rows: pa.Table) -> tuple[Any, pa.Table]:
    frame = pl.from_arrow(rows)
    return frame, frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def _of_pandas(rows: pa.Table) -> tuple[Any, pa.Table]:
    frame = rows.to_pandas(ignore_metadata=True)
    return frame, pa.Table.from_pandas(frame, preserve_index=False)


def _of_spark(rows: pa.Table) -> tuple[Any, pa.Table]:
    frame = session().createDataFrame(rows)
    for column in rows.columns:
        if column.type == pa.time64("ns"):
            column.cast(pa.time64("us"))  # raises for values that Spark's times of day, of microseconds, do not have
    return frame, frame.toArrow()


KINDS: dict[str, Callable[[pa.Table], tuple[Any, pa.Table]]] = {
    "Dagster, Arrow": lambda rows: (rows, rows),
    "Dagster, pandas": _of_pandas,
    "Dagster, polars": _of_polars,
    "Dagster, Spark": _of_spark,
}
"""For each kind of frame a function that makes it of rows, and the rows that Arrow makes of it again."""


def dagster_difference(sample: Sample, rows: pa.Table, kind: str, folder: Path) -> str | None:
    """What goes wrong if an asset returns a file's rows as a frame; None if nothing does."""
    del sample
    try:
        value, expected = KINDS[kind](rows)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - the library has no such frame; polars panics with errors that are no Exception
        return None
    if not expected.num_rows or not expected.num_columns:
        return None  # what becomes of an output without rows is a setting
    error = _materialized(value, folder / "lake")
    if error is None:
        return different_values(lance_core.dataset(folder / "lake" / "public" / "rows.lance").to_table(), expected)
    causes = list(_causes(error))
    if not any(isinstance(cause, LanceError | dg.Failure) for cause in causes):
        return f"an error of another library: {causes[-1]!r}"
    if any(path.is_file() for path in (folder / "lake").rglob("data/*")):
        return f"files are left after {causes[-1]!r}"
    try:
        lance_core.write_dataset(expected, folder / "plain")
    except LanceError:
        return None
    return f"lance_core can, but: {causes[-1]!r}"


def _materialized(value: Any, root: Path) -> BaseException | None:
    @dg.asset
    def rows() -> Any:
        return value

    logging.disable(logging.CRITICAL)
    try:
        with dg.DagsterInstance.ephemeral() as instance:
            resources = {"io_manager": LanceIOManager(root_uri=str(root))}
            dg.materialize([rows], resources=resources, instance=instance, run_config=QUIET)
    except Exception as error:  # noqa: BLE001 - compared by the caller
        return error
    finally:
        logging.disable(logging.NOTSET)
    return None


def _causes(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
