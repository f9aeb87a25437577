"""What a handle says of files that were deleted."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import CorruptFileError, ObjectNotFoundError, RetryableConflictError, VersionNotFoundError
from lance_core.verbs.context.handle import retry_on_latest


@pytest.fixture
def held(tmp_path):
    """A handle on a version with a deletion file, of which the latest version has another one."""
    uri = str(tmp_path / "t")
    dataset = lance_core.write_dataset(pa.table({"a": range(10)}), uri)
    dataset.delete("a = 1")
    held = lance_core.dataset(uri)
    dataset.delete("a = 2")
    return held


@pytest.mark.parametrize(
    "read",
    [
        lambda held: held.to_table(),
        lambda held: held.to_table(filter="a > 3"),
        lambda held: held.take([3]),
        lambda held: held.update({"a": "0"}, where="a = 5"),
        lambda held: held.delete("a = 6"),
    ],
)
def test_deletions_that_went_with_their_version_are_no_damage(held, read):
    lance_core.dataset(held.uri).cleanup_old_versions(older_than=dt.timedelta(0))
    with pytest.raises(VersionNotFoundError, match="version 2"):
        read(held)


def test_deletions_that_a_version_lacks_are_damage(held):
    for path in Path(held.uri).glob("_deletions/*"):
        path.unlink()
    with pytest.raises(CorruptFileError, match=r"its deletion file .* is missing"):
        lance_core.dataset(held.uri).to_table()
    with pytest.raises(ObjectNotFoundError, match="a cleanup may be removing that version"):
        held.to_table()


def test_the_next_attempt_keeps_the_caches(held):
    begun = []

    def attempt(source):
        begun.append(source)
        if len(begun) == 1:
            raise RetryableConflictError("another writer was first")

    retry_on_latest(held.snapshot, attempt)
    assert [source.manifest.version for source in begun] == [2, 3]
    assert begun[1].session is held.snapshot.session
