"""Single data files, and the pages of those of a table."""

import pyarrow as pa

import lance_core
from lance_core.file import DataFileReader, DataFileWriter, FileVersion
from lance_core.schema import schema_from_arrow
from lance_core.store import open_store


def write_ours(root, table, version="2.2", key="ours.lance", *, batch_rows=None, page_bytes=8 * 1024 * 1024):
    store = open_store(str(root))
    writer = DataFileWriter(
        store, key, schema_from_arrow(table.schema), version=FileVersion(version), page_bytes=page_bytes
    )
    if batch_rows is None:
        writer.write(table)
    else:
        for batch in table.to_batches(max_chunksize=batch_rows):
            writer.write(batch)
    return writer.finish()


def read_ours(root, key, **arguments):
    reader = DataFileReader.open(open_store(str(root)), key)
    batches = list(reader.read(**arguments))
    result = pa.Table.from_batches(batches) if batches else None
    if result is not None:
        result.validate(full=True)
    return result


def pages_of(path, storage_options=None):
    """Per column the pages of all data files of the latest version: description, length, buffers; and first rows."""
    store = open_store(path, storage_options)
    columns: dict[int, list] = {}
    priorities: dict[int, list[int]] = {}
    for fragment in lance_core.dataset(path, storage_options=storage_options).snapshot.manifest.fragments:
        key = f"data/{fragment.files[0].path}"
        reader = DataFileReader.open(store, key)
        for index, column in enumerate(reader.metadata.columns):
            for page in column.messages:
                ranges = [(o, o + s) for o, s in zip(page.buffer_offsets, page.buffer_sizes, strict=True)]
                buffers = [bytes(b) for b in store.get_ranges(key, ranges)] if ranges else []
                columns.setdefault(index, []).append((page.encoding.direct.encoding, page.length, buffers))
                priorities.setdefault(index, []).append(page.priority)
                assert reader.version.value == "2.0" or all(o % 64 == 0 for o in page.buffer_offsets)
    return columns, priorities
