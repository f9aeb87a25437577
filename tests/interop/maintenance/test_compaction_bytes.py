"""What a compaction rewrites: bytes, not rows alone, decide; a second one finds nothing to do."""

import math
import random

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import MaintenancePolicy, maintain
from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.maintenance.compaction.plan import FragmentFacts, group_fragments

RANDOM = random.Random(7)


def wide(count, size):
    """Rows of about `size` bytes that no encoding makes smaller."""
    return pa.table({"id": range(count), "blob": [RANDOM.randbytes(size) for _ in range(count)]})


def sizes(dataset):
    return [sum(file.file_size_bytes for file in f.metadata.files) for f in dataset.get_fragments()]


def files(dataset):
    return {file.path for fragment in dataset.get_fragments() for file in fragment.metadata.files}


def rewritten(dataset, **options):
    """Bytes that a compaction wrote."""
    before = files(dataset)
    dataset.optimize.compact_files(**options)
    return sum(
        file.file_size_bytes for f in dataset.get_fragments() for file in f.metadata.files if file.path not in before
    )


@pytest.mark.parametrize(("count", "most"), [(18, 400_000), (11, 400_000), (25, 400_000)])
def test_files_of_limited_size_are_not_rewritten_again(tmp_path, count, most):
    """Such as four of 18 rows: their 1.4 MB would be four files again."""
    for i in range(4):
        lance_core.write_dataset(wide(count, 20_000), tmp_path / "t", mode="append" if i else "create")
    dataset = lance_core.dataset(tmp_path / "t")
    first = rewritten(dataset, max_bytes_per_file=most)
    assert (first > 0) == (count == 11)
    version = dataset.version
    assert rewritten(dataset, max_bytes_per_file=most) == 0
    assert dataset.version == version


@pytest.mark.parametrize("options", [{}, {"max_bytes_per_file": 10_000_000}, {"target_bytes_per_fragment": 5_000_000}])
def test_a_small_append_does_not_rewrite_a_large_fragment(tmp_path, options):
    dataset = lance_core.write_dataset(wide(100, 20_000), tmp_path / "t")
    dataset.insert(wide(1, 20_000))
    version = dataset.version
    assert rewritten(dataset, **options) == 0
    assert dataset.version == version  # neither ids were reserved
    dataset.insert(wide(1, 20_000))
    assert 0 < rewritten(dataset, **options) < 100_000


def test_many_small_appends_cost_n_log_n(tmp_path):
    dataset = lance_core.write_dataset(wide(2, 20_000), tmp_path / "t")
    total = 0
    for _ in range(39):
        dataset.insert(wide(2, 20_000))
        total += rewritten(dataset)
    assert total < sum(sizes(dataset)) * math.log2(40)
    assert len(dataset.get_fragments()) < 6


def test_fragments_of_the_target_are_left_alone_and_made(tmp_path):
    for i in range(12):
        lance_core.write_dataset(wide(5, 20_000), tmp_path / "t", mode="append" if i else "create")
    dataset = lance_core.dataset(tmp_path / "t")
    dataset.optimize.compact_files(target_bytes_per_fragment=300_000)
    assert len(dataset.get_fragments()) == 4
    assert all(300_000 <= size < 600_000 for size in sizes(dataset))
    version = dataset.version
    dataset.optimize.compact_files(target_bytes_per_fragment=300_000)
    assert dataset.version == version
    dataset.update_config({"lance.compaction.target_bytes_per_fragment": "900000"})
    dataset.optimize.compact_files()
    assert len(dataset.get_fragments()) == 1


@pytest.mark.parametrize("maintains", [False, True])
@pytest.mark.parametrize(("rows", "target"), [(1, 4096), (10, 3000), (5, 20_000)])
def test_a_second_compaction_of_tiny_files_makes_no_version(tmp_path, rows, target, maintains):
    """Most bytes of a tiny file are those of any file, so that the results are much smaller than their sources."""
    batch = pa.table({"n": range(rows), "s": [f"{row / 7}" for row in range(rows)]})
    for i in range(40):
        lance_core.write_dataset(batch, tmp_path / "t", mode="append" if i else "create")
    dataset = lance_core.dataset(tmp_path / "t")

    def compact():
        if maintains:
            maintain(dataset, MaintenancePolicy(target_bytes_per_fragment=target))
        else:
            dataset.optimize.compact_files(target_bytes_per_fragment=target)
        return dataset.version

    version = compact()
    assert version > 40
    assert min(sizes(dataset)) >= target or len(sizes(dataset)) == 1
    assert compact() == version
    assert dataset.to_table().num_rows == 40 * rows


OPTIONS = [
    {},
    {"target_rows_per_fragment": 30},
    {"max_bytes_per_file": 30_000},
    {"target_bytes_per_fragment": 40_000},
    {"target_bytes_per_fragment": 40_000, "max_bytes_per_file": 25_000, "target_rows_per_fragment": 60},
    {"target_rows_per_fragment": 50, "materialize_deletions_threshold": 0.5},
    {"partition_by": ["p"]},
]


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 60))])
def test_a_second_run_makes_no_version(tmp_path, seed):
    numbers = random.Random(seed)
    uri = str(tmp_path / "t")
    stable = numbers.random() < 0.3
    for step in range(numbers.randrange(2, 9)):
        count = numbers.choice([1, 3, 10, 40, 100])
        table = wide(count, numbers.choice([10, 500, 3000])).append_column("p", pa.array([step % 2] * count))
        writer = numbers.choice([lance, lance_core])
        writer.write_dataset(table, uri, mode="append" if step else "create", enable_stable_row_ids=stable)
        if numbers.random() < 0.3:
            lance_core.dataset(uri).delete(f"id % {numbers.choice([2, 3, 9, 20])} = 0")
        if numbers.random() < 0.3:
            lance_core.dataset(uri).optimize.compact_files(**numbers.choice(OPTIONS))
        if numbers.random() < 0.2 and lance_core.dataset(uri).count_rows():
            lance_core.dataset(uri).create_scalar_index(
                "id", numbers.choice(["BTREE", "BITMAP"]), name="i", replace=True
            )
    for options in numbers.sample(OPTIONS, 3):
        dataset = lance_core.dataset(uri)
        before = dataset.count_rows()
        dataset.optimize.compact_files(**options)
        version = dataset.version
        dataset.optimize.compact_files(**options)
        assert lance_core.dataset(uri).version == version, options
        assert lance.dataset(uri).count_rows() == before


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP"])
def test_fragments_that_an_index_covers_are_merged_with_others_at_once(tmp_path, kind, stable):
    """pylance keeps them apart; the index is extended after the merge, so that a second run would merge them."""
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"k": range(8)}), uri, enable_stable_row_ids=stable)
    lance_core.dataset(uri).create_scalar_index("k", kind)
    lance.write_dataset(pa.table({"k": [100, 101]}), uri, mode="append")
    lance_core.dataset(uri).delete("k < 3")
    dataset = lance_core.dataset(uri)
    metrics = dataset.optimize.compact_files(target_rows_per_fragment=20)
    assert (metrics.fragments_removed, metrics.fragments_added) == (2, 1)
    version = dataset.version
    dataset.optimize.compact_files(target_rows_per_fragment=20)
    assert dataset.latest_version == version
    for library in (lance, lance_core):
        made = library.dataset(uri)
        assert made.count_rows("k >= 7") == 3
        assert set(made.list_indices()[0]["fragment_ids"]) >= {one.fragment_id for one in made.get_fragments()}


def test_a_plan_for_the_results_of_a_plan_is_empty():
    """The same of plans alone, whose results are as large as their fragments together."""
    for seed in range(200):
        numbers = random.Random(seed)
        options = CompactionOptions(
            target_rows_per_fragment=numbers.choice([100, 1000, 2**20]),
            target_bytes_per_fragment=numbers.choice([None, 10**5, 10**7]),
            merge_results=True,
        )
        fragments = [
            (numbers.randrange(1, 300), 2 ** numbers.randrange(8, 24)) for _ in range(numbers.randrange(1, 30))
        ]
        planned = group_fragments(_facts(fragments), options)
        taken = {fact.position for group in planned for fact in group}
        left = [fragment for position, fragment in enumerate(fragments) if position not in taken]
        for group in planned:  # new fragments follow those that stay
            rows, size = (sum(column) for column in zip(*(fragments[fact.position] for fact in group), strict=True))
            assert [fact.position for fact in group] == sorted(fact.position for fact in group), seed
            count = max(1, rows // options.target_rows_per_fragment)
            assert count < len(group), seed
            left += [(rows // count, size // count)] * count
        fragments = left
        assert group_fragments(_facts(fragments), options) == [], seed


def _facts(fragments):
    return [
        FragmentFacts(position=i, fragment_id=i, physical_rows=rows, deleted_rows=0, num_bytes=size)
        for i, (rows, size) in enumerate(fragments)
    ]
