"""`LanceTableResource`: the same tables as the IO manager's, at any version."""

from datetime import UTC, datetime

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import DatasetNotFoundError, VersionNotFoundError
from lance_dagster import BranchPolicy, LanceTableResource


@dg.asset(key_prefix=["deep", "nyc"])
def flights() -> pa.Table:
    return pa.table({"n": [1, 2, 3]})


@dg.asset(metadata={"schema": "other", "table": "renamed"})
def planes() -> pa.Table:
    return pa.table({"n": [1]})


@pytest.fixture
def filled(lake):
    lake.run(flights, planes)
    lake.run(flights, write_mode="append")
    return lake


def resource(lake, **config):
    return LanceTableResource(root_uri=lake.root, **config)


def test_it_opens_what_the_io_manager_wrote(filled):
    lance = resource(filled)
    assert lance.open(["deep", "nyc", "flights"]).count_rows() == 6
    assert lance.open(dg.AssetKey(["deep", "nyc", "flights"])).count_rows() == 6
    assert lance.open(flights).count_rows() == 6
    assert lance.open("deep/nyc/flights").count_rows() == 6
    assert lance.open(planes).count_rows() == 1
    assert lance.open("other/renamed").count_rows() == 1
    assert lance.uri(planes) == f"{filled.root}/other/renamed.lance"
    assert lance.uri("deep/nyc/flights") == filled.uri("deep/nyc/flights")
    assert lance.tables() == ["deep/nyc/flights", "other/renamed"]


def test_the_schema_is_that_of_keys_and_not_of_names(lake):
    lance = resource(lake, schema="all")
    assert lance.uri(["nyc", "flights"]) == f"{lake.root}/all/flights.lance"
    assert lance.uri("deep/nyc/flights") == f"{lake.root}/deep/nyc/flights.lance"
    assert lance.uri("flights") == f"{lake.root}/all/flights.lance"
    assert lake.manager(schema="all").table_root.locate("flights").uri == lance.uri("flights")


def test_versions_tags_branches_and_times(filled):
    lance = resource(filled)
    table = lance.open("deep/nyc/flights")
    table.tags.create("first", 1)
    branch = table.create_branch("trial/one", 1)
    branch.insert(pa.table({"n": [7]}))
    assert lance.open("deep/nyc/flights", version=1).count_rows() == 3
    assert lance.open("deep/nyc/flights", tag="first").version == 1
    assert lance.open("deep/nyc/flights", branch="trial/one").count_rows() == 4
    first_on_branch = lance.open("deep/nyc/flights", branch="trial/one").version_refs()[0]["version"]
    assert lance.open("deep/nyc/flights", branch="trial/one", version=first_on_branch).count_rows() == 3
    first = lance.open("deep/nyc/flights", version=1).timestamp
    assert lance.open("deep/nyc/flights", as_of=first).version == 1
    assert lance.open("deep/nyc/flights", as_of=first.replace(tzinfo=None).isoformat()).version == 1
    assert lance.open("deep/nyc/flights", branch="trial/one", as_of=datetime.now(UTC)).count_rows() == 4


def test_what_is_not_there_is_an_error(filled):
    lance = resource(filled)
    with pytest.raises(DatasetNotFoundError, match="nothing"):
        lance.open("nyc/nothing")
    with pytest.raises(VersionNotFoundError):
        lance.open("deep/nyc/flights", version=99)
    with pytest.raises(VersionNotFoundError):
        lance.open("deep/nyc/flights", branch="none")
    with pytest.raises(ValueError, match="version and tag cannot be combined"):
        lance.open("deep/nyc/flights", version=1, tag="first")
    with pytest.raises(ValueError, match="tag and branch cannot be combined"):
        lance.open("deep/nyc/flights", branch="b", tag="first")
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="folder name"):
        lance.uri("../secret")
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="schema/table"):
        lance.uri(7)


def test_in_an_asset(filled):
    seen = []

    @dg.asset
    def reader(lance: LanceTableResource) -> None:
        seen.append(lance.open("deep/nyc/flights").count_rows())

    dg.materialize([reader], resources={"lance": resource(filled)}, instance=filled.instance)
    assert seen == [6]


def test_options_are_in_no_repr():
    lance = LanceTableResource(root_uri="s3://lake", storage_options={"aws_secret_access_key": "hush"})
    assert "hush" not in repr(lance)
    assert "hush" not in repr(lance.table_root)


def test_listing_goes_around_what_is_no_table(tmp_path):
    lance_core.write_dataset(pa.table({"n": [1]}), tmp_path / "a" / "one.lance")
    (tmp_path / "a" / "empty.lance").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file.lance").write_text("x")
    lance_core.write_dataset(pa.table({"n": [1]}), tmp_path / "top.lance")
    assert lance_core.list_tables(tmp_path) == ["a/one.lance", "top.lance"]
    assert lance_core.list_tables(tmp_path / "none") == []


def test_listing_of_a_store_without_folders():
    for name in ("a/one", "a/two", "b/three"):
        lance_core.write_dataset(pa.table({"n": [1]}), f"memory://listed/{name}.lance")
    assert lance_core.list_tables("memory://listed") == ["a/one.lance", "a/two.lance", "b/three.lance"]
    lance = LanceTableResource(root_uri="memory://listed")
    assert lance.tables() == ["a/one", "a/two", "b/three"]


@pytest.mark.parametrize("spelled", ["{}", "{}/", "file://{}", "{}/./"])
def test_it_follows_the_branch_policy_of_the_same_root_however_it_is_spelled(lake, spelled):
    lake.run(planes)
    opened = []

    @dg.asset(deps=[planes])
    def looked(lance: LanceTableResource) -> None:
        opened.append(lance.open(planes).branch)

    root = LanceTableResource(root_uri=spelled.format(lake.root))
    run = lake.run(planes, looked, resources={"lance": root}, branching=BranchPolicy.per_run())
    assert opened == [f"dagster/run/{run.run_id}"]
