"""What others do to a branch while it is promoted: their metadata stay, and a branch that they delete is not restored."""

import pyarrow as pa
import pytest

import lance_core
from lance_core.verbs.refs.promotion import promote
from lance_core.verbs.refs.promotion.record import MARK_BRANCH_VERSION


@pytest.fixture
def meanwhile(tmp_path, monkeypatch):
    """Promotes a branch and calls a function after the commit; returns the branches of the table."""

    def run(happens):
        main = lance_core.write_dataset({"id": [1]}, tmp_path / "t")
        main.create_branch("fix").insert(pa.table({"id": [2]}))
        main.branches.replace_metadata("fix", {"owner": "before"})
        real = promote.commit_change

        def committed(*args, **kwargs):
            done = real(*args, **kwargs)
            happens(main)
            return done

        monkeypatch.setattr(promote, "commit_change", committed)
        lance_core.dataset(main.uri).branches.promote("fix")
        assert lance_core.dataset(main.uri).count_rows() == 2
        return main.branches.list()

    return run


def test_metadata_of_others_stay(meanwhile):
    found = meanwhile(lambda main: main.branches.replace_metadata("fix", {"owner": "data"}))
    assert found["fix"]["metadata"]["owner"] == "data"
    assert found["fix"]["metadata"][MARK_BRANCH_VERSION] == "2"


def test_a_branch_that_was_deleted_stays_deleted(meanwhile):
    assert meanwhile(lambda main: main.branches.delete("fix")) == {}


def test_another_branch_of_its_name_is_not_marked(meanwhile):
    def again(main):
        main.branches.delete("fix")
        main.create_branch("fix")

    assert meanwhile(again)["fix"]["metadata"] == {}
