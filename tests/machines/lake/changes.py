"""Changes of rows: what each does to a table, by either library, and to the model's rows.

The model's rows are a dict from the key `k` to the cells of the row, `v` and those of columns that were added; a cell that is
null is left out, so that columns without values do not count. A change of the model is a pure function. Each row also has a
vector `e`, words `w` and a list of structs `l`, which follow from its key.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import lance
import pyarrow as pa

Cells = tuple[tuple[str, int], ...]
Rows = dict[int, Cells]
_STRUCT = pa.struct([("a", pa.int64()), ("t", pa.string())])
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("v", pa.int64()),
        ("e", pa.list_(pa.float32(), 2)),
        ("w", pa.list_(pa.string())),
        ("l", pa.list_(_STRUCT)),
    ]
)
WORDS = ("w0", "w1", "w2", "all")
Names = list[str]
ZERO: Cells = (("v", 0),)


@dataclass(frozen=True)
class Change:
    """A change.

    Attributes:
        name: What it is called in the log.
        work: Does it, to an open table of either library.
        effect: What it does to the rows.
    """

    name: str
    work: Callable[[Any], object]
    effect: Callable[[Rows], Rows]


def vector_of(key: int) -> list[float]:
    """The vector of the row with a key; no two rows have the same."""
    return [float(key % 7), float(key)]


def words_of(key: int) -> list[str] | None:
    """The words of the row with a key: null, none, or up to two."""
    return None if key % 7 == 0 else [WORDS[key % 3], "all"][: key % 4]


def values_of(key: int) -> dict[str, Any]:
    """The values of the row with a key that follow from it, with nulls, empty lists and null fields."""
    structs = [{"a": None if i == 2 else key * i, "t": f"{key}-{i}" if i % 2 else None} for i in range(key % 4)]
    return {"e": vector_of(key), "w": words_of(key), "l": None if key % 5 == 0 else structs}


def table_of(rows: Rows) -> pa.Table:
    """New rows as Arrow has them."""
    return pa.Table.from_pylist(
        [{"k": key, "v": dict(cells)["v"], **values_of(key)} for key, cells in rows.items()], schema=SCHEMA
    )


def rows_of(table: pa.Table) -> Rows:
    """Rows as the model has them.

    Raises:
        ValueError: A key is there twice, or a row has values of another one.
    """
    rows = {}
    for row in table.to_pylist():
        key = row.pop("k")
        for name, expected in values_of(key).items():
            if (value := row.pop(name)) != expected:
                raise ValueError(f"the row {key} has {name} = {value}")
        rows[key] = tuple(sorted((name, value) for name, value in row.items() if value is not None))
    if len(rows) != table.num_rows:
        raise ValueError(f"{table.num_rows} rows have {len(rows)} keys")
    return rows


def changed(cells: Cells, **values: int | None) -> Cells:
    """Cells with other values; None removes one."""
    return tuple(sorted((name, value) for name, value in {**dict(cells), **values}.items() if value is not None))


def value_of(cells: Cells, name: str = "v") -> int:
    """The value of a cell that is there."""
    return dict(cells)[name]


def _append(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    del rows, names
    new = dict.fromkeys(fresh(random.randint(1, 6)), ZERO)
    return Change(f"append {list(new)}", lambda table: table.insert(table_of(new)), lambda rows: {**rows, **new})


def _delete(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    del fresh, rows, names
    divisor = random.randint(2, 5)
    rest = random.randint(0, divisor)  # no key has the last one
    return Change(
        f"delete k % {divisor} = {rest}",
        lambda table: table.delete(f"k % {divisor} = {rest}"),
        lambda rows: {k: v for k, v in rows.items() if k % divisor != rest},
    )


def _update(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    del fresh, rows, names
    divisor = random.randint(1, 4)
    return Change(
        f"update k % {divisor} = 0",
        lambda table: table.update({"v": "v + 1"}, f"k % {divisor} = 0"),
        lambda rows: {
            k: changed(cells, v=value_of(cells) + 1) if k % divisor == 0 else cells for k, cells in rows.items()
        },
    )


def _merge(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    del names
    new = fresh(random.randint(0, 3))
    keys = sorted({*random.sample(sorted(rows), min(len(rows), 4)), *new})
    value = random.randint(100, 999)
    source = dict.fromkeys(keys, changed((), v=value))

    def work(table: Any) -> object:
        return table.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(table_of(source))

    def effect(old: Rows) -> Rows:
        return {**old, **{k: changed(old.get(k, ()), v=value) for k in keys}}

    return Change(f"merge {keys} = {value}", work, effect)


def _index(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    del fresh, rows, names
    kind = random.choice(["BTREE", "ZONEMAP", "BITMAP", "LABEL_LIST"])
    column = "w" if kind == "LABEL_LIST" else random.choice(["k", "v"])
    return Change(
        f"index {kind} of {column}", lambda table: table.create_scalar_index(column, kind, replace=True), dict
    )


def _index_vectors(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    """An index that only pylance builds; lance_core has to keep it right."""
    del random, fresh, names

    def work(table: Any) -> None:
        if isinstance(table, lance.LanceDataset) and rows:
            table.create_index("e", "IVF_FLAT", num_partitions=1, replace=True)

    return Change("index IVF_FLAT of e", work, dict)


def _optimize(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    del random, fresh, rows, names
    return Change("optimize indices", lambda table: table.optimize.optimize_indices(), dict)


def _compact(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    del fresh, rows, names
    return compact(random)


def compact(random: Random) -> Change:
    """A compaction."""
    size = random.choice([4, 1000])
    return Change(f"compact to {size}", lambda table: table.optimize.compact_files(target_rows_per_fragment=size), dict)


def _configure(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    del fresh, rows, names
    value = str(random.randint(0, 99))
    return Change(f"configure {value}", lambda table: table.update_config({"lake": value}), dict)


def _add(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    """Add a column, of values or of nulls; no column has its name again."""
    del rows, names
    name = f"c{fresh(1)[0]}"
    if random.random() < 0.4:
        return Change(f"add {name} of nulls", lambda table: table.add_columns(pa.field(name, pa.int64())), dict)
    factor = random.randint(1, 9)
    return Change(
        f"add {name} = k * {factor} + v",
        lambda table: table.add_columns({name: f"k * {factor} + v"}),
        lambda rows: {k: changed(cells, **{name: k * factor + value_of(cells)}) for k, cells in rows.items()},
    )


def _drop(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    if not names:
        return _add(random, fresh, rows, names)
    name = random.choice(names)
    return Change(
        f"drop {name}",
        lambda table: table.drop_columns([name]),
        lambda rows: {k: changed(cells, **{name: None}) for k, cells in rows.items()},
    )


def _rename(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    if not names:
        return _add(random, fresh, rows, names)
    name, new = random.choice(names), f"c{fresh(1)[0]}"
    return Change(
        f"rename {name} to {new}",
        lambda table: table.alter_columns({"path": name, "name": new}),
        lambda rows: {k: changed(cells, **{name: None, new: dict(cells).get(name)}) for k, cells in rows.items()},
    )


def _cast(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    if not names:
        return _add(random, fresh, rows, names)
    name, kind = random.choice(names), random.choice([pa.int32(), pa.int64()])
    return Change(f"cast {name} to {kind}", lambda table: table.alter_columns({"path": name, "data_type": kind}), dict)


def _update_added(random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names) -> Change:
    if not names:
        return _update(random, fresh, rows, names)
    name, rest = random.choice(names), random.randint(0, 2)

    def effect(rows: Rows) -> Rows:
        return {
            k: changed(cells, **{name: value_of(cells, name) + 1}) if k % 3 == rest and name in dict(cells) else cells
            for k, cells in rows.items()
        }

    return Change(
        f"update {name} where k % 3 = {rest}",
        lambda table: table.update({name: f"{name} + 1"}, f"k % 3 = {rest}"),
        effect,
    )


_WEIGHTS = {
    _append: 6, _delete: 3, _update: 4, _merge: 4, _index: 2, _index_vectors: 2, _optimize: 1, _compact: 3, _configure: 1,
    _add: 2, _drop: 1, _rename: 1, _cast: 1, _update_added: 1,
}  # fmt: skip


_QUIET = (_configure, _add, _drop, _rename, _cast)


def draw(
    random: Random, fresh: Callable[[int], list[int]], rows: Rows, names: Names, *, is_quiet: bool = False
) -> Change:
    """Draw a change.

    Args:
        random: The source of numbers.
        fresh: Gives new keys.
        rows: The rows that the table has.
        names: The columns that the table has beside `k` and `v`.
        is_quiet: Whether it changes settings or columns, so that it may write no file of its own.
    """
    (make,) = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
    if is_quiet:
        make = random.choice(_QUIET)
    return make(random, fresh, rows, names)
