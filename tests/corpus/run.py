"""Sends files down roads and compares the two libraries.

Right is: equal; or one error of this library's tree, before a file is written, where pylance has an error too; or a
difference of the table `DIFFERENCES`, which `docs/compatibility.md` names.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import lance
import pyarrow as pa

import lance_core
from lance_core.errors import LanceError
from tests.corpus.convert_roads import CONVERT_ROADS
from tests.corpus.dagster_roads import KINDS, dagster_difference
from tests.corpus.differences import difference
from tests.corpus.roads import FRAME_ROADS, ROADS, VERSIONS, bytes_on_disk
from tests.corpus.sample import Sample
from tests.corpus.spark_roads import SPARK_ROADS
from tests.corpus.table_roads import TABLE_ROADS

__all__ = ["MOST_BYTES", "Finding", "findings", "plan"]

_SAME_WORDS = 60
JUDGED = {**TABLE_ROADS, **SPARK_ROADS, **CONVERT_ROADS}
"""Roads that say themselves what went wrong."""

MOST_BYTES = 1.2
"""Bytes of the data files, as a share of pylance's."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A file for which a road went wrong.

    Attributes:
        name: The file and the road, as `--only` takes it.
        what: What went wrong.
    """

    name: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Trip:
    """One file on one road."""

    sample: Sample
    road: str
    version: str

    @property
    def name(self) -> str:
        """The file and the road."""
        return f"{self.sample.name}:{self.road}:{self.version}"


def plan(samples: Iterable[Sample]) -> Iterator[Trip]:
    """All trips.

    Tables of early releases and of other formats are first, then each file goes each road in 2.2, through Dagster, through
    Spark and its conversions, and at last in the other versions.
    """
    samples, first = list(samples), VERSIONS[0]
    for sample in samples:
        if sample.form in ("delta", "iceberg"):
            yield Trip(sample=sample, road=f"convert {sample.form.title()}", version=first)
    tables = [sample for sample in samples if sample.form == "lance"]
    yield from (Trip(sample=sample, road=road, version=first) for road in TABLE_ROADS for sample in tables)
    for version in VERSIONS:
        if version == VERSIONS[1]:
            yield from (Trip(sample=sample, road=kind, version=first) for sample in samples for kind in KINDS)
            yield from (Trip(sample=sample, road=road, version=first) for road in SPARK_ROADS for sample in tables)
            for sample in samples:
                roads = [] if sample.form == "lance" else [*SPARK_ROADS, *CONVERT_ROADS]
                if sample.form in ("delta", "iceberg"):
                    roads.remove(f"convert {sample.form.title()}")
                yield from (Trip(sample=sample, road=road, version=first) for road in roads)
        for sample in samples:
            for road in [*ROADS, *(FRAME_ROADS if sample.frame is not None else ())]:
                if road == "indices" and version != first:
                    continue
                yield Trip(sample=sample, road=road, version=version)


def findings(
    trips: Iterable[Trip], folder: Path, seconds: float, on_trip: Callable[[Trip], Any] = str
) -> Iterator[Finding]:
    """What goes wrong on the trips that begin within some seconds.

    Args:
        trips: The trips.
        folder: Where files and tables are written; each trip clears what it wrote.
        seconds: When no further trip begins.
        on_trip: Called with each trip.
    """
    end = time.monotonic() + seconds
    rows: dict[str, pa.Table] = {}
    for trip in trips:
        if time.monotonic() > end:
            return
        on_trip(trip)
        if trip.sample.name not in rows:
            rows[trip.sample.name] = trip.sample.table(folder / "files" / str(len(rows)))
        what = _difference(trip, rows[trip.sample.name], folder / "tables")
        if what is not None and difference(trip.name, what) is None:
            yield Finding(name=trip.name, what=what)


def _difference(trip: Trip, rows: pa.Table, folder: Path) -> str | None:
    shutil.rmtree(folder, ignore_errors=True)
    if trip.road in KINDS:
        return dagster_difference(trip.sample, rows, trip.road, folder)
    if trip.road in JUDGED:
        return JUDGED[trip.road](trip.sample, rows, folder)
    data = rows if trip.road in ROADS else trip.sample.frame() if trip.sample.frame is not None else None
    run = ROADS.get(trip.road) or FRAME_ROADS[trip.road]
    ours = _outcome(run, lance_core, data, folder / "lance_core", trip.version)
    reference = _outcome(run, lance, data, folder / "lance", trip.version)
    what = _compared(ours, reference)
    if (
        what is None
        and trip.road == "write"
        and not isinstance(ours, BaseException)
        and not isinstance(reference, BaseException)
    ):
        sizes = [bytes_on_disk(folder / name) for name in ("lance_core", "lance")]
        if sizes[0] > MOST_BYTES * sizes[1]:
            return f"{sizes[0]} bytes, where pylance takes {sizes[1]}"
    if isinstance(ours, LanceError) and trip.road == "write" and _files(folder / "lance_core"):
        return f"files are left after {ours!r}"
    return what


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _outcome(run: Callable[..., Any], library: ModuleType, data: Any, folder: Path, version: str) -> Any:
    try:
        return run(library, data, folder, version)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - pylance panics with errors that are no Exception
        return error


def _compared(ours: Any, reference: Any) -> str | None:
    """How the outcomes differ; None if they are the same."""
    if isinstance(ours, BaseException):
        if isinstance(reference, BaseException) and str(ours)[:_SAME_WORDS] == str(reference)[:_SAME_WORDS]:
            return None  # pylance cannot read it, whoever wrote it
        if not isinstance(ours, LanceError):
            return f"an error of another library: {type(ours).__name__}: {ours}"
        return None if isinstance(reference, BaseException) else f"pylance can, but: {ours}"
    if isinstance(reference, BaseException):
        return None if _is_read_by_pylance(reference) else f"pylance cannot read it: {reference}"
    if isinstance(ours, list):
        pairs = zip(ours, reference, strict=True)
        return next((what for (text, a), (_, b) in pairs if (what := _answer(text, a, b)) is not None), None)
    if ours is None or reference is None:
        return None if ours is reference else f"{ours!r} and {reference!r}"
    return _rows(ours, reference)


def _is_read_by_pylance(error: BaseException) -> bool:
    """Whether pylance failed to write, so that what this library wrote is not compared."""
    return "read" not in str(error)


def _answer(condition: str, ours: Any, reference: Any) -> str | None:
    if isinstance(reference, Exception):
        return None if not isinstance(ours, Exception) or isinstance(ours, LanceError) else f"{condition}: {ours!r}"
    if isinstance(ours, Exception):
        return f"{condition}: pylance can, but {ours!r}"
    return None if ours == reference else f"{condition}: {ours}, pylance gives {reference}"


def _rows(ours: pa.Table, reference: pa.Table) -> str | None:
    if not ours.schema.equals(reference.schema, check_metadata=True):
        fields = zip(ours.schema, reference.schema, strict=False)
        pairs = [(a, b) for a, b in fields if not a.equals(b, check_metadata=True)] or [(ours.schema, reference.schema)]
        return f"the schema is {_shown(pairs[0][0])}, pylance's is {_shown(pairs[0][1])}"
    if ours.equals(reference) or repr(ours.to_pylist()) == repr(reference.to_pylist()):
        return None
    for number, (a, b) in enumerate(zip(ours.to_pylist(), reference.to_pylist(), strict=False)):
        if repr(a) != repr(b):
            return f"row {number} is {_shown(a)}, pylance's is {_shown(b)}"
    return f"{ours.num_rows} rows, pylance has {reference.num_rows}"


def _shown(value: object) -> str:
    return " ".join(repr(value).split())[:300]
