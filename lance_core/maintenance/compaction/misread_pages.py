"""Finds fragments with pages that other readers misread or reject (see `encoding.hidden_nulls` and `encoding.drafts`).

`verify` reports such fragments, and a compaction with `repair_pages` rewrites them even if they need no compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lance_core.encoding.hidden_nulls import hides_nulls
from lance_core.encoding.page import is_draft
from lance_core.file import FileVersion
from lance_core.file.reader import DataFileReader
from lance_core.maintenance.compaction.plan import DAMAGE, FragmentFacts
from lance_core.schema import Field, Schema
from lance_core.schema.field import leaf_paths
from lance_core.table.fragment import DataFile
from lance_core.threads import ThreadPool
from lance_core.verbs.context.handle import Snapshot

_READ_AHEAD = 8
"""Fragments that are read in parallel."""

_HIDDEN_NULLS = (
    "hides the nulls of its struct: pylance reads values in their place when it reads or filters by this field alone"
)
_DRAFT = "is stored in the draft of format 2.2 that pylance 0.35 to 1.0 wrote, which later releases reject"


def find_misread_columns(file: DataFile, reader: DataFileReader, schema: Schema) -> Iterator[tuple[str, str]]:
    """The columns of a file that other readers misread or reject, as paths with dots, and what is wrong with each.

    Raises:
        CorruptFileError: The description of a page cannot be parsed.
    """
    if not reader.version.has_levels:
        return
    paths = {path[-1].id: path for top in schema.fields for path in leaf_paths(top)}
    for field_id, number in file.columns():
        path = paths.get(field_id)
        if path is None or not 0 <= number < len(reader.metadata.columns):
            continue
        pages = reader.metadata.columns[number]
        described = [pages.page(index, 0, 0).encoding for index in range(len(pages.messages))]
        if len(path) > 1 and any(hides_nulls(description) for description in described):
            yield _name(path), _HIDDEN_NULLS
        elif reader.version is FileVersion.V2_2 and any(is_draft(description) for description in described):
            yield _name(path), _DRAFT


def find_misread_problems(file: DataFile, reader: DataFileReader, schema: Schema) -> Iterator[str]:
    """A message for each column of a file that other readers misread or reject."""
    for name, problem in find_misread_columns(file, reader, schema):
        yield (
            f"column {name!r} {problem}. Compaction with repair_pages=True (`lance compact --repair-pages`) writes the "
            "fragment again"
        )


def group_misread_fragments(
    snapshot: Snapshot, facts: Sequence[FragmentFacts], groups: list[list[FragmentFacts]], excluded: Sequence[int]
) -> list[list[FragmentFacts]]:
    """Groups of one fragment each, for the fragments with misread columns that no other group rewrites.

    Args:
        snapshot: The version.
        facts: Facts of all its fragments.
        groups: The groups of fragments that the plan already rewrites.
        excluded: Ids of fragments that stay as they are.
    """
    if not any(top.children for top in snapshot.manifest.schema.fields) and not _may_have_drafts(snapshot):
        return []
    planned = {fact.fragment_id for group in groups for fact in group} | set(excluded)
    left = [fact for fact in facts if fact.fragment_id not in planned]

    def is_misread(fact: FragmentFacts) -> bool:
        fragment = snapshot.manifest.fragments[fact.position]
        try:
            return any(_is_misread(snapshot, file) for file in fragment.files)
        except DAMAGE:
            return True  # the task reports the error

    with ThreadPool(_READ_AHEAD) as pool:
        return [[fact] for fact, is_hit in zip(left, pool.map(is_misread, left), strict=True) if is_hit]


def _is_misread(snapshot: Snapshot, file: DataFile) -> bool:
    store, key = snapshot.data_file(file)
    reader = DataFileReader.open(store, key, size=file.file_size_bytes or None)
    return next(find_misread_columns(file, reader, snapshot.manifest.schema), None) is not None


def _may_have_drafts(snapshot: Snapshot) -> bool:
    numbers = FileVersion.V2_2.manifest_numbers
    files = (file for fragment in snapshot.manifest.fragments for file in fragment.files)
    return any((file.file_major_version, file.file_minor_version) == numbers for file in files)


def _name(path: Sequence[Field]) -> str:
    return ".".join(field.name for field in path)
