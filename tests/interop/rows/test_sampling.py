"""Samples and shares of a dataset: the same rows from both libraries, where chance leaves them alone."""

from itertools import pairwise

import lance
import lance.sampler
import pyarrow as pa
import pytest
from lance._dataset import sharded_batch_iterator

import lance_core
from lance_core import sampler
from lance_core.dataset import AutoCleanupConfig
from lance_core.errors import InvalidInputError

ROWS = 1186


@pytest.fixture
def uri(tmp_path):
    path = str(tmp_path / "t.lance")
    table = pa.table({"id": range(ROWS), "text": [str(i) for i in range(ROWS)]})
    lance.write_dataset(table, path, max_rows_per_file=100)
    return path


def numbers(batches, column="id"):
    return [number for batch in batches for number in batch[column].to_pylist()]


@pytest.mark.parametrize("granularity", ["fragment", "batch"])
@pytest.mark.parametrize("rank", [0, 2])
def test_processes_share_a_dataset(uri, granularity, rank):
    options = {"columns": ["id"], "batch_size": 70, "granularity": granularity}
    # pylance gives row ids only where fragments are shared out.
    kept = {"with_row_id": granularity == "fragment"}
    with pytest.warns(UserWarning, match="deprecated"):
        theirs = list(sharded_batch_iterator.ShardedBatchIterator(uri, rank, 3, **options, **kept))
    with pytest.warns(UserWarning, match="deprecated"):
        ours = sampler.ShardedBatchIterator(uri, rank, 3, **options, with_row_id=True)
    for _ in range(2):
        batches = list(ours)
        assert batches[0].schema.names == ["id", "_rowid"]
        assert numbers(batches) == numbers(theirs)
        if granularity == "fragment":
            assert numbers(batches, "_rowid") == numbers(theirs, "_rowid")


@pytest.mark.parametrize("filter_", [None, "id % 3 = 1"])
def test_samplers_read_the_same_rows(uri, filter_):
    def read(module, dataset, rank):
        share = module.ShardedBatchSampler(rank, 4)
        return numbers(share(dataset, batch_size=50, columns=["id"], filter=filter_))

    for rank in range(4):
        assert read(sampler, lance_core.dataset(uri), rank) == read(lance.sampler, lance.dataset(uri), rank)


def test_each_seed_and_epoch_has_an_order_of_its_own(uri):
    dataset = lance_core.dataset(uri)

    def order(seed, epoch):
        share = sampler.ShardedBatchSampler(0, 1, randomize=True, seed=seed)
        share.set_epoch(epoch)
        return numbers(share(dataset, batch_size=10, columns=["id"]))

    orders = [order(*pair) for pair in ((3, 0), (4, 0), (3, 2))]
    assert len({tuple(each) for each in orders}) == 3
    assert order(3, 0) == orders[0]
    assert {tuple(sorted(each)) for each in orders} == {tuple(range(dataset.count_rows()))}


@pytest.mark.parametrize("shape", [(0, 1, 250, 100), (2, 4, 10, 2), (3, 4, 250, 1000), (1, 2, 128, 500)])
def test_fixed_shares_are_pylances(shape):
    rank, world_size, batch_size, total = shape
    arguments = {"rank": rank, "world_size": world_size, "batch_size": batch_size, "total_num_rows": total}
    assert list(sampler.ShardedFixedBatchSampler(**arguments)) == list(
        lance.sampler.ShardedFixedBatchSampler(**arguments)
    )
    mixed = sampler.ShardedFixedBatchSampler(0, 1, True, 7, 10, 200)
    orders = []
    for epoch in (1, 2, 1):
        mixed.set_epoch(epoch)
        orders.append(list(mixed))
    assert orders[0] == orders[2] != orders[1]
    assert len(mixed) == 20
    assert sorted(number for batch in orders[0] for number in batch) == list(range(200))


@pytest.mark.parametrize("options", [{}, {"max_takes": 32}, {"filt": "id >= 600"}, {"batch_size": 50}])
def test_a_sample_has_each_row_once(uri, options):
    cases = [(sampler, uri), (lance.sampler, lance.dataset(uri))]
    for module, source in cases[: 1 if "filt" in options else 2]:  # pylance needs another package for filters
        batches = list(module.maybe_sample(source, 128, "id", **options))
        rows = numbers(batches)
        assert len(rows) == len(set(rows)) == 128
        assert min(rows) >= (600 if "filt" in options else 0)
        assert max(map(len, batches)) <= options.get("batch_size", 10240)
    assert numbers(sampler.maybe_sample(uri, 5000, ["id"])) == list(range(ROWS))
    with pytest.raises(InvalidInputError, match="positive"):
        list(sampler.maybe_sample(uri, 0, "id"))
    with pytest.raises(InvalidInputError, match="rank is 3, world_size is 3"):
        sampler.ShardedBatchSampler(3, 3)


def test_a_large_sample_is_made_of_as_many_runs_as_are_allowed(uri):
    rows = numbers(sampler.maybe_sample(uri, 128, "id", max_takes=32))
    runs = [rows[start : start + 4] for start in range(0, len(rows), 4)]
    short = [run for run in runs if run != list(range(run[0], run[0] + 4))]
    assert not short or ROWS - 1 in rows  # the last rows are no whole run
    # That most of 32 runs, of 297, come one after another is as good as impossible.
    assert sum(after != before + 1 for before, after in pairwise(rows)) > 8


def test_automatic_cleanup_is_switched_as_pylance_does(uri):
    dataset = lance_core.dataset(uri)
    assert len(dataset) == len(lance.dataset(uri)) == ROWS
    dataset.optimize.enable_auto_cleanup(AutoCleanupConfig(interval=1, older_than_seconds=3))
    ours = lance.dataset(uri).config()
    dataset.optimize.disable_auto_cleanup()
    assert not [key for key in lance.dataset(uri).config() if "auto_cleanup" in key]
    lance.dataset(uri).optimize.enable_auto_cleanup({"interval": 1, "older_than_seconds": 3})
    assert lance_core.dataset(uri).config() == ours
    with pytest.raises(InvalidInputError, match="older_than_seconds"):
        dataset.optimize.enable_auto_cleanup({"interval": 1})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter": "id >= 90"}, range(90, 100)),
        ({"filter": "id >= 90", "with_row_id": True}, range(90, 100)),
        ({"offset": 5, "limit": 10}, range(5, 15)),
        ({"batch_size": 7}, range(100)),
    ],
)
def test_default_options_of_scans_select_the_rows_of_samples(tmp_path, options, expected):
    """pylance counts and samples all rows of such a handle, but scans those of the options."""
    lance_core.write_dataset({"id": list(range(100))}, tmp_path / "t", max_rows_per_file=30)
    handle = lance_core.dataset(tmp_path / "t", default_scan_options=options)
    rows = list(expected)
    assert (
        handle.to_table(["id"])["id"].to_pylist()
        == lance.dataset(tmp_path / "t", default_scan_options=options).to_table(["id"])["id"].to_pylist()
        == rows
    )
    assert handle.sample(len(rows), randomize_order=False)["id"].to_pylist() == rows
    assert set(handle.sample(4)["id"].to_pylist()) <= set(rows)
    with pytest.raises(InvalidInputError, match=f"from 0 to {len(rows)}, all rows"):
        handle.sample(len(rows) + 1)
    some = [one for batch in sampler.maybe_sample(handle, 4, "id") for one in batch["id"].to_pylist()]
    assert len(some) == 4
    assert set(some) <= set(rows)
    shares = [sampler.ShardedBatchSampler(rank, 2)(handle, batch_size=3, columns=["id"]) for rank in range(2)]
    assert sorted(one for share in shares for batch in share for one in batch["id"].to_pylist()) == rows
