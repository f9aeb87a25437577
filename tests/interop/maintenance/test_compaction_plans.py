"""Plans of compactions are pylance's, on random layouts of fragments, deletions and indices."""

import random

import lance
import lance.optimize
import pyarrow as pa
import pytest

import lance_core
from lance_core.optimize import Compaction, CompactionPlan


def make_table(path, random_numbers):
    """A dataset of pylance's with random fragments, deletions and an index over some of them."""
    sizes = [random_numbers.choice([5, 10, 20, 40, 100, 101]) for _ in range(random_numbers.randrange(1, 14))]
    start = 0

    def rows(count):
        nonlocal start
        start += count
        return pa.table({"a": pa.array(range(start - count, start), pa.int64())})

    indexed = random_numbers.randrange(len(sizes) + 1) if random_numbers.random() < 0.4 else 0
    dataset = lance.write_dataset(rows(sizes[0]), path)
    for size in sizes[1:]:
        dataset = lance.write_dataset(rows(size), path, mode="append")
    if indexed:
        dataset.create_scalar_index("a", "BTREE")
    modulus = random_numbers.choice([0, 0, 3, 10, 11, 50])
    if modulus:
        low = random_numbers.randrange(start)
        dataset.delete(f"a % {modulus} = 0 AND a >= {low}")
    return dataset


OPTIONS = [
    {},
    {"target_rows_per_fragment": 10},
    {"target_rows_per_fragment": 25},
    {"target_rows_per_fragment": 100},
    {"target_rows_per_fragment": 101},
    {"target_rows_per_fragment": 100, "materialize_deletions": False},
    {"target_rows_per_fragment": 41, "materialize_deletions_threshold": 0.0},
    {"target_rows_per_fragment": 41, "materialize_deletions_threshold": 1.0},
    {"target_rows_per_fragment": 50, "excluded_fragment_ids": [1, 4, 5, 99]},
    {"target_rows_per_fragment": 30, "max_source_fragments": 4},
    {"target_rows_per_fragment": 30, "max_source_rows": 70},
    {"target_rows_per_fragment": 30, "max_source_bytes": 2000},
    {"target_rows_per_fragment": 1000, "max_source_fragments": 2},
]


def groups(plan):
    return [[fragment.id for fragment in task.fragments] for task in plan.tasks]


@pytest.mark.parametrize("seed", range(12))
def test_plans_are_pylances(tmp_path, seed):
    dataset = make_table(str(tmp_path / "t"), random.Random(seed))
    ours = lance_core.dataset(tmp_path / "t")
    for options in OPTIONS:
        expected = lance.optimize.Compaction.plan(dataset, options)
        plan = Compaction.plan(ours, options)
        assert groups(plan) == groups(expected), options
        assert plan.read_version == expected.read_version
        assert groups(CompactionPlan.from_json(expected.json())) == groups(expected)
        assert groups(lance.optimize.CompactionPlan.from_json(plan.json())) == groups(expected)


def test_exactly_the_threshold_is_not_over_it(tmp_path):
    for i in range(2):
        dataset = lance.write_dataset(pa.table({"a": range(i * 100, i * 100 + 100)}), tmp_path / "t", mode="append")
    dataset.delete("a < 57 OR (a >= 100 AND a < 158)")
    options = {"target_rows_per_fragment": 10, "materialize_deletions_threshold": 0.57}
    expected = groups(lance.optimize.Compaction.plan(dataset, options))
    assert groups(Compaction.plan(lance_core.dataset(tmp_path / "t"), options)) == expected == [[1]]


def test_the_table_configuration_holds_defaults(tmp_path):
    for i in range(4):
        dataset = lance.write_dataset(pa.table({"a": range(i * 10, i * 10 + 10)}), tmp_path / "t", mode="append")
    dataset.update_config({"lance.compaction.target_rows_per_fragment": "20"})
    assert groups(Compaction.plan(lance_core.dataset(tmp_path / "t"), {})) == [[0, 1], [2, 3]]
    options = {"target_rows_per_fragment": 40}
    assert groups(Compaction.plan(lance_core.dataset(tmp_path / "t"), options)) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"foo": 1}, "Invalid compaction option: foo"),
        ({"compaction_mode": "x"}, 'Invalid compaction mode "x"'),
        ({"max_source_fragments": 0}, "max_source_fragments must be greater than 0"),
    ],
)
def test_what_cannot_be_used_is_rejected_as_by_pylance(tmp_path, options, message):
    dataset = lance.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    with pytest.raises((ValueError, OSError), match=message):
        lance.optimize.Compaction.plan(dataset, options)
    with pytest.raises(ValueError, match=message):
        Compaction.plan(lance_core.dataset(tmp_path / "t"), options)


def test_bad_configuration_names_the_key(tmp_path):
    dataset = lance.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    dataset.update_config({"lance.compaction.target_rows_per_fragment": "many"})
    with pytest.raises(ValueError, match=r"lance\.compaction\.target_rows_per_fragment='many'"):
        Compaction.plan(lance_core.dataset(tmp_path / "t"), {})
