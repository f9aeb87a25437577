"""Fragments with pages that hide the nulls of structs from other readers (see `encoding.hidden_nulls`).

`verify` names them, and a compaction with `repair_pages` rewrites them even where nothing else asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lance_core.encoding.hidden_nulls import hides_nulls
from lance_core.encoding.paths import leaf_paths
from lance_core.file.reader import DataFileReader
from lance_core.maintenance.plan import FragmentFacts
from lance_core.schema import Field, Schema
from lance_core.table.fragment import DataFile
from lance_core.threads import ThreadPool
from lance_core.verbs.version.source import Source

__all__ = ["misread_columns", "misread_groups", "misread_problems"]

_READ_AHEAD = 8
"""Fragments that are looked at side by side."""


def misread_columns(file: DataFile, reader: DataFileReader, schema: Schema) -> list[str]:
    """The columns of a file that other readers misread, as paths with dots.

    Raises:
        CorruptFileError: The description of a page cannot be parsed.
    """
    if not reader.version.has_levels:
        return []
    nested = {path[-1].id: path for top in schema.fields if top.children for path in leaf_paths(top)}
    found = []
    for field_id, number in file.columns():
        path = nested.get(field_id)
        if path is None or not 0 <= number < len(reader.metadata.columns):
            continue
        pages = reader.metadata.columns[number]
        if any(hides_nulls(pages.page(index, 0, 0).encoding) for index in range(len(pages.messages))):
            found.append(_name(path))
    return found


def misread_problems(file: DataFile, reader: DataFileReader, schema: Schema) -> Iterator[str]:
    """A message for each column of a file that other readers misread."""
    for name in misread_columns(file, reader, schema):
        yield (
            f"column {name!r} hides the nulls of the struct around it: pylance reads values in their place when it "
            "reads or filters by this field alone. Compaction with repair_pages=True (`lance compact --repair-pages`) "
            "writes the fragment anew"
        )


def misread_groups(
    source: Source, facts: Sequence[FragmentFacts], groups: Sequence[Sequence[FragmentFacts]], excluded: Sequence[int]
) -> list[list[FragmentFacts]]:
    """Groups of one fragment each, for the fragments with misread columns that no other group rewrites.

    Args:
        source: The version.
        facts: Facts of all its fragments.
        groups: What is rewritten anyway.
        excluded: Ids of fragments that stay as they are.
    """
    if not any(top.children for top in source.manifest.schema.fields):
        return []
    taken = {fact.fragment_id for group in groups for fact in group} | set(excluded)
    left = [fact for fact in facts if fact.fragment_id not in taken]

    def look(fact: FragmentFacts) -> bool:
        fragment = source.manifest.fragments[fact.position]
        return any(_is_misread(source, file) for file in fragment.files)

    with ThreadPool(_READ_AHEAD) as pool:
        return [[fact] for fact, is_misread in zip(left, pool.map(look, left), strict=True) if is_misread]


def _is_misread(source: Source, file: DataFile) -> bool:
    store, key = source.data_file(file)
    reader = DataFileReader.open(store, key, size=file.file_size_bytes or None)
    return bool(misread_columns(file, reader, source.manifest.schema))


def _name(path: Sequence[Field]) -> str:
    return ".".join(field.name for field in path)
