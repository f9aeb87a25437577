"""Files of pyarrow: each Arrow type in IPC files, those that Parquet has in Parquet files, and ORC."""

import datetime as dt
import decimal
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq

from tests.corpus.sample import Sample

__all__ = ["files"]

D = decimal.Decimal
N = 12
SECONDS = [0, 1, None, -1, 86_399, 1_700_000_000, 1_700_000_001, 5, None, 7, 7, 7]
NUMBERS = [0, 1, None, 2, 100, 127, 3, 3, None, 3, 4, 5]
FLOATS = [0.0, -0.0, None, float("nan"), float("inf"), -float("inf"), 1.5, 1e300, None, 2.5, 2.5, -1e-300]
STRINGS = ["", "a", None, "é", "日本", "x" * 300, "a", "a'b", None, 'q"', "back\\slash", "%_"]
BYTES = [b"", b"a", None, b"\x00\xff", b"b" * 300, b"c", b"d", b"e", None, b"\xfe", b"g", b"h"]
DAYS = [None if n is None else dt.date(2024, 1, 1) + dt.timedelta(n % 400) for n in SECONDS]
SIXTEEN = [None if n is None else uuid.UUID(int=n + 5).bytes for n in SECONDS]
PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
DEEP = pa.struct([("p", PAIR), ("l", pa.list_(PAIR)), ("d", pa.decimal128(9, 2))])
SMALL_CODES = pa.dictionary(pa.int8(), pa.string())
TENSOR = pa.fixed_shape_tensor(pa.float32(), [2, 2])


def _numbers() -> Iterator[tuple[str, pa.Array]]:
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        yield str(kind), pa.array(NUMBERS, kind)
    yield "float16", pa.array(np.array([0, 1.5, 2.5, np.nan] * 3, "f2"))
    yield "float32", pa.array(FLOATS, pa.float64()).cast(pa.float32(), safe=False)
    yield "float64", pa.array(FLOATS, pa.float64())
    yield "large integers", pa.array([2**63 - 1, -(2**63), None, 0] * 3, pa.int64())
    yield "booleans", pa.array([True, None, False] * 4)
    yield "decimal128", pa.array([None if n is None else D(n) / 100 for n in NUMBERS], pa.decimal128(12, 2))
    yield "decimal256", pa.array([None if n is None else D(n) * 10**40 for n in NUMBERS], pa.decimal256(50, 2))
    yield "decimal of negative scale", pa.array([D(n or 0) * 100 for n in NUMBERS], pa.decimal128(12, -2))
    yield "decimal32", pa.array([D(n or 0) for n in NUMBERS], pa.decimal32(5, 0))
    yield "few decimals", pa.array([D("1.10"), D("2.20"), None, D("1.10")] * 300, pa.decimal128(10, 2))
    yield "few wide numbers", pa.array([2**60, -(2**60), None] * 400)


def _times() -> Iterator[tuple[str, pa.Array]]:
    yield "date32", pa.array(DAYS, pa.date32())
    yield "date64", pa.array(DAYS, pa.date64())
    for unit in ("s", "ms", "us", "ns"):
        yield f"timestamp in {unit}", pa.array(SECONDS, pa.timestamp(unit))
        yield f"duration in {unit}", pa.array(SECONDS, pa.duration(unit))
    for zone in ("UTC", "+05:30", "America/New_York"):
        yield f"timestamp in {zone}", pa.array(SECONDS, pa.timestamp("us", zone))
    yield (
        "times of seconds",
        pa.array([None if n is None else abs(n) % 86_400 for n in SECONDS], pa.int32()).cast(pa.time32("s")),
    )
    yield "times of nanoseconds", pa.array([None if n is None else abs(n) % 86_400 for n in SECONDS], pa.time64("ns"))
    yield "far times", pa.array([-(2**54), 2**54, None], pa.timestamp("us"))


def _strings() -> Iterator[tuple[str, pa.Array | pa.ChunkedArray]]:
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield str(kind), pa.array(STRINGS, kind)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        yield str(kind), pa.array(BYTES, kind)
    yield "fixed binary", pa.array(SIXTEEN, pa.binary(16))
    yield "strings that are no UTF-8", pa.array([b"a", b"\xff\xfe", None, b"b"] * 3).view(pa.string())
    yield "few strings", pa.array(["alpha", "beta", None, ""] * 200)
    yield "categories", pa.array(STRINGS).dictionary_encode()
    yield (
        "categories of more values than codes",
        pa.chunked_array(
            [
                pa.array([f"value {n}" for n in range(at, at + 90)]).dictionary_encode().cast(SMALL_CODES)
                for at in (0, 90)
            ]
        ),
    )
    yield "categories of bytes", pa.DictionaryArray.from_arrays(pa.array(NUMBERS[:6], pa.int8()).fill_null(0).cast(pa.int8()).filter(pa.array([True, True, False, True, False, False])), pa.array(["p", "q", "r"]))  # fmt: skip
    yield "hexadecimal", pa.array([uuid.UUID(int=n * 7**40 % 2**128).hex for n in range(1, 900)])
    yield "long text", pa.array([" ".join(["word"] * (n % 300)) for n in range(300)])


def _nested() -> Iterator[tuple[str, pa.Array]]:
    pairs = [{"a": n, "b": s} for n, s in zip(NUMBERS, STRINGS, strict=True)]
    lists = [None if n is None else pairs[: n % 4] for n in NUMBERS]
    yield "structs", pa.array([None if n == 2 else pair for n, pair in zip(NUMBERS, pairs, strict=True)], PAIR)
    yield "structs without nulls", pa.array([{"a": n, "b": str(n)} for n in range(N)], PAIR)
    yield "structs of structs", pa.array([{"p": pair, "l": pairs[:2], "d": D(1)} for pair in pairs], DEEP)
    yield "structs of nulls", pa.array([{"p": None}] * N, DEEP)
    yield "lists", pa.array([None if n is None else [n] * (n % 4) for n in NUMBERS], pa.list_(pa.int64()))
    yield "large lists", pa.array([None if n is None else [n] * (n % 4) for n in NUMBERS], pa.large_list(pa.int64()))
    yield "lists of strings", pa.array([[s, None] if s else [] for s in STRINGS], pa.list_(pa.string()))
    yield "lists of lists", pa.array([[[n], [], None] for n in NUMBERS], pa.list_(pa.list_(pa.int16())))
    yield "lists of structs", pa.array(lists, pa.list_(PAIR))
    yield "lists of structs with null leaves", pa.array([[{"a": 1}] * (n % 5) for n in range(800)], pa.list_(DEEP))
    yield "lists of nulls", pa.array([[None] * (n % 3) for n in range(N)], pa.list_(pa.int64()))
    yield "empty lists", pa.array([[]] * N, pa.list_(pa.int64()))
    yield "list views", pa.array([[1], [], None] * 4, pa.list_view(pa.int64()))
    yield "vectors", pa.array([None if n is None else [float(n)] * 4 for n in NUMBERS], pa.list_(pa.float32(), 4))
    yield "vectors with null items", pa.array([[1.0, None]] * N, pa.list_(pa.float32(), 2))
    yield (
        "vectors of structs",
        pa.array([[{"a": n, "b": "x"}, {"a": None, "b": str(n)}] for n in range(N)], pa.list_(PAIR, 2)),
    )
    yield (
        "maps",
        pa.array(
            [None if n is None else [("k", n), ("l", None)][: n % 3] for n in NUMBERS], pa.map_(pa.string(), pa.int64())
        ),
    )
    yield "maps of structs", pa.array([[("k", pair)] for pair in pairs], pa.map_(pa.string(), PAIR))
    yield "nulls", pa.nulls(N)
    yield "null strings", pa.nulls(N, pa.string())
    yield "empty structs", pa.array([{}] * N, pa.struct([]))


def _extensions() -> Iterator[tuple[str, pa.Array]]:
    ids = pa.array(SIXTEEN, pa.uuid())
    tensors = pa.ExtensionArray.from_storage(
        TENSOR, pa.array([[float(n)] * 4 for n in range(N)], pa.list_(pa.float32(), 4))
    )
    ends, numbers = pa.array(range(N + 1), pa.int32()), pa.array(range(N))
    yield "UUIDs", ids
    yield "structs of UUIDs", pa.StructArray.from_arrays([ids, numbers], ["id", "n"])
    yield "lists of UUIDs", pa.ListArray.from_arrays(ends, ids)
    yield "tensors", tensors
    yield "structs of tensors", pa.StructArray.from_arrays([tensors, numbers], ["t", "n"])
    yield "booleans of 8 bits", pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None] * 4, pa.int8()))
    yield "JSON", pa.array(['{"a": [1, 2.5, null]}', None, "[]"] * 4, pa.json_())
    yield (
        "opaque",
        pa.ExtensionArray.from_storage(pa.opaque(pa.int32(), "kind", "vendor"), pa.array(NUMBERS, pa.int32())),
    )
    yield "run-end encoded", pa.RunEndEncodedArray.from_arrays(pa.array([4, N], pa.int32()), pa.array([1, 2]))
    yield "intervals", pa.array([(1, 2, 3), None] * 6, pa.month_day_nano_interval())


def _tables() -> Iterator[tuple[str, pa.Table]]:
    numbers, strings = pa.array(range(N)), pa.array(STRINGS)
    yield "no rows", pa.table({"a": numbers, "s": strings}).slice(0, 0)
    yield "no columns but one, one row", pa.table({"a": [1]})
    yield "many columns", pa.table({f"c{at}": pa.array(NUMBERS, pa.int32()) for at in range(120)})
    yield "chunks", pa.concat_tables([pa.table({"a": numbers, "s": strings}).slice(at, 3) for at in range(0, N, 3)])
    yield "required columns", pa.table([numbers, strings.fill_null("")], pa.schema([pa.field("a", pa.int64(), False), pa.field("s", pa.string(), False)]))  # fmt: skip
    yield (
        "metadata",
        pa.table([numbers], pa.schema([pa.field("a", pa.int64(), metadata={"unit": "m"})], metadata={"k": "v"})),
    )
    for what, name in NAMES.items():
        yield f"a name with {what}", pa.table({name: numbers, "plain": strings})
    yield "names that differ in case", pa.table({"a": numbers, "A": strings})
    yield "the same name twice", pa.Table.from_arrays([numbers, strings], ["a", "a"])
    yield "odd names of fields", pa.table({"s": pa.array([{"a b": 1, "Ünï": 2, "select": 3}] * N)})
    yield "dotted names of fields", pa.table({"s": pa.array([{"a.b": 1, "c": "x"}] * N)})


NAMES = {
    "spaces": "a b", "letters of all kinds": "Ünïcödé_名", "a dot": "a.b", "a back-tick": "a`b", "a quote": "a'b",
    "double quotes": 'a"b', "a keyword": "select", "digits": "1st", "a slash": "a/b", "a line break": "a\nb",
    "nothing": "", "a row column": "_rowid", "a dollar": "$a", "a percent sign": "a%20b", "a long name": "n" * 300,
    "a comma": "a,b", "brackets": "a[0]", "an equals sign": "a=b", "a backslash": "a\\b",
}  # fmt: skip


def _feather(name: str, table: pa.Table) -> Sample:
    def write(folder: Path) -> Path:
        with pa.ipc.new_stream(folder / "file.arrows", table.schema) as writer:  # files have one dictionary per column
            writer.write_table(table)
        return folder / "file.arrows"

    return Sample(name=f"ipc/{name}", write=write, read=lambda path: pa.ipc.open_stream(path).read_all())


def _parquet(name: str, table: pa.Table) -> Sample:
    def write(folder: Path) -> Path:
        pq.write_table(table, folder / "file.parquet", use_dictionary=["c"], version="2.6")
        return folder / "file.parquet"

    return Sample(name=f"parquet/{name}", write=write, read=pq.read_table, form="parquet")


def _orc(name: str, table: pa.Table) -> Sample:
    def write(folder: Path) -> Path:
        pa.orc.write_table(table, folder / "file.orc")
        return folder / "file.orc"

    return Sample(name=f"orc/{name}", write=write, read=pa.orc.read_table)


PARQUET = (
    "int8", "uint64", "float16", "float64", "booleans", "decimal128", "few decimals", "date32", "timestamp in ns", "UUIDs",
    "timestamp in America/New_York", "string", "large_binary", "fixed binary", "categories", "structs", "JSON", "maps",
    "lists of structs", "structs of structs", "lists of lists", "structs of UUIDs", "lists of UUIDs", "nulls", "vectors",
)  # fmt: skip
ORC = ("int64", "float64", "string", "date32", "timestamp in ns", "structs", "lists", "maps", "decimal128")


def files() -> Iterator[Sample]:
    """The files of pyarrow."""
    arrays = [*_numbers(), *_times(), *_strings(), *_nested(), *_extensions()]
    for name, array in arrays:
        yield _feather(name, pa.table({"c": array}))
    for name, table in _tables():
        yield _feather(name, table)
    by_name = dict(arrays)
    for name in PARQUET:
        yield _parquet(name, pa.table({"c": by_name[name]}))
    for name in ORC:
        yield _orc(name, pa.table({"c": by_name[name]}))
