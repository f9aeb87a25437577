"""Promotions beside other writers, and beside each other: files that a version refers to are never deleted."""

import pytest

import lance_core
from lance_core.errors import BranchConflictError, RetryableConflictError
from lance_core.verbs.refs.promotion import promote


@pytest.fixture
def main(tmp_path):
    main = lance_core.write_dataset({"id": [1, 2]}, tmp_path / "t")
    main.create_branch("fix").update({"id": "id + 10"}, where="id = 2")
    return main


def before_commits(monkeypatch, happens):
    """Calls a function before each of the commits of promotions, with the number of the commit."""
    real, commits = promote.commit_change, []

    def commit(*args, **kwargs):
        commits.append(1)
        happens(len(commits))
        return real(*args, **kwargs)

    monkeypatch.setattr(promote, "commit_change", commit)


def rows(main):
    return sorted(lance_core.dataset(main.uri).to_table()["id"].to_pylist())


def data_files(tmp_path):
    return {path.name for path in (tmp_path / "t" / "data").iterdir()}


def test_a_promotion_that_another_one_overtook_succeeds(main, monkeypatch):
    other = lance_core.dataset(main.uri)

    def overtaken(number):
        if number == 1:
            other.branches.promote("fix")
            other.checkout_latest()
            other.update({"id": "id + 100"}, where="id = 12")

    before_commits(monkeypatch, overtaken)
    assert lance_core.dataset(main.uri).branches.promote("fix").deduplicated
    assert rows(main) == [1, 112]


def test_a_conflict_leaves_no_file(main, tmp_path, monkeypatch):
    own = data_files(tmp_path)
    before_commits(monkeypatch, lambda number: number == 1 and main.delete("id = 2"))
    with pytest.raises(BranchConflictError, match="has changed what the branch changed"):
        lance_core.dataset(main.uri).branches.promote("fix")
    assert data_files(tmp_path) == own
    assert rows(main) == [1]


def test_contention_can_be_repeated_and_keeps_the_files(main, tmp_path, monkeypatch):
    copied = {path.name for path in (tmp_path / "t").glob("tree/fix/data/*")}

    def busy(number):
        if number <= 1 + promote.REBASE_ATTEMPTS:
            lance_core.dataset(main.uri).optimize.compact_files(materialize_deletions=True)
            raise RetryableConflictError(f"commit {number}")

    before_commits(monkeypatch, busy)
    with pytest.raises(RetryableConflictError, match=r"5 attempts another writer committed to main.*promote"):
        lance_core.dataset(main.uri).branches.promote("fix")
    # Another promotion of the branch, which copied the same files, may be about to commit them.
    assert copied
    assert copied <= data_files(tmp_path)
    lance_core.dataset(main.uri).branches.promote("fix")
    assert rows(main) == [1, 12]


def test_an_overwrite_during_the_commit_is_a_conflict_of_the_branch(main, monkeypatch):
    def overwritten(number):
        if number == 1:
            raise RetryableConflictError("compacted")
        if number == 2:
            lance_core.write_dataset({"id": [7]}, main.uri, mode="overwrite")

    before_commits(monkeypatch, overwritten)
    with pytest.raises(BranchConflictError, match="Discard the branch"):
        lance_core.dataset(main.uri).branches.promote("fix")
    assert rows(main) == [7]
