"""Tags whose creation is answered by "exists", as the answer to the request that made them was lost."""

import uuid

import pytest

import lance_core
from lance_core.errors import AlreadyExistsError, InvalidInputError
from lance_core.store.memory import MemoryStore


@pytest.fixture
def table(monkeypatch):
    dataset = lance_core.write_dataset({"a": [1]}, f"memory://{uuid.uuid4().hex}")
    real = MemoryStore.put_if_absent

    def lose(store, key, data, **options):
        real(store, key, data, **options)
        if key.startswith("_refs/"):
            raise AlreadyExistsError(key)

    monkeypatch.setattr(MemoryStore, "put_if_absent", lose)
    return dataset


def test_a_tag_is_made_once(table):
    table.tags.create("new", 1)
    assert table.tags.get_version("new") == 1
    with pytest.raises(InvalidInputError, match="already exists"):
        table.tags.create("new", 1)


def test_a_branch_and_a_clone_are_made(table):
    assert table.create_branch("work").count_rows() == 1
    assert list(table.branches.list()) == ["work"]
    assert table.shallow_clone(f"{table.uri}-clone", 1).count_rows() == 1
    assert table.readers.hold("changes") is not None or table.readers.list()
