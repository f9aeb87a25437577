"""Fragments that come whole and in order are written where their rows are; only others are shuffled."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError
from pyspark_lance.changing.columns_task import REPORT, ColumnsReport, ColumnsTask
from pyspark_lance.changing.task import ADDRESS
from pyspark_lance.changing.whole_fragments import _first_pass

ROWS = 10
STORED = pa.schema([("n", pa.int64())])
FRAMES = [
    ("bigint", "id"),
    ("struct<a: bigint, b: array<string>>", "named_struct('a', id, 'b', array(string(id)))"),
    ("timestamp", "timestamp_seconds(id)"),
    ("timestamp_ntz", "timestamp_ntz'2024-05-01 12:00:00'"),
    ("decimal(20, 3)", "cast(id as decimal(20, 3))"),
    ("binary", "cast(string(id) as binary)"),
    ("map<string, bigint>", "map(string(id), id)"),
    ("string", "if(id % 3 = 0, null, string(id))"),
    ("variant", "parse_json(concat('{\"a\": ', id, '}'))"),
]


def address(fragment, offset):
    return (fragment << 32) | offset


def task_of(uri, where=None, fragments=3):
    table = lance_core.write_dataset({"id": np.arange(fragments * ROWS)}, uri, max_rows_per_file=ROWS)
    plan = table.plan_columns(STORED, where=where)
    tasks = {one.fragment_id: one for one in plan.tasks}
    return ColumnsTask(uri=uri, version=1, keys=(), stored=STORED, tasks=tasks), table, plan


def batches_of(addresses, size=4):
    for start in range(0, len(addresses), size):
        part = addresses[start : start + size]
        columns = {ADDRESS: pa.array(part, pa.int64()), "n": pa.array(range(len(part)), pa.int64())}
        yield pa.RecordBatch.from_pydict(columns)


def passed(task, addresses, size=4):
    """The reports and the row addresses of the first pass."""
    reports, rows = [], []
    for batch in _first_pass(task, batches_of(addresses, size)):
        for row in batch.to_pylist():
            if row[REPORT] is None:
                rows.append(row[ADDRESS])
            else:
                assert row["n"] is None
                reports.append(ColumnsReport.from_bytes(row[REPORT]))
    return reports, rows


def whole(fragment):
    return [address(fragment, i) for i in range(ROWS)]


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize(
    ("addresses", "fragments", "left"),
    [
        ([*whole(1), *whole(0), *whole(2)], [1, 0, 2], 0),
        ([*whole(0), *whole(1)[:-1]], [0], ROWS - 1),
        ([*whole(1)[1:], *whole(2)], [2], ROWS - 1),
        ([*reversed(whole(1))], [], ROWS),
        ([*whole(1), *whole(1)[:2]], [], ROWS + 2),
        ([*whole(1)[:5], *whole(0), *whole(1)[5:]], [0], ROWS),
        ([*whole(1)[:5], None, *whole(1)[5:]], [], ROWS + 1),
        ([*whole(0), *whole(7)], [0], ROWS),
        ([], [], 0),
    ],
)
def test_what_is_written_and_what_is_passed_on(uri, addresses, fragments, left, size):
    task, table, plan = task_of(uri)
    reports, rows = passed(task, addresses, size)
    written = [one for report in reports for one in report.written]
    assert [one.fragment_id for one in written] == fragments
    assert len(rows) == left
    assert sorted(map(str, [*rows, *(row for i in fragments for row in whole(i))])) == sorted(map(str, addresses))
    assert table.commit_columns(plan, written).rows_updated == len(fragments) * ROWS


def test_a_fragment_is_whole_with_the_rows_of_the_scope(uri):
    task, *_ = task_of(uri, "id % 2 = 0")
    reports, rows = passed(task, [address(0, i) for i in range(0, ROWS, 2)])
    written = [one for report in reports for one in report.written]
    assert [(len(one.offsets), len(one.nulled_offsets)) for one in written] == [(ROWS // 2, 0)]
    assert not rows
    assert passed(task, whole(1)) == ([], whole(1))


def test_an_error_in_the_data_is_reported(uri):
    task, *_ = task_of(uri)
    strings = pa.RecordBatch.from_pydict({ADDRESS: whole(0), "n": ["x"] * ROWS})
    (batch,) = _first_pass(task, iter([strings]))
    with pytest.raises(lance_core.errors.LanceError, match="n"):
        ColumnsReport.from_bytes(batch[REPORT][0].as_py()).reject()


def test_files_of_a_pass_that_fails_are_deleted(uri):
    task, *_ = task_of(uri)

    def failing():
        yield from batches_of([*whole(0), address(1, 0)])
        raise OSError("the disk is full")

    found = _first_pass(task, failing())
    with pytest.raises(OSError, match="full"):
        list(found)
    assert len(list(Path(uri, "data").iterdir())) == 3


def test_an_attempt_that_fails_leaves_the_files_of_the_first_pass(uri):
    """The next attempt of the task gets the same reports, and its answer names files that are there."""
    task, table, plan = task_of(uri)
    shuffled = sorted(
        _first_pass(task, batches_of([*whole(0), *whole(1)[1:]], 100)), key=lambda batch: batch[ADDRESS][0].as_py()
    )

    def failing():
        yield from shuffled
        yield from _first_pass(task, batches_of([address(2, 1)]))
        raise OSError("the network is down")

    with pytest.raises(OSError, match="down"):
        task(0, 0, failing())
    report = ColumnsReport.from_bytes(task(0, 1, iter(shuffled)))
    files = {one.name for one in Path(uri, "data").iterdir()}
    assert len(files) == 3 + 2, "those of the table, of the first pass, and of the second attempt"
    assert {one.file.path for one in report.written} <= files
    assert table.commit_columns(plan, report.written).rows_updated == 2 * ROWS - 1


def shuffled_bytes(spark):
    context = spark.sparkContext
    stages = context._jsc.sc().statusStore()
    none = context._gateway.new_array(context._jvm.double, 0)
    found = stages.stageList(None, False, False, none, None)
    return sum(found.apply(i).shuffleWriteBytes() for i in range(found.size()))


@pytest.mark.variants(3)
@pytest.mark.parametrize(("kind", "value"), FRAMES)
def test_values_of_whole_fragments_are_not_shuffled(spark, lance, uri, kind, value):
    task_of(uri, fragments=4)
    frame = pyspark_lance.read(spark, uri, columns=["id", "_rowaddr"]).selectExpr("_rowaddr", f"{value} as v")
    assert frame.schema["v"].dataType.simpleString() == kind.replace(" ", "")
    before = shuffled_bytes(spark)
    pyspark_lance.write_columns(frame, uri, on="_rowaddr")
    ordered = shuffled_bytes(spark) - before
    expected = list(map(str, frame.collect()))
    stored = pyspark_lance.read(spark, uri, columns=["_rowaddr", "v"])
    assert list(map(str, stored.collect())) == expected
    pyspark_lance.write_columns(frame.orderBy(frame["_rowaddr"].desc()), uri, on="_rowaddr")
    stored = pyspark_lance.read(spark, uri, columns=["_rowaddr", "v"])
    assert list(map(str, stored.collect())) == expected
    assert lance.dataset(uri).count_rows() == 4 * ROWS
    assert ordered < 4 * 1500, "four reports and no values"


def test_rows_that_come_twice(spark, uri):
    task_of(uri)
    frame = pyspark_lance.read(spark, uri, columns=["id", "_rowaddr"]).withColumnRenamed("id", "n")
    for twice in (frame.union(frame), frame.union(frame.limit(1))):
        with pytest.raises(InvalidInputError, match=r"twice|two values"):
            pyspark_lance.write_columns(twice, uri, on="_rowaddr")
    assert lance_core.dataset(uri).version == 1
    assert len(list(Path(uri, "data").iterdir())) == 3
