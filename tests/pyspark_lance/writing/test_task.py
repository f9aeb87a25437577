"""What a task does with its batches, without Spark: slices, files, reports, and errors that leave nothing behind."""

import itertools
import math
import os
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core import Between, Equals, FileOptions, Slice, Slices
from lance_core.errors import IncompatibleConflictError, InvalidInputError, LanceError, SchemaError, StoreError
from lance_core.file import LanceFileReader
from pyspark_lance.changing.key_merge import KeyMergeJob
from pyspark_lance.engine import partitions as transports
from pyspark_lance.engine.partitions import rows_per_batch, run_on_partitions
from pyspark_lance.writing import task as write_task
from pyspark_lance.writing.job import prepare_write
from pyspark_lance.writing.options import WriteArguments
from pyspark_lance.writing.row_checks import PartitionValues
from pyspark_lance.writing.task import WriteReport, WriteTask
from tests import processes

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64())])
SLICES = Slices(Slice(name=k, conditions={"k": Equals(k)}) for k in "abc")
JOB = "0123456789abcdef"


def batches(*keys):
    start = 0
    for text in keys:
        yield pa.record_batch(
            [pa.array(list(text), pa.string()), pa.array(range(start, start + len(text)))], schema=SCHEMA
        )
        start += len(text)


def run(uri, source, **options):
    task = WriteTask(uri=str(uri), job=JOB, stored=SCHEMA, **options)
    return WriteReport.from_bytes(task(3, 1, source))


def rows_by_fragment(uri, report):
    lance_core.commit_fragments(uri, report.fragments, SCHEMA)
    dataset = lance_core.dataset(uri)
    return ["".join(f.to_table(["k"]).column("k").to_pylist()) for f in dataset.get_fragments()]


def files(uri):
    return sorted(path.name for path in Path(uri, "data").glob("*"))


def test_batches_become_one_file_named_after_the_attempt(tmp_path):
    report = run(tmp_path, batches("ab", "cd"))
    assert (report.rows, report.slice_rows) == (4, {})
    assert [name.startswith(f"{JOB}-3-1-") for name in files(tmp_path)] == [True]
    assert rows_by_fragment(tmp_path, report) == ["abcd"]


def test_no_file_is_written_without_rows(tmp_path):
    report = run(tmp_path, batches("", ""), slices=SLICES)
    assert (report.fragments, report.rows, files(tmp_path)) == ((), 0, [])
    assert run(tmp_path, iter(())).fragments == ()


@pytest.mark.parametrize("keys", [("abcabc", "cab"), ("aaabbbccc",), ("aa", "ab", "bb", "cc", "c")])
def test_a_file_holds_one_slice(tmp_path, keys):
    report = run(tmp_path, batches(*keys), slices=SLICES)
    counts = {number: "".join(keys).count(key) for number, key in enumerate("abc")}
    assert report.slice_rows == counts
    assert sorted(rows_by_fragment(tmp_path, report)) == [key * counts[i] for i, key in enumerate("abc")]
    assert lance_core.dataset(tmp_path).to_table().sort_by("x").column("k").to_pylist() == list("".join(keys))


def test_no_more_writers_are_open_than_allowed(tmp_path):
    report = run(tmp_path, batches("aaab", "bbc", "c"), slices=SLICES, max_open=1)
    assert rows_by_fragment(tmp_path, report) == ["aaa", "bbb", "cc"]
    report = run(tmp_path / "mixed", batches("ab", "ba"), slices=SLICES, max_open=1)
    assert rows_by_fragment(tmp_path / "mixed", report) == ["a", "b", "a", "b"] or report.rows == 4


@pytest.mark.parametrize("key", ["d", None])
def test_rows_outside_of_the_slices_are_reported_and_leave_no_file(tmp_path, key):
    bad = pa.record_batch([pa.array(["a", key]), pa.array([1, 2])], schema=SCHEMA)
    with pytest.raises(InvalidInputError, match=f"none of the 3 slices.*k = {key!r}"):
        run(tmp_path, iter([*batches("abc" * 1000), bad]), slices=SLICES)
    assert files(tmp_path) == []
    report = run(tmp_path, iter([bad]), slices=SLICES, allow_out_of_partition=True)
    assert report.slice_rows == {0: 1, -1: 1}
    assert len(report.fragments) == 2


def test_data_that_does_not_fit_is_reported_and_leaves_no_file(tmp_path):
    bad = pa.record_batch({"k": ["a"], "x": pa.array(["no number"])})
    with pytest.raises(InvalidInputError, match="column 'x'"):
        run(tmp_path, iter([*batches("ab"), bad]))
    assert files(tmp_path) == []


def test_nulls_in_a_column_that_must_not_have_them_are_reported(tmp_path):
    strict = pa.schema([pa.field("k", pa.string(), nullable=False)])
    task = WriteTask(uri=str(tmp_path), job=JOB, stored=strict)
    with pytest.raises(SchemaError, match="'k'"):
        WriteReport.from_bytes(task(0, 0, iter([pa.record_batch({"k": pa.array(["a", None])})])))
    assert files(tmp_path) == []


def test_other_errors_are_raised_after_the_files_are_deleted(tmp_path):
    def broken():
        yield from batches("abc")
        raise RuntimeError("upstream")

    with pytest.raises(RuntimeError, match="upstream"):
        run(tmp_path, broken(), slices=SLICES)
    assert files(tmp_path) == []


@pytest.mark.parametrize("which", [0, 2, 5])
def test_a_full_disk_fails_the_task_and_leaves_no_file(tmp_path, monkeypatch, which):
    slices = Slices(Slice(name=k, conditions={"k": Equals(k)}) for k in "abcdef")
    real, count = os.rename, iter(range(100))

    def broken(source, target):
        if next(count) == which:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(StoreError, match="Input/output"):
        run(tmp_path, batches("abc", "def"), slices=slices, max_open=2)
    assert files(tmp_path) == []


def test_slices_are_finished_in_parallel(tmp_path, monkeypatch):
    slices = Slices(Slice(name=k, conditions={"k": Equals(k)}) for k in "abcdef")
    real, numbers, second = os.fsync, itertools.count(), threading.Event()

    def first_waits_for_second(fd):
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)  # a folder is flushed by who makes it
        number = next(numbers) if is_file else -1
        assert number or second.wait(100)
        real(fd)
        if number == 1:
            second.set()

    monkeypatch.setattr(os, "fsync", first_waits_for_second)
    report = run(tmp_path, batches("abc", "def"), slices=slices, max_open=2)
    assert rows_by_fragment(tmp_path, report) == list("abcdef")


def test_a_partition_can_fill_several_files(tmp_path):
    report = run(tmp_path, batches("abc", "abc", "ab"), files=FileOptions(max_rows_per_file=3))
    assert rows_by_fragment(tmp_path, report) == ["abc", "abc", "ab"]


def test_reports_survive_pickling_and_unknown_errors_stay_errors():
    report = WriteReport(slice_rows={-1: 2, 0: 1}, rows=3)
    assert WriteReport.from_bytes(report.to_bytes()) == report
    with pytest.raises(LanceError, match="text"):
        WriteReport.from_bytes(WriteReport(error=("never-heard", "text")).to_bytes())


def test_values_of_partitions():
    values = PartitionValues(["k", "x"])
    keys = pa.array(["a", None, "a", "b"]).dictionary_encode()
    batch = pa.record_batch({"k": keys, "x": pa.array([1.0, math.nan, 1.0, math.nan])})
    assert [values.assign(batch).tolist() for _ in range(2)] == [[0, 1, 0, 2]] * 2
    assert [row["k"] for row in values.table().to_pylist()] == ["a", None, "b"]
    assert values.assign(batch.slice(0, 0)).tolist() == []
    # As many values that an integer for each combination of them would not do.
    columns = {f"c{number}": np.arange(1 << 13) for number in range(5)}
    assert len(set(PartitionValues(columns).assign(pa.record_batch(columns)).tolist())) == 1 << 13


def test_options_are_not_shown():
    task = WriteTask(uri="s3://b/t", job=JOB, stored=SCHEMA, storage_options={"secret": "hunter2"})
    assert "hunter2" not in repr(task)


def test_ranges_are_split_by_typed_values(tmp_path):
    slices = Slices(Slice(name=str(i), conditions={"x": Between(i * 10, i * 10 + 10)}) for i in range(3))
    batch = pa.record_batch([pa.array(["k"] * 30), pa.array(np.arange(30)[::-1].copy())], schema=SCHEMA)
    assert run(tmp_path, iter([batch]), slices=slices).slice_rows == {0: 10, 1: 10, 2: 10}


PEAK = """
import sys, numpy as np, pyarrow as pa
from pyspark_lance.writing.task import WriteTask
from tests.memory import peak_mb
rows = 10_000
text = pa.array([f"user-{i}" for i in range(rows)])
def batches(count):
    for i in range(count):
        yield pa.record_batch({"id": np.arange(i * rows, (i + 1) * rows), "x": np.random.rand(rows), "text": text})
task = WriteTask(uri=sys.argv[1], job="0123456789abcdef", stored=next(batches(1)).schema)
report = task.run(0, 0, batches(int(sys.argv[2])))
assert report.rows == int(sys.argv[2]) * rows
print(peak_mb())
"""


def test_memory_does_not_grow_with_the_partition(tmp_path):
    def peak_mib(count):
        done = processes.run(
            [sys.executable, "-c", PEAK, str(tmp_path / str(count)), str(count)],
            check=True,
        )
        return int(done.stdout)

    # 1 and 4 million rows: 24 and 95 MB. Pages under way, and what the allocator keeps, vary by less than a half.
    small, large = peak_mib(100), peak_mib(400)
    assert large - small < 50, (small, large)


def as_message(batch):
    """The batch as it comes from Spark: its columns are parts of one message."""
    return pa.ipc.read_record_batch(pa.ipc.read_message(batch.serialize()), batch.schema)


def test_narrow_columns_do_not_keep_the_wide_ones_beside_them(tmp_path):
    wide = pa.FixedSizeListArray.from_arrays(pa.array(range(768 * 1000), pa.float32()), 768)
    batch = pa.record_batch({"id": pa.array(range(1000)), "v": wide, "s": pa.array(["x"] * 1000)})
    seen = []

    def messages():
        for _ in range(50):
            seen.append(pa.total_allocated_bytes())
            yield as_message(batch)

    task = WriteTask(uri=str(tmp_path / "t"), job="0123456789abcdef", stored=batch.schema)
    assert task.run(0, 0, messages()).rows == 50_000
    assert max(seen) - seen[0] < 64 << 20


def test_a_large_batch_is_written_in_parts_that_do_not_keep_it(monkeypatch):
    monkeypatch.setattr(write_task, "PART_BYTES", 64 << 10)
    texts = pa.array([None if i % 7 == 0 else "x" * (i % 3 * 1_000) for i in range(500)])
    lists = pa.array([[f"{i}"] * (i % 5) for i in range(500)])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(range(500 * 100), pa.float32()), 100)
    batch = as_message(
        pa.record_batch({"t": texts, "l": lists, "v": vectors, "s": pa.StructArray.from_arrays([texts], ["t"])})
    )
    assert batch.nbytes > 4 * write_task.PART_BYTES
    found = list(write_task.split_large_batches(iter([batch])))
    assert pa.Table.from_batches(found).combine_chunks().equals(pa.Table.from_batches([batch]))
    assert len(found) > 4
    for part in found:
        assert part.nbytes <= 2 * write_task.PART_BYTES
        assert all(buffer.parent is None for column in part.columns for buffer in column.buffers() if buffer)


def test_a_small_batch_is_passed_on_as_it_is():
    batch = as_message(pa.record_batch({"id": range(1000)}))
    (found,) = write_task.split_large_batches(iter([batch]))
    assert found is batch


def test_pages_of_many_columns_are_small(tmp_path, monkeypatch):
    monkeypatch.setattr(write_task, "BUFFERED_BYTES", 4 << 20)
    table = pa.table({f"c{i}": pa.array(range(25_000)) for i in range(40)})
    task = WriteTask(uri=str(tmp_path / "t"), job="0123456789abcdef", stored=table.schema)
    (fragment,) = task.run(0, 0, iter(table.to_batches())).fragments
    file = LanceFileReader(str(tmp_path / "t" / "data" / fragment.files[0].path))
    assert len(file.metadata().columns[0].pages) == 2


@pytest.mark.parametrize(
    ("kinds", "rows"),
    [
        ([pa.int64(), pa.timestamp("us")], 4 << 20),
        ([pa.int64(), pa.string()], 2048),
        ([pa.list_(pa.float32(), 768)], 21845),
        ([pa.struct([("a", pa.int8()), ("b", pa.decimal128(3))])], (64 << 20) // 17),
        ([pa.list_(pa.float32(), 1 << 20)], None),
        ([pa.int64(), pa.binary()], None),
        ([pa.list_(pa.int8())], None),
        ([pa.map_(pa.int8(), pa.int8())], None),
        ([pa.dictionary(pa.int32(), pa.string()), pa.null(), pa.bool_()], 2048),
    ],
)
def test_rows_of_a_batch_by_what_a_row_can_take(kinds, rows):
    assert rows_per_batch(pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])) == rows


@pytest.mark.parametrize(
    "options",
    [{}, {"mode": "overwrite"}, {"mode": "overwrite", "replace_where": "x >= 0"}, {"merge_on": ("x",)}],
    ids=["append", "overwrite", "where", "key"],
)
def test_a_table_that_is_made_again_during_a_job_is_left_alone(tmp_path, options):
    rows = pa.Table.from_batches(batches("ab"))
    lance_core.write_dataset(rows, tmp_path)
    job = prepare_write(SCHEMA, tmp_path, WriteArguments(**options))
    job = KeyMergeJob.of(job) if "merge_on" in options else job
    task = job.task()
    lance_core.LanceDataset.drop(tmp_path)
    lance_core.write_dataset(rows, tmp_path)
    report = task(0, 0, batches("cd"))
    with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
        job.finish([report])
    assert lance_core.dataset(tmp_path).version == 1
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_struct_gets_more_fields(uri, lance, mode):
    old = pa.struct([("a", pa.int64()), ("t", pa.struct([("x", pa.int64())]))])
    new = pa.struct([("b", pa.string()), ("t", pa.struct([("y", pa.string()), ("x", pa.int64())])), ("a", pa.int64())])
    before, after = {"a": 1, "t": {"x": 2}}, {"a": 3, "t": {"x": 4, "y": "y"}, "b": "b"}
    lance.write_dataset(pa.table({"s": pa.array([before], old), "id": [1]}), uri)
    rows = pa.table({"s": pa.array([after], new), "id": [2], "c": ["c"]})
    job = prepare_write(rows.schema, uri, WriteArguments(mode=mode, schema_mode="add_columns"))
    job.finish([job.task()(0, 0, iter(rows.to_batches()))])
    kept = {"s": {"a": 1, "t": {"x": 2, "y": None}, "b": None}, "id": 1, "c": None}
    expected = [*([kept] if mode == "append" else []), {"s": after, "id": 2, "c": "c"}]
    assert lance_core.dataset(uri).to_table().to_pylist() == expected
    assert lance.dataset(uri).to_table().to_pylist() == expected
    lance_core.dataset(uri).validate()


@pytest.mark.parametrize(
    ("partitions", "count", "message"),
    [([0], 2, "answered for 1 of 2"), ([0, 1, 1], 2, "answered for 3 of 2"), ([1, 1], 2, "answered twice")],
)
def test_lost_and_duplicate_answers_of_spark_are_errors(monkeypatch, partitions, count, message):
    answers = [(number, b"x") for number in partitions]
    rdd = SimpleNamespace(collect=lambda _: (answers, count))
    monkeypatch.setattr(transports, "run_job", lambda _, job: job())
    monkeypatch.setattr(transports.ArrowRdd, "of", lambda *_: rdd)
    rows = [SimpleNamespace(partition=number, message=data) for number, data in answers]
    frame = SimpleNamespace(sparkSession=None, mapInArrow=lambda *_: SimpleNamespace(collect=lambda: rows))
    stored = pa.schema([("a", pa.int64())])
    with pytest.raises(LanceError, match=message):
        run_on_partitions(frame, repr, stored)
    if len(set(partitions)) < len(partitions):
        with pytest.raises(LanceError, match="answered twice"):
            run_on_partitions(frame, repr, stored, transport="map_in_arrow")


def test_answers_come_in_order_of_partitions(monkeypatch):
    rdd = SimpleNamespace(collect=lambda _: ([(1, b"b"), (0, b"a")], 2))
    monkeypatch.setattr(transports, "run_job", lambda _, job: job())
    monkeypatch.setattr(transports.ArrowRdd, "of", lambda *_: rdd)
    found = run_on_partitions(SimpleNamespace(sparkSession=None), repr, pa.schema([("a", pa.int64())]))
    assert found == [b"a", b"b"]


@pytest.mark.parametrize("inner", [pa.list_(pa.string()), pa.map_(pa.string(), pa.int64())], ids=str)
def test_offsets_that_spark_leaves_out_are_completed(inner):
    """Below lists without items early releases send an empty buffer, at which Arrow ends the process."""
    items = pa.array([], inner).values
    empty = pa.Array.from_buffers(inner, 0, [None, pa.py_buffer(b"")], children=[items])
    offsets = pa.py_buffer(bytes(12))
    outer = pa.Array.from_buffers(pa.list_(inner), 2, [pa.py_buffer(b"\x01"), offsets], children=[empty])
    inside = pa.StructArray.from_arrays([outer, pa.array([1, 2])], ["lists", "n"])
    batch = write_task.complete_offsets(pa.RecordBatch.from_arrays([inside], ["s"]))
    assert batch.column(0).field(0).values.buffers()[1].size == 4
    assert batch.to_pylist() == [{"s": {"lists": [], "n": 1}}, {"s": {"lists": None, "n": 2}}]
