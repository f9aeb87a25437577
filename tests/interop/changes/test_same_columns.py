"""Deleted rows and preimages have the values of their own columns, whatever became of these; field ids are reused."""

from dataclasses import dataclass, replace
from datetime import timedelta

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lance_core
from lance_core.errors import UnsupportedError, VersionNotFoundError
from tests.support.hypothesis_settings import examples

BOTH = pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "ours"])
FEED = ["_change_type", "_commit_version", "_commit_timestamp"]
NAMES = ("a", "b", "c", "d")


def old_rows(delta, **options):
    """The deleted rows and preimages of a feed."""
    found = delta.get_changes(preimages=True, **options).read_all()
    kept = [row for row in found.to_pylist() if row["_change_type"] in ("delete", "update_preimage")]
    return [{name: value for name, value in row.items() if name not in FEED} for row in kept]


@BOTH
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({"id": [1], "last": ["x"], "first": ["y"]}, {"id": 7, "last": "Smith", "first": "Ann"}),
        ({"id": [1], "last": ["x"], "age": [3]}, {"id": 7, "last": "Smith", "age": 30}),
        ({"key": [1], "city": ["Rome"]}, {"key": None, "city": None}),
    ],
    ids=["other order", "one less", "others"],
)
def test_an_overwrite_continues_columns_by_name(tmp_path, library, stable, new, expected):
    before = pa.table({"id": [7], "first": ["Ann"], "last": ["Smith"], "age": [30]})
    lance_core.write_dataset(before, tmp_path / "t", enable_stable_row_ids=stable)
    library.write_dataset(pa.table(new), str(tmp_path / "t"), mode="overwrite")
    for each in (False, True):
        assert old_rows(lance_core.dataset(tmp_path / "t").delta(1), each_version=each) == [expected]


@BOTH
@pytest.mark.parametrize("stable", [True, False], ids=["stable", "addresses"])
@pytest.mark.parametrize("numbers", [True, False], ids=["another type", "the same type"])
def test_a_column_takes_the_name_of_a_dropped_one(tmp_path, library, stable, numbers):
    uri = str(tmp_path / "t")
    other = [10, 20, 30] if numbers else ["w1", "w2", "w3"]
    rows = pa.table({"id": [1, 2, 3], "v": ["v1", "v2", "v3"], "w": other})
    library.write_dataset(rows, uri, enable_stable_row_ids=stable)
    library.dataset(uri).delete("id = 1")
    library.dataset(uri).drop_columns(["v"])
    library.dataset(uri).alter_columns({"path": "w", "name": "v"})
    library.dataset(uri).delete("id = 2")
    library.dataset(uri).add_columns({"w": "'new'"} if stable else pa.field("w", pa.string()))
    for each in (False, True):
        assert old_rows(lance_core.dataset(uri).delta(1), columns=["id", "v", "w"], each_version=each)[:2] == [
            {"id": 1, "v": other[0], "w": None},
            {"id": 2, "v": other[1], "w": None},
        ]


NESTED = pa.table(
    {
        "id": range(4),
        "s": [{"a": i, "b": {"c": str(i)}, "d": -i} if i != 2 else None for i in range(4)],
        "l": [[{"x": i}, None] if i else None for i in range(4)],
    }
)


@BOTH
def test_children_of_a_column_are_followed(tmp_path, library):
    uri = str(tmp_path / "t")
    library.write_dataset(NESTED, uri, enable_stable_row_ids=True)
    library.dataset(uri).delete("id > 0")
    library.dataset(uri).alter_columns({"path": "s.a", "name": "d2"})
    library.dataset(uri).drop_columns(["s.d"])
    library.dataset(uri).alter_columns({"path": "s.d2", "name": "d"})
    library.dataset(uri).alter_columns({"path": "s.b.c", "name": "cc"})
    library.dataset(uri).alter_columns({"path": "l.item.x", "name": "y"})
    for each in (False, True):
        delta = lance_core.dataset(uri).delta(1)
        assert old_rows(delta, each_version=each) == [
            {"id": i, "s": None if i == 2 else {"d": i, "b": {"cc": str(i)}}, "l": [{"y": i}, None]} for i in (1, 2, 3)
        ]


def test_a_field_takes_the_name_of_a_dropped_one(tmp_path):
    """The type of the column is what it was, but its fields are others."""
    rows = pa.table({"id": [1, 2], "st": [{"a": "a1", "b": "b1", "c": "c1"}, {"a": "a2", "b": "b2", "c": "c2"}]})
    dataset = lance_core.write_dataset(rows, tmp_path / "t", enable_stable_row_ids=True)
    kind = dataset.schema.field("st").type
    dataset.drop_columns(["st.b", "st.c"])
    dataset.add_columns(pa.field("st", pa.struct([("d", pa.string())])))
    dataset.alter_columns({"path": "st.d", "name": "b"})
    dataset.add_columns(pa.field("st", pa.struct([("c", pa.string())])))
    assert dataset.schema.field("st").type == kind
    dataset.delete("id = 1")
    for each in (False, True):
        assert old_rows(dataset.delta(1), each_version=each) == [{"id": 1, "st": {"a": "a1", "b": None, "c": None}}]


@BOTH
def test_children_of_an_overwritten_column_are_followed_by_name(tmp_path, library):
    uri = str(tmp_path / "t")
    library.write_dataset(NESTED, uri, enable_stable_row_ids=True)
    after = pa.table({"n": ["x"], "id": [1], "s": [{"d": 1, "b": {"e": 1.5, "c": "x"}}]})
    library.write_dataset(after, uri, mode="overwrite")
    library.dataset(uri).alter_columns({"path": "s.b.c", "name": "cc"})
    assert old_rows(lance_core.dataset(uri).delta(1)) == [
        {"n": None, "id": i, "s": {"d": -i, "b": {"e": None, "cc": str(i)}} if i != 2 else None} for i in range(4)
    ]


@pytest.fixture(params=[lance, lance_core], ids=["pylance", "ours"])
def restored(tmp_path, request):
    """Version 2 has `email`; after a restore of version 1, `city` has its field id."""
    library, uri = request.param, str(tmp_path / "t")
    library.write_dataset(pa.table({"id": [1, 2], "n": [5, 6]}), uri, enable_stable_row_ids=True)
    library.dataset(uri).add_columns({"email": "'ann@example.org'"})
    library.dataset(uri, version=1).restore()
    library.dataset(uri).add_columns({"city": "'Rome'"})
    library.dataset(uri).alter_columns({"path": "n", "name": "m"})
    library.dataset(uri).delete("id = 1")
    ids = [
        {field.name(): field.id() for field in lance_core.dataset(uri, version).lance_schema.fields()}
        for version in (2, 6)
    ]
    assert ids[0]["email"] == ids[1]["city"]
    return uri


def test_a_column_added_after_a_restore_came_later(restored):
    delta = lance_core.dataset(restored).delta(2)
    assert old_rows(delta) == [{"id": 1, "m": 5, "city": None}, {"id": 2, "m": 6, "city": None}]


def test_a_column_that_cannot_be_followed_is_named(restored):
    lance.dataset(restored).tags.create("kept", 2)
    lance_core.dataset(restored).cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    delta = lance_core.dataset(restored).delta(2)
    for use in (delta.get_changes, delta.plan):
        with pytest.raises(VersionNotFoundError, match=r"columns of version 2 became \['m', 'city'\] of version 6"):
            use()
    assert old_rows(delta, columns=["id"]) == [{"id": 1}, {"id": 2}]
    assert delta.get_deleted_rows().read_all()["email"].to_pylist() == ["ann@example.org"]


@dataclass(frozen=True)
class State:
    """A version: the columns, each with a number that stays with it, and by row its values by those numbers."""

    columns: dict[int, str]
    rows: dict[int, dict[int, str | None]]

    def value(self, row, name, later, *, renumbers):
        """The values that a row may have in a column of a later version: those of that column, and of no other one.

        Restores and overwrites use field ids again: a column may have the id and the name of an earlier one.
        """
        number = next(i for i, own in later.columns.items() if own == name)
        same = [i for i, own in self.columns.items() if own == name and i != number] if renumbers else []
        whole = self.rows[row].get(number) if number in self.columns else None
        return [whole, *(self.rows[row][i] for i in same if i not in later.columns)]


class History:
    """A table of strings, and what each version holds."""

    def __init__(self, uri, rng, *, stable):
        self.uri, self.rng, self.stable, self.columns, self.next_id = uri, rng, stable, 0, 0
        self.now = State({self.new_number(): "a", self.new_number(): "b"}, {})
        self.states = {}
        self.write(lance_core, ["id", "a", "b"], mode="create", enable_stable_row_ids=stable)

    def new_number(self):
        self.columns += 1
        return self.columns

    def write(self, library, names, **options):
        numbers = {name: number for number, name in self.now.columns.items()}
        ids = [self.next_id, self.next_id + 1]
        self.next_id += 2
        new = {i: {numbers[name]: f"{i}.{numbers[name]}" for name in names if name != "id"} for i in ids}
        data = {name: ids if name == "id" else [new[i][numbers[name]] for i in ids] for name in names}
        rows = pa.table(data)
        if options["mode"] == "append":  # in the types that casts left
            schema = lance_core.dataset(self.uri).schema
            rows = rows.cast(pa.schema([schema.field(name) for name in rows.column_names]))
        library.write_dataset(rows, self.uri, **options)
        kept = {} if options["mode"] == "overwrite" else self.now.rows
        self.now = State(self.now.columns, {**kept, **new})
        self.states[lance_core.dataset(self.uri).version] = self.now

    def step(self, verb, library):
        getattr(self, verb)(library)
        newest = lance_core.dataset(self.uri).version
        for version in range(max(self.states) + 1, newest + 1):
            self.states[version] = self.now

    def append(self, library):
        self.write(library, ["id", *self.now.columns.values()], mode="append")

    def overwrite(self, library):
        names = ["id", *self.rng.permutation(NAMES)[: int(self.rng.integers(1, 4))].tolist()]
        numbers = {name: number for number, name in self.now.columns.items()}
        self.now = State({numbers.get(name) or self.new_number(): name for name in names[1:]}, {})
        self.write(library, self.rng.permutation(names).tolist(), mode="overwrite")

    def restore(self, library):
        version = int(self.rng.choice(list(self.states)))
        library.dataset(self.uri, version=version).restore()
        self.now = self.states[version]

    def delete(self, library):
        if self.now.rows:
            deleted = int(self.rng.choice(list(self.now.rows)))
            library.dataset(self.uri).delete(f"id = {deleted}")
            self.now = replace(self.now, rows={i: row for i, row in self.now.rows.items() if i != deleted})

    def add(self, library):
        free = [name for name in NAMES if name not in self.now.columns.values()]
        if not free:
            return
        name, number = str(self.rng.choice(free)), self.new_number()
        value = f"added {number}" if self.stable else None
        library.dataset(self.uri).add_columns({name: f"'{value}'"} if value else pa.field(name, pa.string()))
        rows = {i: {**row, number: value} for i, row in self.now.rows.items()}
        self.now = State({**self.now.columns, number: name}, rows)

    def drop(self, library):
        if len(self.now.columns) > 1:
            number = int(self.rng.choice(list(self.now.columns)))
            library.dataset(self.uri).drop_columns([self.now.columns[number]])
            self.now = replace(self.now, columns={i: name for i, name in self.now.columns.items() if i != number})

    def rename(self, library):
        free = [name for name in NAMES if name not in self.now.columns.values()]
        if free:
            number, name = int(self.rng.choice(list(self.now.columns))), str(self.rng.choice(free))
            library.dataset(self.uri).alter_columns({"path": self.now.columns[number], "name": name})
            self.now = replace(self.now, columns={**self.now.columns, number: name})

    def cast(self, library):
        if self.stable:
            name = str(self.rng.choice(list(self.now.columns.values())))
            dataset = library.dataset(self.uri)
            now = dataset.schema.field(name).type
            other = pa.string() if now == pa.large_string() else pa.large_string()
            dataset.alter_columns({"path": name, "data_type": other})

    def compact(self, library):
        library.dataset(self.uri).optimize.compact_files()


VERBS = ("append", "overwrite", "restore", "delete", "add", "drop", "rename", "cast", "compact")


@examples(60)
@given(
    steps=st.lists(st.tuples(st.sampled_from(VERBS), st.booleans()), min_size=2, max_size=8),
    seed=st.integers(0, 1 << 16),
    stable=st.booleans(),
)
def test_no_row_has_the_value_of_another_column(tmp_path_factory, steps, seed, stable):
    uri = str(tmp_path_factory.mktemp("t") / "t")
    history = History(uri, np.random.default_rng(seed), stable=stable)
    for verb, ours in steps:
        history.step(verb, lance_core if ours else lance)
    dataset = lance_core.dataset(uri)
    begin = int(history.rng.integers(1, dataset.version + 1))
    for each in (False, True):
        try:
            feed = dataset.delta(begin).get_changes(preimages=True, each_version=each).read_all()
        except UnsupportedError as error:  # a dropped column was restored
            if stable or "updated rows (Restore)" not in str(error):
                raise
            continue
        for row in feed.to_pylist():
            is_old = row["_change_type"] in ("delete", "update_preimage")
            end = row["_commit_version"] if each else dataset.version
            at = history.states[(end - 1 if each else begin) if is_old else end]
            for name in history.now.columns.values():
                expected = at.value(
                    row["id"], name, history.now, renumbers=bool({"restore", "overwrite"} & dict(steps).keys())
                )
                assert row[name] in expected, (row, at, history.now)


@BOTH
def test_without_stable_row_ids_an_inserted_row_has_the_version_that_added_it(tmp_path, library):
    uri = str(tmp_path / "t")
    library.write_dataset(pa.table({"id": [1]}), uri)
    for number in (2, 3):
        library.write_dataset(pa.table({"id": [number]}), uri, mode="append")
    library.dataset(uri).optimize.compact_files()
    library.write_dataset(pa.table({"id": [4]}), uri, mode="append")
    end = lance_core.dataset(uri).version
    for begin, expected in ((0, [end] * 4), (1, [2, 3, end]), (2, [3, end])):
        feed = lance_core.dataset(uri).delta(begin).get_changes().read_all()
        assert feed["_commit_version"].to_pylist() == expected
        assert feed["_commit_timestamp"].null_count == 0
    feed = lance_core.dataset(uri).delta(0).get_changes(each_version=True).read_all()
    assert feed["_commit_version"].to_pylist() == [1, 2, 3, end]
