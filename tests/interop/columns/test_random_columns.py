"""Columns that are set from stale versions while others commit, at random: pylance reads the cells of a model."""

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lance_core
from lance_core.errors import InvalidInputError, RetryableConflictError
from tests.support.hypothesis_settings import examples

IDS = st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True)

STEP = st.one_of(
    st.tuples(st.just("write"), st.sampled_from("vw"), IDS, st.booleans(), st.sampled_from(["id", "_rowid"])),
    st.tuples(st.just("write_now"), st.sampled_from("vw"), IDS),
    st.tuples(st.just("open")),
    st.tuples(st.just("append"), st.integers(1, 5)),
    st.tuples(st.just("delete"), IDS),
    st.tuples(st.just("update"), IDS),
    st.tuples(st.just("compact")),
    st.tuples(st.just("replace"), IDS),
)


class Model:
    """A table, its rows as they should be, and a handle that lags behind.

    Args:
        uri: Where the table is.
        stable: Whether it has stable row ids.
        library: Who makes the changes of others.
    """

    def __init__(self, uri, stable, library):
        self.uri, self.stable, self.library = uri, stable, library
        self.rows = {i: {"n": 0} for i in range(12)}
        self.next, self.tick, self.moved = 12, 0, False
        lance.write_dataset(self._table(self.rows), uri, max_rows_per_file=4, enable_stable_row_ids=stable)
        self.open()

    def _table(self, rows):
        ids = sorted(rows)
        return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array([rows[i]["n"] for i in ids], pa.int64())})

    def open(self):
        self.stale, self.known, self.moved = lance_core.dataset(self.uri), set(self.rows), False

    def append(self, count):
        new = {self.next + i: {"n": 0} for i in range(count)}
        self.next += count
        self.library.write_dataset(self._table(new), self.uri, mode="append")
        self.rows |= new

    def delete(self, ids):
        self.library.dataset(self.uri).delete(f"id in ({','.join(map(str, ids))})")
        self.rows = {i: row for i, row in self.rows.items() if i not in ids}

    def update(self, ids):
        self.tick += 1
        self.library.dataset(self.uri).update({"n": str(self.tick)}, where=f"id in ({','.join(map(str, ids))})")
        hit = self.rows.keys() & set(ids)
        self.moved |= bool(hit)
        for i in hit:
            self.rows[i]["n"] = self.tick

    def compact(self):
        self.library.dataset(self.uri).optimize.compact_files()

    def replace(self, ids):
        """Rows are replaced by others of the same keys, as a partition is."""
        slices = lance_core.Slices(
            [lance_core.Slice(name=str(i), conditions={"id": lance_core.Equals(i)}) for i in ids]
        )
        self.tick += 1
        new = {i: {"n": self.tick} for i in ids}
        schema = self._table(new).schema
        fragments = lance_core.write_fragments(self._table(new), self.uri)
        lance_core.commit_fragments(self.uri, fragments, schema, mode="replace", slices=slices)
        self.known -= set(ids)  # these are other rows now
        self.rows |= new
        self.next = max(self.next, max(ids) + 1)

    def write_now(self, name, ids):
        """Set a column from the latest version, while the stale handle stays where it is."""
        self.tick += 1
        own = {i: 1000 * self.tick + i for i in ids if i in self.rows}
        if own:
            table = pa.table({"id": list(own), name: pa.array(list(own.values()), pa.int64())})
            lance_core.dataset(self.uri).write_columns(table, on="id", missing="keep")
        for i, value in own.items():
            self.rows[i][name] = value

    def write(self, name, ids, keep, key):
        """Set a column from the stale handle."""
        self.tick += 1
        at_first = {row["id"]: row["_rowid"] for row in self.stale.to_table(["id"], with_row_id=True).to_pylist()}
        own = {i: 1000 * self.tick + i for i in ids if i in at_first}
        if not own:
            return
        # Without stable ids the rows that an update moved are matched again, on the version that it made.
        again = self.moved and not self.stable
        # Where the column was not there, rows that the data lacks are null without being set.
        nulls = name in self.stale.schema.names
        data = {"id": list(own)} if key == "id" else {"_rowid": pa.array([at_first[i] for i in own], pa.uint64())}
        table = pa.table({**data, name: pa.array(list(own.values()), pa.int64())})
        version = lance.dataset(self.uri).version
        keep = keep or again
        try:
            self.stale.write_columns(table, on=key, missing="keep" if keep else "null")
        except (InvalidInputError, RetryableConflictError):
            assert again
            assert lance.dataset(self.uri).version == version
            self.open()
            return
        scope = self.rows.keys() & (self.known if not again else set(self.rows))
        for i in scope:
            if i in own:
                self.rows[i][name] = own[i]
            elif not keep and nulls and i in at_first:
                self.rows[i][name] = None
        self.known, self.moved = set(self.rows), False

    def check(self):
        """pylance reads what should be there."""
        dataset = lance.dataset(self.uri)
        dataset.validate()
        columns = [name for name in ("n", "v", "w") if name in dataset.schema.names]
        found = {row["id"]: row for row in dataset.to_table(["id", *columns]).to_pylist()}
        assert found.keys() == self.rows.keys()
        for i, row in self.rows.items():
            assert {name: found[i][name] for name in columns} == {name: row.get(name) for name in columns}, i


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@examples(60)
@given(steps=st.lists(STEP, min_size=2, max_size=9), ours=st.booleans())
def test_cells_are_right_whatever_others_commit(tmp_path_factory, stable, steps, ours):
    model = Model(str(tmp_path_factory.mktemp("t") / "t"), stable, lance_core if ours else lance)
    for step, *arguments in steps:
        getattr(model, step)(*arguments)
        model.check()
