"""Slices: typed, exact, disjoint; `assign` and `expression` agree."""

import datetime as dt
import pickle
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lance_core
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.verbs.files.slices import Between, Equals, Slice, Slices

DAY = dt.timedelta(days=1)


def equals(column: str, *values: object) -> Slices:
    return Slices([Slice(name=str(v), conditions={column: Equals(v)}) for v in values])


def days(column: str, first: dt.date, count: int) -> Slices:
    return Slices(
        [Slice(name=str(i), conditions={column: Between(first + i * DAY, first + (i + 1) * DAY)}) for i in range(count)]
    )


def matched(slices: Slices, table: pa.Table) -> list[bool]:
    mask = pa.dataset.dataset(table).scanner(columns={"m": slices.expression(table.schema)}).to_table()["m"]
    return [bool(m) for m in mask.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (pa.string(), "a'b", "A'B"),
        (pa.large_string(), "x') OR 1=1 --", ""),
        (pa.int16(), -7, 7),
        (pa.date32(), dt.date(2013, 1, 1), dt.date(2013, 1, 2)),
        (pa.timestamp("us"), dt.datetime(2013, 1, 1, 5), dt.datetime(2013, 1, 1, 6)),
        (pa.timestamp("ms", "UTC"), dt.datetime(2013, 1, 1, tzinfo=dt.UTC), dt.datetime(2014, 1, 1, tzinfo=dt.UTC)),
        (pa.dictionary(pa.int8(), pa.string()), "a", "b"),
    ],
    ids=str,
)
def test_equality_on_every_kind_of_column(kind: pa.DataType, inside: object, outside: object) -> None:
    values = pa.array([outside, None, inside, inside], type=kind.value_type if pa.types.is_dictionary(kind) else kind)
    table = pa.table({"k": values.cast(kind)})
    slices = equals("k", inside)
    assert slices.assign(table).tolist() == [-1, -1, 0, 0]
    assert matched(slices, table) == [False, False, True, True]


@given(
    st.lists(st.integers(-5, 12)),
    st.sets(st.integers(0, 9), min_size=1).map(sorted),
    st.booleans(),
)
def test_ranges_agree_with_plain_python(values: list[int], keys: list[int], aware: bool) -> None:
    zone = dt.UTC if aware else None
    start = dt.datetime(2013, 3, 9, tzinfo=zone)
    slices = Slices(
        [Slice(name=str(k), conditions={"t": Between(start + k * DAY, start + (k + 1) * DAY)}) for k in keys]
    )
    table = pa.table(
        {
            "t": pa.array(
                [start + v * DAY + dt.timedelta(hours=3) for v in values], pa.timestamp("us", "UTC" if aware else None)
            )
        }
    )
    expected = [keys.index(v) if v in keys else -1 for v in values]
    assert slices.assign(table).tolist() == expected
    assert matched(slices, table) == [e >= 0 for e in expected]


def test_several_columns_need_not_form_a_full_grid() -> None:
    pairs = [(1, "a"), (1, "b"), (2, "a"), (3, "c")]
    slices = Slices([Slice(name=f"{n}{s}", conditions={"n": Equals(n), "s": Equals(s)}) for n, s in pairs])
    grid = [(n, s) for n in (1, 2, 3, 4, None) for s in ("a", "b", "c", "d", None)]
    table = pa.table({"n": [n for n, _ in grid], "s": [s for _, s in grid]})
    expected = [pairs.index(row) if row in pairs else -1 for row in grid]
    assert slices.assign(table).tolist() == expected
    assert matched(slices, table) == [e >= 0 for e in expected]


def test_many_columns_of_many_values() -> None:
    """2**13 values in each of five columns: 2**65 possible rows."""
    columns, values = "abcde", range(2**13)
    slices = Slices(Slice(name=str(value), conditions=dict.fromkeys(columns, Equals(value))) for value in values)
    rows = pa.table(
        {"a": [0, 2**12, 2**12], "b": [0, 0, 2**12], "c": [0, 0, 2**12], "d": [0, 0, 2**12], "e": [0, 0, 2**12]}
    )
    assert slices.assign(rows).tolist() == [0, -1, 2**12]


def test_local_days_follow_daylight_saving() -> None:
    zone = ZoneInfo("America/New_York")
    first = dt.datetime(2013, 3, 10, tzinfo=zone)
    slices = Slices([Slice(name="10", conditions={"t": Between(first, dt.datetime(2013, 3, 11, tzinfo=zone))})])
    hours = [dt.datetime(2013, 3, 10, 5, tzinfo=dt.UTC) + dt.timedelta(hours=h) for h in range(-1, 24)]
    table = pa.table({"t": pa.array(hours, pa.timestamp("ns", "UTC"))})
    assert slices.assign(table).tolist() == [-1, *[0] * 23, -1]


@pytest.mark.parametrize(
    ("slices", "kind", "message"),
    [
        (equals("x", 1), pa.int8(), "no column 'x'"),
        (equals("k", 300), pa.int8(), "cannot hold 300"),
        (equals("k", 1.5), pa.int64(), "1.5"),
        (equals("k", "1"), pa.int64(), "'1'"),
        (equals("k", dt.datetime(2013, 1, 1)), pa.date32(), "needs a date"),
        (equals("k", dt.datetime(2013, 1, 1)), pa.timestamp("us", "UTC"), "with a zone"),
        (equals("k", dt.datetime(2013, 1, 1, tzinfo=dt.UTC)), pa.timestamp("us"), "without a zone"),
        (equals("k", dt.datetime(2013, 1, 1, 1, 1, 1, 5)), pa.timestamp("ms"), "k"),
        (days("k", dt.date(2013, 1, 1), 2), pa.string(), "ranges"),
    ],
)
def test_what_cannot_be_exact_is_rejected_by_column(slices: Slices, kind: pa.DataType, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        slices.check(pa.schema([("k", kind)]))


def test_slices_must_be_disjoint_and_alike() -> None:
    schema = pa.schema([("k", pa.int64()), ("j", pa.int64())])
    with pytest.raises(InvalidInputError, match="same rows"):
        equals("k", 1, 1).check(schema)
    with pytest.raises(InvalidInputError, match="overlap"):
        Slices(
            [Slice(name="a", conditions={"k": Between(0, 5)}), Slice(name="b", conditions={"k": Between(4, 6)})]
        ).check(schema)
    with pytest.raises(InvalidInputError, match="empty"):
        Slices([Slice(name="a", conditions={"k": Between(5, 5)})]).check(schema)
    with pytest.raises(InvalidInputError, match="some slices"):
        Slices([Slice(name="a", conditions={"k": Between(5, 6)}), Slice(name="b", conditions={"k": Equals(7)})]).check(
            schema
        )
    with pytest.raises(InvalidInputError, match="over"):
        Slices([Slice(name="a", conditions={"k": Equals(1)}), Slice(name="b", conditions={"j": Equals(1)})])
    with pytest.raises(InvalidInputError, match="no slice"):
        Slices([])


def test_identities_differ_by_type_and_survive_pickling() -> None:
    one, text = equals("k", 1), equals("k", "1")
    assert one.identities() != text.identities()
    assert pickle.loads(pickle.dumps(one)) == one
    assert pickle.loads(pickle.dumps(one)).identities() == one.identities()
    utc = equals("k", dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC))
    assert equals("k", dt.datetime(2013, 1, 1, 0, tzinfo=ZoneInfo("America/New_York"))).identities() == utc.identities()


def test_batches_of_one_schema_are_assigned_by_one_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = Slices._build_lookup
    monkeypatch.setattr(Slices, "_build_lookup", lambda self, schema: built.append(schema) or build(self, schema))
    slices = equals("k", 3, 1)
    for kind in (pa.int64(), pa.int64(), pa.int8(), pa.int64()):
        assert slices.assign(pa.table({"k": pa.array([1, 2, 3], kind)})).tolist() == [1, -1, 0]
    assert [schema.field("k").type for schema in built] == [pa.int64(), pa.int8(), pa.int64()]
    again = pickle.loads(pickle.dumps(slices))
    assert again == slices
    assert again.assign(pa.table({"k": [3]})).tolist() == [0]
    assert "lookup" not in repr(slices)


def test_null_is_a_slice_of_its_own() -> None:
    slices = equals("k", None, 1)
    table = pa.table({"k": pa.array([1, None, 3, None], pa.int64())})
    assert slices.assign(table).tolist() == [1, 0, -1, 0]
    assert table.filter(slices.expression(table.schema)).column("k").to_pylist() == [1, None, None]
    assert table.filter(equals("k", None).expression(table.schema)).num_rows == 2
    assert equals("k", 1, 2).assign(table).tolist() == [0, -1, -1, -1]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("value", [0.0, -0.0, float("nan")])
def test_both_zeros_are_one_slice_and_so_is_every_nan(tmp_path: Path, kind: pa.DataType, value: float) -> None:
    def rows(keys: list[float | None], numbers: list[int]) -> pa.Table:
        return pa.table({"p": pa.array(keys, pa.float64()).cast(kind), "v": numbers})

    nan = float("nan")
    before = rows([0.0, nan, None, 1.0, -0.0, -nan], [1, 2, 3, 4, 5, 6])
    made = lance_core.write_dataset(before, tmp_path / "t")
    if kind != pa.float16():
        made.create_scalar_index("p", "ZONEMAP")
    slices = Slices([Slice(name="x", conditions={"p": Equals(value)})])
    new = rows([value, -value], [11, 12])
    assert slices.assign(new).tolist() == [0, 0]
    assert slices.identities() == Slices([Slice(name="y", conditions={"p": Equals(value)})]).identities()
    fragments = lance_core.write_fragments(new, made.uri)
    lance_core.commit_fragments(made.uri, fragments, new.schema, mode="replace", slices=slices)
    left = [2, 3, 4, 6] if value == 0 else [1, 3, 4, 5]
    assert sorted(lance_core.dataset(made.uri).to_table()["v"].to_pylist()) == [*left, 11, 12]
    with pytest.raises(InvalidInputError, match="hold the same rows"):
        Slices([Slice(name=str(one), conditions={"p": Equals(one)}) for one in (value, -value)]).check(new.schema)
