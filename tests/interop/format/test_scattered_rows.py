"""A few rows out of pages that pylance wrote: strings are cut out of their chunks before they are expanded."""

import random

import lance
import numpy as np
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
    uri = str(tmp_path_factory.mktemp("strings") / "t")
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


@pytest.mark.parametrize("num_rows", [700, 5_000, 20_001])
@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("writer", [lance, lance_core])
def test_rows_of_nullable_columns(writer, version, num_rows, tmp_path):
    made = np.random.default_rng(num_rows)
    holes = made.random(num_rows) < 0.1
    numbers = made.integers(-(2**31), 2**31, num_rows)
    columns = {
        "flat": pa.array(numbers.astype("i4"), mask=holes),
        "packed": pa.array(np.arange(num_rows), mask=holes),
        "few holes": pa.array(numbers, mask=np.arange(num_rows) % 1999 == 7),
        "float": pa.array(made.standard_normal(num_rows), mask=holes),
        "truth": pa.array(numbers > 0, mask=holes),
        "decimal": pa.array(numbers, mask=holes).cast(pa.decimal128(20, 0)),
        "text": pa.array(numbers.astype(str), mask=holes),
        "bytes": pa.array([bytes(made.integers(0, 256, n % 9, np.uint8)) for n in range(num_rows)], mask=holes),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(made.random(num_rows * 3).astype("f4")), 3),
    }
    table = pa.table(columns)
    writer.write_dataset(table, str(tmp_path), data_storage_version=version)
    dataset = lance_core.dataset(str(tmp_path))
    for count in (130, num_rows // 5):
        rows = np.sort(made.choice(num_rows, count, replace=False)).tolist()
        assert dataset.take(rows) == table.take(rows)
