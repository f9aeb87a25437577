"""Change a table with every verb, and clean it up after each: `churner.py URI WRITER COUNT LOG OPTIONS_JSON`.

Each writer has keys of its own, and all of them count in one row. What a writer is about to do is logged, and then
whether it was acknowledged, rejected, or is not known, so that a reader of the logs knows which rows must be there.
"""

import contextlib
import json
import random
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

import lance_core
from lance_core.errors import CommitConflictError, InvalidInputError, NotFoundError, OutcomeUnknownError, StoreError

KEYS_PER_WRITER = 1_000_000
COUNTER = -1
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
_WEIGHTS = {
    "append": 6,
    "count": 5,
    "merge": 4,
    "delete": 3,
    "compact": 2,
    **dict.fromkeys(("index", "config", "tag", "add_column", "drop_column", "rename_column"), 1),
}
_AGES = ({"retain_versions": 1}, {"older_than": timedelta(microseconds=1)}, {"older_than": timedelta(0)})


class Churner:
    def __init__(self, uri, writer, log, options):
        self.uri, self.options, self.log = uri, options, log
        self.writer = writer
        self.keys = []
        self.next = writer * KEYS_PER_WRITER
        self.random = random.Random(writer)

    def note(self, **entry):
        self.log.write(json.dumps(entry) + "\n")
        self.log.flush()

    def step(self):
        verb = self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        dataset = self.open()
        fact, change = getattr(self, verb)(dataset)
        self.note(verb=verb, **fact)
        try:
            change()
        except OutcomeUnknownError:
            self.note(unknown=verb)
        except (CommitConflictError, NotFoundError):
            self.note(rejected=verb)
        except StoreError:
            if not self.options.get("manifest_store", "").startswith("postgresql:"):
                raise
            self.note(rejected=verb)  # the connection was cut before the commit
        except InvalidInputError:
            if verb in ("append", "count", "merge", "delete"):
                raise
            self.note(rejected=verb)  # the column or tag of another writer
        else:
            self.note(done=verb)
            self.keys += fact.get("added", [])
        with contextlib.suppress(NotFoundError, CommitConflictError, StoreError):
            arguments = self.random.choice(_AGES)
            self.open().cleanup_old_versions(error_if_tagged_old_versions=False, **arguments)

    def open(self):
        while True:
            try:
                return lance_core.dataset(self.uri, storage_options=self.options)
            except (NotFoundError, StoreError):
                continue  # cleaned up since the latest version was looked for, or the connection was cut

    def append(self, dataset):
        key, self.next = self.next, self.next + 1
        return {"added": [key]}, lambda: dataset.insert(rows(key))

    def merge(self, dataset):
        key, self.next = self.next, self.next + 1
        merge = dataset.merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
        return {"added": [key]}, lambda: merge.execute(rows(key))

    def count(self, dataset):
        return {"count": 1}, lambda: dataset.update({"v": "v + 1"}, f"k = {COUNTER}")

    def delete(self, dataset):
        if not self.keys:
            return self.count(dataset)
        key = self.keys.pop(self.random.randrange(len(self.keys)))
        return {"deleted": [key]}, lambda: dataset.delete(f"k = {key}")

    def compact(self, dataset):
        return {}, lambda: dataset.optimize.compact_files(target_rows_per_fragment=50)

    def index(self, dataset):
        return {}, lambda: dataset.create_scalar_index("k", "BTREE", replace=True)

    def config(self, dataset):
        return {}, lambda: dataset.update_config({f"writer-{self.writer}": str(self.next)})

    def tag(self, dataset):
        def change():
            name = f"tag-{self.writer}"
            if name in dataset.tags.list():
                dataset.tags.delete(name)
            else:
                dataset.tags.create(name, dataset.version)

        return {}, change

    def add_column(self, dataset):
        return {}, lambda: dataset.add_columns({f"c{self.writer}": "k + 1"})

    def rename_column(self, dataset):
        return {}, lambda: dataset.alter_columns({"path": f"c{self.writer}", "name": f"d{self.writer}"})

    def drop_column(self, dataset):
        names = [name for name in dataset.schema.names if name in (f"c{self.writer}", f"d{self.writer}")]
        return {}, lambda: dataset.drop_columns(names) if names else None


def rows(*keys):
    return pa.table({"k": keys, "v": [0] * len(keys)}, schema=SCHEMA)


def main(uri, writer, count, log, options):
    with Path(log).open("w") as file:
        churner = Churner(uri, int(writer), file, json.loads(options))
        for _ in range(int(count)):
            churner.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
