"""Set the column `text` of rows in place by operations of pylance, without a change of the other columns."""

import uuid
from pathlib import Path

import lance
import pyarrow as pa


def replace_data(uri, key, texts, *, by=lance, branch=None):
    """Set texts by key in the first fragment by a DataReplacement; returns the keys of its rows that were set."""
    dataset = lance.dataset(uri).checkout_version((branch, None))
    fragment = dataset.get_fragments()[0]
    rows = fragment.to_table([key, "text"], with_row_address=True).to_pylist()
    values = [""] * fragment.metadata.physical_rows
    for row in rows:
        values[row["_rowaddr"] & 0xFFFFFFFF] = texts.get(row[key], row["text"])
    path = Path(dataset.uri, "data", f"{uuid.uuid4()}.lance")
    with lance.file.LanceFileWriter(str(path), version=dataset.data_storage_version) as writer:
        writer.write_batch(pa.table({"text": values}))
    (field,) = [field.id() for field in dataset.lance_schema.fields() if field.name() == "text"]
    major, minor = map(int, dataset.data_storage_version.split("."))
    file = by.fragment.DataFile(path.name, [field], [0], major, minor, path.stat().st_size)
    operation = by.LanceOperation.DataReplacement([by.LanceOperation.DataReplacementGroup(fragment.fragment_id, file)])
    by.LanceDataset.commit(dataset if by is lance else uri, operation, read_version=dataset.version)
    return {row[key] for row in rows} & texts.keys()


def update_columns(uri, key, texts, *, with_offsets=False, branch=None):
    """Set texts by key in the first fragment; without offsets the Update does not record which rows changed."""
    dataset = lance.dataset(uri).checkout_version((branch, None))
    fragment = dataset.get_fragments()[0]
    present = {row[key] for row in fragment.to_table([key]).to_pylist()} & texts.keys()
    if not present:
        return present
    rows = pa.table({key: sorted(present), "text": [texts[name] for name in sorted(present)]})
    metadata, fields, *more = fragment.update_columns(rows, key, key, with_offsets=with_offsets)
    offsets = {"updated_fragment_offsets": {fragment.fragment_id: more[0]}} if more else {}
    operation = lance.LanceOperation.Update(
        updated_fragments=[metadata], fields_modified=fields, update_mode="rewrite_columns", **offsets
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    return present
