import socket

import fsspec
import pytest
from fsspec.registry import _registry

from lance_core.errors import AlreadyExistsError, InvalidInputError, ObjectNotFoundError, StoreError, UnsupportedError
from lance_core.store import open_store
from lance_core.store.fsspec import FsspecStore
from lance_core.testing import ObjectConformance


class TestFsspecStore(ObjectConformance):
    """The local filesystem of fsspec stands for all: it has every verb but an atomic creation.

    Its files show while they are written; objects of object storage, which the store is for, do not.
    """

    @pytest.fixture
    def store(self, tmp_path):
        (tmp_path / "root").mkdir()
        return FsspecStore(f"local://{tmp_path}/root", open_store("/", {"auto_mkdir": "true"}).options)

    def test_there_is_no_atomic_creation(self, store):
        with pytest.raises(UnsupportedError, match="no atomic creation"):
            store.put_if_absent("v/1", b"first")
        assert list(store.list("")) == []


def test_a_file_system_that_rejects_its_options_is_not_an_unknown_scheme(monkeypatch):
    class NeedsAccount(fsspec.AbstractFileSystem):
        def __init__(self, **_):
            raise ValueError("hunter2")

    monkeypatch.setitem(_registry, "oci", NeedsAccount)
    with pytest.raises(
        InvalidInputError, match=r"oci:// cannot be opened with the storage options \['key'\]"
    ) as caught:
        open_store("oci://container/t.lance", {"key": "1"})
    assert "hunter2" not in str(caught.value)


def test_unknown_schemes_are_named():
    with pytest.raises(UnsupportedError, match="nonsense"):
        open_store("nonsense://a/b")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (FileNotFoundError("secret=1"), ObjectNotFoundError),
        (FileExistsError("secret=1"), AlreadyExistsError),
        (PermissionError("secret=1"), StoreError),
        (RuntimeError("secret=1"), StoreError),
        (KeyError("secret=1"), StoreError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
@pytest.mark.parametrize("verb", ["get", "size", "list", "copy", "put"])
def test_errors_of_a_file_system_become_ours_without_their_text(tmp_path, monkeypatch, raised, expected, verb):
    store = FsspecStore(f"local://{tmp_path}", open_store("/").options)

    def fail(*_, **__):
        raise raised

    for name in ("cat_file", "info", "find", "cp_file", "pipe_file", "open", "size"):
        monkeypatch.setattr(store._files, name, fail)
    verbs = {
        "get": lambda: store.get("k"),
        "size": lambda: store.head("k"),
        "list": lambda: list(store.list("")),
        "copy": lambda: store.copy("k", "l"),
        "put": lambda: store.put("k", b"x"),
    }
    with pytest.raises(expected) as found:
        verbs[verb]()
    assert "secret" not in str(found.value)
    assert str(tmp_path) in str(found.value)


def test_a_server_that_does_not_answer_is_named_as_such():
    pytest.importorskip("aiohttp")
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(StoreError, match=rf"{place}/k: cannot connect to the storage, .*: check the network, and"):
        FsspecStore(place).head("k")


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("dbfs:/x/t", InvalidInputError, r"needs \['instance', 'token'\]; on Databricks .* at the path /dbfs/"),
        ("dbfs://x/t", InvalidInputError, r"needs \['instance', 'token'\]"),
        (
            "nonsense:/x/t",
            UnsupportedError,
            "scheme 'nonsense': install a file system of fsspec for it, or give a path",
        ),
    ],
)
def test_an_unknown_scheme_is_an_error_with_the_remedy(uri, error, message):
    with pytest.raises(error, match=message):
        open_store(uri)
