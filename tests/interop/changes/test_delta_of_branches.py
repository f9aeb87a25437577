"""Changes of a branch from versions before its fork: those of a table that had the same history without branches."""

from datetime import timedelta

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import VersionNotFoundError

ADD = [
    lambda d: d.insert(pa.table({"id": [10, 11], "n": [0, 0], "w": [0, 0]})),
    lambda d: d.delete("id IN (2, 10)"),
    lambda d: d.optimize.compact_files(),
    lambda d: d.insert(pa.table({"id": [12], "n": [0], "w": [0]})),
    lambda d: d.optimize.compact_files(),
    lambda d: d.delete("id = 5"),
    lambda d: d.insert(pa.table({"id": [13], "n": [0], "w": [0]})),
]
UPDATE = [
    lambda d: d.update({"n": "n + 1"}, where="id < 3", write_mode="rewrite_columns"),
    lambda d: d.alter_columns({"path": "w", "data_type": pa.int32(), "name": "v"}),
    lambda d: d.update({"n": "n + 1"}, where="id IN (1, 5)"),
    lambda d: d.update({"v": "7"}, where="id = 3", write_mode="rewrite_columns"),
    lambda d: d.merge_insert("id").when_matched_update_all().execute(
        pa.table({"id": [4], "n": [9], "v": pa.array([9], pa.int32())})
    ),
]  # fmt: skip


def made(path, steps, forks, stable):
    """A table after some steps; before those in `forks`, a branch of the last branch is created."""
    rows = pa.table({"id": range(6), "n": [0] * 6, "w": range(6)})
    dataset = lance_core.write_dataset(rows, path, max_rows_per_file=3, enable_stable_row_ids=stable)
    for number, step in enumerate(steps):
        if number in forks:
            dataset = dataset.create_branch(f"b{number}")
        step(dataset)
        dataset.checkout_latest()
    return dataset


def feed(dataset, begin, **options):
    table = dataset.delta(begin).get_changes(preimages=True, **options).read_all()
    assert table["_commit_timestamp"].null_count == 0
    rows = table.drop_columns(["_commit_timestamp"]).to_pylist()
    return sorted(map(str, rows))


@pytest.mark.variants(4)
@pytest.mark.parametrize("forks", [(1,), (3,), (5,), (2, 4), (3, 4)], ids=str)
@pytest.mark.parametrize("case", ["addresses", "stable ids", "updates"])
def test_changes_are_those_of_one_history(tmp_path, case, forks):
    steps = UPDATE if case == "updates" else ADD
    forks = tuple(fork for fork in forks if fork < len(steps))
    stable = case != "addresses"
    branch = made(tmp_path / "branches", steps, forks, stable)
    whole = made(tmp_path / "whole", steps, (), stable)
    assert branch.version == whole.version
    for begin in range(whole.version + 1):
        own, other = branch.delta(begin), whole.delta(begin)
        assert [one.operation.name for one in own.list_transactions()] == [
            one.operation.name for one in other.list_transactions()
        ]
        for options in ({}, {"each_version": True}, {"each_version": True, "columns": ["id"], "updates_of": ["n"]}):
            assert feed(branch, begin, **options) == feed(whole, begin, **options), (begin, options)


def test_a_version_that_the_parent_lost_is_named(tmp_path):
    branch = made(tmp_path / "t", ADD, (3,), stable=False)
    main = lance_core.dataset(tmp_path / "t")
    main.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    fork = main.branches.list()["b3"]["parent_version"]
    with pytest.raises(VersionNotFoundError, match=f"the oldest version after which no version is missing is {fork}"):
        branch.delta(1).list_transactions()
    assert len(branch.delta(fork).list_transactions()) == branch.version - fork
