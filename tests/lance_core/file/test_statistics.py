"""Bounds of 0.1 statistics hold for every value, whatever they leave out."""

import datetime as dt
import decimal
import math
from dataclasses import replace

import pyarrow as pa
import pytest

from lance_core.encoding.concatenate import concatenate
from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.file.statistics import PREFIX_BYTES, StatisticsCollector, bounds, has_statistics
from lance_core.schema import Schema, schema_from_arrow


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([3, None, 1]), (1, 1, 3)),
        (pa.array([None], pa.int16()), (1, -32768, 32767)),
        (pa.array([None], pa.uint8()), (1, 0, 255)),
        (pa.array([1.5, math.nan, None]), (1, 1.5, 1.5)),
        (pa.array([math.nan]), (0, -math.inf, math.inf)),
        (pa.array([True, True]), (0, True, True)),
        (pa.array(["b", "a"]), (0, "a", "b")),
        (pa.array([None], pa.string()), (1, None, None)),
        (pa.array([dt.date(2020, 1, 2), None]), (1, pa.scalar(dt.date(2020, 1, 2)), pa.scalar(dt.date(2020, 1, 2)))),
        (pa.array([decimal.Decimal("1.50")]), (0, decimal.Decimal("1.50"), decimal.Decimal("1.50"))),
    ],
    ids=str,
)
def test_bounds(array, expected):
    assert bounds(array) == expected


def test_zeros_have_signs():
    _, lowest, highest = bounds(pa.array([0.0, -0.0]))
    assert math.copysign(1, lowest) == -1
    assert math.copysign(1, highest) == 1


@pytest.mark.parametrize(
    "text", ["x" * 100, "é" * 60, "a" * 63 + "é" * 9, "\U0010ffff" * 30, "\ud7ff" * 40, "x" * 63 + "\x7f" * 9]
)
def test_cut_texts_still_bound(text):
    _, lowest, highest = bounds(pa.array([text]))
    assert lowest.encode() <= text.encode()
    assert len(lowest.encode()) <= PREFIX_BYTES
    assert highest is None or highest.encode() > text.encode()


def test_cut_bytes_still_bound():
    assert bounds(pa.array([b"\xff" * 100])) == (0, b"\xff" * 64, None)
    _, lowest, highest = bounds(pa.array([b"a\xff" * 50]))
    assert lowest <= b"a\xff" * 50 < highest
    assert len(highest) <= PREFIX_BYTES


def test_unknown_decimals_and_dates_span_their_types():
    _, lowest, highest = bounds(pa.array([None], pa.decimal128(38, 2)))
    assert (lowest, highest) == (-(2**127), 2**127 - 1), "unscaled, whatever the precision"
    _, lowest, highest = bounds(pa.array([None], pa.date32()))
    assert pa.array([lowest, highest], pa.date32()).cast(pa.int32()).to_pylist() == [-(2**31), 2**31 - 1]


def test_types_without_order_have_none():
    assert not has_statistics(pa.list_(pa.int32()))
    assert not has_statistics(pa.timestamp("us"))
    assert has_statistics(pa.large_binary())


def test_fields_of_structs_have_statistics():
    table = pa.table({"s": [{"a": 3, "t": {"b": "x"}}, {"a": 1, "t": {"b": "w"}}], "i": [7, 8]})
    schema = schema_from_arrow(table.schema)
    collector = StatisticsCollector(schema)
    batch = table.to_batches()[0]
    for field in schema.fields:
        collector.add(field, batch.column(field.name))
    struct, alone = schema.fields
    leaves = [struct.children[0], struct.children[1].children[0], alone]
    written = collector.schema()
    assert [field.name for field in written.fields] == [str(leaf.id) for leaf in leaves]
    pages = collector.pages(written)
    assert len(pages) == 9, "null count, minimum and maximum of three fields"
    assert [bytes(page.data)[:8] for page in pages[7:]] == [n.to_bytes(8, "little") for n in (7, 8)]


def test_fields_with_one_id_are_rejected():
    fields = schema_from_arrow(pa.schema({"a": pa.int64(), "v": pa.list_(pa.float32(), 3)})).fields
    with pytest.raises(CorruptFileError, match=r"two columns have one id.*'a', 0.*'v', 0"):
        StatisticsCollector(Schema(fields=(fields[0], replace(fields[1], id=0))))


def test_dictionaries_of_too_many_values():
    arrays = [pa.array([f"{i}" for i in range(start, start + 100)]).dictionary_encode() for start in (0, 100)]
    narrow = [pa.DictionaryArray.from_arrays(one.indices.cast(pa.int8()), one.dictionary) for one in arrays]
    assert len(concatenate(arrays)) == 200
    with pytest.raises(
        InvalidInputError, match="more values than the indices of dictionary<values=string, indices=int8"
    ):
        concatenate(narrow)
