"""Whatever a manifest says survives the verbs: each field of each message, by the rows of `survival_rows`."""

import shutil
import struct

import lance
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.descriptor import FieldDescriptor

import lance_core
from lance_core._proto import file_pb2, table_pb2, transaction_pb2
from lance_core.errors import UnsupportedError
from lance_core.table.manifest.manifest import message_range, section_at
from lance_core.table.transaction import Transaction
from tests.interop.format import survival_rows as rows
from tests.interop.format.survival_rows import KEPT, NO, SET
from tests.interop.format.wire import edit_latest, latest_message, manifest_paths

MESSAGES = {
    table_pb2.Manifest: rows.MANIFEST,
    file_pb2.Field: rows.FIELD,
    table_pb2.DataFragment: rows.DATA_FRAGMENT,
    table_pb2.DataFile: rows.DATA_FILE,
    table_pb2.DeletionFile: rows.DELETION_FILE,
    table_pb2.IndexMetadata: rows.INDEX_METADATA,
    table_pb2.BasePath: rows.BASE_PATH,
}
TRANSACTION = transaction_pb2.Transaction
OPERATIONS = {field.name: field for field in TRANSACTION.DESCRIPTOR.oneofs_by_name["operation"].fields}


def names(descriptor):
    return {field.name for field in descriptor.fields}


def test_each_field_has_a_row():
    for kind, table in MESSAGES.items():
        assert table.keys() == names(kind.DESCRIPTOR), kind.DESCRIPTOR.name
    assert rows.TRANSACTION.keys() == names(TRANSACTION.DESCRIPTOR) - OPERATIONS.keys()
    assert rows.OPERATIONS.keys() == OPERATIONS.keys()
    for name, table in rows.OPERATIONS.items():
        assert table.keys() == names(OPERATIONS[name].message_type), name
    tables = [*MESSAGES.values(), rows.TRANSACTION, *rows.OPERATIONS.values()]
    for verdict, reason in (row for table in tables for row in table.values()):
        assert verdict in (KEPT, SET, NO)
        assert verdict == KEPT or reason, "what is not kept has a reason"


# Manifests, through the verbs.


def indices(root):
    """The messages of the index section of the latest version."""
    view = memoryview(manifest_paths(root)[-1].read_bytes())
    position = latest_message(root).index_section
    return table_pb2.IndexSection.FromString(section_at(view, position)).indices


def with_indices(root, change):
    """Put a changed index section into the latest manifest, before its message."""
    section = table_pb2.IndexSection(indices=indices(root))
    change(section.indices[0])
    path = manifest_paths(root)[-1]
    data, body = path.read_bytes(), section.SerializeToString()
    start = message_range(memoryview(data))[0] - 4
    block = struct.pack("<I", len(body)) + body
    footer = struct.pack("<q", start + len(block)) + data[-8:]
    path.write_bytes(data[:start] + block + data[start:-16] + footer)
    edit_latest(root, lambda message: setattr(message, "index_section", start))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A branch that holds something in every field that is kept."""
    folder = tmp_path_factory.mktemp("survival")
    root, number = str(folder / "t"), 10_000
    schema = pa.schema(
        [
            pa.field("a", pa.int64(), False, {"lance-schema:unenforced-primary-key:position": "1"}),
            pa.field("b", pa.int64(), True, {"lance-schema:unenforced-clustering-key:position": "2"}),
            pa.field("s", pa.struct([pa.field("x", pa.int32())]), True),
            pa.field("c", pa.string(), True, {"own": "text"}),
        ],
        {"schema": "own"},
    )

    def data(start, count):
        ids = range(start, start + count)
        return pa.table({"a": ids, "b": ids, "s": [{"x": 1}] * count, "c": ["c"] * count}, schema=schema)

    lance.write_dataset(data(0, 4), root, enable_stable_row_ids=True)
    lance.write_dataset(data(100, number), root, mode="append")
    lance.write_dataset(data(20_000, 4), root, mode="append")
    main = lance.dataset(root)
    main.delete("a = 0")
    main.delete(f"a >= 100 AND a < {100 + number // 2}")
    main.create_scalar_index("b", "BTREE")
    branch = main.create_branch("own").uri
    opened = lance.dataset(branch)
    opened.add_bases([lance.DatasetBasePath(str(folder / "cold"), "cold")])
    opened.update_config({"own": "config"})
    opened.update_metadata({"own": "metadata"})
    edit_latest(branch, _fill)
    with_indices(branch, _covering)
    edit_latest(branch, lambda message: setattr(message, "reader_feature_flags", message.reader_feature_flags | 128))
    return root


def _covering(index):
    index.fields.append(4)
    index.covering_fields.append(4)


def _fill(message):
    message.max_fragment_id, message.next_row_id, message.max_allocated_field_id = 50, 90_000, 60
    message.writer_feature_flags |= 32768 | 128
    message.fields[-1].extension_name = "own"
    message.fields[-1].dictionary.offset, message.fields[-1].dictionary.length = 7, 9
    message.fields[0].unenforced_clustering_key = True


def instances(root, kind):
    message = latest_message(root)
    fragments = list(message.fragments)
    return {
        table_pb2.Manifest: [message],
        file_pb2.Field: list(message.fields),
        table_pb2.DataFragment: fragments,
        table_pb2.DataFile: [file for fragment in fragments for file in fragment.files],
        table_pb2.DeletionFile: [f.deletion_file for f in fragments if f.HasField("deletion_file")],
        table_pb2.IndexMetadata: list(indices(root)),
        table_pb2.BasePath: list(message.base_paths),
    }[kind]


def test_the_table_has_something_in_every_field_that_is_kept(source):
    for kind, table in MESSAGES.items():
        found = instances(f"{source}/tree/own", kind)
        for name in (name for name, (verdict, _) in table.items() if verdict == KEPT):
            assert any(field.name == name for each in found for field, _ in each.ListFields()), (kind, name)


ROWS = pa.table({"a": [90_001], "b": [1], "s": [{"x": 3}], "c": ["n"]})
KEYED = pa.table({"a": [20_000, 90_002], "b": [7, 8], "s": [{"x": 3}] * 2, "c": ["n", "n"]})


def upsert(dataset):
    dataset.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(fitted(dataset, KEYED))


def clone_uri(dataset):
    """A place beside the table of a branch."""
    return f"{dataset.uri.partition('/tree/')[0]}-clone"


VERBS = {
    "append": lambda library, dataset: library.write_dataset(fitted(dataset, ROWS), dataset.uri, mode="append"),
    "delete": lambda _, dataset: dataset.delete("a = 20000"),
    "delete nothing": lambda _, dataset: dataset.delete("false"),
    "update": lambda _, dataset: dataset.update({"c": "'new'"}, where="a = 20001"),
    "merge_insert": lambda _, dataset: upsert(dataset),
    "add_columns": lambda _, dataset: dataset.add_columns({"n": "a + 1"}),
    "add nulls": lambda _, dataset: dataset.add_columns(pa.field("n", pa.int32())),
    "rename": lambda _, dataset: dataset.alter_columns({"path": "c", "name": "renamed"}),
    "cast": lambda _, dataset: dataset.alter_columns({"path": "s.x", "data_type": pa.int64()}),
    "drop": lambda _, dataset: dataset.drop_columns(["s"]),
    "config": lambda _, dataset: dataset.update_config({"more": "1"}),
    "metadata": lambda _, dataset: dataset.update_metadata({"more": "1"}),
    "schema metadata": lambda _, dataset: dataset.update_schema_metadata({"more": "1"}),
    "field metadata": lambda _, dataset: dataset.update_field_metadata({"b": {"more": "1"}}),
    "compact": lambda _, dataset: dataset.optimize.compact_files(target_rows_per_fragment=10),
    "add_bases": lambda library, dataset: dataset.add_bases([library.DatasetBasePath("/tmp/own-more", "more")]),
    "create index": lambda _, dataset: dataset.create_scalar_index("a", "ZONEMAP"),
    "restore": lambda _, dataset: dataset.restore(),
    "overwrite": lambda library, dataset: library.write_dataset(pa.table({"z": [1]}), dataset.uri, mode="overwrite"),
    "branch": lambda _, dataset: dataset.create_branch("child"),
    "shallow clone": lambda _, dataset: dataset.shallow_clone(clone_uri(dataset), dataset.version),
    "deep clone": lambda _, dataset: dataset.deep_clone(clone_uri(dataset), dataset.version),
}
PLACES = {"branch": "{root}/tree/child", "shallow clone": "{root}-clone", "deep clone": "{root}-clone"}
"""Where the new version is, if not beside the old one."""


def fitted(dataset, table):
    return pa.table(table.to_pydict(), schema=dataset.schema)


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_kept_survives_as_it_does_with_pylance(source, tmp_path, verb):
    lost = {}
    for library in (lance, lance_core):
        root = str(tmp_path / library.__name__)
        shutil.copytree(source, root)
        uri = f"{root}/tree/own"
        before, before_indices = latest_message(uri), {i.name: i for i in indices(uri)}
        VERBS[verb](library, library.dataset(uri))
        place = PLACES.get(verb, "{uri}").format(root=root, uri=uri)
        after = latest_message(place)
        assert verb in PLACES or after.version > before.version
        after_indices = {i.name: i for i in indices(place)} if after.HasField("index_section") else {}
        lost[library] = set(_lost(before, after, verb)) | set(_lost_indices(before_indices, after_indices, verb))
        assert lance.dataset(place).count_rows() == lance_core.dataset(place).count_rows()
    # What pylance loses may be kept here, and nothing else may be lost.
    by_design = set(rows.OTHERWISE.get(verb, {}))
    assert by_design <= lost[lance], "pylance does as is said"
    assert lost[lance_core] == by_design, f"pylance loses {lost[lance]}"


GROWS = ("max_fragment_id", "next_row_id", "max_allocated_field_id")
NEW_CONTENT = ("fields", "fragments", "schema_metadata")
RENAMED = {"rename": ("name",), "cast": ("children",), "field metadata": ("metadata",)}


def said(message, name):
    """What a message says of a field; None if it says nothing."""
    return getattr(message, name) if any(field.name == name for field, _ in message.ListFields()) else None


def kept(kind):
    return [name for name, (verdict, _) in MESSAGES[kind].items() if verdict == KEPT]


def _lost(before, after, verb):
    """Names of fields that say less than before."""
    for name in kept(table_pb2.Manifest):
        old, new = getattr(before, name), getattr(after, name)
        if name in GROWS:
            good = new >= old
        elif name in NEW_CONTENT[:2]:
            continue
        elif name == "branch" and verb == "branch":
            good = new == "child"
        elif name == "base_paths":
            good = {base.id: base for base in old}.items() <= {base.id: base for base in new}.items()
        elif name in ("branch", "data_format"):
            good = new == old
        else:
            good = (verb == "overwrite" and name in NEW_CONTENT) or dict(old).items() <= dict(new).items()
        if not good:
            yield "Manifest", name
    if verb != "overwrite":
        yield from _lost_fields(before, after, verb)
        yield from _lost_fragments(before, after, verb)


def _lost_fields(before, after, verb):
    new = {field.id: field for field in after.fields}
    for field in before.fields:
        other = new.get(field.id)
        if other is None:
            if verb not in ("cast", "drop"):
                yield "Field", field.name
            continue
        for name in kept(file_pb2.Field):
            if getattr(field, name) != getattr(other, name) and name not in RENAMED.get(verb, ()):
                yield "Field", name


def _lost_fragments(before, after, verb):
    new = {fragment.id: fragment for fragment in after.fragments}
    for fragment in before.fragments:
        other = new.get(fragment.id)
        if other is None:
            if verb not in ("compact", "merge_insert", "delete", "update"):
                yield "DataFragment", "id"
            continue
        for name in ("physical_rows", "inline_row_ids", "inline_created_at_versions"):
            if getattr(fragment, name) != getattr(other, name):
                yield "DataFragment", name
        if not other.HasField("inline_last_updated_at_versions"):
            yield "DataFragment", "inline_last_updated_at_versions"
        yield from _lost_files(fragment, other, verb)


def _lost_files(fragment, other, verb):
    files = {file.path: file for file in other.files}
    for file in fragment.files:
        copy = files.get(file.path)
        if copy is None:
            yield "DataFile", "path"
            continue
        for name in kept(table_pb2.DataFile):
            if said(file, name) == said(copy, name):
                continue
            tombstones = name == "fields" and all(x in (y, -2) for x, y in zip(copy.fields, file.fields, strict=True))
            if not tombstones:
                yield "DataFile", name
    if fragment.HasField("deletion_file"):
        mine, theirs = fragment.deletion_file, other.deletion_file
        if theirs.num_deleted_rows < mine.num_deleted_rows:
            yield "DeletionFile", "num_deleted_rows"
        elif theirs.num_deleted_rows == mine.num_deleted_rows:
            yield from (("DeletionFile", n) for n in kept(table_pb2.DeletionFile) if said(mine, n) != said(theirs, n))


def _lost_indices(before, after, verb):
    for name, index in before.items():
        other = after.get(name)
        if other is None:
            if verb != "overwrite":
                yield "IndexMetadata", "name"
            continue
        for field in kept(table_pb2.IndexMetadata):
            if field != "fragment_bitmap" and said(index, field) != said(other, field):
                yield "IndexMetadata", field


def test_a_manifest_whose_fragments_stand_in_a_tree_is_rejected(tmp_path):
    lance.write_dataset(pa.table({"a": [1]}), tmp_path)
    edit_latest(tmp_path, lambda message: setattr(message, "fragment_tree", b"\x0a\x00"))
    with pytest.raises(UnsupportedError, match="fragment tree"):
        lance_core.dataset(tmp_path)


# Transactions: what was read is what is written.


def own_value(field, number):
    """A value of a field's own."""
    kinds = FieldDescriptor
    if field.type == kinds.TYPE_STRING:
        return f"own {number}"
    if field.type == kinds.TYPE_BYTES:
        return b"own %d" % number
    if field.type in (kinds.TYPE_DOUBLE, kinds.TYPE_FLOAT):
        return number / 8
    if field.type == kinds.TYPE_BOOL:
        return True
    if field.type == kinds.TYPE_ENUM:
        return field.enum_type.values[-1].number
    return number


def fill(message, skip=(), number=3):
    """Set each field of a message, and of those in it, to a value of its own."""
    for field in message.DESCRIPTOR.fields:
        number += 1
        if field.name in skip or (
            field.containing_oneof and len(field.containing_oneof.fields) > 1 and field.index % 2
        ):
            continue
        _fill_field(message, field, number)
    return message


def _fill_field(message, field, number):
    target = getattr(message, field.name)
    if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        if value.type == FieldDescriptor.TYPE_MESSAGE:
            fill(target[own_value(key, number)])
        else:
            target[own_value(key, number)] = own_value(value, number)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        whole = target.add() if field.is_repeated else target
        special = SPECIAL.get(field.message_type.full_name)
        if special is not None:
            whole.MergeFrom(special(number))
        else:
            fill(whole, SKIPPED.get(field.message_type.name, ()))
    elif field.is_repeated:
        target.extend([own_value(field, number), own_value(field, number + 1)])
    else:
        setattr(message, field.name, own_value(field, number))


SKIPPED = {
    "DataFragment": [name for name, (verdict, _) in rows.DATA_FRAGMENT.items() if verdict != KEPT],
    "Field": [name for name, (verdict, _) in rows.FIELD.items() if verdict != KEPT],
}
SPECIAL = {
    "lance.table.UUID": lambda number: table_pb2.UUID(uuid=bytes([number]) * 16),
    "google.protobuf.Any": lambda number: Any(type_url=f"/own.{number}", value=b"own"),
    "lance.file.Field": lambda _: fill(file_pb2.Field(parent_id=-1), (*SKIPPED["Field"], "parent_id")),
    "lance.table.DataFile": lambda number: table_pb2.DataFile(
        path=f"{number}.lance",
        fields=[1, 2],
        column_indices=[0, 1],
        file_major_version=2,
        file_minor_version=1,
        file_size_bytes=number,
        base_id=number,
    ),
}


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "data_overlay"])
def test_a_transaction_is_written_as_it_was_read(name):
    table = rows.OPERATIONS[name]
    message = TRANSACTION(read_version=5, uuid="own", tag="tag", transaction_properties={"own": "property"})
    operation = getattr(message, name)
    operation.SetInParent()
    fill(operation, [field for field, (verdict, _) in table.items() if verdict != KEPT])
    for field, (verdict, _) in table.items():
        assert verdict != KEPT or any(each.name == field for each, _ in operation.ListFields()), field
    written = TRANSACTION.FromString(Transaction.from_bytes(message.SerializeToString()).to_bytes())
    assert written == message


def test_older_forms_of_operations_become_newer_ones():
    message = TRANSACTION(read_version=1, uuid="own")
    message.rewrite.old_fragments.add(id=1)
    message.rewrite.new_fragments.add(id=2)
    written = TRANSACTION.FromString(Transaction.from_bytes(message.SerializeToString()).to_bytes())
    (group,) = written.rewrite.groups
    assert [f.id for f in (*group.old_fragments, *group.new_fragments)] == [1, 2]
    message = TRANSACTION(read_version=1, uuid="own")
    message.update_config.upsert_values["k"] = "v"
    message.update_config.delete_keys.append("dropped")
    written = TRANSACTION.FromString(Transaction.from_bytes(message.SerializeToString()).to_bytes())
    entries = {
        e.key: e.value if e.HasField("value") else None for e in written.update_config.config_updates.update_entries
    }
    assert entries == {"k": "v", "dropped": None}
