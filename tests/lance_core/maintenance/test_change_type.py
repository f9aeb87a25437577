"""`change_type` and the indices on the column."""

import importlib

import pyarrow as pa
import pytest

import lance_core
from lance_core import maintenance
from lance_core.errors import IncompatibleConflictError, RetryableConflictError, UnsupportedError

module = importlib.import_module("lance_core.maintenance.change_type")


@pytest.fixture
def table(tmp_path):
    return lance_core.write_dataset({"id": list(range(100))}, tmp_path / "t", max_rows_per_file=10)


def converted(values, field):
    return values.cast(field.type)


def kinds(table):
    return {one.name: one.index_type for one in lance_core.dataset(table.uri).describe_indices()}


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("ZONEMAP", {"rows_per_zone": 7}),
        ("BTREE", {"zone_size": 5}),
        ("BITMAP", {}),
        ("BLOOMFILTER", {"number_of_items": 10, "probability": 0.25}),
    ],
)
def test_an_index_is_rebuilt_with_its_parameters(table, kind, parameters):
    table.create_scalar_index("id", kind, **parameters)

    def facts():
        (before,) = table.snapshot.manifest.indices
        content = table.snapshot.indices.try_read(before, table.schema.field("id").type)
        return before.name, before.kind, content.parameters()

    before = facts()
    assert dict(before[2]) == parameters
    maintenance.change_type(table, "id", pa.int32(), converted)
    assert table.schema.field("id").type == pa.int32()
    assert facts() == before
    assert table.count_rows("id = 42") == 1


def test_a_conflict_leaves_the_indices(table, monkeypatch):
    table.create_scalar_index("id", "ZONEMAP", rows_per_zone=7)
    retype = module.retype_columns

    def racing(source, *arguments):
        lance_core.dataset(table.uri).delete("id = 3")
        return retype(source, *arguments)

    monkeypatch.setattr(module, "retype_columns", racing)
    with pytest.raises(RetryableConflictError):
        maintenance.change_type(table, "id", pa.int32(), converted)
    monkeypatch.undo()
    assert kinds(table) == {"id_idx": "ZoneMap"}
    table = lance_core.dataset(table.uri)
    assert table.schema.field("id").type == pa.int64()
    maintenance.change_type(table, "id", pa.int32(), converted)
    assert kinds(table) == {"id_idx": "ZoneMap"}
    assert table.stats.index_stats("id_idx")["segments"][0]["rows_per_zone"] == 7


def test_a_conflict_of_an_index_is_followed_by_another_attempt_or_named(table, monkeypatch):
    table.create_scalar_index("id", "ZONEMAP", rows_per_zone=7)
    table.create_scalar_index("id", "BTREE", name="tree", zone_size=5)
    create, conflicts = module.create_scalar_index, [RetryableConflictError("made"), None, None]

    def racing(*arguments, **options):
        if (error := conflicts.pop(0)) is not None:
            raise error
        return create(*arguments, **options)

    monkeypatch.setattr(module, "create_scalar_index", racing)
    maintenance.change_type(table, "id", pa.int32(), converted)
    assert kinds(table) == {"id_idx": "ZoneMap", "tree": "BTree"}
    conflicts[:] = [None, *(RetryableConflictError("made") for _ in range(20))]
    monkeypatch.setattr("lance_core.retry.backoff", lambda *_, **__: 0)
    with pytest.raises(IncompatibleConflictError) as raised:
        maintenance.change_type(table, "id", pa.int64(), converted)
    monkeypatch.undo()
    assert kinds(table) == {"id_idx": "ZoneMap"}
    call = "create_scalar_index('id', 'BTREE', name='tree', zone_size=5)"
    assert call in str(raised.value)
    eval(f"table.{call}", {"table": lance_core.dataset(table.uri)})
    assert kinds(table) == {"id_idx": "ZoneMap", "tree": "BTree"}


def test_an_index_that_does_not_fit_the_new_type_is_named_before_anything_is_written(table):
    table.create_scalar_index("id", "BTREE")
    before = table.version
    with pytest.raises(UnsupportedError, match="BTree index 'id_idx', which cannot be rebuilt here for values of type"):
        maintenance.change_type(table, "id", pa.list_(pa.int64()), converted)
    assert lance_core.dataset(table.uri).version == before
