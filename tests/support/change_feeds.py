"""Random versions of a table by pylance, with the rows of each."""

import random

import pyarrow as pa


def rows(*ids, n=0):
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array([n] * len(ids), pa.int64())})


def write(lance, uri, seed, versions=8):
    """Random versions by pylance; returns the rows of each version as {id: n}."""
    rng, model = random.Random(seed), dict.fromkeys(range(20), 0)
    lance.write_dataset(rows(*model), uri, enable_stable_row_ids=True, max_rows_per_file=6)
    states = {0: {}, 1: dict(model)}
    while lance.dataset(uri).version < versions:
        dataset, some = lance.dataset(uri), rng.sample(sorted(model), min(3, len(model)))
        before, listed, fresh = dataset.version, ", ".join(map(str, some)), 100 * dataset.version
        match rng.choice(["append", "update", "delete", "merge", "compact"]):
            case "append":
                lance.write_dataset(rows(fresh, fresh + 1), uri, mode="append")
                model |= {fresh: 0, fresh + 1: 0}
            case "update":
                dataset.update({"n": "n + 1"}, where=f"id in ({listed})")
                model |= {i: model[i] + 1 for i in some}
            case "delete":
                dataset.delete(f"id in ({listed})")
                model = {i: n for i, n in model.items() if i not in some}
            case "merge":
                merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                merge.execute(rows(*some, fresh + 2, n=before))
                model |= dict.fromkeys((*some, fresh + 2), before)
            case "compact":
                dataset.optimize.compact_files()
        now = lance.dataset(uri)
        for version in range(before + 1, now.version + 1):
            states[version] = dict(model)
    return states
