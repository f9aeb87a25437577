"""Any verbs of either library on a branch and on its parent: a promotion merges both row by row, or rejects.

Each row has a name of its own, `u`, which no verb changes, so that what both sides did to it is known. Tables have row
addresses or stable row ids, indices or none, and lie in one place or are clones.
"""

import datetime as dt
import random

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import BranchConflictError

LIBRARIES = (lance, lance_core)
SEEDS = range(8)
MORE_SEEDS = range(8, 300)
KINDS = (("n", "BTREE"), ("n", "ZONEMAP"), ("day", "BITMAP"), ("day", "ZONEMAP"), ("u", "BTREE"))
NAMES = {0: "main", 1: "branch"}


class Story:
    """A table with a branch, and what happens to both.

    Args:
        folder: Where the table is made.
        seed: What happens.
        storage_options: How to reach it.
    """

    def __init__(self, folder, seed, storage_options=None):
        self.random = random.Random(seed)
        self.log = []
        self.next = 0
        self.options = storage_options
        self.uri = f"{folder}/t"
        table = pa.concat_tables([self.rows(day, self.random.randrange(1, 5)) for day in range(8)])
        options = {
            "max_rows_per_file": self.random.choice([2, 5, 100]),
            "enable_stable_row_ids": self.random.random() < 0.5,
            "data_storage_version": self.random.choice(["2.0", "2.1", "2.2"]),
        }
        clone = self.random.random() < 0.25
        where = f"{folder}/origin" if clone else self.uri
        first = lance.write_dataset(table, where, storage_options=storage_options, **options)
        if clone:
            first.shallow_clone(self.uri, first.version, storage_options=storage_options)
        for _ in range(self.random.choice([0, 1, 2])):
            self.index(self.uri)
        for _ in range(self.random.choice([0, 0, 2])):
            self.step(self.uri, 0)
        self.branch = f"{self.uri}/tree/work"

    def open(self, library, uri=None):
        return library.dataset(uri or self.uri, storage_options=self.options)

    def rows(self, day, count, ids=None):
        if ids is None:
            ids = range(self.next, self.next + count)
            self.next += count
        ids = list(ids)
        return pa.table({
            "day": [f"d{day}"] * len(ids),
            "u": pa.array(ids, pa.int64()),
            "n": pa.array([self.random.randrange(1000) for _ in ids], pa.int64()),
        })  # fmt: skip

    def index(self, uri):
        column, kind = self.random.choice(KINDS)
        try:
            self.open(self.random.choice(LIBRARIES), uri).create_scalar_index(column, kind, replace=True)
        except OSError as error:
            if "already exists" not in str(error):
                raise

    def has_borrowed_index(self, uri):
        """Whether an index lies in another place, where pylance's compaction loses it: it looks for the new one there."""
        manifest = self.open(lance_core, uri)
        kinds = {index["type"] for index in self.open(lance, uri).list_indices()}
        return bool(manifest.base_paths()) and kinds != {"ZoneMap"} and bool(kinds)

    def values(self, uri):
        return values(self.open(lance, uri))

    def step(self, uri, side):
        """One verb of either library."""
        library, some = self.random.choice(LIBRARIES), self.random
        dataset = self.open(library, uri)
        number, low = some.randrange(8), some.randrange(1000)
        verb = some.choice(VERBS)
        self.log.append(f"{NAMES[side]}: {library.__name__} {verb} d{number} {low}")
        match verb:
            case "delete":
                dataset.delete(f"day = 'd{number}' and n >= {low}")
            case "delete a day":
                dataset.delete(f"day = 'd{number}'")
            case "update":
                dataset.update({"n": f"n + {some.randrange(1, 50)}"}, f"day = 'd{number}' and n >= {low}")
            case "insert":
                dataset.insert(self.rows(number, some.randrange(1, 4)))
            case "fill":
                self.fill(uri, number)
            case "merge":
                known = some.sample(sorted(self.values(uri)), min(2, len(self.values(uri))))
                table = pa.concat_tables([self.rows(number, 1), self.rows(number, 0, known)])
                dataset.merge_insert("u").when_matched_update_all().when_not_matched_insert_all().execute(table)
            case "compact":
                if library is lance and self.has_borrowed_index(uri):
                    dataset = self.open(lance_core, uri)
                dataset.optimize.compact_files(target_rows_per_fragment=some.choice([4, 100]))
            case "index":
                self.index(uri)
            case "extend":
                if dataset.list_indices():
                    dataset.optimize.optimize_indices()
            case _:  # after a cleanup by pylance promotions are rejected
                self.open(lance_core, uri).cleanup_old_versions(
                    older_than=dt.timedelta(0),
                    error_if_tagged_old_versions=False,
                    delete_unverified=some.random() < 0.5,
                )

    def fill(self, uri, number):
        """Replace a day."""
        table = self.rows(number, self.random.randrange(1, 4))
        fragments = lance_core.write_fragments(table, uri, mode="append", storage_options=self.options)
        slices = lance_core.Slices(
            [lance_core.Slice(name=f"d{number}", conditions={"day": lance_core.Equals(f"d{number}")})]
        )
        lance_core.commit_fragments(
            uri, fragments, table.schema, mode="replace", slices=slices, storage_options=self.options
        )

    def check(self):
        """Both libraries see one sound table, with and without its indices, and row ids that are good for new rows."""
        expected = self.values(self.uri)
        theirs, ours = self.open(lance), self.open(lance_core)
        assert values(ours) == expected
        theirs.validate()
        for text in ("n >= 500", "day = 'd3'", "day in ('d1', 'd5') and n < 300", "u >= 10", "u = 3", "n < 200"):
            wanted = sorted(theirs.scanner(["u"], filter=text, use_scalar_index=False).to_table()["u"].to_pylist())
            for dataset in (theirs, ours):
                found = sorted(dataset.to_table(["u"], filter=text)["u"].to_pylist())
                assert found == wanted, (dataset, text)
        if theirs.has_stable_row_ids:
            ids = theirs.scanner(with_row_id=True).to_table()["_rowid"].to_pylist()
            assert len(set(ids)) == len(ids)
            assert sorted(ours.scanner(with_row_id=True).to_table()["_rowid"].to_pylist()) == sorted(ids)
            lance.write_dataset(self.rows(9, 2), self.uri, mode="append", storage_options=self.options)
            more = self.open(lance).scanner(with_row_id=True).to_table()["_rowid"].to_pylist()
            assert len(set(more)) == len(more) == len(ids) + 2


VERBS = (
    "delete", "delete a day", "update", "update", "insert", "insert", "fill", "fill", "merge", "merge", "compact",
    "compact", "index", "extend", "cleanup",
)  # fmt: skip


def values(dataset):
    """Day and number of each row, by its name; no name twice."""
    table = dataset.to_table().to_pydict()
    found = {u: (day, n) for u, day, n in zip(table["u"], table["day"], table["n"], strict=True)}
    assert len(found) == len(table["u"])
    return found


def row_ids(dataset):
    table = dataset.scanner(["u"], with_row_id=True).to_table().to_pydict()
    return dict(zip(table["u"], table["_rowid"], strict=True))


def merged(fork, ours, theirs):
    """What both sides made of the rows, and the rows that both changed."""
    result, both = dict(theirs), []
    for u in fork.keys() | ours.keys():
        if ours.get(u) != fork.get(u):
            if theirs.get(u) != fork.get(u):
                both.append(u)
            result.pop(u, None)
            if u in ours:
                result[u] = ours[u]
    return result, both


def run_story(folder, seed, *, moved, storage_options=None):
    """One story; its error says what happened."""
    story = Story(folder, seed, storage_options)
    some = story.random
    fork = story.values(story.uri)
    ids = row_ids(story.open(lance))
    story.open(some.choice(LIBRARIES)).create_branch("work")
    for _ in range(some.randrange(1, 7)):
        side = 0 if moved and some.random() < 0.4 else 1
        story.step((story.uri, story.branch)[side], side)
    ours, theirs = story.values(story.branch), story.values(story.uri)
    expected, both = merged(fork, ours, theirs)
    try:
        story.open(lance_core).branches.promote("work")
    except BranchConflictError:
        assert moved, story.log
        assert story.values(story.uri) == theirs, story.log
        return False
    assert not both, (both, story.log)
    assert story.values(story.uri) == expected, story.log
    if not moved:
        assert story.values(story.uri) == ours, story.log
    if story.open(lance).has_stable_row_ids:
        now = row_ids(story.open(lance))
        kept = {u: i for u, i in now.items() if u in ids and u in ours and ours[u][1] == fork[u][1]}
        assert all(ids[u] == i for u, i in kept.items()), story.log
    story.check()
    return True


@pytest.mark.variants(5)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("moved", [False, True], ids=["unmoved", "moved"])
def test_promotions(tmp_path, seed, moved):
    run_story(tmp_path, seed + 1000 * moved, moved=moved)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MORE_SEEDS)
@pytest.mark.parametrize("moved", [False, True], ids=["unmoved", "moved"])
def test_more_promotions(tmp_path, seed, moved):
    run_story(tmp_path, seed + 1000 * moved, moved=moved)


@pytest.mark.on_ceph
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
def test_promotions_on_object_storage(s3, seed):
    for moved in (False, True):
        run_story(f"s3://{s3.new_bucket()}", seed + 1000 * moved, moved=moved, storage_options=s3.storage_options)
