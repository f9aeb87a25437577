"""Random histories of both libraries, with indices of both: filters find what pylance finds without an index."""

import random
from datetime import date, timedelta

import lance
import pyarrow as pa
import pytest
from lance.indices import IndexConfig

import lance_core
from lance_core import LanceOperation

SEEDS = (*range(4), 34, 46)
MORE_SEEDS = set(range(4, 60)) - {34, 46}
STEPS = 14
SCHEMA = pa.schema([
    ("id", pa.int64()),
    ("p", pa.string()),
    ("i", pa.int32()),
    ("f", pa.float64()),
    ("d", pa.date32()),
    ("tags", pa.list_(pa.string())),
])  # fmt: skip
KINDS = {
    "ZONEMAP": ("id", "p", "i", "f", "d"),
    "BITMAP": ("id", "p", "i", "f", "d"),
    "BTREE": ("id", "p", "i", "f", "d"),
    "BLOOMFILTER": ("id", "p", "i", "f", "d"),
    "LABEL_LIST": ("tags",),
    "NGRAM": ("p",),
}
PYLANCE_ALONE = ("NGRAM",)
FLOATS = (0.0, -0.0, float("nan"), float("inf"), 1.5, -2.5, 7.0, None)


class History:
    """A table, and what is done with it.

    Args:
        uri: Where it lies.
        seed: What happens.
        place: What it is: a table, a branch or shallow clone of one with indices, or a table with base paths.
    """

    def __init__(self, uri, seed, place="table"):
        self.uri = uri
        self.random = random.Random(seed)
        self.next_id = 0
        self.log = []
        self.place = place
        self.bases = []
        options = {}
        if place == "base paths":
            self.bases = ["one", "two"]
            bases = [lance.DatasetBasePath(f"{uri}_{name}", name, is_dataset_root=name == "one") for name in self.bases]
            options = {"initial_bases": bases, "target_bases": self.bases[:1]}
        lance.write_dataset(
            self.rows(60),
            uri,
            max_rows_per_file=20,
            enable_stable_row_ids=seed % 2 == 1,
            data_storage_version=("2.0", "2.1", "2.2")[seed % 3],
            **options,
        )
        if place in ("branch", "shallow clone"):
            self.derive(place)

    def derive(self, place):
        """Go on with a branch, or a clone, of the table with its indices."""
        for _ in range(3):
            create_index(self)
        self.handle()[1].delete("id % 9 = 4")
        _, origin = self.handle()
        if place == "branch":
            origin.create_branch("br")
            self.uri = f"{self.uri}/tree/br"
        else:
            self.uri = f"{self.uri}_clone"
            origin.shallow_clone(self.uri, origin.version)

    def rows(self, count, ids=None):
        some = self.random
        if ids is None:
            ids = range(self.next_id, self.next_id + count)
            self.next_id += count
        base = some.randrange(5)
        one_day = some.random() < 0.5
        values = [
            {
                "id": i,
                "p": some.choice((None, "d9")) if some.random() < 0.1 else f"d{base if one_day else some.randrange(6)}",
                "i": None if some.random() < 0.2 else some.randrange(base * 10, base * 10 + 12),
                "f": some.choice(FLOATS) if some.random() < 0.7 else some.random() * 10,
                "d": date(2024, 1, 1) + timedelta(days=base if one_day else some.randrange(8)),
                "tags": some.choice((None, [], ["a"], ["a", "b"], ["b", None], ["c"])),
            }
            for i in ids
        ]
        return pa.Table.from_pylist(values, SCHEMA)

    def handle(self):
        """The table as one of the two sees it."""
        library = self.random.choice((lance, lance_core))
        return library, library.dataset(self.uri)

    def step(self):
        verb = self.random.choice(VERBS)
        self.log.append(verb.__name__)
        before = {index["name"]: set(index["fragment_ids"]) for index in lance.dataset(self.uri).list_indices()}
        verb(self)
        if verb in (append, delete, update, upsert, replace_slices):
            live = lance_core.dataset(self.uri).fragment_ids()
            names = {index["name"] for index in lance.dataset(self.uri).list_indices()}
            lost = [name for name, covered in before.items() if covered & live and name not in names]
            assert not lost, (lost, self.log)

    def ids(self, share):
        known = lance.dataset(self.uri).to_table(["id"])["id"].to_pylist()
        return [i for i in known if share == 1 or self.random.random() < share]

    def ids_without(self, condition):
        """The rows that are left after a delete."""
        known = lance.dataset(self.uri).scanner(["id"], filter=condition, use_scalar_index=False).to_table()
        return sorted(set(self.ids(1)) - set(known["id"].to_pylist()))

    def filters(self):
        some = self.random
        p, q = (f"d{some.randrange(7)}" for _ in range(2))
        i, j = sorted(some.randrange(60) for _ in range(2))
        day = f"date '2024-01-0{some.randrange(1, 9)}'"
        f = some.choice(("0.0", "1.5", "-2.5", "7.0", "3.3"))
        tag = some.choice("abcx")
        simple = {
            "p": [
                f"p = '{p}'", f"p != '{p}'", f"p IN ('{p}', '{q}')", f"p NOT IN ('{p}', '{q}')", f"p > '{p}'",
                f"p <= '{p}'", "p IS NULL", "p IS NOT NULL", f"p LIKE '{p}%'",
            ],
            "i": [
                f"i = {i}", f"i >= {i}", f"i < {i}", f"i BETWEEN {i} AND {j}", "i IS NULL", "i IS NOT NULL",
                f"NOT (i > {i})",
            ],
            "f": [f"f = {f}", f"f < {f}", f"f >= {f}", f"f != {f}", "f IS NULL", f"NOT (f > {f})"],
            "d": [f"d = {day}", f"d >= {day}", f"d < {day}", "d IS NULL"],
            "tags": [
                f"array_has(tags, '{tag}')", f"array_has_any(tags, ['{tag}', 'b'])",
                f"array_has_all(tags, ['{tag}', 'a'])", f"NOT array_has(tags, '{tag}')",
            ],
        }  # fmt: skip
        for _ in range(6):
            # Of two columns: of a condition and its opposite DataFusion makes false, even for null.
            one, two = (some.choice(simple[column]) for column in some.sample(list(simple), 2))
            yield some.choice((one, one, f"{one} AND {two}", f"{one} OR {two}", f"NOT ({one} AND {two})"))

    def check(self):
        ours, theirs = lance_core.dataset(self.uri), lance.dataset(self.uri)
        for text in self.filters():
            expected = sorted(theirs.scanner(["id"], filter=text, use_scalar_index=False).to_table()["id"].to_pylist())
            for use in (True, False):
                found = ours.scanner(["id"], filter=text, use_scalar_index=use).to_table()["id"].to_pylist()
                assert sorted(found) == expected, (text, use, self.log)
            assert ours.count_rows(filter=text) == len(expected), (text, self.log)


def append(history):
    library, dataset = history.handle()
    options = {"target_bases": [history.random.choice(history.bases)]} if history.bases else {}
    library.write_dataset(history.rows(history.random.randrange(1, 25)), dataset.uri, mode="append", **options)


def delete(history):
    _, dataset = history.handle()
    condition = history.random.choice([
        f"id % 7 = {history.random.randrange(7)}",
        f"p = 'd{history.random.randrange(6)}'",
        f"p = 'd{history.random.randrange(6)}' AND id % 2 = 0",
        f"d < date '2024-01-0{history.random.randrange(1, 5)}' AND p >= 'd4'",
        f"i < {history.random.randrange(20)}",
    ])  # fmt: skip
    left = history.ids_without(condition)
    dataset.delete(condition)
    assert sorted(history.ids(1)) == left, history.log


def replace_slices(history):
    dataset = lance_core.dataset(history.uri)
    column = history.random.choice(("p", "d", "i"))
    values = {"p": ["d1", "d3", None], "d": [date(2024, 1, 2), date(2024, 1, 4)], "i": [3, 14]}[column]
    values = history.random.sample(values, history.random.randrange(1, 3))
    slices = [lance_core.Slice(name=str(v), conditions={column: lance_core.Equals(v)}) for v in values]
    rows = history.rows(4)
    rows = rows.set_column(SCHEMA.get_field_index(column), column, pa.array([values[0]] * 4, SCHEMA.field(column).type))
    null = f"{column} IS NULL" if None in values else "false"
    known = ", ".join(f"date '{v}'" if column == "d" else repr(v) for v in values if v is not None) or "NULL"
    left = history.ids_without(f"({column} IS NOT NULL AND {column} IN ({known})) OR {null}")
    made = lance_core.write_fragments(rows, dataset)
    lance_core.commit_fragments(dataset, made, SCHEMA, mode="replace", slices=lance_core.Slices(slices))
    assert sorted(history.ids(1)) == sorted([*left, *rows["id"].to_pylist()]), history.log


def update(history):
    _, dataset = history.handle()
    changes = history.random.choice([{"p": "'d9'"}, {"i": "i + 1"}, {"f": "f * 2"}, {"d": "date '2024-01-05'"}])
    dataset.update(changes, f"id % 5 = {history.random.randrange(5)}")


def upsert(history):
    _, dataset = history.handle()
    before = history.ids(1)
    rows = pa.concat_tables([history.rows(3), history.rows(0, ids=history.ids(0.1))])
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)
    after = lance.dataset(history.uri).to_table(["id", "p"])
    assert sorted(after["id"].to_pylist()) == sorted({*before, *rows["id"].to_pylist()}), history.log
    found = dict(zip(after["id"].to_pylist(), after["p"].to_pylist(), strict=True))
    assert all(found[row["id"]] == row["p"] for row in rows.to_pylist()), history.log


def rewrite_columns(history):
    dataset = lance_core.dataset(history.uri)
    fragments = dataset.get_fragments()
    if not fragments:
        return
    fragment = history.random.choice(fragments)
    ids = fragment.to_table(columns=["id"])["id"].to_pylist()
    rows = history.rows(0, ids=ids).select(["id", history.random.choice(["p", "i"])])
    updated, fields = fragment.update_columns(rows, "id", "id")
    operation = LanceOperation.Update(updated_fragments=[updated], fields_modified=fields)
    lance_core.LanceDataset.commit(history.uri, operation, read_version=dataset.version)


def compact(history):
    library, dataset = history.handle()
    if history.place in ("branch", "shallow clone"):
        # pylance says that the indices that it rewrites lie in the base, and finds them no more.
        library, dataset = lance_core, lance_core.dataset(history.uri)
    options = {}
    # Once moves are recorded, a compaction of pylance that rewrites an index writes one without entries.
    has_moves = any(index["name"] == "__lance_frag_reuse" for index in lance.dataset(history.uri).list_indices())
    if library is lance and not dataset.has_stable_row_ids and (has_moves or history.random.random() < 0.4):
        options = {"defer_index_remap": True}
    dataset.optimize.compact_files(target_rows_per_fragment=history.random.choice((30, 1000)), **options)


def create_index(history):
    _, dataset = history.handle()
    kind = history.random.choice(list(KINDS))
    column = history.random.choice(KINDS[kind])
    dataset = lance.dataset(history.uri) if kind in PYLANCE_ALONE else dataset
    size = history.random.choice((4, 9, 100))
    parameters = {"ZONEMAP": {"rows_per_zone": size}, "BLOOMFILTER": {"number_of_items": size, "probability": 0.1}}
    asked = IndexConfig(kind.lower(), parameters[kind]) if kind in parameters else kind
    dataset.create_scalar_index(column, asked, name=f"{column}_{kind}")


def drop_index(history):
    _, dataset = history.handle()
    names = [one.name for one in dataset.describe_indices() if not one.name.startswith("__")]
    if names and history.random.random() < 0.5:
        dataset.drop_index(history.random.choice(names))


def optimize(history):
    _, dataset = history.handle()
    dataset.optimize.optimize_indices(
        **history.random.choice([{}, {}, {"num_indices_to_merge": 0}, {"num_indices_to_merge": 2}])
    )


def clean_up(history):
    _, dataset = history.handle()
    dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)


VERBS = (
    append,
    append,
    delete,
    replace_slices,
    update,
    upsert,
    rewrite_columns,
    compact,
    create_index,
    create_index,
    drop_index,
    optimize,
    optimize,
    clean_up,
)


@pytest.mark.variants(2)
@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE_SEEDS)])
def test_filters_find_the_same_whatever_happened(tmp_path, seed):
    go_on(History(str(tmp_path / "t"), seed))


@pytest.mark.parametrize("place", ["branch", "shallow clone", "base paths"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 116))])
def test_filters_find_the_same_wherever_files_lie(tmp_path, seed, place):
    go_on(History(str(tmp_path / "t"), seed, place))


def go_on(history):
    for _ in range(3):
        create_index(history)
    for _ in range(STEPS):
        history.step()
        history.check()
