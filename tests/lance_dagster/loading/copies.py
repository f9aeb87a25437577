"""A table that others write, and an asset that copies its changes: what tests of incremental inputs share."""

import datetime as dt

import dagster as dg
import lance
import pyarrow as pa

SINCE = {"lance/changes": "since_last_run"}
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-05")
ONE, TWO, THREE = (dt.date(2024, 1, day) for day in (1, 2, 3))


def rows(*ids, n=0, day=None):
    columns = {"id": pa.array(ids, pa.int64()), "n": pa.array([n] * len(ids), pa.int64())}
    return pa.table(columns if day is None else {**columns, "day": pa.array([day] * len(ids), pa.date32())})


@dg.asset
def source() -> pa.Table:
    raise AssertionError("others write it")


class Copy:
    """An asset that merges what changed, and keeps what it was given."""

    def __init__(self, kind=pa.Table, partitions=None, key="id", fails=(), **metadata):
        self.given, self.fails = [], list(fails)
        merge = {"lance/write_mode": "merge", "lance/merge_on": key}
        metadata = {f"lance/{name}": value for name, value in metadata.items()} or merge
        if partitions is not None:
            metadata["partition_expr"] = "day"
        upstream = dg.asset(
            name="source", partitions_def=partitions, metadata={"partition_expr": "day"} if partitions else {}
        )(lambda: None)

        @dg.asset(name="copy", ins={"source": dg.AssetIn(metadata=SINCE)}, metadata=metadata, partitions_def=partitions)
        def copy(source: kind):
            table = source if isinstance(source, pa.Table) else as_arrow(source)
            self.given.append(sorted((row["id"], row["n"], row["_change_type"][:6]) for row in table.to_pylist()))
            if self.fails and self.fails.pop(0) == "before":
                raise dg.Failure("before")
            return source

        self.assets = [upstream, copy]

    def run(self, lake, **options):
        result = lake.run(*self.assets, select=["copy"], **options)
        return self.given[-1] if self.given else None, result


def as_arrow(value):
    if hasattr(value, "toArrow"):
        return value.toArrow()
    if hasattr(value, "collect"):
        value = value.collect()
    return value.to_arrow() if hasattr(value, "to_arrow") else pa.Table.from_pandas(value, preserve_index=False)


def change(lake):
    """By pylance: one row each is updated, deleted and inserted, and the table is compacted."""
    uri = lake.uri("source")
    lance.dataset(uri).update({"n": "n + 10"}, where="id = 2")
    lance.dataset(uri).delete("id = 1")
    lance.write_dataset(rows(4), uri, mode="append")
    lance.dataset(uri).optimize.compact_files()


ALL = [(1, 0, "insert"), (2, 0, "insert"), (3, 0, "insert")]
CHANGED = [(1, 0, "delete"), (2, 10, "update"), (4, 0, "insert")]
