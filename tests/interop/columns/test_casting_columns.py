"""Casts of columns of times and decimals: as pylance does them, unless a part of a value would be lost."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, SchemaError

DAY = 86_400
TYPES = [
    pa.timestamp("s"),
    pa.timestamp("ms"),
    pa.timestamp("us"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us", "Europe/Paris"),
    pa.timestamp("ms", "+02:00"),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.duration("s"),
    pa.duration("ms"),
    pa.duration("ns"),
    pa.decimal128(5, 0),
    pa.decimal128(5, 2),
    pa.decimal128(10, 2),
    pa.decimal128(10, 4),
    pa.decimal256(40, 2),
]
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def whole_values(kind):
    """Values that every type of the same kind can hold: whole days of the epoch, hours of a day, small numbers."""
    if pa.types.is_decimal(kind):
        return pa.array([None, 0, 17, -5, 0], pa.int32()).cast(pa.decimal128(12, 0)).cast(kind)
    if pa.types.is_date(kind):
        return pa.array([None, 0, 19_000, -3, 1], pa.int32()).cast(pa.date32()).cast(kind)
    seconds = [None, 0, 3600, 7200, 1] if pa.types.is_time(kind) else [None, 0, 19_000 * DAY, -3 * DAY, DAY]
    storage = pa.int32() if pa.types.is_time32(kind) else pa.int64()
    return pa.array([s if s is None else s * PER_SECOND[kind.unit] for s in seconds], storage).cast(kind)


@pytest.mark.variants(6)
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_casts_are_those_of_pylance(tmp_path, source):
    table = pa.table({"k": range(5), "x": whole_values(source)})
    done = 0
    for number, target in enumerate(kind for kind in TYPES if kind != source):
        uris = [str(tmp_path / f"{library.__name__}{number}") for library in (lance, lance_core)]
        theirs, ours = (lib.write_dataset(table, uri) for lib, uri in zip((lance, lance_core), uris, strict=True))
        change = {"path": "x", "data_type": target}
        is_day_of_zone = target == pa.date64() and getattr(source, "tz", None)
        try:
            theirs.alter_columns(change)
        except Exception:  # noqa: BLE001  # whatever it raises, it does not cast
            with pytest.raises((SchemaError, InvalidInputError)):
                ours.alter_columns(change)
            continue
        if is_day_of_zone:
            # pylance takes the day of UTC here, and that of the zone for date32.
            with pytest.raises(SchemaError, match="Cannot cast column"):
                ours.alter_columns(change)
            continue
        ours.alter_columns(change)
        assert ours.to_table().equals(theirs.to_table()), target
        assert lance.dataset(ours.uri).to_table().equals(theirs.to_table())
        done += 1
    assert done


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (pa.array([1_001], pa.timestamp("ms")), pa.timestamp("s")),
        (pa.array([1], pa.duration("ns")), pa.duration("us")),
        (pa.array([1_001], pa.time64("us")), pa.time32("ms")),
        (pa.array(["1.55"]).cast(pa.decimal128(5, 2)), pa.decimal128(5, 1)),
        (pa.array([99_999]).cast(pa.decimal128(19, 0)), pa.decimal128(4, 0)),
        (pa.array([2**62], pa.timestamp("s")), pa.timestamp("ns")),
    ],
    ids=str,
)
def test_casts_that_would_lose_a_part_of_a_value_are_rejected(tmp_path, values, target):
    dataset = lance_core.write_dataset(pa.table({"k": [1], "x": values}), tmp_path / "t")
    with pytest.raises(InvalidInputError, match="alter_columns"):
        dataset.alter_columns({"path": "x", "data_type": target})
    assert dataset.version == lance_core.dataset(tmp_path / "t").version == 1


def test_casts_inside_structs(tmp_path):
    array = pa.array([{"at": 5, "n": 1}, None], pa.struct([("at", pa.timestamp("s")), ("n", pa.decimal128(5, 2))]))
    dataset = lance_core.write_dataset(pa.table({"s": array}), tmp_path / "t")
    dataset.alter_columns(
        {"path": "s.at", "data_type": pa.timestamp("ms", "Europe/Paris")},
        {"path": "s.n", "data_type": pa.decimal128(8, 3)},
    )
    assert lance.dataset(dataset.uri).to_table() == dataset.to_table()
    assert str(dataset.to_table()["s"][0].as_py()["at"]) == "1970-01-01 00:00:05+01:00"
