"""How rows are shared out to tasks: each row once, in order, in shares of about the same size."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lance_core
from pyspark_lance.reading import plan as read_plan
from pyspark_lance.reading.plan import (
    FragmentRange,
    FragmentSize,
    coalesce_batches,
    limit_tasks,
    plan_read,
    plan_tasks,
    split_into_tasks,
    table_schema,
)

MILLION = 1_000_000


def fragments(*rows, width=8):
    return [FragmentSize(fragment_id=i, num_rows=n, num_bytes=n * width) for i, n in enumerate(rows)]


def shares(sizes, **options):
    rows = {size.fragment_id: size.num_rows for size in sizes}
    tasks = list(split_into_tasks(sizes, **options))
    return [sum(rows[p.fragment_id] if p.num_rows is None else p.num_rows for p in task) for task in tasks]


@given(
    st.lists(st.integers(0, 20 * MILLION), max_size=30),
    st.integers(1, 40),
    st.integers(1, 4000),
    st.booleans(),
)
def test_each_row_is_read_once_and_in_order(rows, parallelism, width, whole):
    sizes = fragments(*rows, width=width)
    found = [
        piece for task in split_into_tasks(sizes, parallelism=parallelism, whole_fragments=whole) for piece in task
    ]
    expected, position = [], 0
    for piece in found:
        if position == 0:
            expected.append(piece.fragment_id)
        assert piece.fragment_id == expected[-1]
        assert piece.offset == position
        position += sizes[piece.fragment_id].num_rows if piece.num_rows is None else piece.num_rows
        if position == sizes[piece.fragment_id].num_rows:
            position = 0
    assert position == 0
    assert expected == [i for i, n in enumerate(rows) if n]
    if whole:
        assert all((piece.offset, piece.num_rows) == (0, None) for piece in found)


@pytest.mark.parametrize(
    ("rows", "parallelism", "expected"),
    [
        ([10], 8, [10]),
        ([], 8, []),
        ([0, 0], 8, []),
        ([MILLION] * 5, 2, [2_500_000] * 2),
        ([MILLION] * 100, 8, [MILLION * 100 // 24] * 24),
        ([10_000] * 100, 4, [250_000] * 4),
        ([130_000], 8, [65_000, 65_000]),
        ([3 * MILLION], 3, [MILLION] * 3),
        ([200] * 5_000, 2, [MILLION // 6] * 6),  # 5,000 fragments are as much work as 20M rows
        ([200] * 5_000, 32, [MILLION // 32] * 32),
    ],
)
def test_tasks_have_equal_shares(rows, parallelism, expected):
    found = shares(fragments(*rows), parallelism=parallelism)
    assert len(found) == len(expected)
    assert all(abs(a - b) <= 0.05 * b for a, b in zip(found, expected, strict=True))


def test_wide_rows_count_by_their_bytes():
    found = shares(fragments(MILLION, width=4096), parallelism=2)
    assert len(found) == 16
    assert max(found) < 1.1 * min(found)


@pytest.mark.parametrize(("rows", "width", "expected"), [(200, 1 << 20, 4), (3, 1 << 30, 3), (60_000, 8, 1)])
def test_few_large_rows_are_divided_among_tasks(rows, width, expected):
    assert len(shares(fragments(rows, width=width), parallelism=4)) == expected


def test_a_sliver_of_a_fragment_does_not_make_a_task_read_it_again():
    assert list(split_into_tasks(fragments(1_000_000, 1_010_000), parallelism=2)) == [
        (FragmentRange(fragment_id=0),),
        (FragmentRange(fragment_id=1),),
    ]


def test_fragments_that_an_index_rules_out_make_no_tasks(tmp_path):
    rows = pa.table({"day": [i // 10 for i in range(100)], "n": range(100)})
    dataset = lance_core.write_dataset(rows, tmp_path / "t", max_rows_per_file=10)
    dataset.create_scalar_index("day", "ZONEMAP")
    lance_core.write_dataset(rows.slice(0, 5), tmp_path / "t", mode="append")
    dataset = lance_core.dataset(tmp_path / "t")
    plan = plan_read(dataset, table_schema(dataset, ["n"]), filter=dataset.parse_filter("day = 3 OR day > 8"))
    (task,) = plan_tasks(dataset, plan, parallelism=4)
    assert [piece.fragment_id for piece in task] == [3, 9, 10]
    assert sum(batch.num_rows for batch in plan.read(task)) == 20


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Small and larger fragments, some with deleted rows, one with none left."""
    uri = str(tmp_path_factory.mktemp("mixed") / "t.lance")
    for number, rows in enumerate([50] * 40 + [70_000, 3, 120_000] + [50] * 40):
        start = number * MILLION
        data = pa.table({"id": range(start, start + rows), "s": [f"row {i}" for i in range(rows)]})
        lance_core.write_dataset(data, uri, mode="append" if number else "create")
    dataset = lance_core.dataset(uri)
    dataset.delete("id % 7 = 3")
    dataset.delete(f"id >= {2 * MILLION} AND id < {3 * MILLION}")
    return lance_core.dataset(uri)


@pytest.mark.parametrize("condition", [None, "id % 1000000 < 20", "id % 1000000 = 69999"])
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("columns", [["id"], ["s", "_rowaddr"]])
def test_fragments_of_all_sizes_give_their_rows_in_order(mixed, condition, parallelism, columns):
    found = None if condition is None else mixed.parse_filter(condition)
    plan = plan_read(mixed, table_schema(mixed, columns), filter=found)
    tasks = plan_tasks(mixed, plan, parallelism=parallelism)
    batches = [batch for pieces in tasks for batch in plan.read(pieces)]
    expected = mixed.to_table(columns=columns, filter=condition)
    assert pa.Table.from_batches(batches, plan.expected).to_pydict() == expected.to_pydict()


@pytest.mark.parametrize("limit", [1, 49, 51, 2_500, 100_000])
@pytest.mark.parametrize("condition", [None, "id % 3 = 0"])
def test_a_limit_counts_rows_of_all_fragments(mixed, condition, limit):
    found = None if condition is None else mixed.parse_filter(condition)
    plan = plan_read(mixed, table_schema(mixed, ["id"]), filter=found)
    (pieces,) = plan_tasks(mixed, plan, parallelism=1)
    rows = [row for batch in plan.read(pieces, limit) for row in batch.column(0).to_pylist()]
    assert rows == mixed.to_table(columns=["id"], filter=condition, limit=limit).column(0).to_pylist()


def test_small_batches_come_together_in_order():
    sizes = [1, 5_000, 4_000, 9_000, 2]
    batches = [pa.record_batch({"x": pa.array(range(size), pa.int32())}) for size in sizes]
    found = list(coalesce_batches(batches))
    assert [batch.num_rows for batch in found] == [9_001, 9_000, 2]
    assert pa.Table.from_batches(found).combine_chunks() == pa.Table.from_batches(batches).combine_chunks()
    long = pa.record_batch({"x": ["x" * (1 << 21)]})
    assert [batch.num_rows for batch in coalesce_batches([long] * 5)] == [2, 2, 1]


def test_many_columns_are_read_in_steps(tmp_path, monkeypatch):
    rows = pa.table({f"c{i}": range(1000) for i in range(5)})
    dataset = lance_core.write_dataset(rows, tmp_path, max_rows_per_file=400)
    dataset.delete("c0 % 3 = 0")
    plan = plan_read(dataset, table_schema(dataset, None))
    task = tuple(piece for one in plan_tasks(dataset, plan, parallelism=3) for piece in one)
    expected = pa.Table.from_batches(plan.read(task))
    monkeypatch.setattr(read_plan, "_MANY_COLUMNS", 4)
    monkeypatch.setattr(read_plan, "_STEP_BYTES", 4000)
    batches = list(plan.read(task))
    assert max(batch.num_rows for batch in batches) == 100
    assert pa.Table.from_batches(batches).equals(expected)
    for limit in (0, 1, 150, 665, 700):
        assert sum(batch.num_rows for batch in plan.read(task, limit)) == min(limit, 666)
        first = limit_tasks(dataset, [task], limit)
        assert pa.Table.from_batches([b for one in first for b in plan.read(one)], expected.schema).equals(
            expected.slice(0, limit)
        )
