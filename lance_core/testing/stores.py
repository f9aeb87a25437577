"""Conformance tests of stores as pytest classes: a test of a store subclasses one and provides the fixture `store`.

    ObjectConformance      objects: get, put, list, delete, copy, large streams, keys
    CreationConformance    atomic creation, by which commits are decided
    StreamConformance      writers whose objects appear when they are closed
    StoreConformance       all three

A store without atomic creation subclasses the first and the third; its tables then need a `manifest_store`.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_core.errors import AlreadyExistsError, InvalidInputError, ObjectNotFoundError, StoreError
from lance_core.store import ObjectStore
from lance_core.testing.racing import race


class ObjectConformance:
    """Objects are stored, read, listed, copied and deleted."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Return a store without objects; each test gets its own."""
        raise NotImplementedError

    def outside(self, store: ObjectStore) -> Path | None:
        """Return a folder outside of the root with the file `sub/file`, for links to it; None if there are no links."""
        del store
        return None

    def test_reads_back_what_was_put(self, store: ObjectStore) -> None:
        """`get`, `get_range` and `head` return what `put` stored."""
        store.put("a/b", b"0123456789")
        assert bytes(store.get("a/b")) == b"0123456789"
        assert bytes(store.get_range("a/b", 2, 5)) == b"234"
        head = store.head("a/b")
        assert (head.key, head.size) == ("a/b", 10)
        assert head.modified > 1e9

    def test_put_replaces(self, store: ObjectStore) -> None:
        """A second `put` replaces the whole object."""
        store.put("k", b"first, and longer")
        store.put("k", b"second")
        assert bytes(store.get("k")) == b"second"

    def test_an_empty_object(self, store: ObjectStore) -> None:
        """An object may have no bytes."""
        store.put("empty", b"")
        assert bytes(store.get("empty")) == b""
        assert store.head("empty").size == 0
        tail, size = store.get_tail("empty", 10)
        assert (bytes(tail), size) == (b"", 0)

    def test_tail_gives_the_size_and_no_more_than_there_is(self, store: ObjectStore) -> None:
        """`get_tail` returns the last bytes and the size of the object."""
        store.put("k", b"0123456789")
        tail, size = store.get_tail("k", 4)
        assert (bytes(tail), size) == (b"6789", 10)
        tail, size = store.get_tail("k", 100)
        assert (bytes(tail), size) == (b"0123456789", 10)

    def test_ranges_come_back_in_the_order_asked(self, store: ObjectStore) -> None:
        """`get_ranges` returns ranges in the order of the request, overlapping ones as well."""
        data = np.random.default_rng(1).bytes(3 << 20)
        store.put("k", data)
        ranges = [(2 << 20, 3 << 20), (10, 20), (0, 15), (5, 5), (100_000, 1_600_000)]
        assert [bytes(part) for part in store.get_ranges("k", ranges)] == [data[start:end] for start, end in ranges]

    def test_results_feed_numpy_without_a_copy(self, store: ObjectStore) -> None:
        """Results offer the buffer protocol."""
        store.put("k", np.arange(300_000, dtype="<i8"))
        (part,) = store.get_ranges("k", [(8, 2_400_000)])
        assert np.frombuffer(part, "<i8").sum() == sum(range(300_000))

    def test_a_range_past_the_end_is_an_error(self, store: ObjectStore) -> None:
        """A range that ends after the end of the object is a StoreError, never a shorter result."""
        store.put("k", b"0123456789")
        with pytest.raises(StoreError):
            store.get_range("k", 5, 11)

    def test_a_missing_object_is_not_found(self, store: ObjectStore) -> None:
        """Every verb that reads reports a missing object as an ObjectNotFoundError."""
        for read in (
            lambda: store.get("no"),
            lambda: store.head("no"),
            lambda: store.get_range("no", 0, 1),
            lambda: store.get_tail("no", 8),
            lambda: store.copy("no", "other"),
        ):
            with pytest.raises(ObjectNotFoundError):
                read()

    def test_a_large_stream(self, store: ObjectStore) -> None:
        """A stream may be longer than any buffer."""
        block = np.random.default_rng(2).bytes(3 << 20)
        writer = store.open_writer("large")
        for _ in range(12):
            writer.write(block)
        assert writer.close() == 12 * len(block)
        assert bytes(store.get_range("large", 30 << 20, 33 << 20)) == block
        assert store.head("large").size == 36 << 20

    def test_list_is_sorted_and_honours_its_limits(self, store: ObjectStore) -> None:
        """`list` yields at most `limit` keys after `start_after`, in the order of code points."""
        keys = ["a/1", "a/10", "a/2", "a-x", "a/b/c", "b", "a.txt", "é"]
        for key in keys:
            store.put(key, key.encode())
        assert [meta.key for meta in store.list("")] == sorted(keys)
        assert [meta.key for meta in store.list("a/")] == ["a/1", "a/10", "a/2", "a/b/c"]
        assert [meta.key for meta in store.list("a/1")] == ["a/1", "a/10"]
        assert [meta.key for meta in store.list("a/", start_after="a/10")] == ["a/2", "a/b/c"]
        assert [meta.key for meta in store.list("", start_after="a-x", limit=2)] == ["a.txt", "a/1"]
        assert list(store.list("nothing/here/")) == []
        assert [meta.size for meta in store.list("é")] == [len("é".encode())]

    def test_what_may_be_deleted_is_what_is_listed(self, store: ObjectStore) -> None:
        """`list_owned` yields what `list` yields where there are no links."""
        keys = ["a/1", "a/b/c", "a-x", "b"]
        for key in keys:
            store.put(key, key.encode())
        assert [meta.key for meta in store.list_owned("")] == sorted(keys)
        assert [meta.key for meta in store.list_owned("a/")] == ["a/1", "a/b/c"]
        assert [meta.key for meta in store.list_owned("a/b")] == ["a/b/c"]
        assert not store.remove_link("a")
        assert not store.remove_link("")
        for meta in store.list_owned(""):
            store.delete(meta.key)
        assert list(store.list("")) == []

    def test_nothing_to_delete_lies_behind_a_link(self, store: ObjectStore) -> None:
        """`list_owned` yields links and nothing below them; `list` follows a link that its prefix names."""
        outside = self.outside(store)
        if outside is None:
            return  # the store knows no links
        store.put("a/own", b"own")
        for name, target in (("a/l", outside), ("l", outside), ("f", outside / "sub/file"), ("no", outside / "none")):
            (Path(store.root) / name).symlink_to(target)
        assert [meta.key for meta in store.list_owned("")] == ["a/l", "a/own", "f", "l", "no"]
        assert [meta.key for meta in store.list_owned("a/")] == ["a/l", "a/own"]
        for prefix in ("l/", "l/sub/", "a/l/", "a/l/sub/f"):
            assert list(store.list_owned(prefix)) == []
        # A prefix may name a link to read; a listing from above does not follow it.
        assert [meta.key for meta in store.list("l/")] == ["l/sub/file"]
        assert [meta.key for meta in store.list("")] == ["a/own", "f"]
        assert store.remove_link("l")
        for meta in store.list_owned(""):
            store.delete(meta.key)
        assert list(store.list_owned("")) == []
        assert (outside / "sub/file").read_bytes() == b"outside"

    def test_an_object_that_is_written_again_has_another_tag(self, store: ObjectStore) -> None:
        """All verbs report one tag for one state of an object, and another tag after another `put`."""
        for _ in range(2):
            put = store.put("k", b"data")
            data, meta = store.read("k")
            assert (bytes(data), meta.key, meta.size) == (b"data", "k", 4)
            (listed,) = store.list("k")
            tags = {tag for tag in (put, meta.e_tag, listed.e_tag, store.head("k").e_tag) if tag is not None}
            assert len(tags) <= 1
        store.put("k", b"something else")
        (again,) = store.list("k")
        assert again.e_tag is None or again.e_tag != listed.e_tag

    def test_delete_and_copy(self, store: ObjectStore) -> None:
        """`copy` replaces its target; `delete` accepts a missing object."""
        store.put("k", b"data")
        store.copy("k", "deep/er/k")
        store.delete("k")
        store.delete("k")
        with pytest.raises(ObjectNotFoundError):
            store.get("k")
        assert bytes(store.get("deep/er/k")) == b"data"

    def test_several_objects_are_deleted_at_once(self, store: ObjectStore) -> None:
        """`delete_many` deletes all keys, even more than fit into one request, and reports no missing object."""
        for key in ("a", "deep/er/b", "c", "kept"):
            store.put(key, b"data")
        missing = [f"missing/{number}" for number in range(store.keys_per_delete + 1)]
        assert store.keys_per_delete >= 1
        assert store.delete_many(["a", *missing, "deep/er/b", "c"]) == {}
        assert store.delete_many([]) == {}
        assert [meta.key for meta in store.list("")] == ["kept"]

    @pytest.mark.parametrize("key", ["", "/abs", "a//b", "../up", "a/../../b", "./a", "a/"])
    def test_keys_stay_below_the_root(self, store: ObjectStore, key: str) -> None:
        """A key that is absolute, empty or has an empty, `.` or `..` part is an InvalidInputError."""
        with pytest.raises(InvalidInputError):
            store.put(key, b"x")
        with pytest.raises(InvalidInputError):
            store.get(key)

    @pytest.mark.parametrize("prefix", ["/", "/abs", "a//b", "../", "..", "../up", "a/../../b", "./a", "a/\0/"])
    def test_listings_stay_below_the_root(self, store: ObjectStore, prefix: str) -> None:
        """A prefix that leads out of the root, or has an empty, `.` or `..` part, is an InvalidInputError."""
        for verb in (store.list, store.list_owned):
            with pytest.raises(InvalidInputError):
                list(verb(prefix))

    def test_survives_pickling(self, store: ObjectStore) -> None:
        """A store reaches other processes by pickle."""
        store.put("k", b"data")
        again = pickle.loads(pickle.dumps(store))  # noqa: S301 - made in the line itself
        assert bytes(again.get("k")) == b"data"
        assert again.root == store.root


class CreationConformance:
    """`put_if_absent` creates an object or reports that one exists."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Return a store without objects; each test gets its own."""
        raise NotImplementedError

    def test_put_if_absent_keeps_the_first(self, store: ObjectStore) -> None:
        """A second creation is an AlreadyExistsError and leaves the first object."""
        store.put_if_absent("v/1", b"first")
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent("v/1", b"second")
        assert bytes(store.get("v/1")) == b"first"
        assert [meta.key for meta in store.list("v/")] == ["v/1"]

    def test_put_if_absent_returns_the_tag(self, store: ObjectStore) -> None:
        """`put_if_absent` returns the tag that a listing shows, or None."""
        tag = store.put_if_absent("v/1", b"first")
        (listed,) = store.list("v/")
        assert tag in (None, listed.e_tag)

    def test_put_if_absent_with_an_empty_body_does_not_truncate(self, store: ObjectStore) -> None:
        """A creation without bytes leaves the first object as well."""
        store.put_if_absent("v/1", b"first")
        with pytest.raises(AlreadyExistsError):
            store.put_if_absent("v/1", b"")
        assert bytes(store.get("v/1")) == b"first"

    def test_one_of_racing_creators_wins(self, store: ObjectStore) -> None:
        """Of concurrent creations exactly one succeeds, and its bytes are stored."""
        for turn in range(10):

            def create(number: int, turn: int = turn) -> bool:
                try:
                    store.put_if_absent(f"race/{turn}", str(number).encode() * 1000)
                except AlreadyExistsError:
                    return False
                return True

            won = race(4, create)
            assert sorted(won) == [False] * 3 + [True]
            assert bytes(store.get(f"race/{turn}")) == str(won.index(True)).encode() * 1000


class StreamConformance:
    """A writer's object appears when the writer is closed, and never if it is aborted."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Return a store without objects; each test gets its own."""
        raise NotImplementedError

    def test_a_writer_shows_nothing_before_close(self, store: ObjectStore) -> None:
        """An object appears when its writer is closed."""
        with store.open_writer("d/file") as writer:
            writer.write(b"abc")
            writer.write(np.arange(3, dtype=np.uint8))
            writer.write(pa.py_buffer(b"xyz"))
            writer.write(memoryview(b"--tail--")[2:6])
            writer.write(np.zeros(0, np.uint8))
            with pytest.raises(ObjectNotFoundError):
                store.head("d/file")
        assert bytes(store.get("d/file")) == b"abc\x00\x01\x02xyztail"

    def test_ranges_of_other_objects_are_appended(self, store: ObjectStore) -> None:
        """`copy_range` appends a range of an object between written bytes; a missing or shorter object is an error."""
        data = bytes(range(256)) * 100
        store.put("d/source", data)
        with store.open_writer("d/target") as writer:
            writer.write(b"before")
            writer.copy_range(store, "d/source", 100, 20_000)
            writer.copy_range(store, "d/source", 7, 7)
            writer.copy_range(store, "d/source", 5_000, 25_600, read_bytes=999)
            writer.write(b"behind")
        assert bytes(store.get("d/target")) == b"before" + data[100:20_000] + data[5_000:] + b"behind"
        for key, error in (("d/missing", ObjectNotFoundError), ("d/source", StoreError)):
            with pytest.raises(error), store.open_writer("d/aborted") as writer:
                writer.copy_range(store, key, 0, 25_601)
        assert [meta.key for meta in store.list("d/")] == ["d/source", "d/target"]

    def test_an_aborted_writer_leaves_nothing(self, store: ObjectStore) -> None:
        """A writer whose body raises leaves no object."""

        def fail() -> None:
            with store.open_writer("d/aborted") as writer:
                writer.write(b"x" * 100)
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert list(store.list("")) == []

    def test_an_aborted_writer_stays_aborted(self, store: ObjectStore) -> None:
        """After `abort`, `write` and `close` are StoreErrors."""
        writer = store.open_writer("d/aborted")
        writer.write(b"x" * 100)
        writer.abort()
        writer.abort()
        with pytest.raises(StoreError):
            writer.write(b"more")
        with pytest.raises(StoreError):
            writer.close()
        writer.abort()
        assert list(store.list("")) == []


class StoreConformance(ObjectConformance, CreationConformance, StreamConformance):
    """Everything that a store of tables must do."""
