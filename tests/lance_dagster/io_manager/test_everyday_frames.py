"""Frames as they come every day: other widths, missing numbers, midnights. No value is lost, and none is guessed."""

import datetime as dt
import json
import re
import shlex
from itertools import product

import dagster as dg
import lance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lance_core
import lance_dagster.cli.change_type  # noqa: F401 - adds the command
from lance_core.errors import InvalidInputError
from lance_dagster import build_change_type_job
from lance_dagster.cli.app import cli
from lance_dagster.handlers.exact_cast import can_cast, cast_exactly
from lance_dagster.io_manager.column_types import parse_type
from tests.lance_dagster.lake import QUIET, errors

duckdb, pd, pl = (pytest.importorskip(name, reason="an extra") for name in ("duckdb", "pandas", "polars"))

DAY = dt.date(2024, 1, 1)
TABLE = pa.schema([
    ("part", pa.string()), ("n", pa.int64()), ("small", pa.int32()), ("day", pa.date32()), ("name", pa.large_string()),
])  # fmt: skip
FIRST = pa.table([["a"], [1], [1], [DAY], ["x"]], schema=TABLE)
PARTS = dg.StaticPartitionsDefinition(["a", "b"])
MODES = {
    "overwrite": {},
    "append": {"lance/write_mode": "append"},
    "merge": {"lance/write_mode": "merge", "lance/merge_on": "n"},
    "partition": {"partition_expr": "part"},
}


def rows(value, mode):
    @dg.asset(name="rows", metadata=MODES[mode], partitions_def=PARTS if mode == "partition" else None)
    def made():
        return value

    return made


def write(lake, value, mode, **options):
    return lake.run(rows(value, mode), partition="a" if mode == "partition" else None, **options)


def of_pandas(n, small=7, day="2024-01-02"):
    frame = pd.DataFrame({"name": ["y", "z"], "small": [small, 1], "n": [n, 9], "part": ["a", "a"]})
    frame["day"] = [pd.Timestamp(day), pd.Timestamp("2024-01-03")]
    return frame


def of_polars(n, small=7, day="2024-01-02"):
    moments = [dt.datetime.fromisoformat(day), dt.datetime(2024, 1, 3)]
    return pl.DataFrame(
        {"name": ["y", "z"], "small": [small, 1], "n": [n, 9], "part": ["a", "a"], "day": moments}, strict=False
    )


def of_arrow(n, small=7, day="2024-01-02"):
    return of_polars(n, small, day).to_arrow(compat_level=pl.CompatLevel.oldest())


def of_reader(n, small=7, day="2024-01-02"):
    return of_arrow(n, small, day).to_reader(max_chunksize=1)


def of_duckdb(n, small=7, day="2024-01-02"):
    return duckdb.from_arrow(of_arrow(n, small, day))


KINDS = [of_pandas, of_polars, of_arrow, of_reader, of_duckdb]


@pytest.mark.parametrize(
    ("make", "mode"), [(KINDS[n % 5], mode) for n, mode in enumerate([*MODES, *MODES])], ids=lambda one: str(one)[:20]
)
def test_what_loses_nothing_is_cast_and_reported(lake, make, mode):
    write(lake, FIRST, mode)
    (event,) = write(lake, make(None), mode).asset_materializations_for_node("rows")
    table = lake.table("rows")
    assert table.schema == TABLE
    new = [("a", None, 7, dt.date(2024, 1, 2), "y"), ("a", 9, 1, dt.date(2024, 1, 3), "z")]
    old = [("a", 1, 1, DAY, "x")] if mode in ("append", "merge") else []
    found = lance.dataset(table.uri).to_table().to_pylist()
    assert sorted(map(repr, (tuple(row.values()) for row in found))) == sorted(map(repr, [*old, *new]))
    casts = event.metadata["lance/casts"].value
    assert casts["small"] == "int64 -> int32"
    assert casts["day"].endswith("-> date32[day]")
    assert ("n" in casts) == (make is of_pandas)


FRACTION = ({"n": 1.5}, "column 'n' is of type double, but the table has int64, and the value 1.5 cannot be cast")
LARGE = (
    {"n": 5, "small": 2**31},
    "column 'small' is of type int64, but the table has int32, and the value 2147483648",
)
HOUR = (
    {"n": 5, "day": "2024-01-02T03:00"},
    "but the table has date32[day], and the value 2024-01-02 03:00:00",
)


@pytest.mark.parametrize(
    ("make", "mode", "values", "message"),
    [
        (of_pandas, "overwrite", *FRACTION),
        (of_polars, "partition", *LARGE),
        (of_reader, "append", *HOUR),
        (of_pandas, "merge", *FRACTION),
        (of_polars, "merge", *HOUR),
        (of_reader, "overwrite", *LARGE),
    ],
)
def test_what_would_lose_is_rejected_by_column_and_value(lake, make, mode, values, message):
    write(lake, FIRST, mode)
    result = write(lake, make(**values), mode, fails=True)
    assert message in errors(result)
    assert errors(result).count("asset rows") == 1
    assert lake.table("rows").version == 1


class TestRemedy:
    """What the message says is done, word by word."""

    def rejected(self, lake, mode, value):
        return errors(write(lake, value, mode, fails=True))

    @pytest.mark.parametrize(
        ("mode", "value", "kind"),
        [
            ("partition", of_pandas(5, small=2**31), pa.int64()),
            ("append", of_pandas(2, small=1.5), pa.float64()),
            ("merge", of_pandas(5, small=2**31), pa.int64()),
        ],
    )
    def test_the_command(self, lake, mode, value, kind):
        write(lake, FIRST, mode)
        message = self.rejected(lake, mode, value)
        assert "overwrite the" not in message
        assert "schema_mode" not in message
        command = re.search(r"lance-dagster (change-type .+?) \(or", message)[1]
        done = CliRunner().invoke(cli, shlex.split(command))
        assert done.exit_code == 0, done.output
        assert lake.table("rows").schema.field("small").type == kind
        write(lake, value, mode)
        assert value["small"][0] in [row[2] for row in lake.rows("rows")]

    def test_the_setting_where_the_whole_table_is_overwritten(self, lake):
        write(lake, FIRST, "overwrite")
        message = self.rejected(lake, "overwrite", of_pandas(5, small=2**31))
        assert "lance/schema_mode: overwrite" in message
        assert "change-type" not in message
        MODES["changed"] = {"lance/schema_mode": "overwrite"}
        try:
            write(lake, of_pandas(5, small=2**31), "changed")
        finally:
            del MODES["changed"]
        assert lake.table("rows").schema.field("small").type == pa.int64()

    def test_the_job(self, lake):
        write(lake, FIRST, "partition")
        message = self.rejected(lake, "partition", of_pandas(5, small=2**31))
        assert "build_change_type_job" in message
        asset = rows(None, "partition")
        job = build_change_type_job([asset])
        defs = dg.Definitions([asset], jobs=[job], resources={"io_manager": lake.manager()})
        config = {"table": "rows", "column": "small", "type": "int64"}
        result = defs.resolve_job_def("lance_change_type").execute_in_process(
            run_config={**QUIET, "ops": {"lance_change_type_op": {"config": config}}}, instance=lake.instance
        )
        (event,) = result.get_asset_observation_events()
        observation = event.event_specific_data.asset_observation
        table = lake.table("rows")
        assert observation.metadata["lance/version"].value == table.version
        shown = {one.name: one.type for one in observation.metadata["dagster/column_schema"].value.columns}
        assert shown["small"] == "int64"
        properties = lake.properties("rows")[-1]
        assert properties["dagster.run_id"] == result.run_id
        assert properties["dagster.column_type"] == "column small: int32 -> int64"
        write(lake, of_pandas(5, small=2**31), "partition")

    @pytest.mark.parametrize("kind", ["string", "date32"])
    def test_a_partition_column_whose_rows_would_move(self, lake, kind):
        days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-03")

        @dg.asset(partitions_def=days, metadata={"partition_expr": "day"})
        def daily(context) -> pa.Table:
            return pa.table({"day": [dt.datetime.fromisoformat(key) for key in context.partition_keys]})

        lake.run(daily, span=("2026-01-01", "2026-01-02"))
        defs = dg.Definitions([daily], jobs=[build_change_type_job([daily])], resources={"io_manager": lake.manager()})
        config = {"ops": {"lance_change_type_op": {"config": {"table": "daily", "column": "day", "type": kind}}}}
        result = defs.resolve_job_def("lance_change_type").execute_in_process(
            run_config={**QUIET, **config}, instance=lake.instance, raise_on_error=False
        )
        assert result.success is (kind == "date32")
        assert lake.table("daily").schema.field("day").type == (pa.date32() if result.success else pa.timestamp("us"))
        if kind == "string":
            assert "would not be in its partition any more" in errors(result)

    def test_a_partition_column_with_its_zone_map(self, lake):
        asset_of = {"metadata": {"partition_expr": "k"}, "partitions_def": dg.StaticPartitionsDefinition(["1", "2"])}

        def keyed(kind):
            @dg.asset(name="keyed", **asset_of)
            def made(context):
                return pa.table({"k": pa.array([int(context.partition_key)], kind)})

            return made

        for key in ("1", "2"):
            lake.run(keyed(pa.int16()), partition=key, max_unindexed_fragments=0)
        assert [one.index_type for one in lake.table("keyed").describe_indices()] == ["ZoneMap"]
        done = CliRunner().invoke(cli, ["change-type", lake.uri("keyed"), "k", "int64"])
        assert done.exit_code == 0, done.output
        assert [one.index_type for one in lake.table("keyed").describe_indices()] == ["ZoneMap"]
        lake.run(keyed(pa.int64()), partition="2")
        assert lance.dataset(lake.uri("keyed")).to_table(filter="k >= 2").column("k").to_pylist() == [2]


class TestCommand:
    @pytest.fixture
    def uri(self, tmp_path):
        path = str(tmp_path / "t.lance")
        table = pa.table({"f": [1.0, 2.5], "s": ["1", "x"], "day": pa.array([DAY, None])})
        lance_core.write_dataset(table, path)
        return path

    def run(self, *arguments):
        return CliRunner().invoke(cli, ["change-type", *arguments])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("f", "int64"), "its value 2.5 would change"),
            (("s", "int64"), "its value 'x' would change"),
            (("day", "int64"), "there is no such cast"),
            (("g", "int64"), "there is no column 'g'; the columns are ['f', 's', 'day']"),
            (("f", "integer64"), "is 'int64' meant?"),
        ],
    )
    def test_is_rejected_before_anything_is_written(self, uri, arguments, message):
        done = self.run(uri, *arguments)
        assert done.exit_code == 1
        assert message in done.stderr
        assert lance_core.dataset(uri).version == 1

    def test_losses_are_allowed_by_name(self, uri):
        assert self.run(uri, "f", "int64", "--allow-loss").exit_code == 0
        assert lance.dataset(uri).to_table().column("f").to_pylist() == [1, 2]

    def test_to_string_and_back(self, uri):
        assert "version 2" in self.run(uri, "day", "string").output
        assert lance.dataset(uri).to_table().column("day").to_pylist() == ["2024-01-01", None]
        assert json.loads(self.run(uri, "day", "date32", "--json").output)["type"] == "date32[day]"
        assert lance.dataset(uri).to_table().column("day").to_pylist() == [DAY, None]
        assert "already; nothing was written" in self.run(uri, "day", "date32").output


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(), pa.timestamp("us", "Europe/Berlin"), pa.decimal128(10, 2), pa.decimal256(40, 3), pa.float16(),
        pa.list_(pa.large_list(pa.date32())), pa.list_(pa.float32(), 3), pa.time32("s"), pa.large_binary(),
    ],
)  # fmt: skip
def test_types_are_parsed_as_they_are_printed(kind):
    assert parse_type(str(kind)) == kind


@pytest.mark.parametrize(("name", "meant"), [
    ("bigint", "int64"), ("INTEGER", "int32"), ("varchar", "string"), ("double  precision", "float64"),
    ("timestamptz", "timestamp[us, tz=UTC]"), ("int46", "int64"),
    ("dubble", "double"), ("flaot", "float"), ("biginnt", "int64"),
])  # fmt: skip
def test_types_as_sql_calls_them(name, meant):
    with pytest.raises(InvalidInputError, match=re.escape(f"; is {meant!r} meant?")):
        parse_type(name)
    assert parse_type(meant) is not None


class TestPandas:
    def failure(self, lake, frame):
        return errors(lake.run(rows(frame, "overwrite"), fails=True))

    def test_a_column_of_several_types(self, lake):
        message = self.failure(lake, pd.DataFrame({"id": [1, 2], "code": ["a", 7]}))
        assert "asset rows" in message
        assert "column 'code' holds values of several types: str ('a'), int (7)" in message

    def test_a_column_of_objects(self, lake):
        assert "column 'what' of object" in self.failure(lake, pd.DataFrame({"what": [object()]}))

    def test_a_name_twice(self, lake):
        frame = pd.DataFrame([[1, 2]], columns=["id", "id"])
        assert "column 'id' appears twice; rename or drop one of them" in self.failure(lake, frame)


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
NUMBERS = [*INTEGERS, pa.float32(), pa.float64(), pa.decimal128(20, 0), pa.decimal128(5, 2)]
VALUES = [0, 1, -1, 127, 128, 255, 2**24, 2**24 + 1, 2**31, 2**53, 2**53 + 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_a_number_is_the_same_number_or_rejected(source):
    for target, value in product(NUMBERS, [*VALUES, 0.5, 1e300, np.nan, np.inf]):
        try:
            column = pa.array([value], pa.float64() if isinstance(value, float) else None).cast(source)
        except (pa.ArrowInvalid, OverflowError):
            continue
        if not can_cast(source, target):
            continue
        given = column[0].as_py()
        try:
            kept = cast_exactly(column, pa.field("c", target))[0].as_py()
        except ValueError:
            kept = None
        if kept is not None:
            assert kept == given or (kept != kept and given != given)  # noqa: PLR0124 - NaN
        elif not isinstance(given, float):
            fits = pa.types.is_floating(target) and int(np.dtype(target.to_pandas_dtype()).type(given)) == given
            assert not fits, f"{given} of {source} is a number of {target}"


def test_a_first_partition_without_rows_or_types(lake):
    pandas = pytest.importorskip("pandas")
    days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-03")
    rows = {"2024-01-01": {"day": [], "n": []}, "2024-01-02": {"day": ["2024-01-02"], "n": [2]}}

    def make(**metadata):
        @dg.asset(name="t", partitions_def=days, metadata={"partition_expr": "day", **metadata})
        def t(context):
            return pandas.DataFrame(rows[context.partition_key])

        return t

    message = errors(lake.run(make(), partition="2024-01-01", fails=True))
    assert 'give the asset the metadata "lance/schema": {"day": "string", ...}' in message
    for day in rows:
        lake.run(make(**{"lance/schema": {"day": "string", "n": "int64"}}), partition=day)
    assert lake.rows("t") == [("2024-01-02", 2)]


@pytest.mark.parametrize("column", ["part", "name"])
@pytest.mark.parametrize("mode", MODES)
def test_a_string_that_is_not_utf8_fails_the_step_with_column_and_row(lake, mode, column):
    write(lake, FIRST, mode)
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")])
    result = write(lake, FIRST.set_column(FIRST.schema.get_field_index(column), column, bad), mode, fails=True)
    assert f"column '{column}': row 0 has a string that is not UTF-8" in errors(result)
    assert lake.table("rows").version == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_column_whose_name_is_not_utf8_fails_the_step(lake, mode):
    write(lake, FIRST, mode)
    schema = pa.schema([*FIRST.schema, pa.field("n%", pa.int64())])
    bad = pa.ipc.read_schema(pa.py_buffer(schema.serialize().to_pybytes().replace(b"n%", b"n\xff")))
    rows = pa.Table.from_arrays([*FIRST.columns, pa.nulls(FIRST.num_rows, pa.int64())], schema=bad)
    result = write(lake, rows, mode, fails=True)
    assert f"the name of column {len(FIRST.schema)}, counted from 0, is no UTF-8: b'n\\xff'" in errors(result)
    assert "UnicodeDecodeError" not in errors(result)
    assert lake.table("rows").version == 1
