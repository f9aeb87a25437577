"""The corpus: a fixed part of it in every run of the tests, all of it among the slow ones."""

import functools
import re
import warnings
from pathlib import Path

import pytest

from tests.corpus.__main__ import all_trips, main
from tests.corpus.dagster_roads import KINDS
from tests.corpus.differences import DIFFERENCES
from tests.corpus.roads import VERSIONS
from tests.corpus.run import JUDGED, findings
from tests.processes import ROOT

FIXED = (
    r"^pandas/index of (numbers|strings|two levels):frame.*:2.2",
    r"^ipc/(structs|structs of structs):partial structs:2.[12]",
    r"^ipc/(structs of UUIDs|structs of tensors):(merge|add_columns):2.2",
    r"^ipc/(few decimals|lists of structs with null leaves|few strings):write:2",
    r"^ipc/strings that are no UTF-8:(write:(2.2|0.1)|Dagster, Arrow)",
    r"^parquet/structs of UUIDs:Dagster, (Arrow|polars):",
    r"^(csv/keywords|json/odd names|duckdb/enumerations|polars/categories):(append|filters|compaction):2.2",
    r"^ipc/categories of more values than codes:((update|filters):2.2|write:0.1)",
    r"^ipc/(structs|fixed binary):indices:",
    r"^pylance/0.12.3 2.0:table:",
    r"^iceberg/identity:(write|update|cross):2.2",
)
WRITERS = ("pylance", "pandas", "polars", "duckdb", "spark", "csv", "json", "delta", "iceberg", "ipc", "parquet", "orc")


@functools.cache
def known_trips():
    return tuple(all_trips())


def described(trips, folder):
    warnings.simplefilter("ignore")
    return [f"{finding.name}: {finding.what}" for finding in findings(trips, folder, float("inf"))]


def test_there_are_many_files_of_all_writers():
    names = {trip.sample.name for trip in known_trips()}
    assert len(names) >= 200
    assert {name.partition("/")[0] for name in names} == set(WRITERS)


@pytest.mark.variants(4)
@pytest.mark.parametrize("pattern", FIXED)
def test_a_fixed_part_goes_every_road(tmp_path, pattern):
    trips = [trip for trip in known_trips() if re.search(pattern, trip.name)]
    assert trips
    assert described(trips, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("road", [*VERSIONS, *KINDS, *JUDGED])
@pytest.mark.parametrize("writer", WRITERS)
def test_all_files_go_every_road(tmp_path, writer, road):
    special = {*KINDS, *JUDGED}
    trips = [trip for trip in known_trips() if trip.sample.name.startswith(f"{writer}/")]
    chosen = [trip for trip in trips if road == (trip.road if trip.road in special else trip.version)]
    assert described(chosen, tmp_path) == []


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.page)
def test_the_page_names_each_difference(difference):
    assert difference.page in Path(ROOT, "docs", difference.document).read_text()


def test_a_finding_is_printed_with_the_line_that_repeats_it(capsys, monkeypatch):
    monkeypatch.setattr("tests.corpus.run.MOST_BYTES", 0)
    arguments = ["--only", "^csv/keywords:write:2.2$"]
    assert main(arguments) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "csv/keywords:write:2.2"
    assert printed[2] == "replay: --only '^csv/keywords:write:2\\.2$'"
    assert printed[-1].endswith("1 findings")
    monkeypatch.undo()
    assert main(arguments) == 0
