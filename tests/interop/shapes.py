"""Rows of many shapes, and tables of them, for tests of whatever must keep them as they are."""

import datetime as dt

import lance
import numpy as np
import pyarrow as pa


def rows(start, count, *, nulls=True, version="2.2"):
    """Rows of many shapes; `id` counts from `start`. Structs cannot be null in 2.0."""
    null_structs = nulls and version != "2.0"
    rng = np.random.default_rng(start + 1)
    ids = np.arange(start, start + count)
    some = [None if nulls and i % 7 == 3 else int(i) for i in ids]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "maybe": pa.array(some, pa.int32()),
            "real": pa.array(rng.normal(size=count)),
            "word": pa.array([None if nulls and i % 11 == 5 else f"word {i % 13}" for i in ids], pa.string()),
            "text": pa.array([f"{i} " * int(i % 50) for i in ids]),
            "raw": pa.array([bytes([i % 256]) * int(i % 5) for i in ids]),
            "flag": pa.array([bool(i % 3) for i in ids]),
            "day": pa.array([dt.date(2024, 1, 1) + dt.timedelta(days=start // 1000)] * count),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 8, dtype=np.float32)), 8),
            "numbers": pa.array(
                [None if nulls and i % 17 == 2 else list(range(i % 4)) for i in ids.tolist()], pa.list_(pa.int32())
            ),
            "pair": pa.array(
                [None if null_structs and i % 19 == 4 else {"x": i, "y": f"y{i % 3}"} for i in ids.tolist()],
                pa.struct([("x", pa.int64()), ("y", pa.string())]),
            ),
            "pairs": pa.array(
                [[{"u": j, "w": [j] * (j % 3)} for j in range(i % 3)] for i in ids.tolist()],
                pa.list_(pa.struct([("u", pa.int64()), ("w", pa.list_(pa.int16()))])),
            ),
            "nothing": pa.nulls(count, pa.float64()),
        }
    )


def write(path, sizes, *, library=lance, version="2.2", **options):
    """Append fragments of these sizes."""
    start = 0
    for index, size in enumerate(sizes):
        part = rows(start, size, nulls=index != 1, version=version)
        library.write_dataset(part, path, mode="append", data_storage_version=version, **options)
        start += size
    return lance.dataset(path)
