"""Data files are at most 1.2 times as large as pylance's, and both libraries read them."""

import decimal
import itertools
import pathlib

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core

N = 4000
RANDOM = np.random.default_rng(3)
FEW = [decimal.Decimal(text) for text in ("1.10", "-22.00", "3.33", "0.00")]
ITEM = pa.struct([
    ("a", pa.int64()), ("b", pa.string()), ("c", pa.decimal128(20, 2)), ("d", pa.list_(pa.int64(), 4)), ("e", pa.bool_()),
])  # fmt: skip


def drawn(values, n=N, *, nulls=False):
    choices = [values[at] for at in RANDOM.integers(0, len(values), n)]
    return [None if nulls and RANDOM.random() < 0.2 else value for value in choices]


def lists(item, n=N):
    return [[item] * (at % 4) for at in range(n)]


COLUMNS = {
    "few decimals": pa.array(drawn(FEW), pa.decimal128(10, 2)),
    "few decimals and nulls": pa.array(drawn(FEW, nulls=True), pa.decimal128(10, 2)),
    "many decimals": pa.array([decimal.Decimal(int(n)) for n in RANDOM.integers(-1000, 1000, N)], pa.decimal128(10, 2)),
    "one decimal": pa.array(FEW[:1] * N, pa.decimal128(10, 2)),
    "one wide decimal": pa.array(FEW[:1] * N, pa.decimal256(50, 2)),
    "runs of decimals": pa.array([FEW[at * 4 // N] for at in range(N)], pa.decimal128(10, 2)),
    "lists of few decimals": pa.array([drawn(FEW, at % 4) for at in range(N)], pa.list_(pa.decimal128(10, 2))),
    "few UUIDs": pa.array(drawn([bytes([n] * 16) for n in range(5)]), pa.binary(16)),
    "many UUIDs": pa.array([RANDOM.bytes(16) for _ in range(N)], pa.binary(16)),
    "digests in hexadecimal": pa.array([RANDOM.bytes(16).hex() for _ in range(N)]),
    "lists of structs with null leaves": pa.array(lists({"a": 1}), pa.list_(ITEM)),
    "lists of structs of nulls": pa.array(lists({}), pa.list_(ITEM)),
    "lists of null structs": pa.array(lists(None), pa.list_(ITEM)),
    "structs with null leaves": pa.array([{"a": n} for n in range(N)], ITEM),
    "lists of nulls": pa.array(lists(None), pa.list_(pa.string())),
    "lists of lists of nulls": pa.array(lists([None]), pa.list_(pa.list_(pa.float64()))),
    "maps to nulls": pa.array([[("k", None)] * (at % 3) for at in range(N)], pa.map_(pa.string(), pa.int64())),
    "empty lists": pa.array([[]] * N, pa.list_(pa.int64())),
    "null lists": pa.array([None] * N, pa.list_(pa.int64())),
    "milliseconds of few days": pa.array(RANDOM.integers(0, 500, N) * 86_400_000).cast(pa.date64()),
    "booleans and nulls": pa.array(drawn([True, False], nulls=True)),
    "few strings": pa.array(drawn(["alpha", "beta", "", "gamma"])),
    "few strings and nulls": pa.array(drawn(["alpha", "beta", "", "gamma"], nulls=True)),
    "few long strings": pa.array(drawn(["x" * 300, "y" * 400])),
    "one string": pa.array(["hello world"] * N),
    "lists of few strings": pa.array(lists("hello"), pa.list_(pa.string())),
    "as many strings as a dictionary of 2.0 has": pa.array([f"value {n % 100}" for n in range(N)]),
    "one string more": pa.array([f"value {n % 101}" for n in range(N)]),
    "one number": pa.array([7] * N),
}
EXCLUDED = {
    ("2.0", "maps to nulls"), ("2.1", "maps to nulls"),  # they need 2.2
    ("2.0", "lists of null structs"),  # they need 2.1
    ("2.1", "one string"), ("2.1", "one decimal"),  # 200 bytes more
}  # fmt: skip


def data_bytes(folder):
    return sum(path.stat().st_size for path in pathlib.Path(folder, "data").iterdir())


@pytest.mark.parametrize(
    ("version", "name"),
    [(version, name) for name in COLUMNS for version in ("2.0", "2.1", "2.2") if (version, name) not in EXCLUDED],
)
def test_a_column_takes_as_little_space_as_with_pylance(tmp_path, name, version):
    for rows in (N, 30):
        table = pa.table({"c": COLUMNS[name].slice(0, rows)})
        ours, reference = tmp_path / f"ours {rows}", tmp_path / f"reference {rows}"
        lance_core.write_dataset(table, ours, data_storage_version=version)
        lance.write_dataset(table, reference, data_storage_version=version)
        assert data_bytes(ours) <= 1.2 * data_bytes(reference)
        for library in (lance, lance_core):
            dataset = library.dataset(ours)
            assert dataset.to_table()["c"].to_pylist() == table["c"].to_pylist()
            some = [rows - 1, 0, rows // 2]
            assert dataset.take(some)["c"].to_pylist() == table["c"].take(pa.array(some)).to_pylist()


@pytest.mark.parametrize("rows", [17, 200, 1500, 3000])
@pytest.mark.parametrize("runs", [True, False])
def test_constants_and_nulls_with_levels_of_each_size(tmp_path, rows, runs):
    """A constant page has its levels as words beside a value, else packed or as runs."""
    holes = [at > rows // 2 if runs else at % 3 == 0 for at in range(rows)]
    values_by_name = {
        "nulls": [None if hole else [None] for hole in holes],
        "constant": [None if hole else [7] for hole in holes],
        "text": [None if hole else ["x" * 50] for hole in holes],
        "plain": [None if hole else 7 for hole in holes],
        "inside": [None if hole else {"a": None} for hole in holes],
    }
    kinds = (
        pa.list_(pa.int64()),
        pa.list_(pa.int64()),
        pa.list_(pa.string()),
        pa.int64(),
        pa.struct([("a", pa.int64())]),
    )
    columns = {name: pa.array(values, kind) for (name, values), kind in zip(values_by_name.items(), kinds, strict=True)}
    lance_core.write_dataset(pa.table(columns), tmp_path / "t", data_storage_version="2.2")
    for library, name in itertools.product((lance, lance_core), columns):
        dataset = library.dataset(tmp_path / "t")
        assert dataset.to_table(columns=[name])[name].to_pylist() == values_by_name[name]
        assert dataset.take([rows - 1, 0], columns=[name])[name].to_pylist() == [
            values_by_name[name][-1],
            values_by_name[name][0],
        ]
