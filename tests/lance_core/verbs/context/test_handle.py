"""The target of a write that is given by a handle: its store has the options and the lock of the write."""

from contextlib import nullcontext

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError
from lance_core.verbs.context.handle import resolve_target


def lock(version):
    return nullcontext(version)


@pytest.mark.parametrize("own", [{}, {"timeout": "5s"}])
@pytest.mark.parametrize("given", [None, {}, {"timeout": "5s"}, {"timeout": "7s"}])
@pytest.mark.parametrize("own_lock", [None, lock])
@pytest.mark.parametrize("given_lock", [None, lock])
def test_options_and_lock_reach_the_store(tmp_path, own, given, own_lock, given_lock):
    uri = lance_core.write_dataset(pa.table({"i": [1]}), tmp_path / "t").uri
    table = lance_core.dataset(uri, storage_options=own, commit_lock=own_lock)
    target = resolve_target(table, given, given_lock)
    expected = own if given is None else given
    assert dict(target.options) == dict(target.store.options) == expected
    assert target.options.commit_lock is target.store.options.commit_lock is (given_lock or own_lock)
    assert (target.store is table.snapshot.store) == (expected == own and given_lock in (None, own_lock))


@pytest.mark.parametrize(
    "write",
    [
        lambda table, options: lance_core.write_dataset({"i": [2]}, table, mode="append", storage_options=options),
        lambda table, options: table.insert({"i": [2]}, storage_options=options),
        lambda table, options: lance_core.write_fragments({"i": [2]}, table, storage_options=options),
        lambda table, options: lance_core.commit_fragments(table, [], table.schema, storage_options=options),
    ],
)
def test_wrong_options_are_not_ignored(tmp_path, write):
    table = lance_core.write_dataset({"i": [1]}, tmp_path / "t")
    with pytest.raises(InvalidInputError, match="manifest_store"):
        write(table, {"manifest_store": "x://y"})
    assert lance_core.dataset(table.uri).version == 1
