"""Two writers that both found no dataset: what the second one's fragments may do to the first one's dataset."""

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import DatasetExistsError, RetryableConflictError


def fragments(uri, table):
    writer = lance_core.FragmentWriter(uri, table.schema)
    writer.write(table)
    return writer.finish()


def slices(*keys):
    return lance_core.Slices(lance_core.Slice(name=k, conditions={"k": lance_core.Equals(k)}) for k in keys)


def rows(key, n=1):
    return pa.table({"k": [key], "n": [n]})


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "table.lance")


def race(uri, first, second, **second_options):
    """Commit `first`; then `second`, written when there was no dataset either."""
    written = fragments(uri, second)
    lance_core.commit_fragments(
        uri, fragments(uri, first), first.schema, mode="replace", slices=slices("a"), read_version=0
    )
    return lance_core.commit_fragments(uri, written, second.schema, read_version=0, **second_options)


def test_another_slice_is_committed_beside_it(uri):
    result = race(uri, rows("a"), rows("b"), mode="replace", slices=slices("b"))
    assert result.version == 2
    assert sorted(lance_core.dataset(uri).to_table()["k"].to_pylist()) == ["a", "b"]


def test_the_same_slice_is_a_conflict_to_retry(uri):
    with pytest.raises(RetryableConflictError, match="same slices"):
        race(uri, rows("a"), rows("a", 2), mode="replace", slices=slices("a"))
    assert lance_core.dataset(uri).to_table() == rows("a")


def test_an_append_is_committed(uri):
    race(uri, rows("a"), rows("a", 2), mode="append")
    assert sorted(lance_core.dataset(uri).to_table()["n"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("options", [{"mode": "append"}, {"mode": "replace", "slices": slices("b")}])
def test_columns_in_another_order_are_a_conflict_to_retry(uri, options):
    """The fragments have numbered their columns otherwise; in this dataset they would be swapped."""
    with pytest.raises(RetryableConflictError, match="another order"):
        race(uri, rows("a"), rows("b").select(["n", "k"]), **options)
    assert lance_core.dataset(uri).to_table() == rows("a")


def test_create_fails_and_overwrite_wins(uri):
    with pytest.raises(DatasetExistsError):
        race(uri, rows("a"), rows("b"), mode="create")
    lance_core.commit_fragments(uri, fragments(uri, rows("c")), rows("c").schema, mode="overwrite", read_version=0)
    assert lance_core.dataset(uri).to_table() == rows("c")
