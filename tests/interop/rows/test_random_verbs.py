"""Any sequence of verbs gives the same rows and metadata in both libraries."""

import tempfile
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lance_core
from tests.interop.pairs import Pair

KEYS = st.integers(0, 60)
OPERATORS = st.sampled_from(["<", ">", "=", "<=", "!="])


@st.composite
def predicates(draw) -> str:
    """Conditions over the columns that are always there."""
    one = f"k {draw(OPERATORS)} {draw(KEYS)}"
    return draw(
        st.sampled_from([one, f"{one} and v is not null", f"k % {draw(st.integers(2, 5))} = 0", f"{one} or v = 'b'"])
    )


@st.composite
def upserts(draw) -> tuple:
    keys = draw(st.lists(KEYS, unique=True, max_size=8))
    clauses = draw(st.sampled_from(["upsert", "insert", "update", "delete", "part", "some columns"]))
    return ("merge", clauses, keys, draw(st.sampled_from(["m", "n", None])))


VERBS = st.one_of(
    st.tuples(st.just("delete"), predicates()),
    st.tuples(st.just("update"), st.sampled_from(["concat(v, '!')", "'u'", "NULL"]), predicates()),
    upserts(),
    st.tuples(st.just("append"), st.integers(1, 9)),
    st.tuples(st.just("add column"), st.sampled_from(["k * 2", "v"])),
    st.tuples(st.just("null column")),
    st.tuples(st.just("drop column")),
    st.tuples(st.just("rename column")),
    st.tuples(st.just("cast column")),
    st.tuples(st.just("restore"), st.integers(1, 4)),
    st.tuples(st.just("compact")),
    st.tuples(st.just("config"), st.sampled_from("ab")),
    st.tuples(st.just("take over"), st.sampled_from(["ours", "theirs"])),
)
FILES = st.sampled_from(["2.0", "2.1", "2.2"])


class Run:
    """Carries out verbs on both copies, with names and keys that are free on both."""

    def __init__(self, pair: Pair):
        self.pair = pair
        self.next_key = 1000
        self.next_name = 0

    def step(self, verb: tuple) -> None:
        call = getattr(self, verb[0].replace(" ", "_"))(*verb[1:])
        if call is not None:
            self.pair.run(lambda dataset, library: call(dataset, library) and None, check=False)

    @property
    def extra(self) -> list[str]:
        return [name for name in self.pair.ours.schema.names if name.startswith("x")]

    def fresh(self) -> str:
        self.next_name += 1
        return f"x{self.next_name}"

    def delete(self, predicate):
        return lambda d, _: d.delete(predicate)

    def update(self, value, where):
        return lambda d, _: d.update({"v": value}, where)

    def merge(self, clauses, keys, value):
        whole = self.pair.ours.schema
        table = pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([value] * len(keys), pa.string())})
        if clauses != "some columns":
            for field in list(whole)[2:]:
                table = table.append_column(field, pa.nulls(len(keys), field.type))
            table = table.select(whole.names)

        def call(dataset, _):
            builder = dataset.merge_insert("k")
            if clauses in ("upsert", "part", "update", "some columns"):
                builder = builder.when_matched_update_all()
            if clauses in ("upsert", "part", "insert"):
                builder = builder.when_not_matched_insert_all()
            if clauses == "delete":
                builder = builder.when_matched_delete()
            if clauses == "part":
                builder = builder.when_not_matched_by_source_delete("k < 20")
            builder.execute(table)

        return call

    def append(self, count):
        keys = range(self.next_key, self.next_key + count)
        self.next_key += count
        letters = pa.array(["x", "y", None] * count).dictionary_encode()
        table = pa.table({"k": pa.array(keys, pa.int64()), "v": ["a"] * count, "d": letters.slice(0, count)})
        return lambda d, _: d.insert(table)

    def add_column(self, expression):
        name = self.fresh()
        return lambda d, _: d.add_columns({name: expression})

    def null_column(self):
        name = self.fresh()
        return lambda d, _: d.add_columns(pa.field(name, pa.int64()))

    def drop_column(self):
        names = self.extra
        return (lambda d, _: d.drop_columns(names[:1])) if names else None

    def rename_column(self):
        names, new = self.extra, self.fresh()
        return (lambda d, _: d.alter_columns({"path": names[0], "name": new})) if names else None

    def cast_column(self):
        names = [name for name in self.extra if self.pair.ours.schema.field(name).type == pa.int64()]
        return (lambda d, _: d.alter_columns({"path": names[0], "data_type": pa.int32()})) if names else None

    def restore(self, back):
        def call(dataset, library):
            old = dataset.checkout_version(max(dataset.version - back, 1))
            old.restore()
            dataset.checkout_latest()

        return call

    def compact(self):
        def call(dataset, _):
            optimize = dataset.optimize
            optimize.compact_files(target_rows_per_fragment=20)
            dataset.checkout_latest()

        return call

    def take_over(self, source):
        """From here on both go on with what one of them has written."""
        self.pair.take_over(source)

    def config(self, key):
        return lambda d, _: d.update_config({key: "1"})


def run(verbs, stable, version):
    with tempfile.TemporaryDirectory() as folder:
        rows = pa.table({
            "k": pa.array(range(40), pa.int64()),
            "v": [("a", "b", None)[i % 3] for i in range(40)],
            "d": pa.array([("x", None, "z")[i % 3] for i in range(40)]).dictionary_encode(),
            "l": [[i, None] * (i % 3) for i in range(40)],
            "t": [{"x": i, "y": {"z": str(i)}} for i in range(40)],
        })  # fmt: skip
        if version == "2.0":
            # It has no null structs, which a merge of some columns would make.
            rows = rows.drop_columns("t")
        pair = Pair(
            Path(folder), rows, max_rows_per_file=15, enable_stable_row_ids=stable, data_storage_version=version
        )
        steps = Run(pair)
        for verb in verbs:
            steps.step(verb)
            ours = lance_core.dataset(pair.uris["ours"])
            assert ours.version == lance.dataset(pair.uris["theirs"]).version
        pair.check()


@given(st.lists(VERBS, min_size=1, max_size=6), st.booleans(), FILES)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_a_few_verbs(verbs, stable, version):
    run(verbs, stable, version)


@pytest.mark.slow
@given(st.lists(VERBS, min_size=1, max_size=12), st.booleans(), FILES)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_verbs(verbs, stable, version):
    run(verbs, stable, version)
