"""Change tables of a lake until a file appears: `lake_writer.py lance_core|lance ROOT WRITER FOLDER OPTIONS_JSON`.

FOLDER/tables.json lists the tables. Each writer has keys of its own in each table; at its end it writes which of them
must be there, with their values, to FOLDER/writer-WRITER.json.
"""

import collections
import importlib
import json
import random
import sys
import time
from pathlib import Path

import pyarrow as pa

KEYS_PER_WRITER = 1_000_000
PAUSE_S = 0.15
"""Between two changes: the daemon and its runs share the processors."""
_REFUSALS = ("conflict", "concurrent", "retr")
_WEIGHTS = {"append": 5, "delete": 2, "update": 2}


def batch(schema, keys):
    """Rows of a schema with these keys; `v` is 0."""
    values = {"k": list(keys), "v": [0] * len(keys)}
    rest = {
        field.name: [f"word{key % 7} of {key}" if field.type == pa.string() else key / 3 for key in keys]
        for field in schema
        if field.name not in values
    }
    return pa.table({**values, **rest}, schema=schema)


def changed(dataset, verb, rows, first, draw):
    """Make one change of a table; returns the rows of this writer after it."""
    if verb == "append" or not rows:
        keys = range(max(rows, default=first - 1) + 1, max(rows, default=first - 1) + 6)
        dataset.insert(batch(dataset.schema, keys))
        return {**rows, **dict.fromkeys(keys, 0)}
    some = draw.sample(sorted(rows), min(3, len(rows)))
    where = f"k in ({', '.join(map(str, some))})"
    if verb == "delete":
        dataset.delete(where)
        return {key: value for key, value in rows.items() if key not in some}
    dataset.update({"v": "v + 1"}, where)
    return {key: value + (key in some) for key, value in rows.items()}


def main(library, root, writer, folder, options):
    module, draw, given = importlib.import_module(library), random.Random(int(writer)), json.loads(options) or None
    first, rows, counts = int(writer) * KEYS_PER_WRITER, collections.defaultdict(dict), collections.Counter()
    tables = json.loads(Path(folder, "tables.json").read_text())
    while not Path(folder, "end").exists():
        path = draw.choice(tables)
        verb = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        time.sleep(PAUSE_S)
        dataset = module.dataset(f"{root}/{path}.lance", storage_options=given)
        try:
            rows[path] = changed(dataset, verb, rows[path], first, draw)
            counts[verb] += 1
        except Exception as error:
            if not any(word in str(error).lower() for word in _REFUSALS):
                raise RuntimeError(f"{verb} of {path}") from error
            counts[f"{verb} rejected"] += 1
    Path(folder, f"writer-{writer}.json").write_text(json.dumps({"rows": rows, "counts": counts}))


if __name__ == "__main__":
    main(*sys.argv[1:])
