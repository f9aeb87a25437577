"""Copies from one store to another."""

import uuid

import pytest

from lance_core.errors import ObjectNotFoundError
from lance_core.store import ObjectWriter, copy_between, copy_object, join_uri, open_store, uri_above


@pytest.fixture
def memory():
    return open_store(f"memory://{uuid.uuid4().hex}/a")


def test_from_storage_to_storage_in_pieces(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(ObjectWriter.copy_range, "__kwdefaults__", {"read_bytes": 7})
    memory.put("k", b"more than seven bytes")
    local = open_store(tmp_path / "t")
    copy_object(memory, "k", local, "deep/k")
    assert bytes(local.get("deep/k")) == b"more than seven bytes"
    with pytest.raises(ObjectNotFoundError):
        copy_object(local, "missing", memory, "k")
    assert bytes(memory.get("k")) == b"more than seven bytes"


def test_within_one_storage_the_storage_copies(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(ObjectWriter.copy_range, "__kwdefaults__", {"read_bytes": None})  # a copy in pieces would fail
    other = open_store(memory.root.removesuffix("a") + "b/c")
    memory.put("k", b"bytes")
    copy_object(memory, "k", other, "l")
    left, right = open_store(tmp_path / "left"), open_store(tmp_path / "right")
    left.put("k", b"bytes")
    copy_object(left, "k", right, "l")
    assert bytes(other.get("l")) == bytes(right.get("l")) == b"bytes"


def test_buckets_of_one_name_on_two_servers_are_two():
    endpoints = ({"aws_endpoint": "http://one:1"}, {"aws_endpoint": "http://two:2"})
    one, two = (open_store("s3://bucket/t", options) for options in endpoints)
    assert copy_between._common_root(one, two) is None
    assert copy_between._common_root(one, open_store("s3://bucket/u", endpoints[0])) == "s3://bucket"
    indexed = open_store("s3+ddb://bucket/u?ddbTableName=T", endpoints[0])
    assert copy_between._common_root(one, indexed) == "s3://bucket"


@pytest.mark.parametrize("uri", ["/disk/t", "s3://b/t", "s3+ddb://b/t?ddbTableName=T"])
def test_places_below_a_uri_and_back(uri):
    below = join_uri(uri, "tree/b/c")
    assert uri_above(below, "tree/b/c") == uri
    assert uri_above(below, "tree/b") is None
    assert open_store(below, {"manifest_store": "sqlite:///nowhere"} if uri[0] == "/" else {}).root == below
