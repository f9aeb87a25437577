"""Runs of serialized fragments, spliced, beside rebuilt lists."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.schema import Schema
from lance_core.table import flags
from lance_core.table.deletion import DeletionFile, DeletionFileType
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.fragment_list import FragmentColumns, FragmentList, FragmentRun
from lance_core.table.manifest.manifest import WRITER, Manifest

OF_A_NEWER_WRITER = b"\xfa\x07\x03new"  # field 127 with bytes
DELETIONS = DeletionFile(file_type=DeletionFileType.BITMAP, read_version=1, id=7, num_deleted_rows=1)
IDS = st.integers(0, 40) | st.sampled_from([127, 128, 16_383, 16_384, 2**32 - 1])
FILES = st.integers(0, 3).map(
    lambda count: tuple(
        DataFile(path="x" * (50 * i) + ".lance", fields=(i,), file_major_version=2, file_minor_version=2)
        for i in range(count)
    )
)
FRAGMENTS = st.builds(
    Fragment,
    id=IDS,
    files=FILES,
    physical_rows=st.integers(0, 10**6),
    deletion_file=st.none() | st.just(DELETIONS),
    row_ids=st.none() | st.binary(max_size=200),
)


def serialized(fragment):
    return fragment.to_protobuf().SerializeToString()


def manifest_of(fragments):
    return Manifest(
        version=3,
        schema=Schema(fields=()),
        fragments=fragments,
        reader_flags=flags.DELETION_FILES,
        writer_version=WRITER,
    )


@st.composite
def histories(draw):
    """Serialized fragments, some with a field of a newer writer, and changes of them."""
    first = draw(st.lists(FRAGMENTS, unique_by=lambda one: one.id, max_size=8))
    if draw(st.booleans()):
        first.sort(key=lambda one: one.id)
    raw = [serialized(one) + draw(st.sampled_from([b"", OF_A_NEWER_WRITER])) for one in first]
    changes = draw(st.lists(st.tuples(st.sets(IDS, max_size=3), st.lists(FRAGMENTS, max_size=3)), max_size=4))
    return {one.id: serialized_one for one, serialized_one in zip(first, raw, strict=True)}, changes


@given(histories())
def test_changes_make_what_a_new_list_has(history):
    model, changes = history
    found = FragmentList(list(model.values()))
    for removed, fragments in changes:
        before = model
        put = {one.id: one for one in fragments}
        updated = {i: one for i, one in put.items() if i in model}
        added = [one for i, one in put.items() if i not in model and i not in removed]
        model = {i: raw for i, raw in model.items() if i not in removed}
        model |= {i: serialized(one) for i, one in put.items() if i in model or (i not in before and i not in removed)}
        model = dict(sorted(model.items()))
        found = found.changed(removed=removed, updated=updated, added=added)
        assert list(found.raw) == list(model.values())
        assert (found.ids, found.highest_id) == (list(model), max(model, default=-1))
        rebuilt = FragmentList(list(model.values()))
        assert (found, found.has_deletions) == (rebuilt, rebuilt.has_deletions)
        assert [one.tolist() for one in columns_of(found)] == [one.tolist() for one in columns_of(rebuilt)]
        assert manifest_of(found).to_bytes() == manifest_of(rebuilt).to_bytes()
        found = Manifest.from_bytes(manifest_of(found).to_bytes()).fragments if len(model) % 2 else found


def columns_of(fragments):
    found = fragments._read_fields()
    return found.ids, found.rows, found.deletions, found.row_ids


@given(st.lists(FRAGMENTS, max_size=6), st.lists(FRAGMENTS, max_size=6), st.lists(FRAGMENTS, max_size=6), st.data())
def test_what_differs_is_between_what_is_shared(before, ours, after, data):
    theirs = data.draw(st.lists(st.sampled_from(ours), max_size=6) if ours else st.just([]))
    one, other = (FragmentRun.of(map(serialized, [*before, *middle, *after])) for middle in (ours, theirs))
    places, others = one.differing(other), other.differing(one)
    assert list(one[: places.start]) == list(other[: others.start])
    assert list(one[places.stop :]) == list(other[others.stop :])
    assert (one == other) == (len(places) == len(others) == 0)
    if places and others:
        assert one[places.start] != other[others.start]


def test_the_end_of_a_fragment_is_no_shared_fragment():
    inner = FragmentRun.of([b"\x08\x02"]).data
    wide = table_pb2.DataFragment(id=1, inline_row_ids=b"abc" + inner).SerializeToString()
    one, other = FragmentRun.of([b"\x08\x01", b"\x08\x02"]), FragmentRun.of([wide])
    assert (one.differing(other), other.differing(one)) == (range(2), range(1))


def test_lengths_of_more_bytes_than_needed_are_read_and_spliced():
    run = FragmentRun(b"\x12\x82\x00\x08\x01\x12\x02\x08\x02", 2)
    assert run == FragmentRun.of([b"\x08\x01", b"\x08\x02"])
    assert list(run.spliced({1: b"\x08\x03"}, [b"\x08\x04"])) == [b"\x08\x01", b"\x08\x03", b"\x08\x04"]
    assert FragmentColumns.of(run).ids.tolist() == [1, 2]
    assert list(pickle.loads(pickle.dumps(run))) == [b"\x08\x01", b"\x08\x02"]


def test_a_run_of_another_number_of_fragments_is_rejected():
    with pytest.raises(CorruptFileError, match="the manifest has 2 fragments instead of 3"):
        list(FragmentRun(b"\x12\x00\x12\x00", 3))
    with pytest.raises(CorruptFileError, match="cannot be parsed"):
        list(FragmentRun(b"\x12\x05a", 1))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2, 1)])
def test_fields_of_the_manifest_in_another_order(order):
    """Writers put them in the order of their numbers; the format allows any."""
    fragments = FragmentList.of([Fragment(id=1, physical_rows=5), Fragment(id=2, physical_rows=6)])
    whole = manifest_of(fragments).to_bytes()
    message = table_pb2.Manifest.FromString(whole[4:-16])
    one = table_pb2.Manifest(fragments=message.fragments[:1] if order.count(1) > 1 else message.fragments)
    two = table_pb2.Manifest(fragments=message.fragments[1:])
    message.ClearField("fragments")
    column = table_pb2.Manifest(fields=[{"name": "a", "id": 0, "logical_type": "int64", "parent_id": -1}])
    parts = [column.SerializeToString(), one.SerializeToString(), message.SerializeToString()]
    data = b"".join(parts[place] for place in order[:3]) + (two.SerializeToString() if order.count(1) > 1 else b"")
    found = Manifest.from_bytes(len(data).to_bytes(4, "little") + data + whole[-16:])
    assert (found.fragments, found.schema.names, found.version) == (fragments, ["a"], 3)
    assert list(found.fragments.changed(added=[Fragment(id=3)]).raw)[:2] == list(fragments.raw)
