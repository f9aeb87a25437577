"""Columns that a branch set, where its parent was compacted, or changed other rows or columns, since the fork."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import BranchConflictError

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
FRAGMENT = 10

ON_BRANCH = {
    "append": lambda table: table.insert(pa.table({"id": [100], "n": [1], "k": [1]})),
    "delete": lambda table: table.delete("id = 3"),
    "update": lambda table: table.update({"n": "5"}, "id = 3"),
    "in place": lambda table: table.write_columns({"id": [3], "n": [5]}, "id", missing="keep"),
    "added": lambda table: table.write_columns({"id": [3, 13], "v": [5, 6]}, "id"),
    "added and in place": lambda table: table.write_columns(
        {"id": [3, 13], "v": [{"a": 5, "b": "x"}, None], "n": [7, 8]}, "id", missing="keep"
    ),
    "null column": lambda table: table.add_columns(pa.schema([("v", pa.int64())])),
}
COLUMNS = ("in place", "added", "added and in place")
MOVES = ("delete", "update")
ALL = tuple(ON_BRANCH)


def other_columns(table):
    """Of both libraries."""
    lance.dataset(table.uri).add_columns({"w": "id + 1"})
    lance_core.dataset(table.uri).write_columns({"id": [4], "w": [9], "x": ["a"]}, "id", missing="keep")


def moved_twice(table):
    table.optimize.compact_files(target_rows_per_fragment=20)
    lance.dataset(table.uri).add_columns(pa.schema([("w", pa.int64())]))
    lance.dataset(table.uri).optimize.compact_files()


# On main: what it does, and which of the changes on the branch are rejected, by addresses and by stable row ids.
ON_MAIN = {
    "compaction by pylance": (lambda table: lance.dataset(table.uri).optimize.compact_files(), (), ()),
    "columns of null": (lambda table: table.add_columns(pa.schema([("w", pa.int64())])), (), ()),
    "other columns": (other_columns, ("update",), ("update",)),
    "two compactions and a column": (moved_twice, (), ()),
    "another fragment's rows": (lambda table: table.update({"k": "5"}, "id = 24"), (), ()),
    "other rows deleted": (
        lambda table: lance.dataset(table.uri).delete("id = 4"),
        ("in place", "added and in place"),
        ("in place", "added and in place"),
    ),
    "other rows updated": (lambda table: table.update({"k": "5"}, "id = 4"), COLUMNS, ("in place", "added and in place")),
    "another column in place": (
        lambda table: table.write_columns({"id": [4], "k": [5]}, "id", missing="keep"),
        MOVES,
        (),
    ),
    "the same column in place": (
        lambda table: table.write_columns({"id": [4], "n": [5]}, "id", missing="keep"),
        (*MOVES, "in place", "added and in place"),
        ("in place", "added and in place"),
    ),
    "the same row": (
        lambda table: table.write_columns({"id": [3], "k": [5]}, "id", missing="keep"),
        MOVES,
        MOVES,
    ),
    "a column of that name": (
        lambda table: table.write_columns({"id": [3], "v": [5]}, "id"),
        ("update", "added", "added and in place", "null column"),
        ("update", "added", "added and in place", "null column"),
    ),
    "an index": (lambda table: table.create_scalar_index("id", "BTREE"), (), ()),
}  # fmt: skip


def created(path, stable):
    uri = str(path / "t")
    for start in (0, FRAGMENT, 2 * FRAGMENT):
        rows = {"id": range(start, start + FRAGMENT), "n": [0] * FRAGMENT, "k": [0] * FRAGMENT}
        lance.write_dataset(pa.table(rows), uri, mode="append", enable_stable_row_ids=stable)
    return uri


def rows(dataset):
    """The values of each row that are not null, by its id."""
    table = dataset.to_table().to_pylist()
    assert len({row["id"] for row in table}) == len(table)
    return {row["id"]: {name: one for name, one in row.items() if one is not None} for row in table}


def merged(base, *sides):
    """What two sides made of rows, cell by cell."""
    found = {}
    for i in {*base, *sides[0], *sides[1]}:
        if i not in base:
            found[i] = next(side[i] for side in sides if i in side)
        elif all(i in side for side in sides):
            changes = {name: one for side in sides for name, one in side[i].items() if one != base[i].get(name)}
            found[i] = {**base[i], **changes}
    return found


@pytest.mark.variants(42)
@STABLE
@pytest.mark.parametrize("main", ON_MAIN)
@pytest.mark.parametrize("branch", ON_BRANCH)
def test_both_changes_are_there_or_none(tmp_path, stable, branch, main):
    uri = created(tmp_path, stable)
    base = rows(lance.dataset(uri))
    ON_BRANCH[branch](lance_core.dataset(uri).create_branch("b"))
    mine = rows(lance.dataset(uri).checkout_version(("b", None)))
    change, *rejected = ON_MAIN[main]
    change(lance_core.dataset(uri))
    theirs, version = rows(lance.dataset(uri)), lance.dataset(uri).version
    files = sorted(str(one) for one in tmp_path.rglob("*") if "/t/data/" in str(one) or "/t/_deletions/" in str(one))
    if branch in rejected[stable]:
        with pytest.raises(BranchConflictError, match=r"cannot be promoted: .*version \d+.* Discard the branch"):
            lance_core.dataset(uri).branches.promote("b")
        assert (rows(lance.dataset(uri)), lance.dataset(uri).version) == (theirs, version)
        left = [str(one) for one in tmp_path.rglob("*") if "/t/data/" in str(one) or "/t/_deletions/" in str(one)]
        assert sorted(left) == files
        return
    done = lance_core.dataset(uri).branches.promote("b")
    assert done.version == version + 1
    lance.dataset(uri).validate()
    assert rows(lance.dataset(uri)) == rows(lance_core.dataset(uri)) == merged(base, mine, theirs)
    assert rows(lance_core.dataset(uri, version=version)) == theirs
    if stable:
        ids = lance.dataset(uri).scanner(with_row_id=True).to_table()["_rowid"].to_pylist()
        assert len(set(ids)) == len(ids)
        updated = lance_core.dataset(uri).delta(version).get_updated_rows().read_all()["id"].to_pylist()
        wanted = {i for i in mine if i in base and mine[i] != base[i]}
        assert wanted <= set(updated)
        assert branch == "null column" or set(updated) == wanted


@STABLE
def test_the_remedy_of_a_conflict_works(tmp_path, stable):
    """A new branch, forked from what main is now, takes the same write."""
    uri = created(tmp_path, stable)
    for name in ("one", "two"):
        branch = lance_core.dataset(uri).create_branch(name)
        branch.write_columns({"id": [3 if name == "one" else 13], "v": [5]}, "id", missing="keep")
    lance_core.dataset(uri).branches.promote("one")
    with pytest.raises(BranchConflictError, match=r"version 4 has the columns \['v'\], which the branch adds as well"):
        lance_core.dataset(uri).branches.promote("two")
    lance_core.dataset(uri).branches.delete("two")
    again = lance_core.dataset(uri).create_branch("two")
    again.write_columns({"id": [13], "v": [5]}, "id", missing="keep")
    lance_core.dataset(uri).branches.promote("two")
    assert {i for i, row in rows(lance.dataset(uri)).items() if "v" in row} == {3, 13}


def test_columns_of_two_branches(tmp_path):
    """Each adds one, and the ids that their fields have on the branches are the same."""
    uri = created(tmp_path, stable=True)
    for name in ("one", "two"):
        lance_core.dataset(uri).create_branch(name)
    for name in ("one", "two"):
        branch = lance_core.dataset(uri).checkout_version((name, None))
        branch.write_columns({"id": [3, 13], name: [name, name]}, "id")
    for name in ("one", "two"):
        lance_core.dataset(uri).branches.promote(name)
    found = rows(lance.dataset(uri))
    assert {i: row for i, row in found.items() if "one" in row or "two" in row} == {
        i: {"id": i, "n": 0, "k": 0, "one": "one", "two": "two"} for i in (3, 13)
    }
    lance.dataset(uri).validate()


@pytest.mark.parametrize("kind", ["vector", "blob", "dictionary"])
def test_columns_of_all_kinds_follow_a_compaction(tmp_path, kind):
    uri = created(tmp_path, stable=False)
    values = {
        "vector": pa.array([[0.5, 1.5]] * 2, pa.list_(pa.float32(), 2)),
        "blob": pa.array([b"x" * 100_000, b"y"], pa.large_binary()),
        "dictionary": pa.array(["a", "b"]).dictionary_encode(),
    }[kind]
    field = pa.field("v", values.type, metadata={"lance-encoding:blob": "true"} if kind == "blob" else None)
    schema = pa.schema([pa.field("id", pa.int64()), field])
    branch = lance_core.dataset(uri).create_branch("b")
    branch.write_columns(pa.table([[3, 13], values], schema=schema), "id")
    lance.dataset(uri).optimize.compact_files()
    lance_core.dataset(uri).branches.promote("b")
    lance.dataset(uri).validate()
    how = {"blob_handling": "all_binary"} if kind == "blob" else {}
    for library in (lance, lance_core):
        read = library.dataset(uri).to_table(["id", "v"], filter="id in (3, 13)", **how)
        assert dict(zip(*(read[name].to_pylist() for name in ("id", "v")), strict=True)) == {
            3: values[0].as_py(),
            13: values[1].as_py(),
        }
