"""Skip batches of 0.1 files that cannot match a filter, by the page statistics of these files.

Arrow gets the bounds of each batch as the guarantee of an Arrow fragment that is never opened, and selects the
fragments that can have a match.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.file.metadata import FileVersion
from lance_core.file.statistics import PageBounds
from lance_core.schema import schema_to_arrow
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.expressions.arrow import calls_of, columns_of
from lance_core.verbs.scan.read_fragment import OpenFiles, open_file

# Statistics ignore NaN, for which a negated comparison is true.
_SAFE_FOR_FLOATS: Final = {"and_kleene", "or_kleene", "less", "less_equal", "greater", "greater_equal", "equal"}


def possible_rows(
    snapshot: Snapshot, fragment: Fragment, expression: pc.Expression, rows: range, opened: OpenFiles
) -> list[range]:
    """The parts of some rows that can match a filter.

    Args:
        snapshot: The version that the fragment belongs to.
        fragment: The fragment.
        expression: The filter.
        rows: Physical rows.
        opened: The open files of the fragment; files that are opened are added.
    """
    if not is_prunable(snapshot, fragment, expression):
        return [rows]
    schema, names = snapshot.manifest.schema, columns_of(expression)
    calls = set(calls_of(expression))
    ids = {field.id: field.name for field in schema.fields if field.name in names}
    arrow = schema_to_arrow(schema)
    parts = [rows]
    # A later file wins over an earlier one.
    for file in reversed(fragment.files):
        names_by_id = {field_id: ids.pop(field_id) for field_id in list(ids) if field_id in file.fields}
        if not names_by_id or not _is_legacy(file):
            continue
        page_bounds = open_file(snapshot, file, opened).page_bounds(names_by_id, dict(file.columns()))
        usable = {
            names_by_id[bounds.field_id]: bounds
            for bounds in page_bounds
            if not pa.types.is_floating(bounds.lowest.type) or calls <= _SAFE_FOR_FLOATS
        }
        if usable:
            parts = [possible for part in parts for possible in _find_possible(usable, expression, part, arrow)]
    return parts


def is_prunable(snapshot: Snapshot, fragment: Fragment, expression: pc.Expression) -> bool:
    """Whether a fragment has 0.1 files, whose statistics may exclude rows, and the filter uses only stored columns."""
    if not any(_is_legacy(file) for file in fragment.files):
        return False
    return set(columns_of(expression)) <= set(snapshot.manifest.schema.names)


def _is_legacy(file: Any) -> bool:
    return (file.file_major_version, file.file_minor_version) == FileVersion.V0_1.manifest_numbers


def _find_possible(
    columns: dict[str, PageBounds], expression: pc.Expression, rows: range, schema: pa.Schema
) -> list[range]:
    """The parts of the rows whose batches can match; adjacent parts are joined."""
    from pyarrow import dataset, fs  # noqa: PLC0415 - it imports pandas

    form, system = dataset.IpcFileFormat(), fs.LocalFileSystem()
    offsets = next(iter(columns.values())).offsets.tolist()
    batches = []
    for index in range(len(offsets) - 1):
        guarantee = pc.scalar(True)
        for name, bounds in columns.items():
            promise = bounds.promise(index)
            if promise is not None:
                guarantee &= (pc.field(name) >= promise[0]) & (pc.field(name) <= promise[1])
        batches.append(form.make_fragment(str(index), filesystem=system, partition_expression=guarantee))
    try:
        whole = dataset.FileSystemDataset(batches, schema, form, system)
        possible = [int(batch.path) for batch in whole.get_fragments(filter=expression)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError):
        # The filter does not fit the columns: its evaluation raises the error, or casts.
        return [rows]
    parts: list[range] = []
    for index in possible:
        start, stop = max(offsets[index], rows.start), min(offsets[index + 1], rows.stop)
        if start >= stop:
            continue
        if parts and parts[-1].stop == start:
            start = parts.pop().start
        parts.append(range(start, stop))
    return parts
