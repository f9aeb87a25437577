import uuid

import pytest

from lance_core.store import open_store
from lance_core.testing import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self):
        return open_store(f"memory://{uuid.uuid4().hex}/dataset")


def test_objects_that_are_deleted_while_they_are_listed_are_left_out():
    store = open_store(f"memory://{uuid.uuid4().hex}")
    for key in "abcd":
        store.put(key, b"1")
    found = store.list("", limit=2)
    assert next(found).key == "a"
    store.delete("b")
    assert [one.key for one in found] == ["c"]


def test_stores_below_a_store_see_its_objects():
    root = f"memory://{uuid.uuid4().hex}"
    open_store(f"{root}/tree/b").put("data/x", b"1")
    assert [found.key for found in open_store(root).list("tree/")] == ["tree/b/data/x"]
    assert list(open_store(root + "/tree/bb").list("")) == []
