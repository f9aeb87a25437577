"""Build the content of an index segment: read a field of fragments, and pass its values to a builder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.index.kinds.registry import Kind
from lance_core.index.query.rows import IndexedRows
from lance_core.schema import Field, Schema, arrow_type_of, quote_path
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.scan.fragment_scan import FragmentScan
from lance_core.verbs.scan.options import ScanOptions
from lance_core.verbs.scan.projection import ROW_ADDRESS, ROW_ID
from lance_core.verbs.scan.small_fragments import worked_on


class IndexedField:
    """A field that can be indexed: a column, or a field of a struct.

    Args:
        nodes: The column, and the fields that lead to it.
    """

    def __init__(self, nodes: Sequence[Field]) -> None:
        self.nodes = tuple(nodes)
        self.node = nodes[-1]
        self.type = arrow_type_of(self.node)

    @property
    def path(self) -> str:
        """The dotted path of the field."""
        return quote_path([node.name for node in self.nodes])

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """The values of the field in a batch that has its column."""
        array = batch.column(self.nodes[0].name)
        for node in self.nodes[1:]:
            array = pc.struct_field(array, [node.name])
        return array


def indexed_field(schema: Schema, field_id: int) -> IndexedField:
    """The field with an id, if it can be indexed.

    Raises:
        UnsupportedError: The field lies in a list or a map.
        InvalidInputError: The dataset has no field of that id.
    """
    for top in schema.fields:
        nodes = _find_way(top, field_id)
        if nodes:
            if any(node.logical_type != "struct" for node in nodes[:-1]):
                raise UnsupportedError(
                    f"an index on {quote_path([n.name for n in nodes])!r}, which lies in a list, is not supported"
                )
            return IndexedField(nodes)
    raise InvalidInputError(f"the dataset has no field {field_id}")


def _find_way(node: Field, field_id: int) -> list[Field]:
    if node.id == field_id:
        return [node]
    for child in node.children:
        way = _find_way(child, field_id)
        if way:
            return [node, *way]
    return []


def build(
    snapshot: Snapshot,
    field: IndexedField,
    kind: Kind,
    parameters: Mapping[str, int | float],
    fragments: Sequence[Fragment],
) -> Any:
    """Build the content of a segment from the rows of some fragments.

    Args:
        snapshot: The version.
        field: The indexed field.
        kind: Kind of the index.
        parameters: All its parameters.
        fragments: Fragments of the version.
    """
    builder = kind.build(field.type, parameters, snapshot.manifest.uses_stable_row_ids)
    schema = snapshot.manifest.schema.project([field.path])
    options = ScanOptions(schema=schema, with_row_address=True, with_row_id=snapshot.manifest.uses_stable_row_ids)
    scans = (FragmentScan(snapshot, fragment, options) for fragment in fragments)
    results = worked_on(scans, partial(_read_rows, field=field))
    for _, of_one in groupby(results, key=lambda result: result[0].fragment.id):
        read, parts = zip(*of_one, strict=True)
        builder.add(read[0].fragment.id, read[0].num_rows, list(chain.from_iterable(parts)))
    return builder.finish()


def _read_rows(scan: FragmentScan, field: IndexedField) -> Sequence[IndexedRows]:
    parts = []
    for batch in scan.batches():
        addresses = batch.column(ROW_ADDRESS).to_numpy()
        ids = batch.column(ROW_ID).to_numpy() if scan.options.with_row_id else addresses
        parts.append(IndexedRows(field.values(batch), addresses, ids))
    return parts
