"""The public API as typed code uses it; checked with `mypy --strict`, and run."""

from datetime import timedelta

import pyarrow as pa

import lance_core as lance
from lance_core.schema import LanceSchema


def main(uri: str) -> int:
    """Each verb once."""
    table = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
    dataset: lance.LanceDataset = lance.write_dataset(table, uri, commit_message="first")
    deleted: int = dataset.delete("id = 1", conflict_retries=3, retry_timeout=timedelta(seconds=5))["num_deleted_rows"]
    updated: int = dataset.update({"name": "concat(name, '!')"}, where="id = 2")["num_rows_updated"]
    stats: dict[str, int] = (
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table)
    )
    transaction, _ = dataset.merge_insert(["id"]).when_matched_delete().execute_uncommitted(table.slice(0, 1))
    dataset = lance.LanceDataset.commit(dataset, transaction)
    dataset.add_columns({"double": "id * 2"})
    dataset.add_columns(pa.field("empty", pa.string()))
    dataset.alter_columns({"path": "double", "name": "twice"}, {"path": "id", "data_type": pa.int32()})
    dataset.drop_columns(["empty"])
    schema: LanceSchema = dataset.lance_schema
    names: list[str] = [field.name() for field in schema.fields()]
    dataset.tags.create("v1", 1)
    branch: lance.LanceDataset = dataset.create_branch("work", "v1")
    branch.insert(table)
    version: int = dataset.checkout_version(("work", None)).version
    dataset.update_config({"k": "v", "old": None})
    clone = dataset.shallow_clone(f"{uri}-clone", (None, None))
    operation = lance.LanceOperation.Append([lance.LanceFragment.create(uri, dataset.to_table())])
    after = lance.LanceDataset.commit(uri, operation, read_version=dataset.version, max_retries=3)
    last: lance.Transaction | None = after.read_transaction(after.version)
    assert last is not None
    assert last.operation.name == "Append"
    return deleted + updated + stats["num_inserted_rows"] + len(names) + version + clone.count_rows()
