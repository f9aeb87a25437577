"""The data version of a table is that of its last change of rows, whatever maintenance and cleanup leave of the history."""

from datetime import timedelta

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CorruptFileError
from lance_dagster import BranchPolicy
from lance_dagster.lineage.history import compute_data_version, last_data_change

NOTHING = timedelta(0)


@dg.asset
def events(context) -> pa.Table:
    return pa.table({"n": [context.run_id] * 3})


@pytest.fixture
def tagged(lake):
    """A table whose second version was promoted, and so has a tag, and the third is that of a run."""
    lake.run(events)
    lake.run(events, branching=BranchPolicy.from_tag(), tags={"lance/branch": "b"})
    lake.table("events").branches.promote("b", tag=True)
    lake.run(events)
    assert lake.table("events").tags.list()
    return lake


def compacts(uri):
    lance_core.write_dataset(pa.table({"n": ["x"]}), uri, mode="append")
    lance_core.dataset(uri).optimize.compact_files()


def compacts_beside_pylance(uri):
    lance.write_dataset(pa.table({"n": ["x"]}), uri, mode="append")
    lance_core.dataset(uri).optimize.compact_files()


def compacts_by_pylance(uri):
    lance.write_dataset(pa.table({"n": ["x"]}), uri, mode="append")
    lance.dataset(uri).optimize.compact_files()


def appends_of_pylance_and_indices(uri):
    lance.write_dataset(pa.table({"n": ["x"]}), uri, mode="append")
    for name in "ab":
        lance_core.dataset(uri).create_scalar_index("n", "BTREE", name=name)


def indices(uri):
    for name in "ab":
        lance_core.dataset(uri).create_scalar_index("n", "BTREE", name=name)
    lance_core.dataset(uri).update_config({"k": "v"})


def index_by_pylance(uri):
    lance.dataset(uri).create_scalar_index("n", "BTREE", name="a")
    lance_core.dataset(uri).create_scalar_index("n", "BTREE", name="b")


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    ("maintenance", "change"),
    [
        (indices, 3),
        (index_by_pylance, 3),
        (compacts, 4),
        (compacts_beside_pylance, 4),
        (compacts_by_pylance, 4),
        (appends_of_pylance_and_indices, 4),
    ],
)
@pytest.mark.parametrize("library", ["lance_core", "pylance"])
def test_it_stays_when_the_version_of_the_change_is_cleaned_up(tagged, maintenance, change, library):
    uri = tagged.uri("events")
    maintenance(uri)
    before = last_data_change(lance_core.dataset(uri))
    if library == "pylance":
        lance.dataset(uri).cleanup_old_versions(NOTHING, delete_unverified=True, error_if_tagged_old_versions=False)
    else:
        lance_core.dataset(uri).cleanup_old_versions(
            NOTHING, delete_unverified=True, error_if_tagged_old_versions=False
        )
    table = lance_core.dataset(uri)
    assert [one["version"] for one in table.versions()] == [1, 2, table.version]
    assert before == last_data_change(table) == change
    assert compute_data_version(table).endswith(f":main:{change}")
    lance.write_dataset(pa.table({"n": ["y"]}), uri, mode="append")
    assert last_data_change(lance_core.dataset(uri)) == table.version + 1
    lance_core.dataset(uri).delete("true")
    lance_core.dataset(uri).cleanup_old_versions(NOTHING, delete_unverified=True, error_if_tagged_old_versions=False)
    assert last_data_change(lance_core.dataset(uri)) == table.version + 2


def test_of_a_branch_it_begins_with_the_fork(tagged):
    table = tagged.table("events")
    branch = table.create_branch("c")
    assert last_data_change(branch) == branch.version
    branch.update_config({"k": "v"})
    assert last_data_change(branch) == branch.version - 1
    lance_core.write_dataset(pa.table({"n": ["x"]}), branch.uri, mode="append")
    branch = table.checkout_version(("c", None))
    assert last_data_change(branch) == branch.version


def test_of_a_restored_version(tagged):
    uri = tagged.uri("events")
    lance.dataset(uri, version=2).restore()
    assert last_data_change(lance_core.dataset(uri)) == 4
    lance_core.dataset(uri, 3).restore()
    indices(uri)
    lance_core.dataset(uri).cleanup_old_versions(NOTHING, delete_unverified=True, error_if_tagged_old_versions=False)
    assert last_data_change(lance_core.dataset(uri)) == 5


def test_a_record_that_cannot_be_read(tagged):
    table = tagged.table("events")
    lance.dataset(table.uri).update_config({"lance-dagster.idempotency.rows": "soon"})
    with pytest.raises(CorruptFileError, match="idempotency"):
        last_data_change(tagged.table("events"))
