"""Steps of random histories of which deltas are read."""

import pyarrow as pa

from tests.support.moves import move_all


def table(*ids, value=0):
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array([value] * len(ids), pa.int64())})


def take_step(library, uri, step, rng, start):
    dataset = library.dataset(uri)
    some = ",".join(map(str, rng.integers(0, start + 5, 4)))
    if step == "append":
        library.write_dataset(table(*range(start, start + 4)), uri, mode="append")
    elif step == "delete":
        dataset.delete(f"id in ({some})")
    elif step == "update":
        dataset.update({"n": f"n + {start}"}, where=f"id in ({some})")
    elif step == "merge":
        new = table(*sorted({int(i) for i in some.split(",")}), value=start)
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(new)
    elif step == "compact":
        dataset.optimize.compact_files()
    elif step == "move":
        move_all(uri)
    elif step == "restore":
        library.dataset(uri, version=int(rng.integers(1, dataset.version + 1))).restore()
    elif step == "overwrite":
        library.write_dataset(table(*range(start, start + 4)), uri, mode="overwrite")
    elif step == "column":
        name = f"c{dataset.version}"
        dataset.add_columns({name: "n + 1"})
        library.dataset(uri).drop_columns([name])
    elif step == "index":
        dataset.create_scalar_index("id", "BTREE", replace=True)
