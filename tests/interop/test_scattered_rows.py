"""A few rows out of pages that pylance wrote: texts are cut out of their chunks before they are expanded."""

import random

import lance
import pyarrow as pa
import pytest

import lance_core

ROWS = 60_000


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts that pylance compresses by FSST: plain, with nulls, and in a struct that can be null."""
    made = random.Random(5)
    words = ["runway", "gate", "delay", "Zürich", "boarding", "", "x" * 40]
    plain = [" ".join(made.choices(words, k=made.randrange(6))) for _ in range(ROWS)]
    holed = [None if made.random() < 0.2 else text + str(n) for n, text in enumerate(plain)]
    nested = [None if n % 7 == 0 else {"t": text} for n, text in enumerate(holed)]
    kind = pa.struct([("t", pa.string())])
    table = pa.table({"id": range(ROWS), "plain": plain, "holed": holed, "nested": pa.array(nested, kind)})
    uri = str(tmp_path_factory.mktemp("texts") / "t")
    lance.write_dataset(table, uri, data_storage_version="2.1")
    return uri, table


@pytest.mark.parametrize("step", [1, 3, 50, 997])
def test_filters(texts, step):
    uri, table = texts
    got = lance_core.dataset(uri).to_table(filter=f"id % {step} = 0")
    assert got == table.take(list(range(0, ROWS, step)))


@pytest.mark.parametrize("count", [1, 40, 5_000])
def test_takes(texts, count):
    uri, table = texts
    rows = sorted(random.Random(count).sample(range(ROWS), count))
    assert lance_core.dataset(uri).take(rows) == table.take(rows)
    assert lance_core.dataset(uri).take(rows, columns=["holed"]) == table.take(rows).select(["holed"])
