"""Each step of maintenance stands alone: what can be done is done, and the run names what failed."""

import sys
from pathlib import Path

import lance as pylance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import UnsupportedError
from lance_core.store.local import LocalStore
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.maintenance.test_maintenance import NOW, failures, fill, observations, run

POLICY = LanceMaintenancePolicy(cleanup_older_than=NOW)
NAME = "nyc/flights"


def numbers(lake):
    return [one["version"] for one in lake.table(NAME).version_refs()]


@pytest.fixture
def full_disk(monkeypatch):
    """Called, it leaves no room for data files, and enough for the rest."""
    real = LocalStore.open_writer

    def full(store, key, *arguments, **options):
        if key.startswith("data/"):
            raise OSError(28, "No space left on device")
        return real(store, key, *arguments, **options)

    return lambda: monkeypatch.setattr(LocalStore, "open_writer", full)


def test_a_table_whose_compaction_fails_is_cleaned(lake, full_disk, monkeypatch):
    monkeypatch.setattr("lance_dagster.maintenance.ops._RETRIES", 0)
    fill(lake, NAME)
    full_disk()
    before = numbers(lake)
    result = run(lake, build_maintenance_job([NAME], POLICY))
    assert not result.success
    assert "No space left" in failures(result)["summarize"]
    assert len(numbers(lake)) < len(before)
    assert lake.table(NAME).count_rows() == 12


@pytest.mark.parametrize("folder", ["data", "_deletions"])
def test_older_versions_of_a_damaged_table_stay(lake, folder, monkeypatch):
    monkeypatch.setattr("lance_dagster.maintenance.ops._RETRIES", 0)
    fill(lake, NAME)
    lake.table(NAME).delete("n = 1")
    before = numbers(lake)
    (*_, damaged) = sorted(Path(lake.uri(NAME), folder).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    damaged.write_bytes(b"nothing that can be read")
    result = run(lake, build_maintenance_job([NAME], POLICY))
    assert "all versions stay" in failures(result)["summarize"]
    assert numbers(lake)[: len(before)] == before


def test_a_torn_old_version_is_named_and_removed(lake):
    fill(lake, NAME)
    torn = Path(lake.uri(NAME), "_versions", f"{2**64 - 1 - 1}.manifest")
    torn.write_bytes(b"half of a manifest")
    result = run(lake, build_maintenance_job([NAME], POLICY))
    assert result.success, failures(result)
    assert 1 not in numbers(lake)
    logged = [event.user_message for event in lake.instance.all_logs(result.run_id)]
    assert any("version 1 of" in line and "it is removed" in line for line in logged)
    assert observations(result)[NAME]["lance/maintenance"] == "done"
    assert len(lake.table(NAME).get_fragments()) == 1


def test_a_torn_version_in_between(lake):
    fill(lake, NAME)
    Path(lake.uri(NAME), "_versions", f"{2**64 - 1 - 4}.manifest").write_bytes(b"half of a manifest")
    result = run(lake, build_maintenance_job([NAME], LanceMaintenancePolicy(cleanup_older_than="7d")))
    assert result.success, failures(result)
    assert len(lake.table(NAME).get_fragments()) == 1


def test_an_index_that_only_pylance_builds_stops_no_other(lake, monkeypatch):
    rows = pa.table({"b": pa.array([bytes([n]) * 4 for n in range(100)], pa.binary(4)), "n": range(100)})
    pylance.write_dataset(rows, lake.uri(NAME)).create_scalar_index("b", "BTREE")
    lake.table(NAME).create_scalar_index("n", "BTREE")
    lance_core.write_dataset(rows, lake.uri(NAME), mode="append")
    lake.table(NAME).optimize.optimize_indices()
    assert lake.table(NAME).index_statistics("n_idx")["num_unindexed_rows"] == 0
    with pytest.raises(UnsupportedError, match="type BTree on fixed_size_binary"):
        lake.table(NAME).optimize.optimize_indices(index_names=["b_idx"])
    with monkeypatch.context() as alone:
        alone.setattr("lance_core.maintenance.routine.indices.find_pylance", lambda: None)
        alone.setitem(sys.modules, "lance", None)
        lance_core.write_dataset(rows, lake.uri(NAME), mode="append")
        result = run(lake, build_maintenance_job([NAME], POLICY))
    assert result.success, failures(result)
    assert lake.table(NAME).index_statistics("n_idx")["num_unindexed_rows"] == 0
    assert lake.table(NAME).count_rows("b = X'05050505'") == 3
    assert pylance.dataset(lake.uri(NAME)).count_rows("n = 5") == 3
    # With pylance the job extends that index too.
    result = run(lake, build_maintenance_job([NAME], POLICY))
    assert result.success, failures(result)
    assert pylance.dataset(lake.uri(NAME)).stats.index_stats("b_idx")["num_unindexed_rows"] == 0
