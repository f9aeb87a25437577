"""Collects the facts about each fragment that a compaction plan needs, mostly from the manifest, else from the files.

Files are opened for fragments of 2023, whose manifests do not count rows, for dictionaries whose indices count few
values, where fragments have enough rows to use more of them, and for `partition_by`. In a fragment that
holds one partition, the partition column is a constant page, so that reading it costs little more than reading the
footer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap

from lance_core._proto import table_pb2
from lance_core.encoding.dictionaries import (
    capacity,
    dictionaries_of,
    fewest_values,
    has_narrow_dictionary,
    used_values,
)
from lance_core.errors import SchemaError
from lance_core.index.kinds.registry import is_supported
from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.maintenance.compaction.plan import FragmentFacts, is_candidate
from lance_core.schema import Schema, quote_path, typed_schema
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.reuse import live_coverage
from lance_core.threads import ThreadPool
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.scan.read_fragment import physical_rows, read_fragment

__all__ = ["facts_of"]

READ_AHEAD: Final = 8
"""Fragments that are read in parallel."""


def facts_of(source: Snapshot, options: CompactionOptions) -> list[FragmentFacts]:
    """The facts of all fragments, in order.

    Raises:
        SchemaError: A partition column does not exist.
    """
    manifest = source.manifest
    covered = _dividing(manifest, options)
    facts = []
    for position, message in enumerate(manifest.fragments.messages()):
        rows, deleted = _counts(source, position, message)
        facts.append(
            FragmentFacts(
                position=position,
                fragment_id=message.id,
                physical_rows=rows,
                deleted_rows=deleted,
                num_bytes=sum(file.file_size_bytes for file in message.files),
                indices=tuple(i for i, bitmap in enumerate(covered) if message.id in bitmap),
            )
        )
    facts = _with_values(source, facts, options)
    return _with_partitions(source, facts, options) if options.partition_by else facts


def _dividing(manifest: Manifest, options: CompactionOptions) -> list[BitMap]:
    """The fragments of each index segment that must not be merged with fragments outside of that segment.

    The commit extends an index of a supported kind to all fragments. Where it records moves of rows for indices of
    other kinds, every index must cover either all fragments of a group or none. With stable row ids no moves are
    recorded.
    """
    are_extended = manifest.uses_stable_row_ids or all(
        is_supported(index, manifest.schema) for index in manifest.indices
    )
    divides_all = options.defer_index_remap or not are_extended
    return [
        bitmap
        for index, bitmap in live_coverage(manifest.indices)
        if divides_all or not is_supported(index, manifest.schema)
    ]


def _counts(source: Snapshot, position: int, message: table_pb2.DataFragment) -> tuple[int, int]:
    """Physical and deleted rows of a fragment."""
    rows = message.physical_rows
    deleted = message.deletion_file.num_deleted_rows if message.HasField("deletion_file") else 0
    if rows and (deleted or not message.HasField("deletion_file")):
        return rows, deleted
    fragment = source.manifest.fragments[position]
    deletions = source.deletions(fragment)
    return physical_rows(source, fragment), 0 if deletions is None else len(deletions)


def _with_values(source: Snapshot, facts: list[FragmentFacts], options: CompactionOptions) -> list[FragmentFacts]:
    """Add the values that rows use of dictionaries with narrow indices, where fragments could use too many together."""
    columns = [field for field in typed_schema(source.manifest.schema) if has_narrow_dictionary(field.type)]
    candidates = [fact for fact in facts if columns and is_candidate(fact, options)]
    fewest = min((fewest_values(field.type) for field in columns), default=0)
    if options.deletions_only or len(candidates) < 2 or sum(fact.live_rows for fact in candidates) <= fewest:
        return facts
    schema = source.manifest.schema.project([quote_path([field.name]) for field in columns])

    def with_values(fact: FragmentFacts) -> FragmentFacts:
        values: dict[str, tuple[int, frozenset[Any]]] = {}
        for rows in _live_rows(source, fact, schema):
            for name, column in zip(rows.schema.names, rows.columns, strict=True):
                for path, array in dictionaries_of(column, (name,)):
                    most, earlier = values.get(quote_path(path), (capacity(array.type.index_type), frozenset()))
                    values[quote_path(path)] = (most, earlier.union(used_values(array).to_pylist()))
        return replace(fact, values=values)

    with ThreadPool(READ_AHEAD) as pool:
        by_position = dict(zip((fact.position for fact in candidates), pool.map(with_values, candidates), strict=True))
    return [by_position.get(fact.position, fact) for fact in facts]


def _live_rows(source: Snapshot, fact: FragmentFacts, schema: Schema) -> Iterator[pa.RecordBatch]:
    """The live rows of a fragment."""
    fragment, num_rows = source.manifest.fragments[fact.position], fact.physical_rows
    deletions = source.deletions(fragment) if fact.deleted_rows else None
    live = None if deletions is None else deletions.live_rows(num_rows)
    position = 0
    for batch in read_fragment(source, fragment, schema, range(num_rows)):
        yield batch if live is None else batch.filter(pa.array(live[position : position + batch.num_rows]))
        position += batch.num_rows


def _with_partitions(
    source: Snapshot, facts: Sequence[FragmentFacts], options: CompactionOptions
) -> list[FragmentFacts]:
    """Add the values of the partition columns, from the first fragment that may be rewritten to the last one.

    Fragments in between are read as well: a fragment that stays separates the fragments of its partition before it
    from those after it.
    """
    names = source.manifest.schema.names
    missing = [name for name in options.partition_by if name not in names]
    if missing:
        raise SchemaError(f"partition_by: no column {missing[0]!r}; the columns are {list(names)}")

    def with_partition(fact: FragmentFacts) -> FragmentFacts:
        return replace(fact, partition=_partition_of(source, fact, options))

    candidates = [place for place, fact in enumerate(facts) if is_candidate(fact, options)]
    first, end = (candidates[0], candidates[-1] + 1) if candidates else (0, 0)
    with ThreadPool(READ_AHEAD) as pool:
        return [*facts[:first], *pool.map(with_partition, facts[first:end]), *facts[end:]]


def _partition_of(source: Snapshot, fact: FragmentFacts, options: CompactionOptions) -> Hashable:
    """The value that the partition columns have in all live rows; a unique value if there are several."""
    schema = source.manifest.schema.project(list(options.partition_by))
    partitions: set[tuple[Any, ...]] = set()
    for rows in _live_rows(source, fact, schema):
        distinct = pa.Table.from_batches([rows]).group_by(list(options.partition_by)).aggregate([])
        partitions.update(tuple(row[name] for name in options.partition_by) for row in distinct.slice(0, 2).to_pylist())
        if len(partitions) > 1:
            return ("mixed", fact.fragment_id)
    return ("one", *partitions)
