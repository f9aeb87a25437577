"""LIKE with backslashes, beside pylance: Arrow's own LIKE takes an escape for a character at the ends of a pattern."""

import itertools

import lance
import pyarrow as pa

import lance_core

CHARACTERS = "a\\%_"


def test_patterns_with_escapes(tmp_path):
    values = ["".join(one) for count in range(4) for one in itertools.product("a\\%_\n", repeat=count)]
    lance_core.write_dataset(pa.table({"s": values}), tmp_path / "t")
    tables = [library.dataset(str(tmp_path / "t")) for library in (lance, lance_core)]
    for count in range(4):
        for one in itertools.product(CHARACTERS, repeat=count):
            pattern = "".join(one)
            found = [table.to_table(filter=f"s LIKE '{pattern}'")["s"].to_pylist() for table in tables]
            assert found[0] == found[1], pattern
