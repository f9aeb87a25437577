import uuid

import pytest

from lance_core.store import open_store
from lance_core.testing import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self):
        return open_store(f"memory://{uuid.uuid4().hex}/dataset")


def test_stores_below_a_store_see_its_objects():
    root = f"memory://{uuid.uuid4().hex}"
    open_store(f"{root}/tree/b").put("data/x", b"1")
    assert [found.key for found in open_store(root).list("tree/")] == ["tree/b/data/x"]
    assert list(open_store(root + "/tree/bb").list("")) == []
