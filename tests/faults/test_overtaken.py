"""A verb, and another writer's before any of its calls of the storage: the outcome is that of one after the other.

Either may instead fail with an error of the library, and then nothing of it is there.
"""

import datetime as dt
import itertools
import json
import shutil

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import LanceError
from tests.machines.lake import traps

ROWS = pa.table({"id": range(24), "v": [n % 4 for n in range(24)], "s": [f"s{n}" for n in range(24)]})
SOURCE = pa.table({"id": [2, 5, 100], "v": [9, 9, 9], "s": ["m", "m", "m"]})
NEW = pa.table({"id": [200, 201], "v": [1, 2], "s": ["n", "n"]})
KEYED = lance_core.Commit(idempotency_key=("job", "7"))


def commit_slice(table):
    day = pa.table({"id": [300], "v": [3], "s": ["r"]})
    written = lance_core.write_fragments(day, table.uri, mode="append")
    slices = lance_core.Slices([lance_core.Slice(name="three", conditions={"v": lance_core.Equals(3)})])
    lance_core.commit_fragments(table.uri, written, table.schema, mode="replace", slices=slices)


def append_once(table):
    written = lance_core.write_fragments(NEW, table.uri, mode="append")
    lance_core.commit_fragments(table.uri, written, table.schema, mode="append", commit=KEYED)


VERBS = {
    "append": lambda table: table.insert(NEW),
    "append once": append_once,
    "overwrite": lambda table: lance_core.write_dataset(NEW, table.uri, mode="overwrite"),
    "replace a slice": commit_slice,
    "delete": lambda table: table.delete("id % 5 = 0"),
    "update": lambda table: table.update({"v": "v + 10"}, "id % 3 = 0"),
    "update columns": lambda table: table.update({"s": "'u'"}, "v = 1", write_mode="fewest_bytes"),
    "merge": lambda table: (
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(SOURCE)
    ),
    "write columns": lambda table: table.write_columns(SOURCE[:2].select(["id", "s"]), on="id", missing="keep"),
    "add a column": lambda table: table.add_columns({"w": "id * 2"}),
    "rename a column": lambda table: table.alter_columns({"path": "s", "name": "t"}),
    "drop a column": lambda table: table.drop_columns(["v"]),
    "compact": lambda table: table.optimize.compact_files(),
    "clean up": lambda table: table.cleanup_old_versions(dt.timedelta(0)),
    "index": lambda table: table.create_scalar_index("v", "BTREE"),
    "extend indices": lambda table: table.optimize.optimize_indices(),
    "create a branch": lambda table: table.create_branch("new"),
    "delete a branch": lambda table: table.branches.delete("old"),
    "promote": lambda table: table.branches.promote("old"),
    "tag": lambda table: table.tags.create("t", table.version),
    "restore": lambda table: table.checkout_version(1).restore(),
    "configure": lambda table: table.update_config({"k": "v"}),
}
MOST_CALLS = 400
HARMLESS = (
    "append",
    "append once",
    "clean up",
    "create a branch",
    "delete a branch",
    "tag",
    "configure",
    "extend indices",
)
"""Writers beside whom a verb fails only where it fails after them as well."""
EXCEPTIONS = {
    ("add a column", "append"),  # whose rows would have no value
    ("add a column", "append once"),
    ("restore", "clean up"),  # of the version
    ("compact", "extend indices"),  # which refers to the fragments
    ("extend indices", "extend indices"),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A table of several fragments with deletions, an index that covers some of them, and a branch."""
    uri = tmp_path_factory.mktemp("overtaken") / "t"
    table = lance_core.write_dataset(ROWS.slice(0, 12), str(uri), max_rows_per_file=4, enable_stable_row_ids=True)
    table.create_scalar_index("id", "BTREE")
    table.insert(ROWS.slice(12), max_rows_per_file=6)
    table.delete("id = 7")
    branch = table.create_branch("old")
    branch.insert(pa.table({"id": [400], "v": [0], "s": ["b"]}))
    return uri


def state(uri):
    """What readers of both libraries see: rows, references, configuration, and that nothing is damaged."""
    table = lance_core.dataset(uri)
    rows = sorted(json.dumps(row, sort_keys=True) for row in table.to_table().to_pylist())
    theirs = lance.dataset(uri)
    assert sorted(json.dumps(row, sort_keys=True) for row in theirs.to_table().to_pylist()) == rows
    ids = sorted(table.to_table(filter="id >= 3")["id"].to_pylist())
    assert (
        sorted(theirs.to_table(filter="id >= 3")["id"].to_pylist())
        == ids
        == sorted(row["id"] for row in map(json.loads, rows) if row["id"] >= 3)
    )
    theirs.validate()
    branches = {
        name: sorted(table.checkout_version((name, None)).to_table()["id"].to_pylist())
        for name in table.branches.list()
    }
    # Tags of forks and promotions end with the branch's identifier; the proofs of writes have the table's.
    tags = {
        name.partition(".")[0]: lance.dataset(uri, version=name).count_rows()
        for name in table.tags.list()
        if not name.startswith("fork.")
    }
    indices = sorted(index["name"] for index in table.list_indices())
    config = {key: value for key, value in table.config().items() if not key.startswith("lance-dagster.")}
    return rows, table.schema.names, branches, tags, indices, config


class Copies:
    """Copies of the template, for one pair of verbs."""

    def __init__(self, template, folder):
        self.template, self.folder, self.numbers = template, folder, itertools.count()

    def copy(self):
        uri = self.folder / f"t{next(self.numbers)}"
        shutil.copytree(self.template, uri)
        return str(uri)


def run(name, uri):
    """Run a verb; returns its error, or None."""
    try:
        VERBS[name](lance_core.dataset(uri))
    except LanceError as error:
        return error
    return None


def one_after_the_other(tables, *names):
    uri = tables.copy()
    errors = [run(name, uri) for name in names]
    return state(uri), errors


def overtake(tables, name, rival, step):
    """Run a verb, and its rival before the verb's call number `step`; returns the state and the errors, and if it ran."""
    uri, errors = tables.copy(), {}

    def meanwhile():
        errors[rival] = run(rival, uri)

    with traps.set_trap(traps.Trap(kind="meanwhile", at=step, work=meanwhile)) as trap:
        first = run(name, uri)
    return state(uri), first, errors.get(rival), trap.fired


def check(tables, name, rival, third):
    first, _ = one_after_the_other(tables, name, rival)
    second, (_, error_after) = one_after_the_other(tables, rival, name)
    alone = {verb: one_after_the_other(tables, verb)[0] for verb in (name, rival)}
    may_fail = rival not in HARMLESS or (name, rival) in EXCEPTIONS
    for step in range(third, MOST_CALLS, 3):
        seen, error, error_of_rival, is_overtaken = overtake(tables, name, rival, step)
        if not is_overtaken:
            return
        where = f"{rival!r} before call {step} of {name!r}: {error!r}, {error_of_rival!r}"
        if error is None and error_of_rival is None:
            assert seen in (first, second), where
        elif error is None:
            assert seen == alone[name], where
        elif error_of_rival is None:
            assert seen == alone[rival], where
        assert error is None or may_fail or type(error) is type(error_after), where
        shutil.rmtree(tables.folder, ignore_errors=True)
    raise AssertionError(f"{name} makes more than {MOST_CALLS} calls")


@pytest.mark.variants(8)
@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("rival", VERBS)
@pytest.mark.parametrize("third", range(3))
def test_the_outcome_is_that_of_one_after_the_other(template, tmp_path, name, rival, third):
    with traps.installed():
        check(Copies(template, tmp_path), name, rival, third)
