"""Random Arrow columns of any nesting, for tests that compare two ways of doing the same."""

import datetime as dt
import decimal
import random
from typing import Any

import pyarrow as pa

LEAVES = [
    pa.int8(),
    pa.uint16(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.large_string(),
    pa.large_binary(),
    pa.date32(),
    pa.time64("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns"),
    pa.duration("ms"),
    pa.decimal128(20, 3),
    pa.decimal256(50, 2),
    pa.binary(7),
    pa.binary(300),
    pa.null(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()),
    pa.list_(pa.float32(), 4),
    pa.list_(pa.int16(), 200),
    pa.list_(pa.bool_(), 3),
    pa.uint8(),
    pa.int16(),
    pa.uint32(),
    pa.date64(),
    pa.time32("ms"),
    pa.time64("ns"),
    pa.timestamp("ms", "Europe/Paris"),
    pa.duration("ns"),
    pa.decimal128(1, 0),
    pa.binary(1),
    pa.string_view(),
    pa.binary_view(),
    pa.dictionary(pa.int64(), pa.large_string()),
    pa.dictionary(pa.int16(), pa.binary()),
    pa.dictionary(pa.uint8(), pa.float64()),
    pa.list_(pa.list_(pa.float32(), 2), 3),
    pa.list_(pa.binary(4), 2),
    pa.list_(pa.decimal128(10, 2), 3),
    pa.list_(pa.timestamp("us"), 1),
    pa.list_(pa.float16(), 64),
    pa.list_(pa.null(), 2),
]
# What the metadata of a field may ask of its encoding.
REQUESTS = {
    "compression": ["none", "lz4", "zstd", "fsst"],
    "compression-level": ["0", "5"],
    "structural-encoding": ["miniblock", "fullzip"],
    "bss": ["on", "off"],
    "rle-threshold": ["0", "0.9"],
    "dict-divisor": ["1", "100"],
    "dict-size-ratio": ["0.1", "1"],
    "dict-max-size": ["10", "1000"],
    "dict-values-compression": ["none", "zstd"],
    "minichunk-size": ["64", "4096"],
}


def random_field(rng: random.Random, name: str, depth: int, *, maps: bool, requests: bool) -> pa.Field:
    metadata = None
    if requests and rng.random() < 0.5:
        keys = rng.sample(list(REQUESTS), rng.randint(1, 3))
        metadata = {f"lance-encoding:{key}": rng.choice(REQUESTS[key]) for key in keys}
    return pa.field(name, random_type(rng, depth, maps=maps, requests=requests), metadata=metadata)


def random_type(rng: random.Random, depth: int = 3, *, maps: bool = True, requests: bool = False) -> pa.DataType:
    def child(name: str) -> pa.Field:
        return random_field(rng, name, depth - 1, maps=maps, requests=requests)

    if depth == 0 or rng.random() < 0.4:
        return rng.choice(LEAVES)
    kind = rng.choice(["list", "large_list", "struct", "struct", "map" if maps else "list"])
    if kind == "list":
        return pa.list_(child("item"))
    if kind == "large_list":
        return pa.large_list(child("item"))
    if kind == "map":
        return pa.map_(rng.choice([pa.string(), pa.int32()]), child("value"))
    return pa.struct([child(f"f{i}") for i in range(rng.randint(1, 3))])


def random_value(rng: random.Random, kind: Any, nulls: float, variety: int, *, null_structs: bool = True) -> Any:
    types = pa.types
    if rng.random() < nulls and (null_structs or not types.is_struct(kind)):
        return None

    def value(of: Any, chance: float = nulls) -> Any:
        return random_value(rng, of, chance, variety, null_structs=null_structs)

    if types.is_null(kind):
        return None
    if types.is_map(kind):
        return [(value(kind.key_type, 0), value(kind.item_type)) for _ in range(rng.choice([0, 0, 1, 2, 5]))]
    if types.is_fixed_size_list(kind):
        chance = nulls if rng.random() < 0.3 else 0
        return [value(kind.value_type, chance) for _ in range(kind.list_size)]
    if types.is_list(kind) or types.is_large_list(kind):
        return [value(kind.value_type) for _ in range(rng.choice([0, 0, 1, 2, 5]))]
    if types.is_struct(kind):
        return {field.name: value(field.type) for field in kind}
    if types.is_dictionary(kind):
        # No more values than the narrowest indices can number.
        return random_value(rng, kind.value_type, 0, min(variety, 100), null_structs=null_structs)
    return _scalar(kind, rng.randint(0, variety))


def _scalar(kind: Any, number: int) -> Any:  # noqa: PLR0911  # one return per type
    types = pa.types
    if types.is_boolean(kind):
        return number % 2 == 0
    if types.is_floating(kind):
        return float(number % 2000)
    if types.is_integer(kind):
        return number % 120
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "é" * (number % 3) + str(number) * (1 if number % 50 else 100)
    if types.is_fixed_size_binary(kind):
        return bytes([number % 256]) * kind.byte_width
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return str(number).encode() * (number % 4)
    if types.is_date(kind):
        return dt.date(2020, 1, 1) + dt.timedelta(days=number % 10000)
    if types.is_timestamp(kind):
        zone = dt.UTC if kind.tz else None
        return dt.datetime(2020, 1, 1, tzinfo=zone) + dt.timedelta(seconds=number)
    if types.is_time(kind):
        return dt.time(1, 2, number % 60)
    if types.is_duration(kind):
        return dt.timedelta(seconds=number)
    assert types.is_decimal(kind), kind
    return decimal.Decimal(number % 10**kind.precision)


def random_table(
    seed: int, *, maps: bool = True, null_structs: bool = True, max_rows: int = 300, requests: bool = False
) -> pa.Table:
    """One column "c", sometimes a slice, sometimes chunked; with `requests` its fields ask for encodings."""
    rng = random.Random(seed)
    field = random_field(rng, "c", 3, maps=maps, requests=requests)
    kind = field.type
    num_rows = rng.choice([1, 2, 10, 100, max_rows])
    nulls, variety = rng.choice([0, 0, 0.1, 0.5, 1.0]), rng.choice([0, 3, 50, 10**6])
    values = [random_value(rng, kind, nulls, variety, null_structs=null_structs) for _ in range(num_rows)]
    array = pa.array(values, kind)
    if num_rows > 3 and rng.random() < 0.5:
        array = array.slice(1, num_rows - 2)
    if len(array) > 3 and rng.random() < 0.3:
        cut = rng.randint(1, len(array) - 1)
        array = pa.chunked_array([array.slice(0, cut), array.slice(cut)])
    return pa.table([array], schema=pa.schema([field]))
