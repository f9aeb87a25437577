"""Copies of pages: the bytes are those of the sources, and the rows those of decoding."""

import random
import shutil

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import lance_core
from lance_core.errors import InvalidInputError
from lance_core.maintenance import compact
from lance_core.store import ObjectWriter, bytes_read_counter
from lance_core.store.local import LocalWriter
from tests.interop.shapes import rows, write
from tests.support.data_files import pages_of
from tests.support.hypothesis_settings import examples


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("library", [lance, lance_core], ids=lambda library: library.__name__)
def test_pages_are_copied_byte_for_byte(tmp_path, library, version):
    path = str(tmp_path / "t")
    expected = write(path, [1500, 900, 30, 2000], library=library, version=version).to_table()
    before, _ = pages_of(path)
    compact(lance_core.dataset(path), {"compaction_mode": "force_binary_copy"})
    after, priorities = pages_of(path)
    if version == "2.0":
        # Structs have one page there, whatever they are put together from.
        assert {i: [p for p in own if p[2]] for i, own in after.items()} == {
            i: [p for p in own if p[2]] for i, own in before.items()
        }
    else:
        assert after == before
        assert priorities[0][:4] == [0, 1500, 2400, 2430]
    assert lance.dataset(path).to_table().equals(expected)
    assert lance_core.dataset(path).to_table().equals(expected)
    dataset = lance.dataset(path)
    dataset.validate()
    for wanted in ([0, 1499, 1500, 2400, 4429], [2431]):
        assert dataset.take(wanted).equals(expected.take(wanted))
    assert dataset.to_table(filter="id >= 1490 AND id < 2410").equals(expected.slice(1490, 920))
    assert dataset.to_table(columns=["pair", "pairs"]).equals(expected.select(["pair", "pairs"]))


def test_only_pages_that_lose_rows_are_rewritten(tmp_path):
    path = str(tmp_path / "t")
    dataset = write(path, [20_000, 20_000, 20_000])
    dataset.delete("id >= 25000 AND id < 25010")
    expected = dataset.to_table()
    before, _ = pages_of(path)
    compact(lance_core.dataset(path))
    after, _ = pages_of(path)
    assert len(lance.dataset(path).get_fragments()) == 1
    for index, own in before.items():
        rewritten = [page for page in own if page not in after[index]]
        assert len(rewritten) < len(own), index
    assert [length for _, length, _ in after[0]] == [20_000, 19_990, 20_000]
    assert lance.dataset(path).to_table().equals(expected)
    assert lance_core.dataset(path).to_table().equals(expected)


def test_small_pages_are_put_together(tmp_path):
    path = str(tmp_path / "t")
    table = pa.table({"id": pa.array(range(40_000)), "x": np.random.default_rng(1).random(40_000)})
    for start, size in ((0, 20_000), *((20_000 + i * 100, 100) for i in range(20)), (22_000, 18_000)):
        lance.write_dataset(table.slice(start, size), path, mode="append")
    compact(lance_core.dataset(path))
    after, _ = pages_of(path)
    for own in after.values():
        assert [length for _, length, _ in own] == [20_000, 2_000, 18_000]
    assert lance.dataset(path).to_table().equals(table)


def test_a_page_of_which_all_rows_are_deleted_is_left_out(tmp_path):
    path = str(tmp_path / "t")
    dataset = write(path, [20_000, 20_000])
    lance.write_dataset(rows(40_000, 20_000), path, mode="append")
    dataset = lance.dataset(path)
    dataset.delete("id >= 20000 AND id < 39999")
    expected = dataset.to_table()
    compact(lance_core.dataset(path))
    assert lance.dataset(path).to_table().equals(expected)
    assert lance_core.dataset(path).to_table().equals(expected)


def test_output_is_cut_at_rows_within_pages(tmp_path):
    path = str(tmp_path / "t")
    expected = write(path, [20_000, 30_000, 10_001]).to_table()
    compact(lance_core.dataset(path), {"target_rows_per_fragment": 30_000 - 5, "materialize_deletions": False})
    compact(lance_core.dataset(path), {"target_rows_per_fragment": 30_001})
    assert lance.dataset(path).to_table().sort_by("id").equals(expected)


def test_what_cannot_be_copied_is_rejected_when_forced_and_decoded_otherwise(tmp_path):
    path = str(tmp_path / "t")
    expected = write(path, [100, 100], version="2.1").to_table()
    dataset = lance_core.dataset(path)
    with pytest.raises(InvalidInputError, match=r"binary copy is not supported: .*version 2\.1"):
        compact(dataset, {"compaction_mode": "force_binary_copy", "data_storage_version": "2.2"})
    assert len(list((tmp_path / "t" / "data").iterdir())) == 2
    compact(dataset, {"compaction_mode": "try_binary_copy", "data_storage_version": "2.2"})
    assert lance.dataset(path).to_table().equals(expected)


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([1, 7, 300, 1024, 1025, 4097]), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
    version=st.sampled_from(["2.1", "2.2"]),
    target=st.sampled_from([600, 1024 * 1024]),
)
def test_copied_and_decoded_rows_are_the_same(tmp_path_factory, sizes, seed, version, target):
    folder = tmp_path_factory.mktemp("copy")
    path = str(folder / "t")
    dataset = write(path, sizes, version=version, library=random.Random(seed).choice([lance, lance_core]))
    numbers = random.Random(seed)
    total = sum(sizes)
    start = numbers.randrange(total)
    condition = numbers.choice(
        [
            f"id >= {start} AND id < {start + numbers.randrange(1, 900)}",
            f"id % {numbers.randrange(2, 9)} = 1",
            f"id = {start}",
        ]
    )
    dataset.delete(condition)
    expected = lance.dataset(path).to_table()
    options = {"compaction_mode": "force_binary_copy", "target_rows_per_fragment": target}
    compact(lance_core.dataset(path), {**options, "materialize_deletions_threshold": 0})
    assert lance.dataset(path).to_table().sort_by("id").equals(expected)
    assert lance_core.dataset(path).to_table().sort_by("id").equals(expected)


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([1, 300, 4_097, 20_000, 30_001]), min_size=2, max_size=4),
    seed=st.integers(0, 1000),
    version=st.sampled_from(["2.1", "2.2"]),
    deleted=st.booleans(),
)
def test_files_that_the_kernel_copied_are_those_that_were_read_and_written(
    tmp_path_factory, sizes, seed, version, deleted
):
    folder = tmp_path_factory.mktemp("copy")
    dataset = write(str(folder / "t"), sizes, version=version, library=random.Random(seed).choice([lance, lance_core]))
    if deleted:
        dataset.delete(f"id = {seed % sum(sizes)}")
    expected = lance.dataset(str(folder / "t")).to_table()
    shutil.copytree(folder / "t", folder / "plain")
    compact(lance_core.dataset(folder / "t"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalWriter, "copy_range", ObjectWriter.copy_range)
        compact(lance_core.dataset(folder / "plain"))
    files = [
        [(folder / name / "data" / file.path).read_bytes() for f in fragments for file in f.metadata.files]
        for name in ("t", "plain")
        for fragments in [lance_core.dataset(folder / name).get_fragments()]
    ]
    assert files[0] == files[1]
    assert lance.dataset(str(folder / "t")).to_table().equals(expected)


@pytest.mark.parametrize("library", [lance, lance_core], ids=lambda library: library.__name__)
def test_pages_that_are_copied_do_not_pass_through_the_process(tmp_path, library):
    rng = np.random.default_rng(2)
    for first in range(0, 60_000, 20_000):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(20_000 * 64, dtype=np.float32)), 64)
        table = pa.table({"id": range(first, first + 20_000), "vector": vectors})
        library.write_dataset(table, str(tmp_path / "t"), mode="append")
    dataset = lance_core.dataset(tmp_path / "t")
    expected = dataset.to_table()
    before = bytes_read_counter()
    compact(dataset)
    assert bytes_read_counter() - before < 600_000
    assert len(dataset.get_fragments()) == 1
    assert lance.dataset(str(tmp_path / "t")).to_table().equals(expected)
    assert lance_core.dataset(tmp_path / "t").to_table().equals(expected)
