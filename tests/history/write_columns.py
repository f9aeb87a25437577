"""Write tables of one column with the release of pylance that is installed: run by `test_columns.py`.

python write_columns.py FOLDER VERSION...       one table per kind of column and version, and as Arrow files what was
                                                written and what the release reads; prints, as JSON, what failed
"""

import datetime as dt
import decimal
import json
import sys
from pathlib import Path

import pyarrow as pa

ROWS = 3000
NOT_WRITTEN, NOT_READ = "not written", "not read"


def some(value, every=5):
    """A value for each row, with nulls among them."""
    return [None if i % every == 3 else value(i) for i in range(ROWS)]


def each(value):
    return [value(i) for i in range(ROWS)]


def numbers():
    yield "bool", pa.array(each(lambda i: i % 3 == 0))
    yield "bool_null", pa.array(some(lambda i: i % 3 == 0))
    for bits in (8, 16, 32, 64):
        signed, unsigned = pa.type_for_alias(f"int{bits}"), pa.type_for_alias(f"uint{bits}")
        yield f"int{bits}", pa.array(each(lambda i, bits=bits: i * 7919 % 2 ** (bits - 1) - 5 * (bits > 8)), signed)
        yield f"uint{bits}_null", pa.array(some(lambda i, bits=bits: i * 7919 % 2**bits), unsigned)
    yield "int64_small", pa.array(each(lambda i: i % 100), pa.int64())
    yield "int64_large", pa.array(each(lambda i: i * 0x9E3779B97F4A7C15 % 2**63), pa.int64())
    yield "runs", pa.array(each(lambda i: i // 50), pa.int32())
    yield "constant", pa.array([7] * ROWS, pa.int64())
    yield "all_null", pa.nulls(ROWS, pa.int64())
    yield "null", pa.nulls(ROWS)
    yield "float16", pa.array(each(lambda i: float(i % 100)), pa.float16())
    yield "float32_null", pa.array(some(lambda i: i * 0.5), pa.float32())
    yield "float64", pa.array(each(lambda i: i * 0.1))
    yield "decimal128", pa.array(each(lambda i: decimal.Decimal(i * 101) / 100), pa.decimal128(20, 2))
    yield "decimal256_null", pa.array(some(decimal.Decimal), pa.decimal256(50, 0))
    yield "date32_null", pa.array(some(lambda i: dt.date(2020, 1, 1) + dt.timedelta(i % 900)))
    yield "timestamp_null", pa.array(some(lambda i: i * 3_600_000_000), pa.timestamp("us", "UTC"))
    yield "time64", pa.array(range(ROWS), pa.time64("ns"))
    yield "duration", pa.array(range(ROWS), pa.duration("ms"))


def strings():
    yield "string", pa.array(each(lambda i: f"value {i} of many"))
    yield "string_null", pa.array(some(lambda i: f"s{i % 1000}"))
    yield "string_empty", pa.array(each(lambda i: "" if i % 2 else "x"))
    yield "string_long", pa.array(each(lambda i: f"long text {i % 37}" * (i % 60 + 1)))
    yield "large_string_null", pa.array(some(lambda i: f"large {i}"), pa.large_string())
    yield "binary_null", pa.array(some(lambda i: bytes([i % 256]) * (i % 20)), pa.binary())
    yield "binary_long", pa.array(each(lambda i: bytes([i % 256]) * 300), pa.binary())
    yield "large_binary", pa.array(each(lambda i: bytes([i % 256, 1, 2])), pa.large_binary())
    yield "fixed_binary", pa.array(each(lambda i: bytes([i % 256] * 6)), pa.binary(6))
    yield "dictionary", pa.array(each(lambda i: f"d{i % 4}")).dictionary_encode()
    yield "dictionary_null", pa.array(some(lambda i: f"d{i % 7}")).dictionary_encode()


def nested():
    kind = pa.struct({"a": pa.int32(), "b": pa.string()})
    floats = pa.array([float(i % 91) for i in range(ROWS * 16)], pa.float32())
    yield "list", pa.array(each(lambda i: [i, i + 1][: i % 3]), pa.list_(pa.int32()))
    yield "list_null", pa.array(some(lambda i: [i, None][: i % 3]), pa.list_(pa.int32()))
    yield "list_string", pa.array(some(lambda i: [f"a{i}", None, "b"][: i % 4]))
    yield "large_list", pa.array(each(lambda i: [float(i)] * (i % 3)), pa.large_list(pa.float64()))
    yield "list_list", pa.array(some(lambda i: [[i], None, [], [1, None]][: i % 5]), pa.list_(pa.list_(pa.int64())))
    yield "list_struct", pa.array(some(lambda i: [{"a": i, "b": "x"}, {"a": None, "b": None}][: i % 3]), pa.list_(kind))
    yield "vector", pa.FixedSizeListArray.from_arrays(floats, 16)
    yield "vector_null", pa.array(some(lambda i: [float(i)] * 4), pa.list_(pa.float32(), 4))
    yield "vector_half", pa.FixedSizeListArray.from_arrays(floats.cast(pa.float16()), 16)
    yield "vector_bytes", pa.FixedSizeListArray.from_arrays(floats.cast(pa.uint8()), 16)
    yield "struct", pa.array(each(lambda i: {"a": i, "b": None if i % 4 == 1 else f"b{i}", "c": {"d": i % 7}}))
    yield "struct_null", pa.array(some(lambda i: {"a": i, "b": f"b{i}"}))
    struct_list = pa.struct({"a": pa.list_(pa.int32()), "b": pa.int8()})
    yield "struct_list", pa.array(some(lambda i: {"a": [i] * (i % 3), "b": None}), struct_list)


def requested():
    """Columns whose metadata ask for an encoding."""
    text = pa.array(some(lambda i: f"value {i} of many"))
    pair = pa.array(each(lambda i: {"a": i, "b": i + 1}), pa.struct({"a": pa.int32(), "b": pa.int32()}))
    blob = pa.array(each(lambda i: b"blob%d" % i), pa.large_binary())
    yield "zstd", text, {"lance-encoding:compression": "zstd"}
    yield "lz4", text, {"lance-encoding:compression": "lz4"}
    yield "fsst", text, {"lance-encoding:compression": "fsst"}
    yield "fullzip", text, {"lance-encoding:structural-encoding": "fullzip"}
    yield "packed", pair, {"packed": "true"}
    yield "packed_struct", pair, {"lance-encoding:packed": "true"}
    yield "blob", blob, {"lance-encoding:blob": "true"}


def tables():
    """The name of each kind of column, and a table of it."""
    plain = [(name, array, None) for kinds in (numbers(), strings(), nested()) for name, array in kinds]
    for name, array, metadata in [*plain, *requested()]:
        yield name, pa.table([array], schema=pa.schema([pa.field("c", array.type, metadata=metadata)]))


def save(table, path):
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def outcome(folder, table, version):
    """What failed: "" if nothing did."""
    import lance

    uri = str(folder / "table")
    folder.mkdir(parents=True)
    save(table, folder / "source.arrow")
    try:
        lance.write_dataset(table, uri, data_storage_version=version, max_rows_per_file=ROWS * 2 // 3)
    except BaseException:  # noqa: BLE001 - its panics are no Exception
        return NOT_WRITTEN
    try:
        save(lance.dataset(uri).to_table(), folder / "read.arrow")
    except BaseException:  # noqa: BLE001 - as above
        return NOT_READ
    return ""


def main(folder, versions):
    found = {
        version: {name: outcome(Path(folder) / version / name, table, version) for name, table in tables()}
        for version in versions
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
