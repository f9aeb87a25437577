"""Validate a version: check that its manifest and the metadata of its files are consistent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyroaring import BitMap

from lance_core.errors import CorruptFileError
from lance_core.file.metadata import FileVersion
from lance_core.file.reader import DataFileReader
from lance_core.schema import Schema
from lance_core.table.fragment import DataFile, Fragment, fields_with_columns
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.rowids import find_row_sequence_problems
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.inspect.unique_row_ids import row_id_problems


def validate(snapshot: Snapshot) -> None:
    """Check that a version is consistent: ids of fragments and rows, files, row counts and deletions.

    Raises:
        CorruptFileError: The version is not consistent; the message names the first problem.
    """
    for message in manifest_problems(snapshot.manifest):
        raise CorruptFileError(message)
    for fragment in snapshot.manifest.fragments:
        validate_fragment(snapshot, fragment)
    for fragment_id, message in row_id_problems(snapshot):
        raise CorruptFileError(f"Fragment {fragment_id}: {message}")


def manifest_problems(manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong with a manifest by itself: ids of fields, fragments and indices, and what indices cover."""
    field_ids = [node.id for node, _ in manifest.schema.walk()]
    if len(set(field_ids)) < len(field_ids):
        yield f"Duplicate field id in schema: {sorted(field_ids)}"
    ids = list(manifest.fragments.ids)
    if ids != sorted(set(ids)):
        yield f"Fragment ids are not unique and ascending: {ids[:20]}"
    if manifest.max_fragment_id is not None and ids and ids[-1] > manifest.max_fragment_id:
        yield f"Fragment id {ids[-1]} is above the recorded highest id {manifest.max_fragment_id}"
    uuids = [index.uuid for index in manifest.indices]
    if len(set(uuids)) < len(uuids):
        yield "Duplicate index id"
    yield from _find_coverage_problems(manifest.indices, BitMap(ids))


def _find_coverage_problems(indices: Sequence[IndexMetadata], live: BitMap) -> Iterator[str]:
    """Yield the indices of which two segments cover a live fragment."""
    covered: dict[str, BitMap] = {}
    for index in indices:
        fragments = (index.covered_fragments() or BitMap()) & live
        earlier_fragments = covered.get(index.name, BitMap())
        if fragments & earlier_fragments:
            yield f"index {index.name!r} has several segments over fragments {list(fragments & earlier_fragments)}"
        covered[index.name] = earlier_fragments | fragments


def validate_fragment(snapshot: Snapshot, fragment: Fragment) -> None:
    """Check that the files, row counts and deletions of a fragment fit together.

    Raises:
        CorruptFileError: Files, row counts and deletions do not fit together.
    """
    seen_ids: set[int] = set()
    rows = None
    for file in fragment.files:
        live = [i for i in file.fields if i >= 0]
        if seen_ids.intersection(live):
            raise CorruptFileError(f"Fragment {fragment.id}: field {min(seen_ids & set(live))} is in two files")
        if len(set(live)) < len(live):
            raise CorruptFileError(f"data file {file.path}: a field id occurs twice in {live[:20]}")
        seen_ids.update(live)
        store, key = snapshot.data_file(file)
        reader = DataFileReader.open(store, key, size=file.file_size_bytes or None)
        reader.check()
        check_columns(file, reader, snapshot.manifest.schema)
        if rows is not None and reader.num_rows != rows:
            raise CorruptFileError(f"Fragment {fragment.id}: its data files have {rows} and {reader.num_rows} rows")
        rows = reader.num_rows
    for message in find_row_sequence_problems(fragment):
        raise CorruptFileError(f"Fragment {fragment.id}: {message}")
    if rows is not None and fragment.physical_rows not in (0, rows):
        raise CorruptFileError(f"Fragment {fragment.id}: {fragment.physical_rows} rows are recorded, {rows} are there")
    deletions = snapshot.deletions(fragment)
    if deletions is None:
        return
    recorded = fragment.num_deleted_rows
    if recorded and recorded != len(deletions):
        raise CorruptFileError(f"Fragment {fragment.id}: {recorded} deletions are recorded, {len(deletions)} are there")
    if rows is not None and len(deletions) and deletions.bitmap.max() >= rows:
        raise CorruptFileError(f"Fragment {fragment.id}: deletion vector contains an offset that is out of range")


def check_columns(file: DataFile, reader: DataFileReader, schema: Schema) -> None:
    """Check that each field in the record of a data file has its column in the file.

    Names are not compared: a renamed column keeps its old name in the files that were written before.

    Raises:
        CorruptFileError: A field lacks its column, a field without values of its own has a column, or the file has no
            column of that number.
    """
    file.check_columns(fields_with_columns(schema))
    if reader.version is FileVersion.V0_1:
        return
    count = len(reader.metadata.columns)
    for field_id, index in file.columns():
        if index >= count:
            raise CorruptFileError(
                f"data file {file.path}: field {field_id} is recorded as column {index}, but the file has {count} "
                "columns"
            )
