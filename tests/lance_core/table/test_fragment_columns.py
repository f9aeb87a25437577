"""Numbers of fragments that are read off their bytes."""

from unittest.mock import patch

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table import fragment_list
from lance_core.table.fragment_list import FragmentColumns, FragmentRun

U64S = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1), st.sampled_from([2**32, 2**63 - 1, 2**63]))
FILES = st.lists(st.builds(table_pb2.DataFile, path=st.text(max_size=200), fields=st.lists(st.integers(0, 99))))
MESSAGES = st.builds(
    table_pb2.DataFragment,
    id=U64S,
    files=FILES,
    deletion_file=st.none() | st.builds(table_pb2.DeletionFile, num_deleted_rows=U64S),
    physical_rows=U64S,
    inline_row_ids=st.none() | st.binary(max_size=20),
    overlays=st.sampled_from([[], [table_pb2.DataOverlayFile()]]),
)


def by_protobuf(raw):
    """Ids, rows, and which have deletions and row ids; None if one is not a message."""
    try:
        found = [table_pb2.DataFragment.FromString(one) for one in raw]
    except DecodeError:
        return None
    ids = np.array([one.id for one in found], np.uint64).astype(np.int64)
    rows = [one.physical_rows if one.physical_rows <= 2**32 else 0 for one in found]
    deletions, row_ids = ([one.HasField(name) for one in found] for name in ("deletion_file", "inline_row_ids"))
    return ids.tolist(), rows, deletions, row_ids


def ours(raw):
    try:
        with patch.object(fragment_list, "_MANY", 0):
            found = FragmentColumns.of(FragmentRun.of(raw))
    except CorruptFileError:
        return None
    return tuple(column.tolist() for column in (found.ids, found.rows, found.deletions, found.row_ids))


def assert_alike(found, expected):
    """Of row ids both inline and elsewhere the last ones count, which is left to readers of the fragment."""
    if found is None or expected is None:
        assert found == expected
        return
    assert found[:3] == expected[:3]
    assert all(has <= really for has, really in zip(found[3], expected[3], strict=True))


@given(st.lists(MESSAGES, max_size=8))
def test_they_are_those_of_the_messages(messages):
    raw = [one.SerializeToString() for one in messages]
    assert ours(raw) == by_protobuf(raw)


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.data())
def test_damaged_bytes_give_what_the_messages_give(messages, data):
    raw = [bytearray(one.SerializeToString()) for one in messages]
    damaged = raw[data.draw(st.integers(0, len(raw) - 1))]
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    together = [bytes(one) for one in raw]
    expected, found = by_protobuf(together), ours(together)
    if expected is not None or found is None:
        assert_alike(found, expected)


@given(st.lists(st.binary(max_size=12), max_size=4))
@example([b"\x08"])
@example([b"\x12\x05a", b"\x08\x01"])
@example([b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
@example([b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f"])
@example([b"\x00\x01"])
def test_any_bytes_give_what_the_messages_give(raw):
    expected = by_protobuf(raw)
    if expected is not None:
        assert_alike(ours(raw), expected)


@pytest.mark.parametrize(
    "cut", [b"\x08", b"\x12\x05a", b"\x20\x80", b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x00\x01"]
)
@pytest.mark.parametrize("after", [b"", b"\x08\x01\x08\x01\x08\x01"])
def test_what_is_cut_off_is_rejected(cut, after):
    assert ours([cut, after]) is None
    with pytest.raises(CorruptFileError):
        FragmentColumns.of(FragmentRun.of([cut, after]))


def test_usual_fragments_are_read_without_messages(monkeypatch):
    monkeypatch.setattr(fragment_list, "_FragmentFields", None)
    message = table_pb2.DataFragment(id=700, files=[table_pb2.DataFile(path="x" * 300)] * 3, physical_rows=10**6)
    message.deletion_file.num_deleted_rows = 3
    message.inline_row_ids = b"abc"
    assert ours([message.SerializeToString(), b""]) == ([700, 0], [10**6, 0], [True, False], [True, False])
