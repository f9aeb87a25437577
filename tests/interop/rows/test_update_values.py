"""What an update gives a column, against pylance: structs as a whole, and values of another type than the column's."""

import datetime as dt
from decimal import Decimal

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, UnsupportedError
from tests.interop.pairs import Pair
from tests.interop.sql.sql_table import TABLE, rounded

INNER = pa.struct([("d", pa.string()), ("e", pa.int64())])
ROWS = pa.table({
    "id": [1, 2, 3, 4],
    "i": pa.array([1, 2, 3, None], pa.int32()),
    "f": [1.5, 2.5, -3.7, None],
    "s": ["a", "b", None, "1"],
    "bo": [True, False, None, True],
    "bi": [b"a", b"b", None, b"c"],
    "t": pa.array([dt.datetime(2020, 1, 1, 1, 2, 3), None, None, None], pa.timestamp("us")),
    "dec": pa.array([Decimal("1.75"), Decimal("-2.50"), None, Decimal("3.00")], pa.decimal128(10, 2)),
    "tm": pa.array([dt.time(1, 2, 3), dt.time(4, 5, 6, 7000), dt.time(4, 5, 6, 7), None], pa.time64("us")),
    "di": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "a": pa.array(
        [{"b": 1, "c": {"d": "q", "e": 5}}, None, {"b": None, "c": None}, {"b": 4, "c": {"d": None, "e": 6}}],
        pa.struct([("b", pa.int32()), ("c", INNER)]),
    ),
    "l": pa.array([[{"z": 1}], None, [], [{"z": 2}]], pa.list_(pa.struct([("z", pa.int32())]))),
    "m": pa.array([[{"y": 1}], None, [], [{"y": 2}]], pa.list_(pa.struct([("y", pa.int32())]))),
})  # fmt: skip


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path, ROWS)


@pytest.mark.parametrize("name", ["a.b", "a.c", "a.c.d", "`a`.`b`"])
def test_a_field_of_a_struct_is_rejected_as_by_pylance(pair, name):
    with pytest.raises(ValueError, match="Nested column references are not yet supported"):
        pair.theirs.update({name: "NULL"})
    with pytest.raises(UnsupportedError, match=r"cannot be updated by itself; give 'a' a new value"):
        pair.ours.update({name: "NULL"})
    assert pair.ours.version == 1


@pytest.mark.parametrize("name", ["a.nope", "id.x", "A.b", "a.B", "ID", "l.z", "a['b']", "", "a.", "`a"])
def test_what_names_nothing_is_rejected_as_by_pylance(pair, name):
    with pytest.raises((ValueError, OSError)):
        pair.theirs.update({name: "NULL"})
    with pytest.raises(InvalidInputError, match="does not exist"):
        pair.ours.update({name: "NULL"})


@pytest.mark.variants(6)
@pytest.mark.parametrize("where", [None, "a.b IS NULL", "id > 1"])
@pytest.mark.parametrize(
    "value",
    [
        "named_struct('b', 7, 'c', a.c)",
        "named_struct('c', a.c, 'b', a.b + 1)",
        "named_struct('b', a.b, 'c', named_struct('e', a.c.e, 'd', 'x'))",
        "named_struct('b', a.b)",
        "named_struct('b', a.b, 'c', NULL)",
        "named_struct('b', a.b, 'c', a.c, 'more', 1)",
        "coalesce(a, named_struct('b', cast(1 as int), 'c', a.c))",
        "NULL",
    ],
)
def test_a_struct_as_a_whole(pair, value, where):
    pair.run(lambda d, _: d.update({"a": value}, where))


@pytest.mark.parametrize(
    "updates",
    [
        {"a": "struct(a.b, a.c)"},
        {"a": "a.c"},
        {"a": "named_struct('B', 1)"},
        {"a": "named_struct('b', 1, 'c', named_struct('zz', 1))"},
        {"a": "named_struct('b', 'q', 'c', a.c)"},
        {"a": "5"},
        {"l": "m"},
        {"i": "s"},
        {"i": "9999999999"},
        {"i": "id * 9999999999"},
        {"i": "f / 0"},
        {"bo": "s"},
        {"f": "s"},
    ],
    ids=str,
)
def test_what_would_lose_the_values_is_rejected(pair, updates):
    for library, dataset in ((lance, pair.theirs), (lance_core, pair.ours)):
        with pytest.raises((ValueError, OSError)):
            dataset.update(updates)
        assert library.dataset(dataset.uri).to_table().equals(ROWS)


@pytest.mark.parametrize(
    "updates",
    [
        {"i": "3.7"},
        {"i": "f"},
        {"i": "f + 1"},
        {"i": "dec"},
        {"i": "'7'"},
        {"i": "bo"},
        {"f": "i"},
        {"s": "f * 2"},
        {"s": "i"},
        {"s": "t"},
        {"s": "bo"},
        {"s": "dec"},
        {"s": "tm"},
        {"s": "di"},
        {"di": "f * 2"},
        {"di": "s || 'x'"},
        {"di": "NULL"},
        {"f": "t"},
        {"s": "bi"},
        {"bi": "s"},
        {"bo": "i"},
        {"bo": "'true'"},
        {"t": "i"},
        {"t": "'2020-01-01'"},
        {"t": "date '2020-01-01'"},
        {"dec": "i"},
        {"dec": "f"},
        {"dec": "dec * 2"},
        {"l": "NULL"},
    ],
    ids=str,
)
def test_values_are_cast_to_the_type_of_the_column(pair, updates):
    pair.run(lambda d, _: d.update(updates))


PLAIN = [name for name in TABLE.column_names if name not in ("odd name", "Upper", "st", "li", "lstr")]
PAIRS = [(target, source) for target in PLAIN for source in PLAIN if target not in ("id", source)]


@pytest.mark.parametrize(("target", "source"), PAIRS[::11])
def test_columns_from_each_other(tmp_path, target, source):
    """Either rejects some; what both take is the same."""
    found = []
    for library in (lance, lance_core):
        dataset = library.write_dataset(TABLE, tmp_path / library.__name__)
        try:
            dataset.update({target: source}, where="id <> 1")
        except (ValueError, OSError):
            return
        found.append([rounded(value) for value in dataset.to_table().sort_by("id").column(target).to_pylist()])
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("addr.n", "addr.n + 1", [{"n": 2, "c d": {"e": "x"}}, None, {"n": None, "c d": None}]),
    ("addr.`c d`.e", "'new'", [{"n": 1, "c d": {"e": "new"}}, None, {"n": None, "c d": None}]),
    ("addr.`c``d`", "3", [{"n": 1, "c d": {"e": "x"}, "c`d": 3}, None, {"n": None, "c d": None, "c`d": 3}]),
])  # fmt: skip
def test_what_a_message_about_fields_of_structs_says_keeps_null_structs(tmp_path, name, value, expected):
    kind = pa.struct([("n", pa.int32()), ("c d", pa.struct([("e", pa.string())])), ("c`d", pa.int32())])
    rows = [{"n": 1, "c d": {"e": "x"}}, None, {"n": None, "c d": None}]
    made = lance_core.write_dataset(pa.table({"addr": pa.array(rows, kind)}), tmp_path / "t")
    with pytest.raises(UnsupportedError, match="cannot be updated by itself") as found:
        made.update({name: value})
    made.update({"addr": str(found.value).partition("keeps null structs null: ")[2]})
    assert made.to_table()["addr"].to_pylist() == [row if row is None else {"c`d": None} | row for row in expected]


@pytest.mark.parametrize("value", ["c", "'[1]'"])
def test_a_column_of_json_gets_strings_or_values_of_such_a_column(tmp_path, value):
    table = pa.table({"n": [1, 2, 3], "c": pa.array(['{"a": 1}', "[]", None], pa.json_())})
    pair = Pair(tmp_path, table)
    if value == "'[1]'":  # pylance rejects strings for such columns
        pair.ours.update({"c": value}, where="n = 1")
        assert lance.dataset(pair.uris["ours"]).to_table().sort_by("n")["c"].to_pylist() == ["[1]", "[]", None]
        return
    pair.run(lambda d, _: d.update({"c": value}) and None, check=False)
    ours, reference = (lance.dataset(uri).to_table().sort_by("n") for uri in pair.uris.values())
    assert ours.equals(reference)


def test_structs_without_fields(tmp_path):
    table = pa.table({"n": [1, 2], "s": pa.array([{}, {}], pa.struct([]))})
    dataset = lance_core.write_dataset(table, tmp_path / "t")
    assert dataset.update({"s": "s"})["num_rows_updated"] == 2
    assert dataset.to_table().sort_by("n").equals(table)
