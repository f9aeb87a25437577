"""Change a table until a file appears: `mixer.py lance_core|lance URI WRITER END LOG OPTIONS_JSON`.

Each writer has keys of its own. Before a change it logs what will be true of its keys afterwards, and after the change
whether it was acknowledged, so that a reader of the log knows which rows must be there even if the writer was killed.
"""

import importlib
import json
import random
import sys
from pathlib import Path

import pyarrow as pa

KEYS_PER_WRITER = 1_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
_REFUSALS = ("conflict", "concurrent", "retr")
_WEIGHTS = {"append": 4, "delete": 2, "update": 3, "compact": 1}


class Mixer:
    def __init__(self, library, uri, writer, log, options):
        self.dataset = library.dataset(uri, storage_options=options)
        self.first = writer * KEYS_PER_WRITER
        self.count = 0
        self.rows: dict[int, int] = {}
        self.log = log
        self.random = random.Random(writer)

    def note(self, **entry):
        self.log.write(json.dumps(entry) + "\n")
        self.log.flush()

    def step(self):
        verb = self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        rows, change = getattr(self, verb)()
        self.note(verb=verb, rows=rows)
        try:
            change()
        except Exception as error:
            if not any(word in str(error).lower() for word in _REFUSALS):
                raise
            self.note(rejected=verb)
            self.dataset.checkout_latest()
        else:
            self.note(done=verb)
            self.rows = rows

    def append(self):
        keys = range(self.first + self.count, self.first + self.count + 5)
        self.count += 5
        table = pa.table({"k": keys, "v": [0] * 5}, schema=SCHEMA)
        return {**self.rows, **dict.fromkeys(keys, 0)}, lambda: self.dataset.insert(table)

    def delete(self):
        keys = self.chosen(2)
        rows = {k: v for k, v in self.rows.items() if k not in keys}
        return rows, lambda: self.dataset.delete(in_list(keys))

    def update(self):
        keys = self.chosen(4)
        rows = {k: v + (k in keys) for k, v in self.rows.items()}
        return rows, lambda: self.dataset.update({"v": "v + 1"}, in_list(keys))

    def compact(self):
        def change():
            self.dataset.checkout_latest()
            self.dataset.optimize.compact_files(target_rows_per_fragment=100)

        return self.rows, change

    def chosen(self, count):
        return set(self.random.sample(sorted(self.rows), min(count, len(self.rows))))


def in_list(keys):
    return f"k in ({', '.join(map(str, sorted(keys) or [-2]))})"


def main(library, uri, writer, end, log, options):
    with Path(log).open("w") as file:
        mixer = Mixer(importlib.import_module(library), uri, int(writer), file, json.loads(options))
        while not Path(end).exists():
            mixer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
