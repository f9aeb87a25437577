"""Tags, branches and clones, begun and opened from a branch's handle, on every kind of store."""

import importlib
import uuid
from datetime import timedelta

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError
from lance_core.maintenance.cleanup import plan as cleanup_plan

automatic = importlib.import_module("lance_core.maintenance.cleanup.automatic")

KINDS = ("local", "memory", "sqlite", "s3", "dynamodb")


@pytest.fixture
def places(request, tmp_path):
    """A function from a name to the URI of a new dataset, and storage options."""
    kind = request.param
    if kind == "memory":
        name = uuid.uuid4().hex
        return lambda table: f"memory://{name}/{table}", {}
    if kind in ("local", "sqlite"):
        options = {"manifest_store": f"sqlite://{tmp_path}/index.db"} if kind == "sqlite" else {}
        return lambda table: str(tmp_path / table), options
    s3 = request.getfixturevalue("s3")
    bucket = s3.new_bucket()
    if kind == "s3":
        return lambda table: f"s3://{bucket}/deep/{table}", s3.storage_options
    _, table_name = request.getfixturevalue("dynamodb_table")
    options = {**s3.storage_options, "dynamodb_endpoint": s3.endpoint}
    return lambda table: f"s3+ddb://{bucket}/deep/{table}?ddbTableName={table_name}", options


@pytest.fixture
def branch(places):
    """A handle on a branch of a branch, and the same places."""
    uri_of, options = places
    main = lance_core.write_dataset(pa.table({"a": [1, 2]}), uri_of("t"), storage_options=options)
    middle = main.create_branch("team/work")
    middle.insert(pa.table({"a": [3]}))
    deep = middle.create_branch("deeper")
    deep.insert(pa.table({"a": [4]}))
    return deep, main, uri_of, options


def values(dataset):
    return sorted(dataset.to_table()["a"].to_pylist())


everywhere = pytest.mark.parametrize("places", KINDS, indirect=True)


@everywhere
def test_the_root_of_a_branch_is_the_dataset(branch):
    deep, main, uri_of, options = branch
    assert deep.root_uri == main.uri == lance_core.dataset(uri_of("t"), storage_options=options).root_uri
    assert values(lance_core.dataset(deep.uri, storage_options=options)) == [1, 2, 3, 4]


@everywhere
def test_references_from_a_branch(branch):
    deep, main, _, _ = branch
    deep.tags.create("here")
    deep.tags.create("there", ("main", 1))
    assert main.tags.list()["here"]["branch"] == "deeper"
    assert sorted(deep.branches.list()) == ["deeper", "team/work"]
    assert values(deep.checkout_version("there")) == [1, 2]
    assert values(deep.checkout_version(("team/work", None))) == [1, 2, 3]
    assert values(main.checkout_version("here")) == [1, 2, 3, 4]
    other = deep.create_branch("other", ("team/work", None))
    assert (values(other), other.branch, other.root_uri) == ([1, 2, 3], "other", main.uri)
    main.branches.delete("other")
    assert "other" not in deep.branches.list()


@everywhere
def test_clones_of_a_branch(branch):
    deep, main, uri_of, options = branch
    deep.delete("a = 2")
    for verb in ("shallow_clone", "deep_clone"):
        clone = getattr(deep, verb)(uri_of(verb), None)
        assert (values(clone), clone.branch) == ([1, 3, 4], None)
        assert values(lance_core.dataset(uri_of(verb), storage_options=options)) == [1, 3, 4]
    earlier = deep.deep_clone(uri_of("earlier"), ("main", 1))
    with pytest.raises(InvalidInputError, match="the shallow clone"):
        lance_core.LanceDataset.drop(main.uri, options)
    lance_core.LanceDataset.drop(uri_of("shallow_clone"), options)
    lance_core.LanceDataset.drop(main.uri, options)
    assert values(earlier) == [1, 2]
    assert values(lance_core.dataset(uri_of("deep_clone"), storage_options=options)) == [1, 3, 4]


@everywhere
def test_automatic_cleanup_reaches_branches(branch, monkeypatch):
    monkeypatch.setattr(cleanup_plan, "YOUNG_AGE", timedelta(0))  # on object storage it would keep all of them
    _, main, _, _ = branch
    work = main.checkout_version(("team/work", None))
    settings = {"interval": "1", "older_than": "0s", "retain_versions": "1"}
    configuration = {f"lance.auto_cleanup.{name}": value for name, value in settings.items()}
    with monkeypatch.context() as patch:
        patch.setattr(automatic, "run_auto_cleanup_after", lambda *_: None)
        work.update_config(configuration)
        work.delete("a = 100")
        work.delete("a = 100")
    before = len(work.versions())
    main.update_config({**configuration, "lance.auto_cleanup.referenced_branch": "true"})
    assert len(work.versions()) < before
    assert values(work) == [1, 2, 3]


@everywhere
def test_cleanup_from_a_branch_keeps_what_tags_name(branch):
    deep, main, _, _ = branch
    main.tags.create("kept", ("deeper", deep.version))
    deep.insert(pa.table({"a": [5]}))
    deep.insert(pa.table({"a": [6]}))
    deep.cleanup_old_versions(retain_versions=1, delete_unverified=True, error_if_tagged_old_versions=False)
    assert values(main.checkout_version("kept")) == [1, 2, 3, 4]
    assert values(deep) == [1, 2, 3, 4, 5, 6]
