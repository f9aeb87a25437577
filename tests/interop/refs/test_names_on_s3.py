"""A URI on object storage names the same table for both libraries, whatever its characters and escapes are."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import list_tables
from lance_core.errors import InvalidInputError
from lance_core.store import canonical_uri, open_store

SAME = (
    *("a%20b", "a b", "a+b", "a%2Bb", "a%2Fb", "a%2fb", "a%2520b", "a%25b", "a%", "a%zz", "a%2Fb%20c"),
    *("é", "%C3%A9", "日本 語", "a%23b", "a%3Fb", "a&=b", "a~*", "a:b", "a%5Cb", "a[b]", "a/./b", "a/../b", "a/%2e/b"),
    *("a%2E%2E/b",),
)
REJECTED = ("a?b", "a#b", "a%00b", "a%0Ab", "a%FFb", "a\tb")


@pytest.fixture(scope="module")
def bucket(s3):
    return s3.new_bucket()


@pytest.mark.variants(7)
@pytest.mark.parametrize("name", SAME)
def test_both_libraries_open_one_table(s3, bucket, name):
    options = s3.storage_options
    place = f"s3://{bucket}/{SAME.index(name)}"
    uri = f"{place}/{name}.lance"
    lance.write_dataset(pa.table({"x": [1]}), uri, storage_options=options)
    lance_core.write_dataset(pa.table({"x": [2]}), uri, mode="append", storage_options=options)
    lance.write_dataset(pa.table({"x": [3]}), uri, mode="append", storage_options=options)
    opened = lance_core.dataset(uri, storage_options=options)
    assert opened.to_table()["x"].to_pylist() == [1, 2, 3]
    assert canonical_uri(opened.uri) == opened.uri
    assert lance_core.dataset(opened.uri, storage_options=options).version == 3
    assert lance.dataset(opened.uri, storage_options=options).version == 3
    assert [f"{canonical_uri(place)}/{path}" for path in list_tables(place, storage_options=options)] == [opened.uri]


@pytest.mark.parametrize("name", ["a%20b", "a%2520b", "é"])
def test_clones_and_branches_of_such_a_table(s3, bucket, name):
    options = s3.storage_options
    uri, near, far = (f"s3://{bucket}/c/{name}/{end}.lance" for end in ("t", "near", "far"))
    source = lance_core.write_dataset(pa.table({"x": [1]}), uri, storage_options=options)
    source.shallow_clone(near, 1, storage_options=options)
    lance.dataset(uri, storage_options=options).shallow_clone(far, 1, storage_options=options)
    source.create_branch("draft").insert(pa.table({"x": [2]}))
    for library in (lance, lance_core):
        for clone in (near, far):
            assert library.dataset(clone, storage_options=options).to_table()["x"].to_pylist() == [1]
        draft = library.dataset(uri, storage_options=options).checkout_version(("draft", None))
        assert draft.to_table()["x"].to_pylist() == [1, 2]
    assert [one["uri"] for one in source.clones.list().values()] == [canonical_uri(near)]
    copy = lance_core.dataset(near, storage_options=options).deep_clone(f"{near}.copy.lance", 1, options)
    assert copy.count_rows() == 1


@pytest.mark.parametrize("name", REJECTED)
def test_a_uri_that_names_no_object_is_rejected(s3, bucket, name):
    uri = f"s3://{bucket}/r/{name}.lance"
    with pytest.raises(InvalidInputError):
        lance_core.write_dataset(pa.table({"x": [1]}), uri, storage_options=s3.storage_options)
    assert not list(open_store(f"s3://{bucket}/r", s3.storage_options).list(""))


def test_other_stores_have_the_same_names(tmp_path):
    lance_core.write_dataset(pa.table({"x": [1]}), "memory://names/a%20b.lance")
    assert lance_core.dataset("memory://names/a b.lance").count_rows() == 1
    lance_core.write_dataset(pa.table({"x": [1, 2]}), "memory://names/a%2520b.lance")
    assert lance_core.list_tables("memory://names") == ["a b.lance", "a%2520b.lance"]
    lance_core.write_dataset(pa.table({"x": [1]}), tmp_path / "a%20b.lance")
    assert lance_core.list_tables(tmp_path) == ["a%20b.lance"]
    for name in lance_core.list_tables("memory://names"):
        lance_core.LanceDataset.drop(f"memory://names/{name}")
