"""The conformance classes notice stores that break their promises."""

import uuid

import pytest

from lance_core.errors import ObjectNotFoundError
from lance_core.store.memory import MemoryStore
from lance_core.store.options import StorageOptions
from lance_core.testing import StoreConformance


class Replacing(MemoryStore):
    def put_if_absent(self, key, data, **_):
        return self.put(key, data)


class Unsorted(MemoryStore):
    def list(self, prefix, **options):
        return reversed(list(super().list(prefix, **options)))


class Short(MemoryStore):
    def get_range(self, key, start, end):
        return bytes(self.get(key))[start:end]


class Strict(MemoryStore):
    def delete(self, key):
        if not list(self.list(key)):
            raise ObjectNotFoundError(key)
        super().delete(key)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Replacing, "test_put_if_absent_keeps_the_first"),
        (Replacing, "test_one_of_racing_creators_wins"),
        (Unsorted, "test_list_is_sorted_and_honours_its_limits"),
        (Short, "test_a_range_past_the_end_is_an_error"),
        (Strict, "test_delete_and_copy"),
    ],
)
def test_a_broken_promise_is_noticed(kind, test):
    def run(store):
        getattr(StoreConformance(), test)(store)

    root = f"memory://{uuid.uuid4().hex}"
    run(MemoryStore(f"{root}/good", StorageOptions({})))
    with pytest.raises((AssertionError, pytest.fail.Exception, ObjectNotFoundError)):
        run(kind(f"{root}/bad", StorageOptions({})))
