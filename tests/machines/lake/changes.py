"""Changes of rows: what each does to a table, by either library, and to the model's rows.

The model's rows are a dict from the key `k` to the value `v`. A change of the model is a pure function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa

Rows = dict[int, int]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


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


def table_of(rows: Rows) -> pa.Table:
    """Rows as Arrow has them."""
    return pa.table({"k": list(rows), "v": list(rows.values())}, schema=SCHEMA)


def rows_of(table: pa.Table) -> Rows:
    """Rows as the model has them.

    Raises:
        ValueError: A key is there twice.
    """
    keys = table["k"].to_pylist()
    rows = dict(zip(keys, table["v"].to_pylist(), strict=True))
    if len(rows) != len(keys):
        raise ValueError(f"{len(keys)} rows have {len(rows)} keys")
    return rows


def _append(random: Random, fresh: Callable[[int], list[int]], rows: Rows) -> Change:
    del rows
    new = dict.fromkeys(fresh(random.randint(1, 6)), 0)
    return Change(f"append {list(new)}", lambda table: table.insert(table_of(new)), lambda rows: {**rows, **new})


def _delete(random: Random, fresh: Callable[[int], list[int]], rows: Rows) -> Change:
    del fresh, rows
    divisor, rest = random.randint(2, 5), random.randint(0, 4)
    rest %= divisor
    return Change(
        f"delete k % {divisor} = {rest}",
        lambda table: table.delete(f"k % {divisor} = {rest}"),
        lambda rows: {k: v for k, v in rows.items() if k % divisor != rest},
    )


def _update(random: Random, fresh: Callable[[int], list[int]], rows: Rows) -> Change:
    del fresh, rows
    divisor = random.randint(1, 4)
    return Change(
        f"update k % {divisor} = 0",
        lambda table: table.update({"v": "v + 1"}, f"k % {divisor} = 0"),
        lambda rows: {k: v + (k % divisor == 0) for k, v in rows.items()},
    )


def _merge(random: Random, fresh: Callable[[int], list[int]], rows: Rows) -> Change:
    new = fresh(random.randint(0, 3))
    keys = sorted({*random.sample(sorted(rows), min(len(rows), 4)), *new})
    value = random.randint(100, 999)
    source = dict.fromkeys(keys, value)

    def work(table: Any) -> object:
        return table.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(table_of(source))

    return Change(f"merge {keys} = {value}", work, lambda old: {**old, **source})


def _index(random: Random, fresh: Callable[[int], list[int]], rows: Rows) -> Change:
    del fresh, rows
    kind = random.choice(["BTREE", "ZONEMAP", "BITMAP"])
    column = random.choice(["k", "v"])
    return Change(
        f"index {kind} of {column}", lambda table: table.create_scalar_index(column, kind, replace=True), dict
    )


def _optimize(random: Random, fresh: Callable[[int], list[int]], rows: Rows) -> Change:
    del random, fresh, rows
    return Change("optimize indices", lambda table: table.optimize.optimize_indices(), dict)


def _compact(random: Random, fresh: Callable[[int], list[int]], rows: Rows) -> Change:
    del fresh, rows
    size = random.choice([4, 1000])
    return Change(f"compact to {size}", lambda table: table.optimize.compact_files(target_rows_per_fragment=size), dict)


def _configure(random: Random, fresh: Callable[[int], list[int]], rows: Rows) -> Change:
    del fresh, rows
    value = str(random.randint(0, 99))
    return Change(f"configure {value}", lambda table: table.update_config({"lake": value}), dict)


_WEIGHTS = {
    _append: 6, _delete: 3, _update: 4, _merge: 4, _index: 2, _optimize: 1, _compact: 3, _configure: 1,
}  # fmt: skip


def draw(random: Random, fresh: Callable[[int], list[int]], rows: Rows) -> Change:
    """Draw a change.

    Args:
        random: The source of numbers.
        fresh: Gives new keys.
        rows: The rows that the table has.
    """
    (make,) = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
    return make(random, fresh, rows)
