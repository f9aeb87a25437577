"""Primary and clustering keys that a schema declares: as pylance reads and writes them, through every verb."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import LanceError
from tests.interop.format.wire import edit_latest, latest_message, latest_transaction

PRIMARY = "lance-schema:unenforced-primary-key"
PRIMARY_POSITION = f"{PRIMARY}:position"
CLUSTERING = "lance-schema:unenforced-clustering-key"
CLUSTERING_POSITION = f"{CLUSTERING}:position"

WIRE = (
    "unenforced_primary_key",
    "unenforced_primary_key_position",
    "unenforced_clustering_key",
    "unenforced_clustering_key_position",
)


def table(a=None, b=None):
    schema = pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False, metadata=a),
            pa.field("b", pa.int32(), nullable=False, metadata=b),
            pa.field("c", pa.string()),
        ]
    )
    return pa.table({"a": [1, 2], "b": [3, 4], "c": ["x", "y"]}, schema=schema)


def marks(fields):
    """The fields that say something about a key, by id."""
    return {field.id: said for field in fields if any(said := tuple(getattr(field, name) for name in WIRE))}


def keys(library, uri):
    """Both keys as users see them: names, in order, with positions."""
    schema = library.dataset(uri).lance_schema
    return (
        [(f.name(), f.unenforced_primary_key_position()) for f in schema.unenforced_primary_key()],
        [(f.name(), f.unenforced_clustering_key_position()) for f in schema.unenforced_clustering_key()],
    )


TEXTS = [
    *({PRIMARY: text} for text in ("true", "TRUE", "1", "yes", "Yes", "on", "y", "no", "false", " true", "")),
    *({PRIMARY_POSITION: text} for text in ("1", "0", "x", "-1", "+3", " 1", "4294967295", "4294967296", "")),
    {PRIMARY: "false", PRIMARY_POSITION: "2"},
    {CLUSTERING: "true"},
    *({CLUSTERING_POSITION: text} for text in ("1", "0", "x")),
    {CLUSTERING: "yes", CLUSTERING_POSITION: "3"},
]


@pytest.mark.parametrize("texts", TEXTS, ids=str)
def test_written_as_pylance_writes_them(tmp_path, texts):
    for library in (lance, lance_core):
        library.write_dataset(table(texts), tmp_path / library.__name__)
    ours, theirs = tmp_path / "lance_core", tmp_path / "lance"
    assert marks(latest_message(ours).fields) == marks(latest_message(theirs).fields)
    assert marks(latest_transaction(ours).overwrite.schema) == marks(latest_transaction(theirs).overwrite.schema)
    for uri in (ours, theirs):
        assert keys(lance_core, str(uri)) == keys(lance, str(uri))


@pytest.mark.parametrize(
    "steps",
    [
        [{"a": {PRIMARY: "YES"}}, {"a": {"x": "1"}}, {"b": {PRIMARY: "true"}}],
        [{"a": {PRIMARY: "on"}}, {"a": {PRIMARY: None}}],
        [{"a": {PRIMARY: "true"}}, {"a": {PRIMARY: "true"}}],
        [{"a": {PRIMARY: "false"}}],
        [{"a": {PRIMARY: None}}],
        [{"a": {PRIMARY: "no"}, "b": {PRIMARY: "1"}}],
        [{"a": {PRIMARY_POSITION: "2"}, "b": {PRIMARY_POSITION: "1"}}, {"c": {"x": "1"}}],
        [{"a": {PRIMARY_POSITION: "0"}}],
        [{"a": {PRIMARY_POSITION: "x"}}],
        [{"c": {PRIMARY: "true"}}],
        [{"a": {CLUSTERING: "true"}}],
        [{"a": {CLUSTERING_POSITION: "1"}}, {"a": {CLUSTERING_POSITION: "1"}}, {"a": {CLUSTERING: "true"}}],
        [{"a": {CLUSTERING_POSITION: "x"}}],
        [{"c": {CLUSTERING_POSITION: "2"}, "a": {CLUSTERING_POSITION: "1"}}, {"b": {CLUSTERING_POSITION: "3"}}],
        [{"a": {CLUSTERING_POSITION: "0"}}, {"a": {CLUSTERING_POSITION: "1"}}],
        [{"a": {CLUSTERING_POSITION: None}}],
    ],
    ids=str,
)
def test_set_in_field_metadata_as_pylance_does(tmp_path, steps):
    outcomes = []
    for library in (lance, lance_core):
        uri = str(tmp_path / library.__name__)
        lance.write_dataset(table(), uri)
        done = []
        for step in steps:
            try:
                library.dataset(uri).update_field_metadata(step)
            except (OSError, LanceError) as error:
                done.append(
                    "cannot be changed" in str(error) or "invalid value" in str(error) or "nullable" in str(error)
                )
            else:
                done.append("done")
        outcomes.append((done, marks(latest_message(uri).fields), keys(lance, uri), keys(lance_core, uri)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([pa.field("a", pa.int64(), metadata={PRIMARY: "true"})]),
        pa.schema([pa.field("a", pa.list_(pa.field("item", pa.int64(), False)), False, {PRIMARY: "true"})]),
        pa.schema([pa.field("a", pa.list_(pa.field("item", pa.int64(), False, {PRIMARY: "true"})), False)]),
        pa.schema([pa.field("a", pa.struct([pa.field("x", pa.int64(), False)]), False, {PRIMARY: "true"})]),
        pa.schema([pa.field("a", pa.struct([pa.field("x", pa.int64(), False, {PRIMARY: "true"})]))]),
    ],
    ids=str,
)
def test_a_key_that_does_not_identify_rows_is_rejected(tmp_path, schema):
    empty = schema.empty_table()
    for library in (lance, lance_core):
        with pytest.raises((OSError, LanceError), match="Primary key column"):
            library.write_dataset(empty, tmp_path / library.__name__)
    assert not (tmp_path / "lance_core").exists()


def test_positions_give_the_order_and_fields_without_one_follow(tmp_path):
    names = {"a": {PRIMARY: "true"}, "b": {PRIMARY_POSITION: "2"}, "c": {PRIMARY_POSITION: "1"}, "d": {PRIMARY: "1"}}
    schema = pa.schema([pa.field(name, pa.int64(), False, texts) for name, texts in names.items()])
    lance_core.write_dataset(pa.table({name: [1] for name in names}, schema=schema), tmp_path)
    for library in (lance, lance_core):
        assert [name for name, _ in keys(library, str(tmp_path))[0]] == ["c", "b", "a", "d"]


@pytest.mark.parametrize("library", [lance, lance_core])
@pytest.mark.parametrize("texts", [{PRIMARY_POSITION: "1"}, {PRIMARY: "yes"}], ids=str)
def test_rows_are_merged_by_a_key_of_ours(tmp_path, texts, library):
    lance_core.write_dataset(table(texts), tmp_path)
    new = pa.table({"a": [2, 3], "b": [40, 50], "c": ["z", "z"]}, schema=table(texts).schema)
    library.dataset(str(tmp_path)).merge_insert(None).when_matched_update_all().when_not_matched_insert_all().execute(
        new
    )
    rows = lance_core.dataset(tmp_path).to_table().sort_by("a").to_pylist()
    assert [(row["a"], row["b"]) for row in rows] == [(1, 3), (2, 40), (3, 50)]


READ = [
    {"unenforced_clustering_key_position": 1},
    {"unenforced_clustering_key": True},
    {"unenforced_clustering_key": True, "unenforced_clustering_key_position": 7},
    {"unenforced_primary_key_position": 3},
    {"unenforced_primary_key": True},
]


def _verbs():
    more = pa.table({"a": pa.array([1, 2], pa.int32()), "n": [5, 6]})
    return {
        "append": lambda uri: lance_core.write_dataset(table(), uri, mode="append"),
        "delete": lambda uri: lance_core.dataset(uri).delete("b = 3"),
        "update": lambda uri: lance_core.dataset(uri).update({"c": "'q'"}, where="b = 3"),
        "merge_insert": lambda uri: (
            lance_core.dataset(uri).merge_insert("a").when_matched_update_all().execute(table())
        ),
        "config": lambda uri: lance_core.dataset(uri).update_config({"x": "1"}),
        "field metadata": lambda uri: lance_core.dataset(uri).update_field_metadata({"a": {"x": "1"}}),
        "add": lambda uri: lance_core.dataset(uri).add_columns({"n": "b + 1"}),
        "add nulls": lambda uri: lance_core.dataset(uri).add_columns(pa.field("n", pa.int32())),
        "merge": lambda uri: lance_core.dataset(uri).merge(more, "a"),
        "drop": lambda uri: lance_core.dataset(uri).drop_columns(["c"]),
        "rename": lambda uri: lance_core.dataset(uri).alter_columns({"path": "a", "name": "z"}),
        "cast": lambda uri: lance_core.dataset(uri).alter_columns({"path": "a", "data_type": pa.int64()}),
        "compact": _compacted,
        "restore": lambda uri: lance_core.dataset(uri, version=1).restore(),
    }


def _compacted(uri):
    lance_core.write_dataset(table(), uri, mode="append")
    lance_core.dataset(uri).optimize.compact_files()


@pytest.mark.parametrize("said", READ, ids=str)
@pytest.mark.parametrize("verb", _verbs())
def test_every_verb_writes_back_what_was_read(tmp_path, verb, said):
    uri = str(tmp_path / "t")
    lance.write_dataset(table(), uri)

    def mark(message):
        for name, value in said.items():
            setattr(message.fields[0], name, value)

    edit_latest(uri, mark)
    (before,) = marks(latest_message(uri).fields).values()
    version = latest_message(uri).version
    _verbs()[verb](uri)
    assert latest_message(uri).version > version
    assert list(marks(latest_message(uri).fields).values()) == [before]
    transaction = latest_transaction(uri)
    operation = getattr(transaction, transaction.WhichOneof("operation"))
    if hasattr(operation, "schema"):
        assert list(marks(operation.schema).values()) == [before]
    primary, clustering = keys(lance_core, uri)
    assert len(primary) + len(clustering) == 1


def test_branches_and_clones_keep_the_keys(tmp_path):
    uri = str(tmp_path / "t")
    lance.write_dataset(table({PRIMARY_POSITION: "1"}, {CLUSTERING_POSITION: "2"}), uri)
    before = marks(latest_message(uri).fields)
    ours = lance_core.dataset(uri)
    ours.create_branch("work")
    assert marks(latest_message(f"{uri}/tree/work").fields) == before
    lance_core.write_dataset(table(), f"{uri}/tree/work", mode="append")
    assert marks(latest_message(f"{uri}/tree/work").fields) == before
    for name in ("shallow", "deep"):
        getattr(ours, f"{name}_clone")(str(tmp_path / name), 1)
        assert marks(latest_message(tmp_path / name).fields) == before


def test_a_nullable_column_of_the_key_is_rejected_later_too(tmp_path):
    for library in (lance, lance_core):
        uri = str(tmp_path / library.__name__)
        dataset = library.write_dataset(table({PRIMARY: "true"}), uri)
        with pytest.raises((OSError, LanceError), match="must not be nullable"):
            dataset.alter_columns({"path": "a", "nullable": True})
        with pytest.raises((OSError, LanceError), match="must not be nullable"):
            dataset.add_columns(pa.field("n", pa.int32(), metadata={PRIMARY: "true"}))


@pytest.mark.parametrize(("on", "guarded"), [("a", True), ("b", False), (["a", "b"], False)])
def test_new_keys_are_recorded_only_where_the_primary_key_is_merged_on(tmp_path, on, guarded):
    """By them a concurrent merge of the same new key is noticed."""
    changed = table({PRIMARY: "true"}).set_column(0, "a", pa.array([2, 7], pa.int32()))
    new = changed.set_column(1, "b", pa.array([4, 9], pa.int32())).cast(table().schema)
    for library in (lance_core, lance):
        uri = str(tmp_path / library.__name__)
        dataset = library.write_dataset(table({PRIMARY: "true"}), uri)
        dataset.merge_insert(on).when_matched_update_all().when_not_matched_insert_all().execute(new)
        assert library.dataset(uri).count_rows() == 3
        assert latest_transaction(uri).update.HasField("inserted_rows") is guarded, library.__name__
