"""Tables with random histories by both libraries: appends, deletions, indices of all kinds, tags, compactions."""

import random

import lance
import numpy as np
import pyarrow as pa

import lance_core
from lance_core.errors import LanceError

SCALAR = ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER", "NGRAM", "INVERTED")
COLUMN = {"BTREE": "n", "BITMAP": "k", "ZONEMAP": "n", "BLOOMFILTER": "n", "NGRAM": "s", "INVERTED": "s"}


def some_rows(draw, count):
    vectors = np.random.default_rng(draw.randrange(2**32)).random((count, 4), np.float32)
    first = draw.randrange(10_000)
    return pa.table({
        "n": pa.array(range(first, first + count), pa.int64()),
        "k": pa.array([draw.choice((1, 2, 3, None)) for _ in range(count)], pa.int32()),
        "s": [f"word{draw.randrange(9)} here" for _ in range(count)],
        "v": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 4),
    })  # fmt: skip


def either(draw):
    """One of the two libraries."""
    return draw.choice((lance, lance_core))


def append(draw, uri):
    count = draw.choice((1, 3, 20, 20, 20, 100, 600))
    either(draw).write_dataset(some_rows(draw, count), uri, mode="append", max_rows_per_file=draw.choice((50, 10_000)))


def append_often(draw, uri):
    for _ in range(draw.randint(3, 7)):
        either(draw).write_dataset(some_rows(draw, 20), uri, mode="append")


def delete_some(draw, uri):
    low = draw.randrange(10_000)
    condition = draw.choice((f"n >= {low} and n < {low + 2000}", f"n % {draw.choice((2, 5, 40))} = 0", "k = 2"))
    either(draw).dataset(uri).delete(condition)


def update_some(draw, uri):
    either(draw).dataset(uri).update({"k": "7"}, where=f"n % {draw.choice((3, 30))} = 1")


def create_index(draw, uri):
    kind = draw.choice((*SCALAR, "IVF_FLAT"))
    if kind == "IVF_FLAT":
        lance.dataset(uri).create_index("v", kind, num_partitions=1, name="vectors", replace=True)
        return
    library = lance_core if kind in ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER") and draw.random() < 0.5 else lance
    library.dataset(uri).create_scalar_index(COLUMN[kind], kind, name=kind.lower(), replace=True)


def optimize_indices(draw, uri):
    either(draw).dataset(uri).optimize.optimize_indices(num_indices_to_merge=draw.choice((0, 1)))


def compact(draw, uri):
    library = either(draw)
    library.dataset(uri).optimize.compact_files(target_rows_per_fragment=draw.choice((40, 1000)))


def configure(draw, uri):
    lance_core.dataset(uri).update_config(
        {"lance.compaction.target_rows_per_fragment": draw.choice(("1", "30", "250"))}
    )


def tag(draw, uri):
    table = either(draw).dataset(uri)
    table.tags.create(f"t{table.version}", table.version)


def branch(draw, uri):
    table = lance_core.dataset(uri)
    table.create_branch(f"b{table.version}")


def overwrite(draw, uri):
    either(draw).write_dataset(some_rows(draw, 50), uri, mode="overwrite")


def add_column(draw, uri):
    table = either(draw).dataset(uri)
    table.add_columns({f"c{table.version}": "n + 1"})


def restore(draw, uri):
    table = lance_core.dataset(uri)
    table.checkout_version(draw.choice(table.versions())["version"]).restore()


STEPS = (
    (append, 5), (append_often, 4), (delete_some, 3), (update_some, 2), (create_index, 5), (optimize_indices, 1),
    (compact, 1), (configure, 1), (tag, 1), (branch, 1), (overwrite, 1), (add_column, 1), (restore, 1),
)  # fmt: skip


def build(seed, uri):
    """Build a table, and return the names of its steps; steps that cannot be done in its state are left out."""
    draw = random.Random(seed)
    stable = draw.random() < 0.4
    either(draw).write_dataset(some_rows(draw, draw.choice((1, 50, 600))), uri, enable_stable_row_ids=stable)
    done = ["stable row ids" if stable else "row addresses"]
    functions, weights = zip(*STEPS, strict=True)
    for step in draw.choices(functions, weights, k=draw.randint(2, 12)):
        try:
            step(draw, uri)
        except (LanceError, OSError, ValueError, RuntimeError, NotImplementedError) as error:
            done.append(f"{step.__name__}: {str(error)[:80]}")
        else:
            done.append(step.__name__)
    return done
