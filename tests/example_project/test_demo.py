"""`make demo`, on one month: every table equals its source, for us and for pylance, which goes on working with them."""

import datetime as dt
import json
import os
import re
import shutil
import sys
from pathlib import Path

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pytest
from rich.console import Console

import lance_core
from example_project.features import CARRIERS, ORIGINS, WIDTH
from example_project.home import clear_example_home, prepare_dagster_home
from example_project.sources import MISSING, source_file
from tests import processes

ROOT = Path(__file__).parents[2]
FIRST, LAST, AGAIN = "2013-01-01", "2013-01-31", "2013-01-15"
TABLES = (
    *("airlines", "airports", "planes", "weather", "calendar", "flights"),
    *("delays", "flight_vectors", "aircraft", "routes", "carriers", "cancellations"),
)
RANGE = 31


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder of a demonstration that has run, and what it printed."""
    home = tmp_path_factory.mktemp("demo")
    environment = {**os.environ, "LANCE_EXAMPLE_HOME": str(home), "COLUMNS": "140"}
    command = [sys.executable, "-m", "example_project.demo", "--first", FIRST, "--last", LAST, "--again", AGAIN]
    done = processes.run(command, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return home, done.stdout


@pytest.fixture(scope="module")
def source(demo):
    """The January flights of the package, with their date."""
    options = pa_csv.ConvertOptions(null_values=[MISSING], strings_can_be_null=True)
    flights = pa_csv.read_csv(demo[0] / "raw" / "flights.csv", convert_options=options)
    flights = flights.filter(pc.equal(flights["month"], 1))
    days = [dt.date(2013, 1, day) for day in flights["day"].to_pylist()]
    return flights.append_column("date", pa.array(days, pa.date32()))


def uri(demo, name):
    return str(demo[0] / "lake" / "nyc" / f"{name}.lance")


def ordered(table, names=None):
    """Columns and rows in an order of their own, types as the CSV reader has them."""
    table = table.select(sorted(names or table.column_names))
    columns = [c.cast(pa.string()) if pa.types.is_large_string(c.type) else c for c in table.columns]
    columns = [c.cast(pa.float64()) if pa.types.is_integer(c.type) else c for c in columns]
    columns = [c.cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(c.type) else c for c in columns]
    made = pa.table(columns, names=table.column_names)
    return made.sort_by([(name, "ascending") for name in made.column_names])


def promoted(demo):
    """The flights at the version of the promotion; captions of its rows follow."""
    table = lance_core.dataset(uri(demo, "flights"))
    return table.checkout_version(table.version - 1)


def csv(name):
    options = pa_csv.ConvertOptions(null_values=[MISSING], strings_can_be_null=True)
    return pa_csv.read_csv(source_file(f"{name}.csv"), convert_options=options)


def test_the_commit_of_sql_records_its_inputs(demo):
    properties = lance_core.dataset(uri(demo, "carriers")).read_transaction(1).transaction_properties
    read = {key: json.loads(value) for key, value in properties.items() if key.startswith("dagster.input.")}
    assert {key: entry["uri"] for key, entry in read.items()} == {
        f"dagster.input.nyc/{name}": uri(demo, name) for name in ("flights", "airlines")
    }


@pytest.mark.parametrize("reader", ["lance_core", "pylance"])
class TestTables:
    def read(self, demo, reader, name):
        if reader == "lance_core":
            return lance_core.dataset(uri(demo, name)).to_table()
        import lance

        return lance.dataset(uri(demo, name)).to_table()

    @pytest.mark.parametrize("name", ["airlines", "airports", "planes", "weather"])
    def test_reference_tables_equal_their_files(self, demo, reader, name):
        assert ordered(self.read(demo, reader, name)) == ordered(csv(name))

    def test_flights_equal_their_file(self, demo, source, reader):
        assert ordered(self.read(demo, reader, "flights"), source.column_names) == ordered(source)

    def test_captions_describe_their_flights(self, demo, source, reader):
        found = self.read(demo, reader, "flights")
        assert found["caption"].null_count == 0
        expected = [
            f"{row['carrier']} {row['flight']} from {row['origin']} to {row['dest']} on {row['date']:%A, %d %B} "
            + ("did not leave." if row["dep_delay"] is None else f"left {max(row['dep_delay'], 0)} minutes late.")
            for row in source.to_pylist()
        ]
        assert sorted(found["caption"].to_pylist()) == sorted(expected)

    def test_delays_equal_an_aggregate_of_the_file(self, demo, source, reader):
        expected = source.group_by(["date", "carrier"]).aggregate(
            [
                ("dep_delay", "mean"),
                ("arr_delay", "mean"),
                ("dep_delay", "max"),
                ("flight", "count"),
                ("dep_delay", "count"),
            ]
        )
        found = self.read(demo, reader, "delays")
        assert found.num_rows == expected.num_rows
        by_key = {(row["date"], row["carrier"]): row for row in found.to_pylist()}
        for row in expected.to_pylist():
            ours = by_key[row["date"], row["carrier"]]
            assert ours["flights"] == row["flight_count"]
            assert ours["cancelled"] == row["flight_count"] - row["dep_delay_count"]
            assert ours["max_dep_delay"] == row["dep_delay_max"]
            assert ours["mean_dep_delay"] == pytest.approx(row["dep_delay_mean"])
            assert ours["mean_arr_delay"] == pytest.approx(row["arr_delay_mean"])

    def test_sql_counts_the_flights_of_the_file(self, demo, source, reader):
        left = source.filter(pc.is_valid(source["dep_delay"]))
        names = dict(zip(*csv("airlines").to_pydict().values(), strict=True))
        found = {row["carrier"]: row for row in self.read(demo, reader, "carriers").to_pylist()}
        assert {one: row["name"] for one, row in found.items()} == {one: names[one] for one in found}
        counted = left.group_by("carrier").aggregate([([], "count_all")]).to_pylist()
        late = left.filter(pc.greater(left["dep_delay"], 60)).group_by("carrier").aggregate([([], "count_all")])
        assert {one: row["flights"] for one, row in found.items()} == {
            row["carrier"]: row["count_all"] for row in counted
        }
        assert sum(row["late"] for row in found.values()) == sum(late["count_all"].to_pylist())

    def test_vectors_describe_their_flights(self, demo, source, reader):
        found = self.read(demo, reader, "flight_vectors")
        assert found.schema.field("features").type == pa.list_(pa.field("item", pa.float32()), WIDTH)
        assert found.num_rows == source.num_rows
        vectors = np.array(found["features"].to_pylist(), dtype=np.float32)
        origins = np.array([found["origin"].to_numpy() == name for name in ORIGINS]).T
        carriers = np.array([found["carrier"].to_numpy() == name for name in CARRIERS]).T
        assert (vectors[:, 13:16] == origins).all()
        assert (vectors[:, 16:] == carriers).all()
        departure = found["sched_dep_time"].to_numpy()
        angle = (departure // 100 * 60 + departure % 100) * (2 * np.pi / 1440)
        assert np.allclose(vectors[:, 0], np.sin(angle), atol=1e-6)

    def test_a_column_of_the_vectors_names_the_part_of_the_day(self, demo, source, reader):
        found = self.read(demo, reader, "flight_vectors")
        departure = found["sched_dep_time"].to_numpy()
        expected = np.where(departure < 1200, "morning", np.where(departure < 1800, "afternoon", "evening"))
        assert found["time_of_day"].to_pylist() == expected.tolist()

    def test_cancellations_are_the_flights_that_did_not_leave(self, demo, source, reader):
        names = ["time_hour", "carrier", "flight", "date", "origin", "dest"]
        expected = source.filter(pc.is_null(source["dep_delay"])).select(names)
        assert ordered(self.read(demo, reader, "cancellations"), names) == ordered(expected)


def test_the_last_run_of_cancellations_read_the_promoted_week_alone(demo, source):
    days = [dt.date(2013, 1, 15) + dt.timedelta(days=number) for number in range(7)]
    week = source.filter(
        pc.and_(pc.is_null(source["dep_delay"]), pc.is_in(source["date"], pa.array(days, pa.date32())))
    )
    newest = promoted(demo).version
    said = re.search(r"versions (\d+) to (\d+) of nyc/flights were read; (\d+) of (\d+) rows updated", demo[1])
    assert (int(said[1]) < newest, int(said[2])) == (True, newest)
    assert int(said[3]) == week.num_rows  # that was made again
    assert int(said[4]) == source["dep_delay"].null_count


def test_at_last_a_week_on_a_branch_is_promoted_by_one_commit(demo, source):
    table = promoted(demo)
    made = table.read_transaction(table.version).transaction_properties
    assert made["promoted_from"] == "backfill/week"
    fork = table.branches.list()["backfill/week"]["parent_version"]
    assert fork == table.version - 1
    branch = table.checkout_version(("backfill/week", None))
    names = source.column_names
    assert ordered(branch.to_table(), names) == ordered(table.to_table(), names) == ordered(source)
    maintenance, story = demo[1].split("maintenance: small fragments are merged")
    assert "backfill/week" not in maintenance
    assert "branch backfill/week: its changes before the promotion" in story
    assert "7 days, 2013-01-15 .. 2013-01-21" in story
    before, after = (table.checkout_version(version) for version in (fork, table.version))
    for name, one in {"main before": before, "backfill/week": branch, "main after": after}.items():
        cells = (str(one.version), f"{one.count_rows():,}", str(len(one.get_fragments())))
        assert any(re.fullmatch(rf".*{name} .*{' .* '.join(cells)} .*", line) for line in story.splitlines())


def test_captions_of_the_promoted_week_alone_are_computed_again(demo, source):
    week = sum(15 <= day <= 21 for day in source["day"].to_pylist())
    table = demo[1].split("captions: each row is computed once")[1].splitlines()[4:6]
    rows = [[cell.strip() for cell in line.split("│")[2:6]] for line in table]
    assert rows == [
        [f"{count:,}", f"new: {count:,}", calls, "0"] for count, calls in ((source.num_rows, "4"), (week, "1"))
    ]


def test_the_history_of_flights_is_a_range_a_day_and_maintenance(demo):
    table = promoted(demo)
    first, second = (table.read_transaction(version) for version in (1, 2))
    assert second.operation.name == "Update"
    assert first.transaction_properties["dagster.partition_keys"].count("2013-01-") == RANGE
    assert second.transaction_properties["dagster.partition_keys"] == f'["{AGAIN}"]'
    assert first.transaction_properties["dagster.run_id"] != second.transaction_properties["dagster.run_id"]
    assert len(table.checkout_version(2).get_fragments()) == RANGE
    assert len(table.checkout_version(table.version - 1).get_fragments()) == 1  # maintenance


def test_aircraft_are_merged_by_their_number(demo, source):
    table = lance_core.dataset(uri(demo, "aircraft"))
    made, merged = (table.read_transaction(version) for version in (1, 2))
    assert merged.operation.name == "Update"
    assert merged.transaction_properties["dagster.run_id"] != made.transaction_properties["dagster.run_id"]
    expected = source.group_by("tailnum").aggregate([("date", "max"), ("date", "count")]).drop_null()
    found = {row["tailnum"]: (row["last_seen"], row["departures"]) for row in table.to_table().to_pylist()}
    assert found == {row["tailnum"]: (row["date_max"], row["date_count"]) for row in expected.to_pylist()}
    assert table.count_rows() == len(found)


def test_what_is_printed_is_what_the_tables_say(demo):
    printed = demo[1]
    for name in TABLES:
        table = lance_core.dataset(uri(demo, name))
        assert f"{name}: {len(table.schema)} columns" in printed
        for version in table.versions():
            properties = table.read_transaction(version["version"]).transaction_properties
            if properties and not {"dagster.maintenance", "promoted_from"} & properties.keys():
                assert properties["dagster.run_id"][:8] in printed
    assert "maintenance: small fragments are merged" in printed
    assert f"{RANGE} keys, {FIRST} .. {LAST}" in printed


def test_declared_indices_are_built_and_printed(demo, source):
    import lance

    printed = demo[1].split("search: declared indices, and what they find")[1].split("branch backfill/week")[0]
    for line in (r"airports +│ name_idx +│ FTS +│ +100% │", r"flight_vectors │ features_idx │ IVF_FLAT │ +100% │"):
        assert re.search(line, printed), printed
    found = lance.dataset(uri(demo, "airports")).to_table(columns=["faa"], full_text_query="guardia", fast_search=True)
    assert found["faa"].to_pylist() == ["LGA"]
    table = lance.dataset(uri(demo, "flight_vectors"))
    query = table.to_table(columns=["features"], limit=1)["features"][0].values.to_numpy()
    nearest = {"column": "features", "q": query, "k": 3}
    near = table.to_table(columns=["features"], nearest=nearest, fast_search=True)
    exact = table.to_table(columns=["features"], nearest={**nearest, "use_index": False})
    assert near["_distance"].to_pylist() == pytest.approx(exact["_distance"].to_pylist(), abs=1e-5)


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    from example_project import demo

    monkeypatch.setenv("LANCE_EXAMPLE_HOME", str(tmp_path))
    for name in ("airports", "flight_vectors"):
        lance_core.write_dataset(pa.table({"name": ["a"]}), str(tmp_path / "lake" / "nyc" / f"{name}.lance"))
    console = Console(record=True, width=140)
    demo._print_indices(console)
    said = console.export_text()
    for column in ("name", "features"):
        assert f"none on {column}: pip install 'lance-dagster[search]'" in said


def test_dagster_has_content_for_every_view(demo, monkeypatch):
    """History, checks that are newer than what they look at, observations of maintenance and of others, lineage."""
    monkeypatch.setenv("DAGSTER_HOME", str(demo[0] / "dagster"))
    with dg.DagsterInstance.get() as instance:
        key = dg.AssetKey(["nyc", "flights"])
        event = instance.get_latest_materialization_event(key)
        assert "/runs/" in event.asset_materialization.metadata["lance/table_log"].value
        record = instance.get_run_records(dg.RunsFilter(job_name="check_tables"), limit=1)[0]
        evaluated = [
            log.dagster_event.event_specific_data
            for log in instance.all_logs(record.dagster_run.run_id)
            if log.dagster_event is not None and log.dagster_event.event_type_value == "ASSET_CHECK_EVALUATION"
        ]
        checked = (*TABLES, "time_of_day")
        assert {one.asset_key for one in evaluated} == {dg.AssetKey(["nyc", name]) for name in checked}
        found = {(one.asset_key.path[-1], one.check_name) for one in evaluated if not one.passed}
        assert found == {("flights", "lance_small_fragments"), ("flights", "lance_deleted_fraction")}  # the promotion
        assert {one.severity for one in evaluated if not one.passed} == {dg.AssetCheckSeverity.WARN}
        (observed,) = instance.fetch_observations(dg.AssetKey(["nyc", "notices"]), limit=1).records
        assert observed.asset_observation.metadata["lance/commit_message"].value == "notice of snow"
        delays = instance.get_latest_materialization_event(dg.AssetKey(["nyc", "delays"])).asset_materialization
        assert delays.metadata["lance/inputs"].value[0]["asset"] == "nyc/flights"
        assert "date" in delays.metadata["dagster/column_lineage"].value.deps_by_column


def test_dagster_loads_the_code_location(demo):
    """As `make ui` names it."""
    environment = {**os.environ, "LANCE_EXAMPLE_HOME": str(demo[0]), "DAGSTER_HOME": str(demo[0] / "dagster")}
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "--workspace", ROOT / "workspace.yaml"]
    done = processes.run(command, env={**environment, "PYTHONWARNINGS": "ignore"})
    assert done.returncode == 0, done.stdout + done.stderr


def test_pylance_goes_on_with_the_tables(demo, source):
    import lance

    path = uri(demo, "flights")
    table = lance.dataset(path)
    for version in (1, 2):
        ours = lance_core.dataset(path).read_transaction(version).transaction_properties
        theirs = table.read_transaction(version).transaction_properties
        assert theirs["dagster.run_id"] == ours["dagster.run_id"]
    day = table.to_table(filter=f"date = DATE '{AGAIN}'")
    table.delete(f"date = DATE '{AGAIN}' AND carrier = 'UA'")
    assert lance_core.dataset(path).count_rows() == source.num_rows - pc.sum(pc.equal(day["carrier"], "UA")).as_py()
    lance.write_dataset(day.filter(pc.equal(day["carrier"], "UA")), path, mode="append")
    lance.dataset(path).optimize.compact_files()
    ours = lance_core.dataset(path)
    assert len(ours.get_fragments()) == 1
    assert ordered(ours.to_table(), source.column_names) == ordered(source)


@pytest.mark.parametrize("program", ["demo", "ui"])
def test_without_java_it_says_at_once_what_to_install(program, tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path), "LANCE_EXAMPLE_HOME": str(tmp_path / "home")}
    environment.pop("JAVA_HOME", None)
    command = [sys.executable, "-m", f"example_project.{program}"]
    done = processes.run(command, env=environment)
    assert done.returncode == 1
    assert "apt-get install openjdk-17-jdk-headless" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "home").exists()


def test_only_what_the_example_made_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("LANCE_EXAMPLE_HOME", str(tmp_path))
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit, match="did not create"):
        clear_example_home()
    assert (tmp_path / "lake" / "mine.txt").exists()
    shutil.rmtree(tmp_path / "lake")
    monkeypatch.setenv("DAGSTER_HOME", "")
    prepare_dagster_home()
    (tmp_path / "other.txt").write_text("mine")
    clear_example_home()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made-by-lance-example", "other.txt"]
