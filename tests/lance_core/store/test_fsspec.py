import pytest

from lance_core.errors import UnsupportedError
from lance_core.store import open_store
from lance_core.store.fsspec import FsspecStore
from tests.lance_core.store.conformance import StoreConformance


class TestFsspecStore(StoreConformance):
    """The local filesystem of fsspec stands for all: it has every verb but an atomic creation."""

    @pytest.fixture
    def store(self, tmp_path):
        (tmp_path / "root").mkdir()
        return FsspecStore(f"local://{tmp_path}/root", open_store("/", {"auto_mkdir": "true"}).options)

    def test_put_if_absent_keeps_the_first(self, store):
        with pytest.raises(UnsupportedError, match="no atomic creation"):
            store.put_if_absent("v/1", b"first")

    test_put_if_absent_with_an_empty_body_does_not_truncate = test_put_if_absent_keeps_the_first
    test_put_if_absent_tells_the_tag = test_put_if_absent_keeps_the_first
    test_one_of_racing_creators_wins = test_put_if_absent_keeps_the_first

    # fsspec's local files show while they are written; object storage is what the store is for.
    test_a_writer_shows_nothing_before_close = None
    test_an_aborted_writer_leaves_nothing = None


def test_unknown_schemes_are_named():
    with pytest.raises(UnsupportedError, match="nonsense"):
        open_store("nonsense://a/b")
